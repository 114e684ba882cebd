"""What holds of every resource that the schemas admit."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import kubernetes_validate.utils as kubernetes
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuledger.app.operator_checks import check_agent, check_exporter
from gpuledger.operator.crd_definitions import gpu_monitor_crd, whatap_agent_crd
from gpuledger.operator.reading import read
from gpuledger.operator.render.objects import render
from gpuledger.operator.schema.gpu_monitor import SPEC
from gpuledger.operator.schema.whatap_agent import WHATAP_SPEC
from gpuledger.operator.spec import Problem
from unit.operator.schemas import values
from unit.operator.support import (
    Json,
    agent_file,
    agent_says,
    facts_of,
    gpu_monitor,
    made,
    pods,
    whatap,
)

calmly = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
NEWEST = "1.37"
_SCHEMAS: dict[tuple[str, ...], Any] = {}

FEATURES: Any = getattr(WHATAP_SPEC.keys["features"], "keys", {})
GPU_MONITORS = values(SPEC).map(gpu_monitor)
WHATAP_AGENTS = values(WHATAP_SPEC).map(lambda spec: {**whatap(), "spec": spec})
# By chance alone hardly one would have both switched on.
BUSY = st.builds(
    lambda scraping, gpu: whatap(
        openAgent={**scraping, "enabled": True}, k8sAgent={"gpuMonitoring": {**gpu, "enabled": True}}
    ),
    values(FEATURES["openAgent"]),
    values(FEATURES["k8sAgent"].keys["gpuMonitoring"]),
)
resources = GPU_MONITORS | WHATAP_AGENTS | BUSY


@pytest.fixture(autouse=True, scope="module")
def _quick() -> Any:
    """Each validation would read the definitions of a whole Kubernetes version anew."""
    patch = pytest.MonkeyPatch()
    original = kubernetes.schema_contents

    def kept(*which: Any) -> Any:
        if which not in _SCHEMAS:
            _SCHEMAS[which] = original(*which)
        return _SCHEMAS[which]

    patch.setattr(kubernetes, "schema_contents", kept)
    yield
    patch.undo()


def bytes_of(resource: Json) -> bytes:
    found = read(resource)
    if found.monitor is None:
        return repr(found.problems).encode()
    facts = facts_of(found.monitor, check_agent=check_agent, check_exporter=check_exporter)
    made = render(found.monitor, facts)
    return json.dumps([made.objects, made.seeds, [str(one) for one in made.problems]]).encode()


@calmly
@given(resources)
def test_reading_and_rendering_raise_nothing_and_the_same_gives_the_same(resource: Json) -> None:
    assert bytes_of(resource) == bytes_of(json.loads(json.dumps(resource)))


@calmly
@given(resources)
def test_what_is_rendered_is_valid_strictly_or_said_to_be_wrong(resource: Json) -> None:
    found = read(resource)
    if found.monitor is None:
        assert found.problems
        return
    for one in render(found.monitor, facts_of(found.monitor)).objects:
        kubernetes.validate(one, NEWEST, strict=True)


@calmly
@given(resources)
def test_nothing_is_wrong_with_what_the_schema_admits_but_names(resource: Json) -> None:
    """Our own check of a resource is the schema's, but for names, and secrets that lie open."""
    for problem in read(resource).problems:
        assert _is_of_a_name(problem) or "lies open" in problem.message


def _is_of_a_name(problem: Problem) -> bool:
    """Schemas know what is behind a name, not what a name must be like."""
    return any(text in problem.message for text in ("the name of a label is wanted", "would take a device"))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@calmly
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "kind": st.sampled_from(["GpuMonitor", "WhatapAgent", 3, None]),
            "metadata": anything,
            "spec": anything,
        },
    )
)
def test_reading_raises_nothing_whatever_it_is_given(resource: Json) -> None:
    found = read(resource)
    assert (found.monitor is None) == bool(found.problems)


@calmly
@given(st.sampled_from([SPEC, WHATAP_SPEC]), st.data())
def test_the_definitions_schema_admits_what_we_do(tree: Any, data: st.DataObject) -> None:
    """And refuses what we do: both come from one tree, by two ways."""
    definition = gpu_monitor_crd() if tree is SPEC else whatap_agent_crd()
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec = data.draw(values(tree))
    jsonschema.Draft7Validator(_closed(schema)).validate(_without_null(spec))
    assert all(map(_is_of_a_name, tree.check(spec, "spec")))


def _closed(schema: Json) -> Json:
    """As the API server reads it: what it does not know is taken away, so it must not be there."""
    if schema.get("type") == "object" and "additionalProperties" not in schema:
        below = {name: _closed(one) for name, one in schema.get("properties", {}).items()}
        open_ = schema.get("x-kubernetes-preserve-unknown-fields", False)
        return {**schema, "properties": below, "additionalProperties": open_}
    if "items" in schema:
        return {**schema, "items": _closed(schema["items"])}
    return schema


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_null(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_without_null(one) for one in value]
    return value


# Targets as somebody would write them who knows what each word means.
_durations = st.sampled_from(["10s", "30s", "1m", "90"])
_rules = st.lists(
    st.sampled_from(
        [
            {"source_labels": ["__name__"], "regex": "go_.*", "action": "drop"},
            {"sourceLabels": ["pod"], "targetLabel": "workload"},
            {"target_label": "dc", "replacement": "a"},
            {"action": "labeldrop", "regex": "tmp_.*"},
        ]
    ),
    max_size=2,
)
_secret = st.sampled_from([{"name": "scrape", "key": "a"}, {"name": "other", "key": "b.c"}])
_access = st.sampled_from(["basicAuth", "authorization", "tlsConfig"]).flatmap(
    lambda kind: st.fixed_dictionaries(
        {
            kind: {
                "basicAuth": st.fixed_dictionaries({"username": _secret, "password": _secret}),
                "authorization": st.fixed_dictionaries({"credentialsSecret": _secret}),
                "tlsConfig": st.fixed_dictionaries(
                    {"caSecret": _secret}, optional={"serverName": st.just("exporter")}
                ),
            }[kind],
            "scheme": st.just("https"),
        }
    )
)
_endpoint = st.builds(
    lambda plain, access: {**plain, **access},
    st.fixed_dictionaries(
        {"port": st.sampled_from(["metrics", "9400", 9400])},
        optional={
            "path": st.just("/metrics/dcgm"),
            "interval": _durations,
            "params": st.just({"a": ["b"]}),
            "addNodeLabel": st.booleans(),
            "honorLabels": st.booleans(),
            "metricRelabelConfigs": _rules,
            "sampleLimit": st.integers(0, 9),
            "bodySizeLimit": st.sampled_from(["10MB", 1000]),
        },
    ),
    st.just({}) | _access,
)
_selector = st.sampled_from(
    [
        {},
        {"matchLabels": {"app": "x"}},
        {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]},
    ]
)
_targets = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["PodMonitor", "ServiceMonitor"]),
            "selector": _selector,
            "endpoints": st.lists(_endpoint, min_size=1, max_size=2),
        },
        optional={"relabelConfigs": _rules, "metricRelabelConfigs": _rules, "enabled": st.booleans()},
    ),
    max_size=3,
).map(lambda listed: [{"targetName": f"t{at}", **one} for at, one in enumerate(listed)])
_receivers = st.lists(
    st.fixed_dictionaries(
        {"url": st.just("https://store/write")},
        optional={
            "remoteTimeout": _durations,
            "headers": st.just({"X-Scope-OrgID": "a"}),
            "basicAuth": st.fixed_dictionaries({"username": _secret, "password": _secret}),
            "tlsConfig": st.fixed_dictionaries({"caSecret": _secret}),
            "writeRelabelConfigs": _rules,
            "queueConfig": st.just({"maxShards": 4, "batchSendDeadline": "1.5s", "retryOnRateLimit": True}),
            "queue": st.just({"maxBytes": "512MB", "maxAge": "1h"}),
        },
    ),
    max_size=1,
)
_agents = st.fixed_dictionaries(
    {},
    optional={
        "engine": st.sampled_from(["builtin", "prometheus"]),
        "replicas": st.integers(1, 3),
        "globalInterval": _durations,
        "targets": _targets,
        "autoTargets": st.booleans(),
        "externalLabels": st.just({"cluster": "a"}),
        "remoteWrite": _receivers,
    },
)
sensible = st.builds(
    lambda agent, enabled: gpu_monitor({"agent": agent, "exporter": {"enabled": enabled}}),
    _agents,
    st.booleans(),
) | st.builds(
    lambda agent, enabled: whatap(
        openAgent={"enabled": True, **agent}, k8sAgent={"gpuMonitoring": {"enabled": enabled}}
    ),
    _agents,
    st.booleans(),
)


@calmly
@given(sensible)
def test_the_agent_takes_the_configuration_that_it_is_given(resource: Json) -> None:
    config = agent_file(resource)
    assert agent_says(config) == ""
    # What it is given holds no secret, only where these are mounted.
    assert "Secret" not in json.dumps(config)


@calmly
@given(sensible)
def test_every_mount_has_its_volume_and_every_variable_is_there_once(resource: Json) -> None:
    for pod in pods(made(resource)):
        names = [one["name"] for one in pod["volumes"]]
        claimed = {"queue"} if "queue" not in names else set()
        assert len(names) == len(set(names))
        containers = [*pod["containers"], *pod.get("initContainers", ())]
        mounted = [one["volumeMounts"] for one in containers]
        assert {one["name"] for mounts in mounted for one in mounts} - claimed == set(names)
        for one, mounts in zip(containers, mounted, strict=True):
            paths = [mount["mountPath"] for mount in mounts]
            assert len(paths) == len(set(paths))
            variables = [variable["name"] for variable in one.get("env", ())]
            assert len(variables) == len(set(variables))

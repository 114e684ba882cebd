"""Properties of all resources that the schemas allow."""

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
from gpuledger.operator.monitor_parser import parse_monitor
from gpuledger.operator.render.objects import render_objects
from gpuledger.operator.schema.nodes import Problem
from gpuledger.operator.spec import SPEC
from gpuledger.operator.whatap_spec import WHATAP_SPEC
from unit.operator.schemas import values
from unit.operator.support import (
    Json,
    agent_errors,
    agent_file,
    context_of,
    gpu_monitor,
    pods,
    rendered_objects,
    whatap,
)

property_settings = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
NEWEST = "1.37"
_SCHEMAS: dict[tuple[str, ...], Any] = {}

FEATURES: Any = getattr(WHATAP_SPEC.keys["features"], "keys", {})
GPU_MONITORS = values(SPEC).map(gpu_monitor)
WHATAP_AGENTS = values(WHATAP_SPEC).map(lambda spec: {**whatap(), "spec": spec})
# Random specs rarely enable both.
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
    """Cache the schemas of a Kubernetes version; every validation would load them again."""
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
    found = parse_monitor(resource)
    if found.monitor is None:
        return repr(found.problems).encode()
    context = context_of(found.monitor, check_agent=check_agent, check_exporter=check_exporter)
    made = render_objects(found.monitor, context)
    return json.dumps([made.objects, made.seeds, [str(one) for one in made.problems]]).encode()


@property_settings
@given(resources)
def test_parsing_and_rendering_are_deterministic_and_never_raise(resource: Json) -> None:
    assert bytes_of(resource) == bytes_of(json.loads(json.dumps(resource)))


@property_settings
@given(resources)
def test_rendered_objects_are_strictly_valid_or_reported_as_problems(resource: Json) -> None:
    found = parse_monitor(resource)
    if found.monitor is None:
        assert found.problems
        return
    for one in render_objects(found.monitor, context_of(found.monitor)).objects:
        kubernetes.validate(one, NEWEST, strict=True)


@property_settings
@given(resources)
def test_our_check_agrees_with_the_openapi_schema(resource: Json) -> None:
    """Our own check equals the schema, except for the names of keys and inline credentials."""
    for problem in parse_monitor(resource).problems:
        assert _is_about_a_key(problem) or "exposes the credential" in problem.message


def _is_about_a_key(problem: Problem) -> bool:
    """An OpenAPI schema checks the values of a mapping, not its keys."""
    return any(
        text in problem.message for text in ("expected the name of a label", "would allocate a device")
    )


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@property_settings
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
def test_parsing_never_raises(resource: Json) -> None:
    found = parse_monitor(resource)
    # Targets are judged one by one; any other problem refuses the resource.
    others = [problem for problem in found.problems if ".targets[" not in problem.path]
    assert (found.monitor is None) == bool(others)


@property_settings
@given(st.sampled_from([SPEC, WHATAP_SPEC]), st.data())
def test_the_crd_accepts_what_our_check_accepts(tree: Any, data: st.DataObject) -> None:
    """And refuses what our check refuses: both are generated from the same schema nodes."""
    definition = gpu_monitor_crd() if tree is SPEC else whatap_agent_crd()
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec = data.draw(values(tree))
    jsonschema.Draft7Validator(_closed(schema)).validate(_without_null(spec))
    assert all(map(_is_about_a_key, tree.check(spec, "spec")))


def _closed(schema: Json) -> Json:
    """The schema without unknown keys, which the API server prunes."""
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


# Meaningful targets.
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


@property_settings
@given(sensible)
def test_the_agent_accepts_its_rendered_configuration(resource: Json) -> None:
    config = agent_file(resource)
    assert agent_errors(config) == []
    # The configuration contains no references to Secrets, only paths of mounted files.
    assert "Secret" not in json.dumps(config)


@property_settings
@given(sensible)
def test_mounts_have_volumes_and_variables_are_unique(resource: Json) -> None:
    for pod in pods(rendered_objects(resource)):
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

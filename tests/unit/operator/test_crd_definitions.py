"""The definitions: what every API server since 1.20 takes, and what it refuses of a resource."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from gpuledger.dialects.catalogue import dialects
from gpuledger.dialects.settings import DialectSettings
from gpuledger.operator.crd_definitions import foreign, gpu_monitor_crd, whatap_agent_crd
from gpuledger.operator.schema.gpu_monitor import DIALECTS
from unit.operator.support import EXAMPLES, Json, gpu_monitor, read_of, whatap

CRDS = {"GpuMonitor": gpu_monitor_crd(), "WhatapAgent": whatap_agent_crd()}
each = pytest.mark.parametrize("crd", CRDS.values(), ids=CRDS)


def schema_of(crd: Json) -> Json:
    (version,) = crd["spec"]["versions"]
    return dict(version["schema"]["openAPIV3Schema"])


def schemas(schema: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """All of them, with where they are."""
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from schemas(below, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from schemas(schema[key], f"{path}.{key}")


@each
def test_it_is_valid_strictly(crd: Json) -> None:
    for version in ("1.25", "1.37"):
        kubernetes_validate.validate(crd, version, strict=True)


@each
def test_the_schema_is_structural(crd: Json) -> None:
    for path, schema in schemas(schema_of(crd)):
        anything = schema.get("x-kubernetes-preserve-unknown-fields") is True
        either = schema.get("x-kubernetes-int-or-string") is True
        assert "type" in schema or anything or either, path
        assert ("type" in schema) is not either or anything, path
        assert not {"properties", "additionalProperties"} <= schema.keys(), path
        if either:
            assert schema["anyOf"] == [{"type": "integer"}, {"type": "string"}], path


@each
def test_nothing_in_it_is_newer_than_kubernetes_1_20(crd: Json) -> None:
    known = {
        *("type", "format", "description", "properties", "additionalProperties", "items", "required", "enum"),
        *("pattern", "maxLength", "minItems", "minimum", "maximum", "anyOf"),
        *("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"),
        *("x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
    }
    for path, schema in schemas(schema_of(crd)):
        # x-kubernetes-validations (CEL) would be dropped there; defaults would outlive an upgrade of ours.
        assert schema.keys() <= known, path


@each
def test_patterns_are_whole_and_read_alike_by_re2(crd: Json) -> None:
    import re2

    found = [schema["pattern"] for _, schema in schemas(schema_of(crd)) if "pattern" in schema]
    assert found
    for pattern in found:
        assert pattern.startswith("^")
        assert pattern.endswith("$")
        re2.compile(pattern)


@each
def test_it_is_cluster_wide_and_has_status_and_columns(crd: Json) -> None:
    assert crd["spec"]["scope"] == "Cluster"
    (version,) = crd["spec"]["versions"]
    assert version["subresources"] == {"status": {}}
    status = schema_of(crd)["properties"]["status"]["properties"]
    assert set(status) == {
        *("conditions", "observedGeneration", "lastError", "appliedSpec"),
        *("gpuNodes", "exportersReady", "targetsFound", "targetsUp"),
    }
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    assert [column["name"] for column in version["additionalPrinterColumns"]] == [
        *("GPU Nodes", "Ready", "Targets", "Up", "Available", "Degraded", "Error", "Age")
    ]


def test_no_key_is_required_that_need_not_be() -> None:
    required = {
        f"{kind}{path}": schema["required"]
        for kind, crd in CRDS.items()
        for path, schema in schemas(schema_of(crd)["properties"]["spec"])
        if "required" in schema and not path.endswith((".status", "items"))
    }
    # References, and what Kubernetes itself requires in its own words.
    words = (
        "Secret",
        "KeyRef",
        "username",
        "password",
        "fieldRef",
        "webConfig",
        "Execution",
        "Term",
        "preference",
    )
    assert [path for path in required if not path.endswith(words)] == []
    assert "required" not in schema_of(CRDS["WhatapAgent"])["properties"]["spec"]["properties"]["features"]


def test_dialects_are_those_that_there_are() -> None:
    assert set(DIALECTS) == set(dialects(DialectSettings(), "0"))


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_the_manuals_examples_lose_nothing_to_the_schema(example: str) -> None:
    """Unknown keys would be pruned, and refused by kubectl: these two were, by its own definition."""
    keys = {path.rpartition(".")[2] for path, _ in schemas(schema_of(CRDS["WhatapAgent"]))}
    assert {"globalInterval", "globalPath"} <= keys
    assert read_of(example).problems == ()


@pytest.mark.parametrize("port", [9400, "9400", "metrics"])
def test_a_port_is_a_number_or_a_text(port: Any) -> None:
    target = {"targetName": "a", "type": "PodMonitor", "selector": {}, "endpoints": [{"port": port}]}
    assert read_of(gpu_monitor({"agent": {"targets": [target]}})).problems == ()


WRONG: list[tuple[Json, str]] = [
    ({"exporter": {"port": 0}}, "spec.exporter.port: a whole number from 1 to 65535 is wanted, not 0"),
    (
        {"exporter": {"port": "9400"}},
        "spec.exporter.port: a whole number from 1 to 65535 is wanted, not '9400'",
    ),
    ({"exporter": {"hostPID": "yes"}}, "spec.exporter.hostPID: true or false is wanted, not 'yes'"),
    (
        {"exporter": {"dialects": ["x"]}},
        "spec.exporter.dialects[0]: one of process, session, energy, native, dcgm, smi is wanted, not 'x'",
    ),
    ({"exporter": {"dialects": []}}, "spec.exporter.dialects: at least 1 is wanted"),
    (
        {"exporter": {"nodeSelector": {"a b": "c"}}},
        "spec.exporter.nodeSelector.a b: the name of a label is wanted, not 'a b'",
    ),
    ({"exporter": {"nodeSelector": {"a": True}}}, "spec.exporter.nodeSelector.a: a text is wanted, not True"),
    (
        {"exporter": {"stateDir": "books"}},
        "spec.exporter.stateDir: a path, or nothing is wanted, not 'books'",
    ),
    (
        {"agent": {"globalInterval": "often"}},
        "spec.agent.globalInterval: a duration such as 15s or 1m30s is wanted, not 'often'",
    ),
    ({"agent": {"targets": {}}}, "spec.agent.targets: a list is wanted, not {}"),
    ({"agent": {"targets": [{"targetName": "a"}]}}, "spec.agent.targets[0].type: is missing"),
    (
        {
            "agent": {
                "targets": [{"targetName": "a", "type": "PodMonitor", "endpoints": [{}, {"port": 70000}]}]
            }
        },
        "spec.agent.targets[0].endpoints[1].port: the name or the number of a port is wanted, not 70000",
    ),
    (
        {"agent": {"remoteWrite": [{"url": "store"}]}},
        "spec.agent.remoteWrite[0].url: a URL such as https://host/api/v1/write is wanted, not 'store'",
    ),
    ({"exporters": {}}, "spec.exporters: is not known here; known are exporter, agent, imagePullSecrets"),
    ({"exporter": 3}, "spec.exporter: a mapping is wanted, not 3"),
]


@pytest.mark.parametrize(("spec", "problem"), WRONG, ids=[case[1].partition(":")[0] for case in WRONG])
def test_what_is_wrong_is_said_with_its_place_and_what_is_wanted(spec: Json, problem: str) -> None:
    found = read_of(gpu_monitor(spec))
    assert found.monitor is None
    assert [str(one) for one in found.problems] == [problem]


@pytest.mark.parametrize(("spec", "problem"), WRONG, ids=[case[1].partition(":")[0] for case in WRONG])
def test_the_api_server_refuses_it_as_well_as_far_as_a_schema_can(spec: Json, problem: str) -> None:
    validator = jsonschema.Draft7Validator(schema_of(CRDS["GpuMonitor"]))
    by_name_alone = "the name of a label" in problem or "is not known" in problem
    assert (list(validator.iter_errors({"spec": spec})) == []) is by_name_alone


def test_a_secret_that_lies_open_in_a_resource_is_refused() -> None:
    endpoint = {"port": "m", "authorization": {"credentials": "s3cret"}}
    target = {"targetName": "a", "type": "PodMonitor", "selector": {}, "endpoints": [endpoint]}
    (problem,) = read_of(whatap(openAgent={"enabled": True, "targets": [target]})).problems
    assert problem.path == "spec.features.openAgent.targets[0].endpoints[0].authorization.credentials"
    assert "s3cret" not in problem.message


IGNORED: list[tuple[Json, list[str]]] = [
    ({"license": "x", "host": "1.2.3.4", "port": "6600"}, ["spec.license", "spec.host", "spec.port"]),
    ({"features": {"apm": {"enabled": True}}}, ["spec.features.apm"]),
    ({"features": {"apm": {"enabled": False}, "other": 1}}, ["spec.features.other"]),
    (
        {"features": {"k8sAgent": {"gpuMonitoring": {"hostEngine": {"enabled": True}, "new": "x"}}}},
        [f"spec.features.k8sAgent.gpuMonitoring.{name}" for name in ("hostEngine", "new")],
    ),
    ({"features": {"k8sAgent": {"masterAgent": {"enabled": False}}}}, []),
    ({"features": {"k8sAgent": {"namespace": "x"}}}, ["spec.features.k8sAgent.namespace"]),
    (
        {"features": {"k8sAgent": {"gpuMonitoring": {"groupLabelAllowlistRegex": "^[a-z]+$"}}}},
        ["spec.features.k8sAgent.gpuMonitoring.groupLabelAllowlistRegex"],
    ),
    (
        {
            "features": {
                "openAgent": {"podLabels": {"app": "mine", "name": "mine"}},
                "k8sAgent": {
                    "nodeAgent": {"podLabels": {"name": "mine", "whatap-gpu": "true", "app": "mine"}}
                },
            }
        },
        ["spec.features.k8sAgent.nodeAgent.podLabels.name", "spec.features.openAgent.podLabels.app"],
    ),
]


@pytest.mark.parametrize(("spec", "paths"), IGNORED, ids=[str(case[1]) for case in IGNORED])
def test_what_a_whatap_agent_says_beyond_gpus_is_told_as_not_heeded(spec: Json, paths: list[str]) -> None:
    found = read_of({**whatap(), "spec": spec})
    assert found.monitor is not None
    assert [one.path for one in found.ignored] == paths


def test_of_another_kind_nothing_is_read() -> None:
    assert [str(one) for one in read_of({"kind": "Pod"}).problems] == [
        "kind: GpuMonitor or WhatapAgent is wanted"
    ]


def test_a_definition_of_another_operator_is_told_from_ours() -> None:
    assert foreign(CRDS["WhatapAgent"]) == ""
    theirs = {"metadata": {"name": "whatapagents.monitoring.whatap.com", "labels": {"app": "whatap"}}}
    assert foreign(theirs) == (
        "the CRD whatapagents.monitoring.whatap.com is another operator's, and left alone: uninstall that "
        "operator and its CRD first, or set whatapCompat.enabled to false"
    )

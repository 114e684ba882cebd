"""The CRDs are valid for all API servers since 1.20 and reject invalid resources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from gpuledger.agent.relabel.rules import ACTIONS
from gpuledger.dialects.catalogue import DIALECT_NAMES
from gpuledger.operator.crd_definitions import foreign_definition, gpu_monitor_crd, whatap_agent_crd
from gpuledger.operator.schema import cel_rules
from gpuledger.operator.schema.nodes import CEL_RULES
from unit.operator.support import EXAMPLES, Json, gpu_monitor, parse_resource, whatap

CRDS = {"GpuMonitor": gpu_monitor_crd(), "WhatapAgent": whatap_agent_crd()}
each = pytest.mark.parametrize("crd", CRDS.values(), ids=CRDS)


def schema_of(crd: Json) -> Json:
    (version,) = crd["spec"]["versions"]
    return dict(version["schema"]["openAPIV3Schema"])


def schemas(schema: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """The schema and all schemas in it, with their paths."""
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
def test_it_uses_no_feature_newer_than_kubernetes_1_20(crd: Json) -> None:
    known = {
        *("type", "format", "description", "properties", "additionalProperties", "items", "required", "enum"),
        *("pattern", "maxLength", "minItems", "maxItems", "maxProperties", "minimum", "maximum", "anyOf"),
        *("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"),
        *("x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
    }
    for path, schema in schemas(schema_of(crd)):
        # The chart leaves CEL rules out for older servers; defaults would persist after our upgrades.
        assert schema.keys() - {CEL_RULES} <= known, path


@each
def test_patterns_are_anchored_and_valid_for_re2(crd: Json) -> None:
    import re2

    found = [schema["pattern"] for _, schema in schemas(schema_of(crd)) if "pattern" in schema]
    assert found
    for pattern in found:
        assert pattern.startswith("^")
        assert pattern.endswith("$")
        re2.compile(pattern)


@each
def test_it_is_cluster_scoped_with_status_and_columns(crd: Json) -> None:
    assert crd["spec"]["scope"] == "Cluster"
    (version,) = crd["spec"]["versions"]
    assert version["subresources"] == {"status": {}}
    status = schema_of(crd)["properties"]["status"]["properties"]
    assert set(status) == {
        *("conditions", "observedGeneration", "lastError", "appliedSpec"),
        *("gpuNodes", "exportersReady", "targetsFound", "targetsUp", "nodes", "nodesOmitted"),
    }
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    assert [column["name"] for column in version["additionalPrinterColumns"]] == [
        *("GPU Nodes", "Ready", "Targets", "Up", "Available", "Degraded", "Error", "Age")
    ]


def test_only_necessary_keys_are_required() -> None:
    required = {
        f"{kind}{path}": schema["required"]
        for kind, crd in CRDS.items()
        for path, schema in schemas(schema_of(crd)["properties"]["spec"])
        if "required" in schema and not path.endswith((".status", "items"))
    }
    # References, and keys that Kubernetes itself requires.
    allowed = (
        "Secret",
        "KeyRef",
        "username",
        "password",
        "fieldRef",
        "resourceFieldRef",
        "fileKeyRef",
        "webConfig",
        "Execution",
        "Term",
        "preference",
    )
    assert [path for path in required if not path.endswith(allowed)] == []
    assert "required" not in schema_of(CRDS["WhatapAgent"])["properties"]["spec"]["properties"]["features"]


def test_targets_have_no_rules() -> None:
    """The API server would refuse the whole resource because of one target."""
    for crd in CRDS.values():
        ruled = [path for path, schema in schemas(schema_of(crd)) if CEL_RULES in schema]
        assert ruled
        assert [path for path in ruled if ".targets" in path] == []


def test_the_rules_of_relabeling_know_all_actions() -> None:
    assert set(cel_rules.ACTIONS) == set(ACTIONS)


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_the_schema_keeps_all_keys_of_the_manuals_examples(example: str) -> None:
    """The API server prunes unknown keys and kubectl rejects them: these two, with the CRD of Whatap."""
    keys = {path.rpartition(".")[2] for path, _ in schemas(schema_of(CRDS["WhatapAgent"]))}
    assert {"globalInterval", "globalPath"} <= keys
    assert parse_resource(example).problems == ()


@pytest.mark.parametrize("port", [9400, "9400", "metrics"])
def test_a_port_is_a_number_or_a_string(port: Any) -> None:
    target = {"targetName": "a", "type": "PodMonitor", "selector": {}, "endpoints": [{"port": port}]}
    assert parse_resource(gpu_monitor({"agent": {"targets": [target]}})).problems == ()


WRONG: list[tuple[Json, str]] = [
    ({"exporter": {"port": 0}}, "spec.exporter.port: expected a whole number from 1 to 65535, not 0"),
    (
        {"exporter": {"port": "9400"}},
        "spec.exporter.port: expected a whole number from 1 to 65535, not '9400'",
    ),
    ({"exporter": {"hostPID": "yes"}}, "spec.exporter.hostPID: expected true or false, not 'yes'"),
    (
        {"exporter": {"dialects": ["x"]}},
        f"spec.exporter.dialects[0]: expected one of {', '.join(DIALECT_NAMES)}, not 'x'",
    ),
    *(
        (
            {"agent": {"persistence": {"size": size}}},
            f"spec.agent.persistence.size: {size} is less than 4Mi; set a size with its unit, as in 2Gi",
        )
        for size in (2, "0", "1Mi", "4000k")
    ),
    *(
        (
            {"agent": {"persistence": {"size": size}}},
            "spec.agent.persistence.size: expected a size such as 2Gi (units: k, M, G, T, Ki, Mi, Gi, Ti), "
            f"not {size!r}",
        )
        # Kubernetes has k, not K.
        for size in ("5000K", "2GB", "2gi", "2 Gi", "lots", 2.5)
    ),
    (
        {"exporter": {"cronJob": {"schedule": "*/30 * * * * *"}}},
        "spec.exporter.cronJob.schedule: expected five fields such as */5 * * * *, or @hourly (for seconds, "
        "use mode collect or daemonset), not '*/30 * * * * *'",
    ),
    ({"exporter": {"dialects": []}}, "spec.exporter.dialects: expected at least 1 items"),
    (
        {"exporter": {"nodeSelector": {"a b": "c"}}},
        "spec.exporter.nodeSelector.a b: expected the name of a label, not 'a b'",
    ),
    (
        {"exporter": {"nodeSelector": {"a": True}}},
        "spec.exporter.nodeSelector.a: expected a string, not True",
    ),
    (
        {"exporter": {"stateDir": "ledger"}},
        "spec.exporter.stateDir: expected a path, or an empty string, not 'ledger'",
    ),
    (
        {"agent": {"globalInterval": "often"}},
        "spec.agent.globalInterval: expected a duration such as 15s or 1m30s, not 'often'",
    ),
    (
        {"exporter": {"source": "amd"}},
        "spec.exporter.source: expected auto, nvml, smi, drm, nvml+drm, smi+drm, simulator[:NAME|FILE] or "
        "replay:FILE, not 'amd'",
    ),
    ({"agent": {"targets": {}}}, "spec.agent.targets: expected a list, not {}"),
    (
        {"agent": {"remoteWrite": [{"url": "store"}]}},
        "spec.agent.remoteWrite[0].url: expected a URL such as https://host/api/v1/write, not 'store'",
    ),
    (
        {"exporters": {}},
        "spec.exporters: is unknown; known keys are exporter, agent, imagePullSecrets, networkPolicy",
    ),
    (
        {"exporter": {"resources": {"limits": {"memory": 128}}}},
        "spec.exporter.resources.limits.memory: 128 is 128 bytes, with which no container starts; "
        "add a unit, as in 128Mi",
    ),
    (
        {"agent": {"resources": {"requests": {"memory": "128m"}}}},
        "spec.agent.resources.requests.memory: 128m is 0.128 bytes, with which no container starts; "
        "add a unit, as in 128Mi",
    ),
    (
        {"exporter": {"resources": {"requests": {"cpu": 100}}}},
        "spec.exporter.resources.requests.cpu: 100 is 100 cores, more than the program can use; "
        "add a unit, as in 100m",
    ),
    (
        {"exporter": {"resources": {"requests": {"memory": "1e9"}, "limits": {"memory": "512M"}}}},
        "spec.exporter.resources.requests.memory: 1e9 is above the limit of 512M",
    ),
    ({"exporter": 3}, "spec.exporter: expected a mapping, not 3"),
]


@pytest.mark.parametrize(("spec", "problem"), WRONG, ids=[case[1].partition(":")[0] for case in WRONG])
def test_a_problem_names_the_path_and_the_expected_value(spec: Json, problem: str) -> None:
    found = parse_resource(gpu_monitor(spec))
    assert found.monitor is None
    assert [str(one) for one in found.problems] == [problem]


@pytest.mark.parametrize(("spec", "problem"), WRONG, ids=[case[1].partition(":")[0] for case in WRONG])
def test_the_crd_rejects_everything_but_invalid_keys(spec: Json, problem: str) -> None:
    validator = jsonschema.Draft7Validator(schema_of(CRDS["GpuMonitor"]))
    # OpenAPI expresses neither names of keys nor the number that a quantity is.
    texts = ("the name of a label", "is unknown", "add a unit", "less than 4Mi", "above the limit")
    key_is_wrong = any(text in problem for text in texts)
    assert (list(validator.iter_errors({"spec": spec})) == []) is key_is_wrong


JUDGED: tuple[Any, ...] = (
    *(3, "x", [None], {}, {"targetName": "a"}, {"targetName": 7, "type": "Ingress", "unknown": {"a": 1}}),
    {"targetName": "a", "type": "PodMonitor", "selector": [], "endpoints": [{"port": 70000}, 5]},
    {"targetName": "a", "type": "StaticEndpoints", "endpoints": {"interval": "often"}},
)


@each
@pytest.mark.parametrize("target", JUDGED, ids=str)
def test_the_crd_accepts_any_target_and_the_operator_judges_it(crd: Json, target: Any) -> None:
    """The API server would refuse the whole resource because of one target."""
    sections = (
        {"agent": {"targets": [target]}},
        {"features": {"openAgent": {"enabled": True, "targets": [target]}}},
    )
    spec = sections[crd["spec"]["names"]["kind"] == "WhatapAgent"]
    jsonschema.Draft7Validator(schema_of(crd)).validate({"spec": spec})
    resource = {**(whatap() if "features" in spec else gpu_monitor()), "spec": spec}
    found = parse_resource(resource)
    assert found.monitor is not None
    assert found.problems
    assert all("targets[0]" in one.path for one in found.problems)


def test_inline_credentials_are_refused() -> None:
    endpoint = {"port": "m", "authorization": {"credentials": "s3cret"}}
    target = {"targetName": "a", "type": "PodMonitor", "selector": {}, "endpoints": [endpoint]}
    (problem,) = parse_resource(whatap(openAgent={"enabled": True, "targets": [target]})).problems
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
def test_fields_of_a_whatap_agent_that_are_not_about_gpus_are_reported_as_ignored(
    spec: Json, paths: list[str]
) -> None:
    found = parse_resource({**whatap(), "spec": spec})
    assert found.monitor is not None
    assert [one.path for one in found.ignored] == paths


def test_another_kind_is_refused() -> None:
    assert [str(one) for one in parse_resource({"kind": "Pod"}).problems] == [
        "kind: expected GpuMonitor or WhatapAgent"
    ]


def test_the_crd_of_another_operator_is_recognized() -> None:
    assert foreign_definition(CRDS["WhatapAgent"]) == ""
    theirs = {"metadata": {"name": "whatapagents.monitoring.whatap.com", "labels": {"app": "whatap"}}}
    assert foreign_definition(theirs) == (
        "the CRD whatapagents.monitoring.whatap.com belongs to another operator and is left unchanged: "
        "uninstall that operator and its CRD first, or set whatapCompat.enabled to false"
    )

"""Whatever the values: objects that every API server takes, and pods that ask for no more than they need."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate.utils as kubernetes
import pytest
import yaml

from chart import (
    CHART,
    MANIFESTS,
    MATRIX,
    NEWEST,
    OLDEST,
    Manifest,
    containers,
    of_kind,
    pod_specs,
    render,
    workload,
)

SCHEMAS = Path(__file__).parents[2] / "schemas"
OTHERS = {
    "ServiceMonitor": "monitors.json",
    "PodMonitor": "monitors.json",
    "PrometheusRule": "prometheusrule.json",
    "SecurityContextConstraints": "scc.json",
}
VERSIONS = list(dict.fromkeys(kubernetes.all_versions()))
# Each call would read the definitions of a whole Kubernetes version anew.
schema_contents = cache(kubernetes.schema_contents)

each = pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)


def kept(name: str) -> list[Manifest]:
    return [one for one in yaml.safe_load_all((MANIFESTS / name).read_text(encoding="utf-8")) if one]


def everything() -> list[Manifest]:
    """Each different object of all renderings and of the plain manifests, once."""
    found = [
        one for values in MATRIX.values() for kube in (OLDEST, NEWEST) for one in render(values, kube=kube)
    ]
    found += [one for file in sorted(MANIFESTS.glob("*.yaml")) for one in kept(file.name)]
    return list({json.dumps(one, sort_keys=True): one for one in found}.values())


@pytest.fixture(scope="module")
def objects() -> list[Manifest]:
    return everything()


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "schema_contents", schema_contents)


def own_problems(one: Manifest) -> Iterator[str]:
    schema = json.loads((SCHEMAS / OTHERS[one["kind"]]).read_text(encoding="utf-8"))
    for error in jsonschema.Draft7Validator(schema).iter_errors(one):
        yield f"{one['kind']} {error.json_path}: {error.message}"


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid_strictly(version: str, objects: list[Manifest]) -> None:
    # An object whose schema is not there raises, too: nothing is taken on trust.
    checked = [one for one in objects if one["kind"] not in OTHERS and one["apiVersion"] != "batch/v1beta1"]
    for one in checked:
        kubernetes.validate(one, version, strict=True)
    assert {"DaemonSet", "CronJob", "Pod", "NetworkPolicy", "Secret"} < {one["kind"] for one in checked}


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_a_misspelt_field_would_be_found(version: str) -> None:
    (daemonset,) = of_kind("DaemonSet")
    daemonset["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate(daemonset, version, strict=True)


def test_objects_of_operators_fit_the_schemas_of_what_is_used(objects: list[Manifest]) -> None:
    theirs = [one for one in objects if one["kind"] in OTHERS]
    assert {one["kind"] for one in theirs} == set(OTHERS)
    assert [problem for one in theirs for problem in own_problems(one)] == []


@pytest.mark.parametrize(
    ("kind", "values", "path", "value"),
    [
        ("ServiceMonitor", MATRIX["monitoring"], ("spec", "endpoints", 0, "honorLabel"), True),
        ("ServiceMonitor", MATRIX["monitoring"], ("spec", "endpoints", 0, "interval"), "often"),
        ("PodMonitor", MATRIX["pod monitor"], ("spec", "endpoints"), []),
        ("PrometheusRule", MATRIX["monitoring"], ("spec", "groups", 0, "rules", 0, "record"), "x"),
        ("SecurityContextConstraints", MATRIX["OpenShift"], ("spec",), {}),
    ],
)
def test_those_schemas_find_what_is_wrong(
    kind: str, values: Any, path: tuple[Any, ...], value: object
) -> None:
    (one,) = of_kind(kind, values)
    at: Any = one
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    assert list(own_problems(one)) != []


def test_lint_finds_nothing() -> None:
    for kube in (OLDEST, NEWEST):
        report = helm_python.lint(CHART, None, strict=True, kube_version=kube)
        assert report["errors"] == []
        # 1 is information: there is no icon.
        assert [message for message in report["messages"] if message["severity"] > 1] == []


# Numbers and powers of ten to YAML, and all the same what somebody may call a namespace, a class or a tag.
NUMBERS = {
    "serviceAccount": {"name": "1e3"},
    "runtimeClassName": "123",
    "priorityClassName": "0x1",
    "image": {"repository": "5", "tag": "6"},
    "web": {"tlsSecret": "7"},
    "dashboards": {"enabled": True, "label": "8", "labelValue": "9", "namespace": "10"},
    "serviceMonitor": {"enabled": True, "namespace": "11"},
    "rules": {"enabled": True, "namespace": "12"},
    "agent": {
        "enabled": True,
        "config": {"remote_write": [{"url": "http://store/write"}]},
        "persistence": {"size": "13", "storageClass": "14"},
    },
    "mode": "daemonset",
    "operator": {"enabled": True, "prometheusImage": "15:16"},
    "whatapCompat": {"enabled": True, "namespace": "17"},
}
TEXTS = frozenset(
    {"name", "namespace", "runtimeClassName", "priorityClassName", "serviceAccountName", "storageClassName"}
    | {"image", "secretName", "storage", "whatapNamespace", "prometheusImage"}
)
# Lists of names.
LISTS = ("matchNames", "resourceNames")


def not_texts(one: Any, at: str = "") -> Iterator[str]:
    if isinstance(one, list):
        for element in one:
            if at in LISTS and not isinstance(element, str):
                yield f"{at}: {element!r}"
            yield from not_texts(element, at)
    elif isinstance(one, dict):
        for key, value in one.items():
            if not isinstance(key, str) or (
                (key in TEXTS or at in ("labels", "matchLabels")) and not isinstance(value, str | dict)
            ):
                yield f"{at}.{key}: {value!r}"
            yield from not_texts(yaml.safe_load(value) if key == "operator.yaml" else value, str(key))


@pytest.mark.parametrize("values", [NUMBERS, MATRIX["OpenShift"], MATRIX["both"], MATRIX["everything else"]])
def test_names_that_look_like_numbers_are_texts(values: Any) -> None:
    named = {"fullnameOverride": "gpus", **values}
    made = render(named, name="123", namespace="456")
    # A schema's words are about types, and the program's own.
    objects = [one for one in made if one["kind"] != "CustomResourceDefinition"]
    assert [*not_texts(objects)] == []


@each
def test_names_are_unique_and_namespaces_the_releases(values: Any) -> None:
    made = render(values)
    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in made]
    assert len(names) == len(set(names))
    cluster = (
        "ClusterRole",
        "ClusterRoleBinding",
        "PriorityClass",
        "Namespace",
        "SecurityContextConstraints",
        "CustomResourceDefinition",
    )
    for kind, namespace, name in names:
        assert (namespace is None) == (kind in cluster), (kind, name)


@each
def test_no_container_is_privileged_unless_the_driver_is_mounted_from_the_host(values: Any) -> None:
    on_host = values.get("gpuAccess", {}).get("mode") == "host"
    for spec in pod_specs(render(values)):
        for container in containers(spec):
            context = container["securityContext"]
            assert context.get("privileged", False) is (on_host and container["name"] != "ask")
            assert context["readOnlyRootFilesystem"] is True
            if not context.get("privileged"):
                assert context["allowPrivilegeEscalation"] is False
                assert context["capabilities"]["drop"] == ["ALL"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


@each
def test_no_container_takes_a_gpu_and_each_says_what_it_needs(values: Any) -> None:
    for spec in pod_specs(render(values)):
        for container in containers(spec):
            resources = container["resources"]
            assert set(resources["requests"]) == {"cpu", "memory"}
            # A CPU limit makes ticks late.
            assert set(resources["limits"]) == {"memory"}


@pytest.mark.parametrize(
    ("values", "capabilities"),
    [
        ({}, ["SYS_PTRACE"]),
        ({"mode": "collect"}, ["SYS_PTRACE", "DAC_OVERRIDE"]),
        ({"mode": "cronjob"}, ["SYS_PTRACE", "DAC_OVERRIDE"]),
        ({"sysAdmin": True}, ["SYS_PTRACE", "SYS_ADMIN"]),
        ({"capabilities": []}, None),
    ],
)
def test_capabilities_are_named_one_by_one(values: Any, capabilities: list[str] | None) -> None:
    (container,) = workload(values)["containers"]
    assert container["securityContext"]["capabilities"].get("add") == capabilities
    assert container["securityContext"]["runAsUser"] == 0


def test_only_the_init_container_may_turn_accounting_on() -> None:
    spec = workload({"accounting": {"enable": True}})
    (init,) = spec["initContainers"]
    (main,) = spec["containers"]
    assert "nvidia-smi -am 1" in init["args"][0]
    assert init["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}
    assert "SYS_ADMIN" not in main["securityContext"]["capabilities"]["add"]


@each
def test_every_mount_has_its_volume_and_every_volume_its_mount(values: Any) -> None:
    for one in render(values):
        for spec in pod_specs([one]):
            claims = [claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])]
            check_mounts(spec, claims)


def check_mounts(spec: Manifest, claims: list[str]) -> None:
    volumes = [*claims, *(volume["name"] for volume in spec.get("volumes", []))]
    assert len(volumes) == len(set(volumes))
    mounted = {mount["name"] for one in containers(spec) for mount in one.get("volumeMounts", [])}
    if "ask" not in {one["name"] for one in spec["containers"]}:
        assert mounted == set(volumes)


def test_only_what_the_exporter_writes_is_mounted_to_be_written() -> None:
    for values, written in (({}, {"run", "tmp", "state"}), ({"mode": "cronjob"}, {"run", "tmp", "textfile"})):
        (container,) = workload(values)["containers"]
        assert {mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")} == written


def test_the_rights_are_those_and_no_others() -> None:
    (role,) = of_kind("ClusterRole")
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["list"]},
    ]
    assert of_kind("ClusterRole", {"rbac": {"create": False}}) == []
    on_openshift = {
        role["metadata"]["name"]: role["rules"] for role in of_kind("ClusterRole", MATRIX["OpenShift"])
    }
    assert on_openshift == {
        "gpuledger": role["rules"],
        "gpuledger-scc": [
            {
                "apiGroups": ["security.openshift.io"],
                "resources": ["securitycontextconstraints"],
                "resourceNames": ["gpuledger-scc"],
                "verbs": ["use"],
            }
        ],
    }


@pytest.mark.parametrize(
    "values", [MATRIX["OpenShift"], MATRIX["OpenShift, collect"]], ids=["serve", "collect"]
)
def test_openshifts_constraints_allow_what_the_pod_asks_and_no_more(values: Any) -> None:
    (scc,) = of_kind("SecurityContextConstraints", values)
    spec = workload(values)
    asked = {
        name for one in containers(spec) for name in one["securityContext"]["capabilities"].get("add", [])
    }
    assert set(scc["allowedCapabilities"]) == asked
    assert scc["allowHostPID"] is spec["hostPID"] is True
    assert (scc["allowPrivilegedContainer"], scc["allowHostNetwork"], scc["allowHostIPC"]) == (
        False,
        False,
        False,
    )
    kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert kinds <= set(scc["volumes"])
    assert spec["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}


def test_a_node_is_a_gpu_node_by_any_of_the_labels_in_use() -> None:
    terms = workload()["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    found = [term["matchExpressions"] for term in terms["nodeSelectorTerms"]]
    assert found == [
        [{"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]}],
        [{"key": "nvidia.com/gpu", "operator": "In", "values": ["true"]}],
        [{"key": "accelerator", "operator": "Exists"}],
    ]
    chosen = workload({"nodeSelector": {"accelerator": "nvidia"}})
    assert (chosen["nodeSelector"], "affinity" in chosen) == ({"accelerator": "nvidia"}, False)


@pytest.mark.parametrize(
    ("values", "environment", "runtime", "mounts"),
    [
        ({}, {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}, None, set()),
        (
            MATRIX["volume list"],
            {
                "NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices",
                "NVIDIA_DRIVER_CAPABILITIES": "utility",
            },
            None,
            {"/var/run/nvidia-container-devices/all"},
        ),
        (
            MATRIX["cdi"],
            {"NVIDIA_VISIBLE_DEVICES": "nvidia.com/gpu=all", "NVIDIA_DRIVER_CAPABILITIES": "utility"},
            "nvidia",
            set(),
        ),
        (MATRIX["host, GKE"], {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"}, None, {"/usr/local/nvidia"}),
        (
            MATRIX["host"],
            {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"},
            None,
            {"/usr/local/nvidia/lib64/libnvidia-ml.so.1", "/usr/local/nvidia/bin/nvidia-smi"},
        ),
        (MATRIX["simulator"], {}, None, set()),
    ],
    ids=["env", "volume-list", "cdi", "host, folder", "host, files", "simulator"],
)
def test_each_way_to_the_driver(
    values: Any, environment: dict[str, str], runtime: str | None, mounts: set[str]
) -> None:
    spec = workload(values)
    (container,) = spec["containers"]
    told = {one["name"]: one["value"] for one in container["env"] if one["name"] != "NODE_NAME"}
    assert (told, spec.get("runtimeClassName")) == (environment, runtime)
    assert mounts == {
        mount["mountPath"] for mount in container["volumeMounts"] if "nvidia" in mount["mountPath"]
    }


def test_beside_the_gpu_operator_it_waits_and_leaves_with_the_driver() -> None:
    spec = workload(MATRIX["GPU Operator"])
    assert spec["nodeSelector"] == {"nvidia.com/gpu.deploy.dcgm-exporter": "true"}
    assert spec["runtimeClassName"] == "nvidia"
    assert [init["name"] for init in spec["initContainers"]] == ["wait-for-gpu-operator", "enable-accounting"]
    assert "/run/nvidia/validations/toolkit-ready" in spec["initContainers"][0]["args"][0]

"""For all values: the objects are valid for every Kubernetes version, and pods have minimal permissions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate.utils as kubernetes
import pytest

from chart import (
    CHART,
    MANIFESTS,
    MATRIX,
    NEWEST,
    OLDEST,
    Manifest,
    containers,
    of_kind,
    pod_spec,
    pod_specs,
    render,
)
from gpuledger.operator.render.exporter import GPU_NODES, TOLERATIONS
from yaml_files import load_documents, load_yaml

SCHEMAS = Path(__file__).parents[2] / "schemas"
CUSTOM_SCHEMAS = {
    "ServiceMonitor": "monitors.json",
    "PodMonitor": "monitors.json",
    "PrometheusRule": "prometheusrule.json",
    "SecurityContextConstraints": "scc.json",
}
VERSIONS = list(dict.fromkeys(kubernetes.all_versions()))
# Cached, because each call reads the definitions of a whole Kubernetes version, or lists all versions.
CACHED = {name: cache(getattr(kubernetes, name)) for name in ("schema_contents", "all_versions")}

each = pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)


def read_manifests(name: str) -> list[Manifest]:
    return load_documents((MANIFESTS / name).read_text(encoding="utf-8"))


def everything() -> list[Manifest]:
    """All different objects of all renderings and of the plain manifests."""
    found = [
        one for values in MATRIX.values() for kube in (OLDEST, NEWEST) for one in render(values, kube=kube)
    ]
    found += [one for file in sorted(MANIFESTS.glob("*.yaml")) for one in read_manifests(file.name)]
    return list({json.dumps(one, sort_keys=True): one for one in found}.values())


@pytest.fixture(scope="module")
def objects() -> list[Manifest]:
    return everything()


@pytest.fixture
def _cached_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, function in CACHED.items():
        monkeypatch.setattr(kubernetes, name, function)


def custom_schema_problems(one: Manifest) -> Iterator[str]:
    schema = json.loads((SCHEMAS / CUSTOM_SCHEMAS[one["kind"]]).read_text(encoding="utf-8"))
    for error in jsonschema.Draft7Validator(schema).iter_errors(one):
        yield f"{one['kind']} {error.json_path}: {error.message}"


@pytest.mark.usefixtures("_cached_schemas")
@pytest.mark.parametrize("version", VERSIONS)
def test_all_objects_are_valid_in_strict_mode(version: str, objects: list[Manifest]) -> None:
    # An object without a schema also raises, so that no object is skipped.
    checked = [
        one for one in objects if one["kind"] not in CUSTOM_SCHEMAS and one["apiVersion"] != "batch/v1beta1"
    ]
    for one in checked:
        kubernetes.validate(one, version, strict=True)
    assert {"DaemonSet", "CronJob", "Pod", "NetworkPolicy", "Secret"} < {one["kind"] for one in checked}


@pytest.mark.usefixtures("_cached_schemas")
@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_a_misspelled_field_is_found(version: str) -> None:
    (daemonset,) = of_kind("DaemonSet")
    daemonset["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate(daemonset, version, strict=True)


def test_custom_resources_fit_the_schemas_of_their_operators(objects: list[Manifest]) -> None:
    theirs = [one for one in objects if one["kind"] in CUSTOM_SCHEMAS]
    assert {one["kind"] for one in theirs} == set(CUSTOM_SCHEMAS)
    assert [problem for one in theirs for problem in custom_schema_problems(one)] == []


@pytest.mark.parametrize(
    ("kind", "values", "path", "value"),
    [
        ("ServiceMonitor", MATRIX["monitoring"], ("spec", "endpoints", 0, "honorLabel"), True),
        ("ServiceMonitor", MATRIX["monitoring"], ("spec", "endpoints", 0, "interval"), "often"),
        ("PodMonitor", MATRIX["pod monitor"], ("spec", "endpoints"), []),
        ("PrometheusRule", MATRIX["monitoring"], ("spec", "groups", 0, "rules", 1, "record"), "x"),
        ("SecurityContextConstraints", MATRIX["OpenShift"], ("spec",), {}),
    ],
)
def test_the_schemas_of_custom_resources_find_errors(
    kind: str, values: Any, path: tuple[Any, ...], value: object
) -> None:
    (one,) = of_kind(kind, values)
    at: Any = one
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    assert list(custom_schema_problems(one)) != []


def test_lint_finds_nothing() -> None:
    import helm_python

    for kube in (OLDEST, NEWEST):
        report = helm_python.lint(CHART, None, strict=True, kube_version=kube)
        assert report["errors"] == []
        # Severity 1 is informational: the chart has no icon.
        assert [message for message in report["messages"] if message["severity"] > 1] == []


# Names that YAML would parse as numbers.
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
        "persistence": {"size": "13000000", "storageClass": "14"},
    },
    "mode": "daemonset",
    "operator": {"enabled": True, "prometheusImage": "15:16"},
    "whatapCompat": {"enabled": True, "namespace": "17"},
}
STRING_KEYS = frozenset(
    {"name", "namespace", "runtimeClassName", "priorityClassName", "serviceAccountName", "storageClassName"}
    | {"image", "secretName", "storage", "whatapNamespace", "prometheusImage"}
)
# Keys with lists of names.
STRING_LISTS = ("matchNames", "resourceNames")


def non_strings(one: Any, at: str = "") -> Iterator[str]:
    if isinstance(one, list):
        for element in one:
            if at in STRING_LISTS and not isinstance(element, str):
                yield f"{at}: {element!r}"
            yield from non_strings(element, at)
    elif isinstance(one, dict):
        for key, value in one.items():
            if not isinstance(key, str) or (
                (key in STRING_KEYS or at in ("labels", "matchLabels")) and not isinstance(value, str | dict)
            ):
                yield f"{at}.{key}: {value!r}"
            yield from non_strings(load_yaml(value) if key == "operator.yaml" else value, str(key))


@pytest.mark.parametrize("values", [NUMBERS, MATRIX["OpenShift"], MATRIX["both"], MATRIX["everything else"]])
def test_names_that_look_like_numbers_are_rendered_as_strings(values: Any) -> None:
    named = {"fullnameOverride": "gpus", **values}
    rendered = render(named, name="123", namespace="456")
    # CRDs use the same keys for schemas.
    objects = [one for one in rendered if one["kind"] != "CustomResourceDefinition"]
    assert [*non_strings(objects)] == []


@each
def test_names_are_unique_and_only_cluster_scoped_objects_have_no_namespace(values: Any) -> None:
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
def test_no_container_requests_a_gpu_and_all_set_cpu_and_memory(values: Any) -> None:
    for spec in pod_specs(render(values)):
        for container in containers(spec):
            resources = container["resources"]
            assert set(resources["requests"]) == {"cpu", "memory"}
            # A CPU limit would delay ticks.
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
def test_containers_have_exactly_the_configured_capabilities(
    values: Any, capabilities: list[str] | None
) -> None:
    (container,) = pod_spec(values)["containers"]
    assert container["securityContext"]["capabilities"].get("add") == capabilities
    assert container["securityContext"]["runAsUser"] == 0


def test_only_the_init_container_may_enable_accounting() -> None:
    spec = pod_spec({"accounting": {"enable": True}})
    (init,) = spec["initContainers"]
    (main,) = spec["containers"]
    assert "nvidia-smi -am 1" in init["args"][0]
    assert init["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}
    assert "SYS_ADMIN" not in main["securityContext"]["capabilities"]["add"]


@each
def test_mounts_and_volumes_match(values: Any) -> None:
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


def test_only_directories_that_the_program_writes_are_writable() -> None:
    for values, written in (
        ({}, {"run", "tmp", "state"}),
        (MATRIX["nodes named"], {"run", "tmp", "textfile"}),
    ):
        (container,) = pod_spec(values)["containers"]
        assert {mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")} == written


def test_the_cluster_roles_have_exactly_these_rules() -> None:
    (role,) = of_kind("ClusterRole")
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["list"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
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
def test_the_openshift_constraints_allow_exactly_what_the_pod_needs(values: Any) -> None:
    (scc,) = of_kind("SecurityContextConstraints", values)
    spec = pod_spec(values)
    added = {
        name for one in containers(spec) for name in one["securityContext"]["capabilities"].get("add", [])
    }
    assert set(scc["allowedCapabilities"]) == added
    assert scc["allowHostPID"] is spec["hostPID"] is True
    assert (scc["allowPrivilegedContainer"], scc["allowHostNetwork"], scc["allowHostIPC"]) == (
        False,
        False,
        False,
    )
    kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert kinds <= set(scc["volumes"])
    assert spec["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}


def test_pods_run_on_nodes_with_any_of_the_common_gpu_labels() -> None:
    terms = pod_spec()["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    found = [expression for term in terms["nodeSelectorTerms"] for expression in term["matchExpressions"]]
    assert [f"{one['key']}={','.join(one.get('values', ['*']))}" for one in found] == [
        "nvidia.com/gpu.present=true",
        "nvidia.com/gpu=true",
        "accelerator=*",
        "feature.node.kubernetes.io/pci-10de.present=true",
        "feature.node.kubernetes.io/pci-0300_10de.present=true",
        "feature.node.kubernetes.io/pci-0302_10de.present=true",
        "cloud.google.com/gke-accelerator=*",
        "k8s.amazonaws.com/accelerator=*",
        "eks.amazonaws.com/instance-gpu-manufacturer=nvidia",
        "karpenter.k8s.aws/instance-gpu-manufacturer=nvidia",
        "kubernetes.azure.com/accelerator=nvidia",
    ]
    assert {one["operator"] for one in found if "values" in one} == {"In"}
    # The operator runs exporters on the same nodes.
    assert (pod_spec()["affinity"], pod_spec()["tolerations"]) == (GPU_NODES, [*TOLERATIONS])
    chosen = pod_spec({"nodeSelector": {"accelerator": "nvidia"}})
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
def test_each_mode_of_access_to_the_driver(
    values: Any, environment: dict[str, str], runtime: str | None, mounts: set[str]
) -> None:
    spec = pod_spec(values)
    (container,) = spec["containers"]
    variables = {one["name"]: one["value"] for one in container["env"] if one["name"] != "NODE_NAME"}
    assert (variables, spec.get("runtimeClassName")) == (environment, runtime)
    assert mounts == {
        mount["mountPath"] for mount in container["volumeMounts"] if "nvidia" in mount["mountPath"]
    }


def test_with_the_gpu_operator_it_waits_for_the_driver_and_follows_its_node_label() -> None:
    spec = pod_spec(MATRIX["GPU Operator"])
    assert spec["nodeSelector"] == {"nvidia.com/gpu.deploy.dcgm-exporter": "true"}
    assert spec["runtimeClassName"] == "nvidia"
    assert [init["name"] for init in spec["initContainers"]] == ["wait-for-gpu-operator", "enable-accounting"]
    assert "/run/nvidia/validations/toolkit-ready" in spec["initContainers"][0]["args"][0]

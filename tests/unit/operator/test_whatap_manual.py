"""The examples of the WhatapAgent's manual result in objects with the manual's names, labels and mounts."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest

from gpuledger.dialects.dcgm.collectors import parse_collectors
from unit.operator.support import (
    CUSTOMERS_OWN,
    EXAMPLES,
    SCRAPED_BY_NAME,
    SIMPLE,
    TOLERATIONS,
    agent_errors,
    agent_file,
    container,
    only_object,
    parse_resource,
    rendered,
    rendered_objects,
    whatap,
)

each = pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)

# The field ids in the manual's table.
OF_THE_MANUAL = (
    *(1, 2, 50, 53, 54, 65, 66, 500, 67, 69, 76, 77, 100, 101, 155, 190, 150, 203, 1009, 1010),
    *(250, 251, 252, 253, 254, 312, 313, 1001, 1002, 1003, 1004, 1005),
)


@each
def test_every_example_is_accepted_unchanged(example: str) -> None:
    found = parse_resource(example)
    assert found.problems == ()
    assert found.monitor is not None
    assert rendered(example).problems == ()


@each
@pytest.mark.parametrize("version", ["1.25", "1.37"])
def test_every_object_of_an_example_is_valid_strictly(example: str, version: str) -> None:
    for one in rendered_objects(example).values():
        kubernetes_validate.validate(one, version, strict=True)


@each
def test_every_object_of_an_example_is_in_the_manuals_namespace(example: str) -> None:
    for one in rendered_objects(example).values():
        namespace = one["metadata"].get("namespace")
        assert namespace == (None if one["kind"] == "ClusterRoleBinding" else "whatap-monitoring")


MASTER = (
    "spec.features.k8sAgent.masterAgent: gpuledger does not export cluster metrics; use kube-state-metrics"
)
NODE = "spec.features.k8sAgent.nodeAgent.enabled: gpuledger does not export node metrics; use node_exporter"


@pytest.mark.parametrize(
    ("example", "ignored"),
    [(SCRAPED_BY_NAME, [MASTER, NODE]), (SIMPLE, [MASTER, NODE]), (TOLERATIONS, [NODE])],
    ids=["scraped by name", "simple", "tolerations"],
)
def test_unsupported_features_are_reported_as_ignored(example: str, ignored: list[str]) -> None:
    assert [str(one) for one in parse_resource(example).ignored] == ignored


def test_the_simple_example_renders_the_manuals_objects() -> None:
    assert list(rendered_objects(SIMPLE)) == [
        "ServiceAccount/whatap-node-agent",
        "ClusterRoleBinding/whatap-node-agent",
        "ServiceAccount/whatap-open-agent-sa",
        "ClusterRoleBinding/whatap-open-agent-role-binding",
        "RoleBinding/whatap-open-agent-role-binding",
        "DaemonSet/whatap-node-agent",
        "ConfigMap/whatap-open-agent-config",
        "Service/whatap-open-agent",
        "StatefulSet/whatap-open-agent",
        "ConfigMap/dcgm-exporter-csv",
    ]


def test_the_exporters_container_follows_the_manual() -> None:
    one = container(SIMPLE)
    assert one["name"] == "dcgm-exporter"
    assert {"name": "metrics", "containerPort": 9400, "protocol": "TCP"} in one["ports"]
    env = {variable["name"]: variable for variable in one["env"]}
    assert {name: env[name]["value"] for name in env if name.startswith("DCGM_EXPORTER_")} == {
        "DCGM_EXPORTER_LISTEN": ":9400",
        "DCGM_EXPORTER_KUBERNETES": "true",
        "DCGM_EXPORTER_COLLECTORS": "/etc/dcgm-exporter/whatap-dcgm-exporter.csv",
    }
    assert env["NODE_NAME"]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    context = one["securityContext"]
    assert (context["runAsUser"], context["runAsNonRoot"]) == (0, False)
    # SYS_ADMIN only with sysAdmin; reading the driver does not need it.
    assert context["capabilities"]["add"] == ["SYS_PTRACE"]


def test_pods_and_their_daemon_set_have_the_manuals_label() -> None:
    one = only_object("DaemonSet", SIMPLE)
    assert one["metadata"]["labels"]["name"] == "whatap-node-agent"
    assert one["spec"]["selector"]["matchLabels"] == {"name": "whatap-node-agent"}
    assert one["spec"]["template"]["metadata"]["labels"]["name"] == "whatap-node-agent"
    assert one["spec"]["template"]["metadata"]["labels"]["whatap-gpu"] == "true"


def test_the_collectors_file_has_the_manuals_path_and_reflects_edits() -> None:
    spec = only_object("DaemonSet", SIMPLE)["spec"]["template"]["spec"]
    mounts = {one["name"]: one for one in spec["containers"][0]["volumeMounts"]}
    assert mounts["pod-gpu-resources"]["mountPath"] == "/var/lib/kubelet/pod-resources"
    assert mounts["pod-gpu-resources"]["readOnly"] is True
    # The kubelet does not update files that are mounted by subPath.
    assert mounts["whatap-dcgm-exporter-csv"] == {
        "name": "whatap-dcgm-exporter-csv",
        "mountPath": "/etc/dcgm-exporter",
        "readOnly": True,
    }
    (volume,) = [one for one in spec["volumes"] if one["name"] == "whatap-dcgm-exporter-csv"]
    assert volume["configMap"] == {
        "name": "dcgm-exporter-csv",
        "items": [{"key": "whatap-gpu.csv", "path": "whatap-dcgm-exporter.csv"}],
    }


def test_the_collectors_file_has_every_field_of_the_manuals_table() -> None:
    (seed,) = rendered(SIMPLE).seeds
    assert seed["metadata"]["name"] == "dcgm-exporter-csv"
    found = parse_collectors(seed["data"]["whatap-gpu.csv"].encode(), "whatap-gpu.csv")
    assert found.warnings == ()
    assert set(OF_THE_MANUAL) <= {column.field.id for column in found.columns}
    assert len(set(OF_THE_MANUAL)) == 32


def test_a_collectors_file_in_the_resource_is_applied_and_not_only_seeded() -> None:
    csv = "DCGM_FI_DEV_GPU_TEMP, gauge, temperature\n"
    found = rendered(whatap(k8sAgent={"gpuMonitoring": {"enabled": True, "collectors": csv}}))
    assert found.seeds == ()
    (one,) = [one for one in found.objects if one["metadata"]["name"] == "dcgm-exporter-csv"]
    assert one["data"] == {"whatap-gpu.csv": csv}


def test_a_target_that_selects_the_exporters_is_the_only_target() -> None:
    features = agent_file(SCRAPED_BY_NAME)["features"]["openAgent"]
    assert features["globalInterval"] == "15s"
    assert features["globalPath"] == "/metrics"
    (target,) = features["targets"]
    assert target["targetName"] == "dcgm-exporter"
    assert target["endpoints"] == [{"port": "9400", "path": "/metrics", "interval": "15s", "scheme": "http"}]


def test_without_targets_the_agent_discovers_the_exporters_once() -> None:
    """So the agent also discovers the customer's own exporters."""
    assert agent_file(SIMPLE)["features"]["openAgent"] == {}
    labels = only_object("DaemonSet", SIMPLE)["spec"]["template"]["metadata"]["labels"]
    # With this label, the agent would discover the exporter twice.
    assert "app.kubernetes.io/name" not in labels


def test_without_gpu_monitoring_only_the_agent_is_deployed() -> None:
    assert {name.partition("/")[0] for name in rendered_objects(CUSTOMERS_OWN)} == {
        *("ServiceAccount", "ClusterRoleBinding", "RoleBinding", "ConfigMap", "Service", "StatefulSet")
    }
    names = [one["targetName"] for one in agent_file(CUSTOMERS_OWN)["features"]["openAgent"]["targets"]]
    assert names == ["whatap-dcgm-exporter", "customer-dcgm-exporter"]


def test_own_exporters_are_scraped_besides_those_of_the_customer() -> None:
    customers = {
        "targetName": "customer-dcgm-exporter",
        "type": "PodMonitor",
        "selector": {"matchLabels": {"app": "custom-dcgm"}},
        "endpoints": [{"port": 9400}],
    }
    hybrid = whatap(
        openAgent={"enabled": True, "targets": [customers]}, k8sAgent={"gpuMonitoring": {"enabled": True}}
    )
    theirs, ours = agent_file(hybrid)["features"]["openAgent"]["targets"]
    assert theirs["targetName"] == "customer-dcgm-exporter"
    assert ours == {
        "targetName": "dcgm-exporter-auto",
        "type": "PodMonitor",
        "namespaceSelector": {"matchNames": ["whatap-monitoring"]},
        "selector": {"matchLabels": {"name": "whatap-node-agent"}},
        "endpoints": [{"port": "9400", "path": "/metrics", "addNodeLabel": True}],
    }


def test_tolerations_are_added_to_those_of_the_control_plane() -> None:
    spec = only_object("DaemonSet", TOLERATIONS)["spec"]["template"]["spec"]
    assert [one["key"] for one in spec["tolerations"]] == [
        "node-role.kubernetes.io/master",
        "node-role.kubernetes.io/control-plane",
        "nvidia.com/gpu",
        "gpu",
    ]


def test_without_a_receiver_the_agent_is_omitted_and_reported() -> None:
    found = rendered(SIMPLE, default_remote_write=())
    assert found.receiver_missing
    assert {one["kind"] for one in found.objects} == {
        "ServiceAccount",
        "ClusterRoleBinding",
        "RoleBinding",
        "DaemonSet",
    }
    assert not rendered(TOLERATIONS, default_remote_write=()).receiver_missing


@each
def test_the_agent_accepts_the_configuration_of_every_example(example: str) -> None:
    if "openAgent" in example:
        assert agent_errors(agent_file(example)) == []


GPU: dict[str, Any] = {"gpuMonitoring": {"enabled": True}}
LINUX = {"kubernetes.io/os": "linux"}


@pytest.mark.parametrize(
    ("k8s", "selector", "affine"),
    [
        (GPU, None, True),
        ({"gpuMonitoring": {"enabled": True, "nodeSelector": {"pool": "a"}}}, {"pool": "a"}, True),
        (
            {**GPU, "nodeAgent": {"nodeSelector": {"kubernetes.io/os": "linux"}}},
            {"kubernetes.io/os": "linux"},
            True,
        ),
        (
            {
                "gpuMonitoring": {"enabled": True, "nodeSelector": {"pool": "a"}},
                "nodeAgent": {"nodeSelector": {"pool": "b"}},
            },
            {"pool": "a"},
            True,
        ),
        ({**GPU, "nodeAgent": {"nodeSelector": {"our/gpu-nodes": "yes"}}}, {"our/gpu-nodes": "yes"}, False),
        ({**GPU, "nodeAgent": {"nodeSelector": {"pool": "nvidia-l4"}}}, {"pool": "nvidia-l4"}, False),
    ],
    ids=["defaults", "of the exporter", "of the node agent", "of both", "a label of GPUs", "a value of GPUs"],
)
def test_node_selectors_narrow_the_gpu_nodes_unless_they_choose_gpus_themselves(
    k8s: Any, selector: Any, affine: bool
) -> None:
    spec = only_object("DaemonSet", whatap(k8sAgent=k8s))["spec"]["template"]["spec"]
    assert spec.get("nodeSelector") == selector
    assert ("affinity" in spec) is affine


def affinity_terms(node_agent: Any) -> list[list[str]]:
    """The keys of each alternative of the required node affinity."""
    pod = only_object("DaemonSet", whatap(k8sAgent={**GPU, "nodeAgent": {"affinity": node_agent}}))
    node = pod["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return [[expression["key"] for expression in term["matchExpressions"]] for term in terms]


def required(*terms: Any) -> Any:
    return {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}
    }


def test_an_affinity_narrows_the_gpu_nodes_in_each_of_its_alternatives() -> None:
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [name]}]} for name in "ab"]
    assert len(affinity_terms(required(*zones))) == 2 * len(affinity_terms({"podAffinity": {}}))
    assert all(keys[0] == "zone" and len(keys) == 2 for keys in affinity_terms(required(*zones)))
    own = {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "Exists"}]}
    assert affinity_terms(required(own)) == [["nvidia.com/gpu.product"]]


def test_variables_may_have_every_source_that_a_pod_allows() -> None:
    sources = [
        {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}},
        {"resourceFieldRef": {"containerName": "agent", "resource": "limits.memory", "divisor": "1Mi"}},
        {"resourceFieldRef": {"resource": "limits.cpu", "divisor": 1}},
        {"fileKeyRef": {"volumeName": "config", "path": "app.env", "key": "MODE", "optional": True}},
    ]
    envs = [{"name": f"V{number}", "valueFrom": source} for number, source in enumerate(sources)]
    found = container(whatap(k8sAgent={"gpuMonitoring": {"enabled": True, "envs": envs}}))["env"]
    assert [one["valueFrom"] for one in found if one["name"].startswith("V")] == sources


@pytest.mark.parametrize(
    "image", ["nvcr.io/nvidia/k8s/dcgm-exporter:4.2.3-4.1.3-ubuntu22.04", "r/dcgm-exporter"]
)
def test_dcgm_exporter_itself_gets_the_capability_of_its_manual(image: str) -> None:
    one = container(whatap(k8sAgent={"gpuMonitoring": {"enabled": True, "customImageFullName": image}}))
    assert one["securityContext"]["capabilities"] == {"add": ["SYS_ADMIN"]}


def test_an_empty_or_null_value_is_an_unset_one() -> None:
    endpoint = {
        "port": "9400",
        "interval": "",
        "path": "",
        "timeout": "",
        "adaptiveTimeout": {"enabled": True, "failureThreshold": None},
    }
    target = {"targetName": "a", "type": "PodMonitor", "selector": {}, "endpoints": [endpoint]}
    agent = {"enabled": True, "globalInterval": "", "globalPath": "", "targets": [target]}
    gpu = {"enabled": True, "interval": "", "groupLabel": "", "clusterName": ""}
    resource = whatap(openAgent=agent, k8sAgent={"gpuMonitoring": gpu})
    first, _ = agent_file(resource)["features"]["openAgent"]["targets"]
    assert first["endpoints"] == [{"port": "9400", "adaptiveTimeout": {"enabled": True}}]
    assert not parse_resource(resource).ignored
    without = whatap(openAgent={"enabled": True, "targets": None}, k8sAgent=GPU)
    assert agent_file(without)["features"]["openAgent"] == {}


def test_the_group_label_gets_the_name_that_whatap_gives_it() -> None:
    gpu = {"enabled": True, "groupLabel": "my.org/team", "clusterName": "west"}
    (target,) = agent_file(whatap(openAgent={"enabled": True}, k8sAgent={"gpuMonitoring": gpu}))["features"][
        "openAgent"
    ]["targets"]
    assert target["endpoints"][0]["metricRelabelConfigs"] == [
        {"target_label": "cluster", "replacement": "west"},
        {
            "source_labels": ["my_org_team"],
            "regex": "(.+)",
            "target_label": "whatap_kube_label_gpu_group",
        },
    ]


def test_an_edited_collectors_file_survives_a_while_without_exporters() -> None:
    (seed,) = rendered(SIMPLE).seeds
    off = rendered(whatap(k8sAgent={"gpuMonitoring": {"enabled": False}}))
    assert (off.seeds, off.kept) == ((), (seed,))
    displaced = rendered(SIMPLE).without_exporters()
    assert (displaced.seeds, displaced.kept) == ((), (seed,))


def test_another_image_gets_no_arguments() -> None:
    """For example dcgm-exporter itself, which has the same variables and serves /health."""
    one = container(whatap(k8sAgent={"gpuMonitoring": {"enabled": True, "customImageFullName": "dcgm:4"}}))
    assert one["image"] == "dcgm:4"
    assert "args" not in one
    assert "command" not in one
    assert one["readinessProbe"]["httpGet"]["path"] == "/health"
    assert one["securityContext"] == {"runAsUser": 0, "runAsNonRoot": False}


@pytest.mark.parametrize(
    ("keys", "allowlist"),
    [
        ({"groupLabel": "team"}, "team"),
        ({"groupLabel": "team", "groupLabelAllowlistRegex": "^(app|team/.*)$"}, "app,team/.*"),
        ({"groupLabelAllowlistRegex": "^app$"}, "app"),
    ],
)
def test_the_pod_label_allowlist_is_passed_to_the_exporter(keys: Any, allowlist: str) -> None:
    env = {
        variable["name"]: variable.get("value")
        for variable in container(whatap(k8sAgent={"gpuMonitoring": {"enabled": True, **keys}}))["env"]
    }
    assert env["DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS"] == "true"
    assert env["DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX"] == allowlist


def test_relabeling_and_interval_of_the_exporters_become_a_target() -> None:
    gpu = {
        "enabled": True,
        "interval": "30s",
        "clusterName": "a$b",
        "relabelConfigs": [{"target_label": "x", "replacement": "1"}],
        "metricRelabelConfigs": [{"action": "drop", "source_labels": ["__name__"], "regex": "y"}],
    }
    resource = whatap(openAgent={"enabled": True}, k8sAgent={"gpuMonitoring": gpu})
    (target,) = agent_file(resource)["features"]["openAgent"]["targets"]
    assert target["relabelConfigs"] == [{"target_label": "x", "replacement": "1"}]
    (endpoint,) = target["endpoints"]
    assert endpoint["interval"] == "30s"
    assert endpoint["metricRelabelConfigs"] == [
        {"target_label": "cluster", "replacement": "a$$b"},
        {"action": "drop", "source_labels": ["__name__"], "regex": "y"},
    ]
    assert agent_errors(agent_file(resource)) == []


@pytest.mark.parametrize("name", ["whatap2", "", "Whatap"])
def test_only_one_name_is_valid(name: str) -> None:
    resource = {**whatap(), "metadata": {"name": name}}
    assert [str(one) for one in parse_resource(resource).problems] == [
        f"metadata.name: expected the name whatap, not {name!r}"
    ]

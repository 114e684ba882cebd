"""A WhatapAgent as its manual writes it: what comes of it has the manual's names, labels and mounts."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest

from gpuledger.dialects.dcgm.collectors import parse
from unit.operator.support import (
    CUSTOMERS_OWN,
    EXAMPLES,
    SCRAPED_BY_NAME,
    SIMPLE,
    TOLERATIONS,
    agent_file,
    agent_says,
    container,
    made,
    only,
    read_of,
    rendered,
    whatap,
)

each = pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)

# The fields of the manual's table, by their numbers.
OF_THE_MANUAL = (
    *(1, 2, 50, 53, 54, 65, 66, 500, 67, 69, 76, 77, 100, 101, 155, 190, 150, 203, 1009, 1010),
    *(250, 251, 252, 253, 254, 312, 313, 1001, 1002, 1003, 1004, 1005),
)


@each
def test_every_example_is_taken_as_it_is_written(example: str) -> None:
    found = read_of(example)
    assert found.problems == ()
    assert found.monitor is not None
    assert rendered(example).problems == ()


@each
@pytest.mark.parametrize("version", ["1.25", "1.37"])
def test_every_object_of_an_example_is_valid_strictly(example: str, version: str) -> None:
    for one in made(example).values():
        kubernetes_validate.validate(one, version, strict=True)


@each
def test_every_object_of_an_example_is_where_the_manual_has_it(example: str) -> None:
    for one in made(example).values():
        namespace = one["metadata"].get("namespace")
        assert namespace == (None if one["kind"] == "ClusterRoleBinding" else "whatap-monitoring")


MASTER = "spec.features.k8sAgent.masterAgent: metrics of the cluster are kube-state-metrics', not gpuledger's"
NODE = "spec.features.k8sAgent.nodeAgent.enabled: metrics of nodes are node_exporter's, not gpuledger's"


@pytest.mark.parametrize(
    ("example", "ignored"),
    [(SCRAPED_BY_NAME, [MASTER, NODE]), (SIMPLE, [MASTER, NODE]), (TOLERATIONS, [NODE])],
    ids=["scraped by name", "simple", "tolerations"],
)
def test_what_is_not_ours_to_do_is_said(example: str, ignored: list[str]) -> None:
    assert [str(one) for one in read_of(example).ignored] == ignored


def test_the_simple_example_makes_the_manuals_objects() -> None:
    assert list(made(SIMPLE)) == [
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


def test_the_exporters_container_is_the_manuals() -> None:
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
    # By a value alone; the driver is read without it.
    assert context["capabilities"]["add"] == ["SYS_PTRACE"]


def test_pods_and_their_set_bear_the_label_by_which_the_manual_finds_them() -> None:
    one = only("DaemonSet", SIMPLE)
    assert one["metadata"]["labels"]["name"] == "whatap-node-agent"
    assert one["spec"]["selector"]["matchLabels"] == {"name": "whatap-node-agent"}
    assert one["spec"]["template"]["metadata"]["labels"]["name"] == "whatap-node-agent"
    assert one["spec"]["template"]["metadata"]["labels"]["whatap-gpu"] == "true"


def test_the_collectors_file_is_at_the_manuals_path_and_follows_edits() -> None:
    spec = only("DaemonSet", SIMPLE)["spec"]["template"]["spec"]
    mounts = {one["name"]: one for one in spec["containers"][0]["volumeMounts"]}
    assert mounts["pod-gpu-resources"]["mountPath"] == "/var/lib/kubelet/pod-resources"
    assert mounts["pod-gpu-resources"]["readOnly"] is True
    # With a subPath the kubelet would never change what is mounted.
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
    found = parse(seed["data"]["whatap-gpu.csv"].encode(), "whatap-gpu.csv")
    assert found.warnings == ()
    assert set(OF_THE_MANUAL) <= {column.field.id for column in found.columns}
    assert len(set(OF_THE_MANUAL)) == 32


def test_a_collectors_file_in_the_resource_is_the_operators_to_keep() -> None:
    csv = "DCGM_FI_DEV_GPU_TEMP, gauge, temperature\n"
    found = rendered(whatap(k8sAgent={"gpuMonitoring": {"enabled": True, "collectors": csv}}))
    assert found.seeds == ()
    (one,) = [one for one in found.objects if one["metadata"]["name"] == "dcgm-exporter-csv"]
    assert one["data"] == {"whatap-gpu.csv": csv}


def test_a_target_that_has_the_exporters_is_the_only_one_that_scrapes_them() -> None:
    features = agent_file(SCRAPED_BY_NAME)["features"]["openAgent"]
    assert features["globalInterval"] == "15s"
    assert features["globalPath"] == "/metrics"
    (target,) = features["targets"]
    assert target["targetName"] == "dcgm-exporter"
    assert target["endpoints"] == [{"port": "9400", "path": "/metrics", "interval": "15s", "scheme": "http"}]


def test_without_targets_the_agent_looks_for_usual_exporters_and_ours_is_one_of_them() -> None:
    """So a customer's own exporters are found beside it."""
    assert agent_file(SIMPLE)["features"]["openAgent"] == {}
    labels = only("DaemonSet", SIMPLE)["spec"]["template"]["metadata"]["labels"]
    # It would be found a second time under that name.
    assert "app.kubernetes.io/name" not in labels


def test_without_gpu_monitoring_there_is_an_agent_alone() -> None:
    assert {name.partition("/")[0] for name in made(CUSTOMERS_OWN)} == {
        *("ServiceAccount", "ClusterRoleBinding", "RoleBinding", "ConfigMap", "Service", "StatefulSet")
    }
    names = [one["targetName"] for one in agent_file(CUSTOMERS_OWN)["features"]["openAgent"]["targets"]]
    assert names == ["whatap-dcgm-exporter", "customer-dcgm-exporter"]


def test_both_kinds_are_scraped_where_the_resource_names_the_customers_alone() -> None:
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
    spec = only("DaemonSet", TOLERATIONS)["spec"]["template"]["spec"]
    assert [one["key"] for one in spec["tolerations"]] == [
        "node-role.kubernetes.io/master",
        "node-role.kubernetes.io/control-plane",
        "nvidia.com/gpu",
        "gpu",
    ]


def test_without_a_receiver_there_is_no_agent_and_it_is_said() -> None:
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
def test_what_the_agent_is_given_it_takes(example: str) -> None:
    if "openAgent" in example:
        assert agent_says(agent_file(example)) == ""


GPU: dict[str, Any] = {"gpuMonitoring": {"enabled": True}}


@pytest.mark.parametrize(
    ("k8s", "selector", "affine"),
    [
        (GPU, None, True),
        ({"gpuMonitoring": {"enabled": True, "nodeSelector": {"pool": "a"}}}, {"pool": "a"}, False),
        ({**GPU, "nodeAgent": {"nodeSelector": {"pool": "b"}}}, {"pool": "b"}, False),
        (
            {
                "gpuMonitoring": {"enabled": True, "nodeSelector": {"pool": "a"}},
                "nodeAgent": {"nodeSelector": {"pool": "b"}},
            },
            {"pool": "a"},
            False,
        ),
    ],
    ids=["nothing said", "of the exporter", "of the node agent", "of both"],
)
def test_which_nodes_have_an_exporter(k8s: Any, selector: Any, affine: bool) -> None:
    spec = only("DaemonSet", whatap(k8sAgent=k8s))["spec"]["template"]["spec"]
    assert spec.get("nodeSelector") == selector
    assert ("affinity" in spec) is affine


def test_another_image_is_run_without_arguments_of_ours() -> None:
    """dcgm-exporter itself, say: it takes the same variables, and knows /health."""
    one = container(whatap(k8sAgent={"gpuMonitoring": {"enabled": True, "customImageFullName": "dcgm:4"}}))
    assert one["image"] == "dcgm:4"
    assert "args" not in one
    assert "command" not in one
    assert one["readinessProbe"]["httpGet"]["path"] == "/health"
    assert one["securityContext"] == {"runAsUser": 0, "runAsNonRoot": False}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"groupLabel": "team"}, "team"),
        ({"groupLabel": "team", "groupLabelAllowlistRegex": "^(app|team/.*)$"}, "app,team/.*"),
        ({"groupLabelAllowlistRegex": "^app$"}, "app"),
    ],
)
def test_labels_of_pods_are_told_as_it_tells_them(said: Any, told: str) -> None:
    env = {
        one["name"]: one.get("value")
        for one in container(whatap(k8sAgent={"gpuMonitoring": {"enabled": True, **said}}))["env"]
    }
    assert env["DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS"] == "true"
    assert env["DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX"] == told


def test_its_own_relabelling_and_interval_make_a_target_of_its_exporters() -> None:
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
    assert agent_says(agent_file(resource)) == ""


@pytest.mark.parametrize("name", ["whatap2", "", "Whatap"])
def test_it_has_one_name(name: str) -> None:
    resource = {**whatap(), "metadata": {"name": name}}
    assert [str(one) for one in read_of(resource).problems] == [
        f"metadata.name: the name whatap is wanted, not {name!r}"
    ]

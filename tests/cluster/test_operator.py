"""The operator on a real API server, with the permissions of the chart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from cluster.control_plane import Json
from cluster.document_002 import EXAMPLES, HYBRID
from cluster.operators import (
    AGENT,
    CRON_JOB,
    EXPORTER,
    NAMESPACE,
    PARTS,
    PATHS,
    WHATAP,
    OperatorRelease,
    RunningOperator,
)
from running import wait_until
from sockets import listening, named_sockets

Start = Callable[..., RunningOperator]


def daemon_set(cluster: OperatorRelease) -> Json:
    return cluster.get("DaemonSet", "whatap-node-agent", WHATAP)


WHATAP_EXPORTER = [
    "ClusterRoleBinding -/whatap-node-agent",
    f"ConfigMap {WHATAP}/dcgm-exporter-csv",
    f"DaemonSet {WHATAP}/whatap-node-agent",
    f"ServiceAccount {WHATAP}/whatap-node-agent",
]
WHATAP_AGENT = [
    "ClusterRoleBinding -/whatap-open-agent-role-binding",
    f"ConfigMap {WHATAP}/whatap-open-agent-config",
    f"RoleBinding {WHATAP}/whatap-open-agent-role-binding",
    f"Service {WHATAP}/whatap-open-agent",
    f"ServiceAccount {WHATAP}/whatap-open-agent-sa",
    f"StatefulSet {WHATAP}/whatap-open-agent",
]


@pytest.mark.parametrize(
    ("example", "made"),
    [
        ("scraped by name", [*WHATAP_EXPORTER, *WHATAP_AGENT]),
        ("simple", [*WHATAP_EXPORTER, *WHATAP_AGENT]),
        ("a customer's own exporters", WHATAP_AGENT),
        (HYBRID, [*WHATAP_EXPORTER, *WHATAP_AGENT]),
        ("tolerations", WHATAP_EXPORTER),
    ],
)
def test_each_example_of_document_002_creates_its_objects(
    example: str, made: list[str], cluster: OperatorRelease
) -> None:
    cluster.apply("WhatapAgent", "whatap", EXAMPLES[example])
    assert cluster.wait_applied("WhatapAgent", "whatap") == sorted(made)
    conditions = cluster.conditions("WhatapAgent", "whatap")
    assert conditions["Degraded"] == ("False", "AsWanted")
    assert conditions["ReceiverMissing"] == ("False", "ReceiverNamed")
    ignored = cluster.wait_condition("WhatapAgent", "whatap", "FieldsIgnored", "True", "NotServed")
    assert "spec.features.k8sAgent.nodeAgent.enabled" in ignored["message"]


def test_the_exporter_matches_document_002(cluster: OperatorRelease) -> None:
    cluster.apply("WhatapAgent", "whatap", EXAMPLES["tolerations"])
    cluster.wait_applied("WhatapAgent", "whatap")
    template = daemon_set(cluster)["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert template["metadata"]["labels"]["name"] == "whatap-node-agent"
    assert container["name"] == "dcgm-exporter"
    (port,) = container["ports"]
    assert (port["name"], port["containerPort"]) == ("metrics", 9400)
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert environment["DCGM_EXPORTER_LISTEN"] == ":9400"
    assert environment["DCGM_EXPORTER_KUBERNETES"] == "true"
    assert environment["DCGM_EXPORTER_COLLECTORS"] == "/etc/dcgm-exporter/whatap-dcgm-exporter.csv"
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert mounts["pod-gpu-resources"] == "/var/lib/kubelet/pod-resources"
    assert {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"} in template["spec"]["tolerations"]


MONITORS: dict[str, tuple[Json, list[str]]] = {
    "all defaults": ({}, ["exporter", "agent"]),
    "a customer's own exporters": ({"exporter": {"enabled": False}}, ["agent"]),
    "only exporters": ({"agent": {"enabled": False}}, ["exporter"]),
    "a CronJob": (
        CRON_JOB,
        ["jobs"],
    ),
    "Prometheus as the engine": ({"agent": {"engine": "prometheus"}}, ["exporter", "agent"]),
    "several agents with volumes": (
        {"agent": {"replicas": 3, "persistence": {"size": "1Gi"}}},
        ["exporter", "agent"],
    ),
}


@pytest.mark.parametrize("kind", MONITORS)
def test_each_kind_of_gpu_monitor_creates_its_objects(kind: str, cluster: OperatorRelease) -> None:
    spec, parts = MONITORS[kind]
    cluster.apply("GpuMonitor", "main", spec)
    assert cluster.wait_applied("GpuMonitor", "main") == sorted(one for part in parts for one in PARTS[part])
    assert cluster.conditions("GpuMonitor", "main")["Degraded"] == ("False", "AsWanted")


def test_every_object_has_its_monitor_as_owner(cluster: OperatorRelease) -> None:
    uid = cluster.apply("GpuMonitor", "main", {})["metadata"]["uid"]
    for line in cluster.wait_applied("GpuMonitor", "main"):
        kind, _, place = line.partition(" ")
        namespace, _, name = place.partition("/")
        (reference,) = cluster.get(kind, name, namespace.strip("-"))["metadata"]["ownerReferences"]
        assert reference["uid"] == uid


def test_the_status_counts_nodes_and_exporters(cluster: OperatorRelease) -> None:
    cluster.apply("GpuMonitor", "main", {"agent": {"enabled": False}})
    cluster.wait_applied("GpuMonitor", "main")
    cluster.set_daemon_set_status(EXPORTER, desiredNumberScheduled=8, updatedNumberScheduled=8, numberReady=3)
    cluster.wait_condition("GpuMonitor", "main", "Progressing", "True", "RollingOut")
    cluster.wait_condition("GpuMonitor", "main", "Available", "True", "Running")
    cluster.set_ready("DaemonSet", EXPORTER, 8)
    complete = cluster.wait_condition("GpuMonitor", "main", "Progressing", "False", "Complete")
    assert complete["message"] == "8 of 8 exporters are ready"
    status = (cluster.read("GpuMonitor", "main") or {})["status"]
    assert (status["gpuNodes"], status["exportersReady"]) == (8, 8)
    # No agent was queried: absent, not 0.
    assert not {"targetsFound", "targetsUp", "lastError"} & status.keys()


SCHEMA_VIOLATIONS: dict[str, Json] = {
    "an unknown engine": {"agent": {"engine": "other"}},
    "an invalid port": {"exporter": {"port": 70000}},
    "a word instead of a number": {"agent": {"replicas": "three"}},
}


@pytest.mark.parametrize("wrong", SCHEMA_VIOLATIONS)
def test_the_schema_rejects_invalid_specs(wrong: str, cluster: OperatorRelease) -> None:
    body = {"apiVersion": "gpuledger.dev/v1alpha1", "kind": "GpuMonitor", "metadata": {"name": "main"}}
    answer = cluster.api.request("POST", PATHS["GpuMonitor"], {**body, "spec": SCHEMA_VIOLATIONS[wrong]})
    assert answer.status_code == 422
    assert "spec." in answer.json()["message"]


# Invalid specs that pass the schema: only the operator or the API server finds them.
INVALID_SPECS: dict[str, tuple[Json, str, str]] = {
    "a toleration of any value with a value": (
        {"exporter": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}},
        "Rejected",
        "value must be empty when `operator` is 'Exists'",
    ),
    "a request above its limit": (
        {"exporter": {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}},
        "InvalidSpec",
        "spec.exporter.resources.requests.cpu: 2 is above the limit of 1",
    ),
    "an unknown flag": (
        {"exporter": {"args": ["--intervall=5s"]}},
        "InvalidSpec",
        "spec.exporter.args: unknown flag '--intervall'",
    ),
    "a GPU for the exporter": (
        {"exporter": {"resources": {"limits": {"nvidia.com/gpu": 1}}}},
        "InvalidSpec",
        "spec.exporter.resources.limits.nvidia.com/gpu",
    ),
    "a password in a URL": (
        {"agent": {"remoteWrite": [{"url": "https://ann:hunter2@store/write"}]}},
        "InvalidSpec",
        "spec.agent.remoteWrite[0].url",
    ),
    "an invalid label": (
        {"agent": {"externalLabels": {"a-b": "c"}}},
        "InvalidSpec",
        "spec.agent.externalLabels.a-b",
    ),
}


@pytest.mark.parametrize("wrong", INVALID_SPECS)
def test_an_invalid_spec_is_reported_and_the_last_valid_spec_remains_applied(
    wrong: str, cluster: OperatorRelease
) -> None:
    cluster.apply("GpuMonitor", "main", {})
    made = cluster.wait_applied("GpuMonitor", "main")
    versions = _versions(cluster, made)
    spec, reason, message = INVALID_SPECS[wrong]
    cluster.apply("GpuMonitor", "main", spec)
    degraded = cluster.wait_condition("GpuMonitor", "main", "Degraded", "True", reason)
    assert message in degraded["message"]
    assert message in (cluster.read("GpuMonitor", "main") or {})["status"]["lastError"]
    assert _versions(cluster, cluster.managed_objects()) == versions
    cluster.apply("GpuMonitor", "main", {"agent": {"enabled": False}})
    cluster.wait_condition("GpuMonitor", "main", "Degraded", "False", "AsWanted")
    assert cluster.managed_objects() == PARTS["exporter"]
    assert "lastError" not in (cluster.read("GpuMonitor", "main") or {})["status"]


def _versions(cluster: OperatorRelease, made: list[str]) -> dict[str, str]:
    found = {}
    for line in made:
        kind, _, place = line.partition(" ")
        namespace, _, name = place.partition("/")
        found[line] = cluster.get(kind, name, namespace.strip("-"))["metadata"]["resourceVersion"]
    return found


def _static(name: str, *endpoints: Any, **more: Any) -> Json:
    return {"targetName": name, "type": "StaticEndpoints", "endpoints": list(endpoints), **more}


def test_bad_targets_of_a_first_apply_cost_no_other(cluster: OperatorRelease) -> None:
    good = [_static(f"good{number}", {"address": f"good:{number}"}) for number in range(1, 21)]
    bad = [
        _static("scheme", {"address": "http://bad:1"}),
        _static("interval", {"address": "bad:1", "interval": "often"}),
        _static("regex", {"address": "bad:1", "metricRelabelConfigs": [{"regex": "("}]}),
        {"targetName": "operator", "type": "PodMonitor", "selector": {"matchExpressions": "a"}},
        "no mapping",
    ]
    spec: Json = {"exporter": {"enabled": False}, "agent": {"targets": [*good[:10], *bad, *good[10:]]}}
    cluster.apply("GpuMonitor", "main", spec)
    degraded = cluster.wait_condition("GpuMonitor", "main", "Degraded", "True", "TargetsInvalid")
    for index in range(10, 15):
        assert f"spec.agent.targets[{index}]" in degraded["message"]
    config = cluster.get("ConfigMap", AGENT)["data"]["agent.yaml"]
    assert yaml.safe_load(config)["features"]["openAgent"]["targets"] == good
    cluster.apply("GpuMonitor", "main", {**spec, "agent": {"targets": good}})
    cluster.wait_condition("GpuMonitor", "main", "Degraded", "False", "AsWanted")


def test_the_status_says_why_pods_are_not_created(cluster: OperatorRelease) -> None:
    cluster.apply("GpuMonitor", "main", {"agent": {"enabled": False}})
    cluster.wait_applied("GpuMonitor", "main")
    metadata = cluster.get("DaemonSet", EXPORTER)["metadata"]
    message = f'Error creating: pods "{EXPORTER}-x1" is forbidden: exceeded quota: few'
    event = {
        "metadata": {"name": f"{EXPORTER}.failed", "namespace": NAMESPACE},
        "involvedObject": {"kind": "DaemonSet", "name": EXPORTER, "uid": metadata["uid"]},
        "type": "Warning",
        "reason": "FailedCreate",
        "message": message,
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    event["involvedObject"]["namespace"] = NAMESPACE
    cluster.api.call("POST", f"api/v1/namespaces/{NAMESPACE}/events", event)
    numbers = {"desiredNumberScheduled": 8, "updatedNumberScheduled": 0, "numberReady": 0}
    cluster.set_daemon_set_status(EXPORTER, currentNumberScheduled=0, **numbers)
    degraded = cluster.wait_condition("GpuMonitor", "main", "Degraded", "True", "PodsNotCreated")
    assert degraded["message"].endswith("Error creating: pods are forbidden: exceeded quota: few")


def test_of_two_monitors_for_the_same_nodes_the_newer_is_rejected(cluster: OperatorRelease) -> None:
    first: Json = {"exporter": {"nodeSelector": {"pool": "a"}}, "agent": {"enabled": False}}
    cluster.apply("GpuMonitor", "main", first)
    made = cluster.wait_applied("GpuMonitor", "main")
    cluster.apply("GpuMonitor", "other", first)
    degraded = cluster.wait_condition("GpuMonitor", "other", "Degraded", "True", "Overlap")
    assert "GpuMonitor main" in degraded["message"]
    assert cluster.managed_objects() == made
    cluster.apply("GpuMonitor", "other", {**first, "exporter": {"nodeSelector": {"pool": "b"}}})
    cluster.wait_condition("GpuMonitor", "other", "Degraded", "False", "AsWanted")
    assert len(cluster.managed_objects()) == 2 * len(made)


def test_an_older_monitor_takes_nodes_over_from_a_newer_one(cluster: OperatorRelease) -> None:
    cluster.apply(
        "GpuMonitor", "main", {"exporter": {"nodeSelector": {"pool": "a"}}, "agent": {"enabled": False}}
    )
    cluster.wait_applied("GpuMonitor", "main")
    cluster.apply("GpuMonitor", "other", {"exporter": {"nodeSelector": {"pool": "b"}}})
    cluster.wait_applied("GpuMonitor", "other")
    cluster.apply("GpuMonitor", "main", {"agent": {"enabled": False}})
    cluster.wait_condition("GpuMonitor", "other", "Degraded", "True", "Overlap")
    theirs = f"DaemonSet {NAMESPACE}/gpumonitor-other-exporter"
    wait_until(lambda: theirs not in cluster.managed_objects(), "the newer monitor's exporters to be gone")
    wait_until(lambda: "its exporters were deleted" in _last_error(cluster, "other"), "the status")
    assert f"DaemonSet {NAMESPACE}/{EXPORTER}" in cluster.managed_objects()
    assert f"StatefulSet {NAMESPACE}/gpumonitor-other-agent" in cluster.managed_objects()
    cluster.apply(
        "GpuMonitor", "main", {"exporter": {"nodeSelector": {"pool": "a"}}, "agent": {"enabled": False}}
    )
    wait_until(lambda: theirs in cluster.managed_objects(), "the newer monitor's exporters to exist again")
    cluster.wait_condition("GpuMonitor", "other", "Degraded", "False", "AsWanted")


def _last_error(cluster: OperatorRelease, name: str) -> str:
    return str((cluster.read("GpuMonitor", name) or {})["status"].get("lastError"))


def test_the_newer_monitor_gets_the_nodes_when_the_older_is_deleted(cluster: OperatorRelease) -> None:
    spec: Json = {"agent": {"enabled": False}}
    cluster.apply("GpuMonitor", "main", spec)
    cluster.wait_applied("GpuMonitor", "main")
    cluster.apply("GpuMonitor", "other", spec)
    cluster.wait_condition("GpuMonitor", "other", "Degraded", "True", "Overlap")
    cluster.delete("GpuMonitor", "main")
    cluster.wait_condition("GpuMonitor", "other", "Available", "False", "Starting")
    assert f"DaemonSet {NAMESPACE}/gpumonitor-other-exporter" in cluster.managed_objects()


def test_an_existing_object_of_another_owner_is_not_changed(cluster: OperatorRelease) -> None:
    theirs = {"metadata": {"name": EXPORTER}, "data": {"theirs": "kept"}}
    path = f"api/v1/namespaces/{NAMESPACE}/configmaps"
    cluster.api.call("POST", path, theirs)
    cluster.apply("GpuMonitor", "main", {})
    degraded = cluster.wait_condition("GpuMonitor", "main", "Degraded", "True", "Rejected")
    assert f"ConfigMap {NAMESPACE}/{EXPORTER} already exists" in degraded["message"]
    assert cluster.managed_objects() == []
    assert cluster.get("ConfigMap", EXPORTER)["data"] == {"theirs": "kept"}
    cluster.api.call("DELETE", f"{path}/{EXPORTER}")
    cluster.wait_condition("GpuMonitor", "main", "Degraded", "False", "AsWanted")


def test_changing_an_immutable_field_recreates_the_object_and_keeps_its_pods(
    cluster: OperatorRelease,
) -> None:
    cluster.apply("GpuMonitor", "main", {})
    cluster.wait_applied("GpuMonitor", "main")
    before = cluster.get("StatefulSet", AGENT)
    cluster.apply("GpuMonitor", "main", {"agent": {"persistence": {"size": "1Gi"}}})

    def finalizers() -> list[str]:
        metadata = cluster.get("StatefulSet", AGENT)["metadata"]
        return list(metadata.get("finalizers") or ()) if "deletionTimestamp" in metadata else []

    # The deletion orphans the pods. The garbage collector, which would do so, does not run here.
    assert wait_until(finalizers, "the deletion of the old StatefulSet", 30) == ["orphan"]
    cluster.api.call("PATCH", cluster.path("StatefulSet", AGENT), {"metadata": {"finalizers": None}})

    def recreated() -> Json | None:
        response = cluster.api.request("GET", cluster.path("StatefulSet", AGENT))
        found: Json = response.json()
        return (
            found if response.is_success and found["metadata"]["uid"] != before["metadata"]["uid"] else None
        )

    after = wait_until(recreated, "the new StatefulSet")
    assert after["spec"]["selector"] == before["spec"]["selector"]
    assert [one["metadata"]["name"] for one in after["spec"]["volumeClaimTemplates"]] == ["queue"]
    cluster.wait_condition("GpuMonitor", "main", "Degraded", "False", "AsWanted")


def test_user_edits_of_the_metrics_list_are_kept(cluster: OperatorRelease) -> None:
    cluster.apply("WhatapAgent", "whatap", EXAMPLES["tolerations"])
    cluster.wait_applied("WhatapAgent", "whatap")
    edited = {"data": {"whatap-gpu.csv": "DCGM_FI_DEV_GPU_TEMP, gauge, edited"}}
    cluster.api.call("PATCH", cluster.path("ConfigMap", "dcgm-exporter-csv", WHATAP), edited)
    cluster.api.call("DELETE", cluster.path("DaemonSet", "whatap-node-agent", WHATAP))
    wait_until(
        lambda: cluster.api.request("GET", cluster.path("DaemonSet", "whatap-node-agent", WHATAP)).is_success,
        "the DaemonSet to come back",
    )
    assert cluster.get("ConfigMap", "dcgm-exporter-csv", WHATAP)["data"] == edited["data"]


def test_an_unchanged_spec_causes_no_requests(cluster: OperatorRelease, shared: RunningOperator) -> None:
    cluster.apply("GpuMonitor", "main", {})
    cluster.wait_applied("GpuMonitor", "main")
    reconciles = shared.value('gpuledger_operator_reconciles_total{result="success"}')
    before = len(cluster.audited_requests())
    for number in range(20):
        cluster.api.call(
            "PATCH", f"{PATHS['GpuMonitor']}/main", {"metadata": {"annotations": {"n": f"{number}"}}}
        )
    wait_until(
        lambda: shared.value('gpuledger_operator_reconciles_total{result="success"}') > reconciles,
        "another reconcile",
    )
    assert [event for event in cluster.audited_requests()[before:] if event["verb"] != "watch"] == []


def test_events_report_applied_objects_and_errors(cluster: OperatorRelease) -> None:
    cluster.apply("GpuMonitor", "main", {})
    cluster.wait_applied("GpuMonitor", "main")
    cluster.apply("GpuMonitor", "main", INVALID_SPECS["a toleration of any value with a value"][0])
    cluster.wait_condition("GpuMonitor", "main", "Degraded", "True", "Rejected")

    def events() -> list[tuple[str, str]]:
        items = cluster.api.call("GET", "api/v1/namespaces/default/events")["items"]
        mine = [
            item for item in items if item["involvedObject"].get("uid") == cluster.uid("GpuMonitor", "main")
        ]
        return sorted((item["type"], item["reason"]) for item in mine)

    wait_until(
        lambda: events() == [("Normal", "Applied"), ("Warning", "Rejected")], f"two events, not {events()}"
    )


def test_probes_and_metrics_are_served(shared: RunningOperator) -> None:
    assert shared.get("/-/healthy").status_code == 200
    assert shared.get("/-/ready").status_code == 200
    assert shared.value('gpuledger_operator_served{kind="WhatapAgent"}') == 1
    assert shared.value('gpuledger_operator_api_requests_total{method="GET",code="403"}') == 0
    assert listening(shared.pid) == {f"tcp {shared.url.removeprefix('http://')}"}
    assert named_sockets(shared.pid) == set()

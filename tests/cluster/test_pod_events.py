"""Events of ended pods on a real API server: one for each pod, none twice, and only with the permission."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from chart import MATRIX, of_kind
from cluster.cgroups import CgroupSubtree
from cluster.control_plane import ControlPlane, Json, is_allowed
from cluster.exporter import RunningExporter, running_exporter
from cluster.node import GPUS
from cluster.pods import NAMESPACE, Pods
from cluster.test_pod_names import FakePods, no_pod_logs
from running import wait_until

NODE = "events"
KINDS = {"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings"}
_RBAC = "apis/rbac.authorization.k8s.io/v1"


@pytest.fixture
def running_pods(pods: Pods, folder: Path) -> Iterator[FakePods]:
    """Pods that exist only in the API, with real processes in their cgroups."""
    subtree, started = CgroupSubtree(f"{folder.name}-events"), list[subprocess.Popen[bytes]]()
    yield FakePods(pods, subtree, started)
    for process in started:
        process.kill()
        process.wait()
    subtree.remove()


def allow_events(control_plane: ControlPlane) -> None:
    """The role of the chart, for the account of deploy/rbac.yaml."""
    for kind, plural in KINDS.items():
        found = of_kind(kind, MATRIX["events"], namespace="gpuledger")
        (one,) = (item for item in found if item["metadata"]["name"] == "gpuledger-events")
        control_plane.admin.call("POST", f"{_RBAC}/{plural}", one)


@pytest.fixture
def no_role(control_plane: ControlPlane) -> Iterator[None]:
    yield
    for plural in KINDS.values():
        control_plane.admin.request("DELETE", f"{_RBAC}/{plural}/gpuledger-events")


def events(control_plane: ControlPlane) -> list[Json]:
    path = f"apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"
    found = control_plane.admin.call("GET", path)["items"]
    return [one for one in found if one.get("reason") == "GPUReceipt"]


def by_pod(control_plane: ControlPlane) -> Counter[str]:
    return Counter(one["regarding"]["name"] for one in events(control_plane))


def test_each_ended_pod_has_one_event_of_two_replicas_and_after_a_restart(
    control_plane: ControlPlane,
    running_pods: FakePods,
    pods: Pods,
    api_flags: tuple[str, ...],
    no_role: None,
    tmp_path: Path,
) -> None:
    flags = (*api_flags, *no_pod_logs(tmp_path), "--node-name", NODE)
    flags += ("--kubernetes-events", "--kubernetes-events-after", "1s")

    def replica(name: str) -> RunningExporter:
        place = tmp_path / name
        place.mkdir(exist_ok=True)
        return running.enter_context(
            running_exporter(place, GPUS, *flags, "--state-dir", str(place / "state"))
        )

    names = ["event-done", "event-failed", "event-deleted"]
    made = {name: running_pods.create(name, NODE) for name in names}
    pids = {name: running_pods.start_process(made[name]) for name in names}
    with ExitStack() as running:
        replicas = [replica("first"), replica("second")]
        for exporter in replicas:
            exporter.set_processes(GPUS[0], *pids.values())
            for name, pid in pids.items():
                exporter.wait_pod_labels(pid, (NAMESPACE, name, "main"))
            exporter.wait_more_ticks(40)
        pods.set_status("event-done", {"phase": "Succeeded"})
        pods.set_status("event-failed", {"phase": "Failed"})
        pods.delete_now("event-deleted")
        for exporter in replicas:
            exporter.set_processes(GPUS[0])
            # Without the role nothing is posted, and the log has the rule.
            exporter.server.wait_line(r"may not create events; add .*resources: \[\W*events")
        assert events(control_plane) == []
        allow_events(control_plane)
        wait_until(lambda: len(by_pod(control_plane)) == 3, "an Event of each pod")
    with ExitStack() as running:
        *_, newest = [replica("first"), replica("second"), replica("third")]
        newest.wait_more_ticks(60)
        assert by_pod(control_plane) == dict.fromkeys(names, 1)
    for event in events(control_plane):
        assert event["regarding"]["uid"] == made[event["regarding"]["name"]]["metadata"]["uid"]
        assert event["note"].startswith("Had 1 GPU (")
        assert "GPU-hours" in event["note"]
        assert len(event["note"].encode()) <= 1024
    assert "GPUReceipt" in control_plane.kubectl("-n", NAMESPACE, "describe", "pod", "event-done")


def test_the_role_allows_nothing_but_to_create_events(control_plane: ControlPlane, no_role: None) -> None:
    verbs = ("get", "list", "watch", "create", "update", "patch", "delete")
    checked = [(group, "events", verb) for group in ("", "events.k8s.io") for verb in verbs]
    assert not any(is_allowed(control_plane, *request) for request in checked)
    allow_events(control_plane)
    wait_until(lambda: is_allowed(control_plane, "events.k8s.io", "events", "create"), "the permission")
    allowed = [request for request in checked if is_allowed(control_plane, *request)]
    assert allowed == [("events.k8s.io", "events", "create")]

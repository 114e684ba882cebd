"""Pod names from a real API server: many pods, expired watches, missing permissions.

The pods are bound to nodes without a kubelet, so that only the API server changes them. Real processes run in
the cgroups that a kubelet would have created for the pods.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.cgroups import CgroupSubtree
from cluster.control_plane import ACCOUNT, ControlPlane, Json
from cluster.exporter import NO_POD, running_exporter
from cluster.node import GPUS
from cluster.pods import NAMESPACE, Pods, container, pod
from running import wait_until

MIB = 1 << 20


@pytest.fixture
def subtree(folder: Path, request: pytest.FixtureRequest) -> Iterator[CgroupSubtree]:
    made = CgroupSubtree(f"{folder.name}-{hashlib.sha256(request.node.name.encode()).hexdigest()[:8]}")
    yield made
    made.remove()


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


class FakePods:
    """Pods that exist only in the API, and processes in the cgroups that they would have."""

    def __init__(self, pods: Pods, subtree: CgroupSubtree, started: list[subprocess.Popen[bytes]]) -> None:
        self._pods = pods
        self._subtree = subtree
        self._started = started

    def create(self, name: str, node: str, **metadata: Any) -> Json:
        made = self._pods.create(pod(name, container("main"), node=node, **metadata))
        status = {"name": "main", "image": "", "imageID": "", "ready": True, "restartCount": 0}
        status |= {"containerID": f"containerd://{self.container_id(made)}", "state": {"running": {}}}
        self._pods.set_status(name, {"phase": "Running", "containerStatuses": [status]})
        return made

    def container_id(self, made: Json) -> str:
        return hashlib.sha256(made["metadata"]["uid"].encode()).hexdigest()

    def start_process(self, made: Json) -> int:
        """Start a process in the cgroup of the pod's container, and return its PID."""
        started = subprocess.Popen(["sleep", "600"])
        self._started.append(started)
        path = f"kubepods/burstable/pod{made['metadata']['uid']}/{self.container_id(made)}"
        self._subtree.move_process(started.pid, path)
        return started.pid


@pytest.fixture
def fake_pods(pods: Pods, subtree: CgroupSubtree, processes: list[subprocess.Popen[bytes]]) -> FakePods:
    return FakePods(pods, subtree, processes)


def no_pod_logs(tmp_path: Path) -> tuple[str, ...]:
    """Flags for a machine without a kubelet."""
    return ("--pod-logs", str(tmp_path / "no-logs"))


def lists(control_plane: ControlPlane, node: str) -> list[Json]:
    events = control_plane.audit_events(ACCOUNT)
    return [event for event in events if event["verb"] == "list" and node in event["requestURI"]]


def is_expired(control_plane: ControlPlane, version: int) -> bool:
    """True if the response to a watch from this version is 410 Gone, as a status or as an event."""
    parameters = {"watch": "1", "resourceVersion": str(version), "timeoutSeconds": "1"}
    response = control_plane.admin.request("GET", "api/v1/pods", **parameters)
    return response.status_code == 410 or '"code":410' in response.text


def test_500_pods_on_a_node_are_found_with_little_memory(
    control_plane: ControlPlane,
    fake_pods: FakePods,
    pods: Pods,
    api_flags: tuple[str, ...],
    tmp_path: Path,
) -> None:
    made = [fake_pods.create(f"crowd-{number}", "crowded") for number in range(500)]
    chosen = {fake_pods.start_process(made[number]): f"crowd-{number}" for number in (0, 249, 499)}
    with running_exporter(
        tmp_path, GPUS, *api_flags, *no_pod_logs(tmp_path), "--node-name", "crowded"
    ) as exporter:
        exporter.set_processes(GPUS[0], *chosen)
        for pid, name in chosen.items():
            exporter.wait_pod_labels(pid, (NAMESPACE, name, "main"))
        assert exporter.resident_bytes() < 45 * MIB
    assert len(lists(control_plane, "crowded")) >= 1


def test_it_requests_only_the_pods_of_its_node(
    control_plane: ControlPlane, fake_pods: FakePods, api_flags: tuple[str, ...], pods: Pods, tmp_path: Path
) -> None:
    """Every node lists pods at every start: this scales only with a field selector and the watch cache."""
    # Ignores requests of earlier tests: a server that has just started briefly denies allowed requests.
    before = len(control_plane.audit_events(ACCOUNT))
    made = fake_pods.create("here", "listed")
    pid = fake_pods.start_process(made)
    with running_exporter(
        tmp_path, GPUS, *api_flags, *no_pod_logs(tmp_path), "--node-name", "listed"
    ) as exporter:
        exporter.set_processes(GPUS[0], pid)
        exporter.wait_pod_labels(pid, (NAMESPACE, "here", "main"))
    events = control_plane.audit_events(ACCOUNT)[before:]
    assert events
    for event in events:
        if "objectRef" not in event:
            # Discovery of ResourceSlice versions; this server is older than all of them.
            assert event["requestURI"].startswith("/apis/resource.k8s.io"), event
            continue
        # 404, not 403: permission for ResourceSlices is not missing.
        expected = {"pods": 200, "resourceslices": 404}[event["objectRef"]["resource"]]
        assert event["responseStatus"]["code"] == expected, event
    objects = [event for event in events if "objectRef" in event]
    of_pods = [event["requestURI"] for event in objects if event["objectRef"]["resource"] == "pods"]
    assert all("fieldSelector=spec.nodeName%3D" in uri for uri in of_pods)
    (first,) = lists(control_plane, "listed")
    assert "resourceVersion=0" in first["requestURI"]


def test_a_recreated_pod_does_not_get_the_processes_of_its_predecessor(
    fake_pods: FakePods, pods: Pods, api_flags: tuple[str, ...], tmp_path: Path
) -> None:
    first = fake_pods.create("twice", "twins")
    old = fake_pods.start_process(first)
    with running_exporter(
        tmp_path, GPUS, *api_flags, *no_pod_logs(tmp_path), "--node-name", "twins"
    ) as exporter:
        exporter.set_processes(GPUS[0], old)
        exporter.wait_pod_labels(old, (NAMESPACE, "twice", "main"))
        pods.delete_now("twice")
        second = fake_pods.create("twice", "twins")
        new = fake_pods.start_process(second)
        exporter.set_processes(GPUS[0], old, new)
        exporter.wait_pod_labels(new, (NAMESPACE, "twice", "main"))
        uids = [made["metadata"]["uid"] for made in (first, second)]
        assert [exporter.pod_uids(old), exporter.pod_uids(new)] == [{uid} for uid in uids]


def test_an_expired_watch_is_followed_by_a_new_list(
    control_plane: ControlPlane, fake_pods: FakePods, pods: Pods, api_flags: tuple[str, ...], tmp_path: Path
) -> None:
    """The server compacts the version of the watch, and responds 410 Gone."""
    first = fake_pods.create("before", "expiring")
    old = fake_pods.start_process(first)
    with running_exporter(
        tmp_path, GPUS, *api_flags, *no_pod_logs(tmp_path), "--node-name", "expiring"
    ) as exporter:
        exporter.set_processes(GPUS[0], old)
        exporter.wait_pod_labels(old, (NAMESPACE, "before", "main"))
        before = len(lists(control_plane, "expiring"))
        stood = control_plane.latest_revision()
        # Pods of other nodes advance the version, but are not in this watch.
        for number in range(3):
            fake_pods.create(f"elsewhere-{number}", "elsewhere")
        control_plane.compact_etcd()
        control_plane.server.restart()
        assert is_expired(control_plane, stood)
        new = fake_pods.start_process(fake_pods.create("after", "expiring"))
        exporter.set_processes(GPUS[0], old, new)
        exporter.wait_pod_labels(new, (NAMESPACE, "after", "main"))
        assert exporter.pod_labels(old) == {(NAMESPACE, "before", "main")}
        wait_until(lambda: len(lists(control_plane, "expiring")) > before, "another list")


def test_without_permission_it_logs_the_missing_rule_and_assigns_no_owner(
    control_plane: ControlPlane, fake_pods: FakePods, pods: Pods, tmp_path: Path
) -> None:
    made = fake_pods.create("hidden", "forbidden")
    pid = fake_pods.start_process(made)
    token = tmp_path / "token"
    token.write_text("stranger-token")
    ca_file = ("--kubernetes-ca-file", str(control_plane.ca_file))
    flags = ("--kubernetes-enabled", "true", "--kubernetes-api", control_plane.url, *ca_file)
    more = ("--kubernetes-token-file", str(token), "--node-name", "forbidden", *no_pod_logs(tmp_path))
    with running_exporter(tmp_path, GPUS, *flags, *more) as exporter:
        exporter.set_processes(GPUS[0], pid)
        line = exporter.server.wait_line(r"403 from .*")[0]
        assert "pods" in line
        assert "list" in line
        exporter.wait_pod_labels(pid, NO_POD)
        assert exporter.unresolved_processes() == {"pod_name": 1}
        # Permission is added later: no restart is needed.
        token.write_text(control_plane.create_token("gpuledger", "gpuledger"))
        exporter.wait_pod_labels(pid, (NAMESPACE, "hidden", "main"))


def test_a_rejected_token_is_reloaded_from_its_file(
    control_plane: ControlPlane,
    fake_pods: FakePods,
    api_flags: tuple[str, ...],
    token_file: Path,
    tmp_path: Path,
) -> None:
    with running_exporter(
        tmp_path, GPUS, *api_flags, *no_pod_logs(tmp_path), "--node-name", "rotating"
    ) as exporter:
        old = fake_pods.start_process(fake_pods.create("old", "rotating"))
        exporter.set_processes(GPUS[0], old)
        exporter.wait_pod_labels(old, (NAMESPACE, "old", "main"))
        control_plane.recreate_account("gpuledger", "gpuledger")
        # A new connection makes the server check the token again.
        control_plane.server.restart()
        exporter.server.wait_line("401 from")
        token_file.write_text(control_plane.create_token("gpuledger", "gpuledger"))
        new = fake_pods.start_process(fake_pods.create("new", "rotating"))
        exporter.set_processes(GPUS[0], old, new)
        exporter.wait_pod_labels(new, (NAMESPACE, "new", "main"))

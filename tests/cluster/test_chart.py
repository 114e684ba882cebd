"""The chart on the real cluster with running pods: install, upgrade, rollback and uninstall."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.control_plane import ControlPlane, Json
from cluster.helm import CHART, Helm
from cluster.node import GPUS, Node
from cluster.pods import NAMESPACE, Pods, container, pod, process_of
from cluster.release import Driver, MetricsClient, node_values
from running import wait_until

# The names in document 001.
RELEASE_NAMESPACE = "monitoring"
RELEASE = "gpu-monitoring"
NAME = "gpu-monitoring-gpuledger"
LEDGER_FILE = "var/lib/gpuledger/gpuledger.db"


@dataclass
class ChartRelease:
    """The release on the node, and clients for its tests."""

    helm: Helm
    driver: Driver
    exporter: MetricsClient
    values: Json
    plane: ControlPlane

    def pod(self) -> Json:
        path = f"api/v1/namespaces/{RELEASE_NAMESPACE}/pods"
        found = self.plane.admin.call("GET", path, labelSelector=f"app={NAME}")["items"]
        (only,) = [one for one in found if "deletionTimestamp" not in one["metadata"]]
        return dict(only)

    def daemonset(self) -> Json:
        return self.plane.admin.call("GET", f"apis/apps/v1/namespaces/{RELEASE_NAMESPACE}/daemonsets/{NAME}")

    def arguments(self) -> list[str]:
        return list(self.daemonset()["spec"]["template"]["spec"]["containers"][0]["args"])

    def wait_ready(self) -> None:
        """Wait for the DaemonSet's pod: Helm's wait is already satisfied before the pod exists."""

        def ready() -> bool:
            found = self.daemonset()
            status = found["status"]
            keys = ("observedGeneration", "updatedNumberScheduled", "numberReady")
            return [status.get(key) for key in keys] == [found["metadata"]["generation"], 1, 1]

        wait_until(ready, "the DaemonSet's pod to be ready")


@pytest.fixture(scope="module")
def release(
    gpu_node: Node, control_plane: ControlPlane, program_image: str, folder: Path
) -> Iterator[ChartRelease]:
    driver = Driver(folder / "chart-driver", GPUS)
    values = node_values(program_image, driver)
    helm = Helm(control_plane, RELEASE, RELEASE_NAMESPACE)
    try:
        helm.install(values)
        made = ChartRelease(helm, driver, MetricsClient(values["port"]), values, control_plane)
        made.wait_ready()
        yield made
        helm.uninstall()
    finally:
        helm.close()


@pytest.fixture
def pod_gpu(release: ChartRelease, gpu_node: Node, pods: Pods) -> str:
    """Run a pod with a process on a GPU. Returns the UUID of the GPU."""
    pods.create(pod("train", container("main", gpus=1), node=gpu_node.name))
    running = pods.wait_running("train", "main")
    release.driver.set_processes(running.devices[0], gpu_node.namespaced_pid(running.pid))
    return running.devices[0]


def test_metrics_name_the_pod_of_a_gpu_process(release: ChartRelease, pod_gpu: str) -> None:
    row = release.exporter.wait_row("gpu_process_info", "/metrics/process", pod="train")
    assert (row["namespace"], row["container"], row["status"]) == (NAMESPACE, "main", "active")


def test_the_native_dialect_exports_the_pod_that_a_gpu_is_allocated_to(
    release: ChartRelease, pod_gpu: str
) -> None:
    row = release.exporter.wait_row("gpuledger_device_owner_info", pod="train", uuid=pod_gpu)
    assert (row["namespace"], row["container"]) == (NAMESPACE, "main")


def test_the_pod_passes_its_probes(release: ChartRelease) -> None:
    status = release.pod()["status"]
    assert {one["type"]: one["status"] for one in status["conditions"]}["Ready"] == "True"
    (only,) = status["containerStatuses"]
    assert (only["ready"], only["started"], only["restartCount"]) == (True, True, 0)


def test_requests_to_the_api_server_use_its_service_account_and_are_all_allowed(
    release: ChartRelease, pod_gpu: str, control_plane: ControlPlane
) -> None:
    release.exporter.wait_row("gpu_process_info", "/metrics/process", pod="train")
    events = control_plane.audit_events(f"system:serviceaccount:{RELEASE_NAMESPACE}:{NAME}")
    assert {event["responseStatus"]["code"] for event in events} <= {200, 404}
    assert [event for event in events if event["requestURI"].startswith("/api/v1/pods?")]


def test_doctor_in_the_pod_finds_everything_working(release: ChartRelease, gpu_node: Node) -> None:
    identity = release.pod()["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    command = ["gpuledger", "doctor", "--config=/etc/gpuledger/config/gpuledger.yaml"]
    execute = ["ctr", "--namespace=k8s.io", "tasks", "exec", "--exec-id=doctor", identity]
    report = gpu_node.run_inside(*execute, *command).stdout
    for check in ("NVML library", "host pids", "Kubernetes API", "pod-resources socket"):
        assert [line for line in report.splitlines() if check in line and "works" in line], report


def test_the_root_file_system_is_read_only(release: ChartRelease) -> None:
    identity = release.pod()["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    pid = process_of(identity)
    (root,) = [
        line.split()
        for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
        if line.split()[4] == "/"
    ]
    assert "ro" in root[5].split(",")


def test_the_script_of_helm_test_succeeds(release: ChartRelease) -> None:
    """Runs the script on this machine: its pod would need a pod network, which this node does not have."""
    address, port = release.exporter.url.removeprefix("http://").split(":")
    done = subprocess.run(
        [sys.executable, CHART / "files/check_ready.py", address, port, "http"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_upgrade_with_reused_values_keeps_them_and_a_rollback_reverts_it(release: ChartRelease) -> None:
    before = release.arguments()
    release.helm.upgrade({"extraArgs": ["--log-level=debug"]}, reuse_values=True)
    release.wait_ready()
    assert release.arguments() == [*before, "--log-level=debug"]
    assert release.exporter.get("/-/ready").is_success
    release.helm.rollback(1)
    release.wait_ready()
    assert release.arguments() == before
    assert release.helm.history() == ["superseded", "superseded", "deployed"]


def test_the_ledger_continues_after_a_rollout(release: ChartRelease, pod_gpu: str) -> None:
    """The new pod continues the energy counters of the old one."""

    def joules() -> float:
        rows = release.exporter.rows("gpuledger_energy_joules_total")
        return sum(value for row, value in rows if row["uuid"] == pod_gpu)

    first = wait_until(joules, "energy to be booked")
    release.helm.upgrade({"podAnnotations": {"rollout": "yes"}}, reuse_values=True)
    release.wait_ready()
    assert wait_until(joules, "energy after the rollout") >= first


def test_uninstalling_leaves_only_the_ledger(release: ChartRelease, gpu_node: Node) -> None:
    assert release.helm.remaining_objects()
    release.helm.uninstall()
    wait_until(lambda: not release.helm.remaining_objects(), "everything of the release to be gone")
    assert (gpu_node.folder / LEDGER_FILE).exists()

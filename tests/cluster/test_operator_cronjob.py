"""Mode cronjob of a GpuMonitor on the real node: controllers, scheduler and kubelet run its Jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.control_plane import ControlPlane, Json
from cluster.fake_nodes import FakeNodes
from cluster.node import Node
from cluster.operators import EXPORTER, NAMESPACE, OperatorRelease, operator_release
from cluster.release import GPU_LABEL, rows
from gpuledger.operator.render.naming import MONITOR
from running import wait_until

FOLDER = "var/lib/node_exporter/textfile_collector"
# The schedule is a minute, and pods of a busy machine start late.
PATIENCE = 240.0


@pytest.fixture(scope="module")
def release(
    gpu_node: Node, program_image: str, control_plane: ControlPlane, folder: Path
) -> Iterator[OperatorRelease]:
    repository, _, tag = program_image.rpartition(":")
    image = {"repository": repository, "tag": tag, "pullPolicy": "Never"}
    with operator_release(control_plane, folder / "jobs", image=image) as made:
        # The operator runs on this machine.
        control_plane.kubectl("-n", NAMESPACE, "scale", "deployment", made.name, "--replicas=0")
        yield made
        made.delete_all()


@pytest.fixture
def cluster(release: OperatorRelease) -> Iterator[OperatorRelease]:
    with release.operators() as start:
        start("--status-interval=100ms", "--agent-interval=1s", "--nodes-interval=1s").wait_leads()
        yield release
        release.delete_all()


@pytest.fixture
def fake_nodes(control_plane: ControlPlane) -> Iterator[FakeNodes]:
    nodes = FakeNodes(control_plane.admin)
    yield nodes
    nodes.remove()


def spec(mode: str, **more: object) -> Json:
    # There is no pod network. Simulated GPUs need no driver.
    exporter = {"mode": mode, "source": "simulator", "hostNetwork": True, "nodeSelector": GPU_LABEL, **more}
    return {"exporter": exporter, "agent": {"enabled": False}}


def workloads(cluster: OperatorRelease) -> list[str]:
    return [one.partition(" ")[0] for one in cluster.managed_objects() if one.startswith(("Cron", "Daemon"))]


def pods(cluster: OperatorRelease) -> int:
    return int(cluster.get("CronJob", EXPORTER)["spec"]["jobTemplate"]["spec"]["completions"])


def remaining(cluster: OperatorRelease, kind: str) -> list[Json]:
    selector = f"{MONITOR}=main"
    found: list[Json] = cluster.api.call("GET", kind.format(NAMESPACE), labelSelector=selector)["items"]
    return found


def test_jobs_write_the_file_of_the_node_and_the_status_says_so(
    cluster: OperatorRelease, gpu_node: Node
) -> None:
    file = gpu_node.folder / FOLDER / "operated.prom"
    textfile = {"file": file.name}
    cluster.apply("GpuMonitor", "main", spec("cronjob", textfile=textfile))
    cluster.wait_condition("GpuMonitor", "main", "Available", "False", "Starting")
    assert workloads(cluster) == ["CronJob"]
    found = cluster.wait_condition("GpuMonitor", "main", "Available", "True", "Running", PATIENCE)
    assert found["message"] == "1 of 1 nodes have written their file in the newest Jobs"
    status = (cluster.read("GpuMonitor", "main") or {})["status"]
    assert (status["gpuNodes"], status["exportersReady"]) == (1, 1)
    assert status["nodes"] == [{"name": gpu_node.name, "ready": True}]
    text = file.read_text()
    assert rows(text, "gpu_total_processes")
    assert "gpuledger_" not in text
    # A DaemonSet takes the place of the Jobs, which are deleted with their pods.
    cluster.apply("GpuMonitor", "main", spec("collect", textfile={**textfile, "every": "1s"}))
    cluster.wait_condition("GpuMonitor", "main", "Progressing", "False", "Complete", PATIENCE)
    assert workloads(cluster) == ["DaemonSet"]
    wait_until(lambda: not remaining(cluster, "apis/batch/v1/namespaces/{}/jobs"), "the Jobs to be deleted")
    wait_until(lambda: "gpuledger_" in file.read_text(), "the file of the DaemonSet")
    cluster.delete("GpuMonitor", "main")
    assert cluster.managed_objects() == []
    wait_until(lambda: not remaining(cluster, "api/v1/namespaces/{}/pods"), "the pods to be gone")
    # Stopped, `collect --every` deletes its file.
    assert not file.exists()


def test_new_nodes_get_pods_and_too_many_get_a_daemon_set(
    cluster: OperatorRelease, fake_nodes: FakeNodes
) -> None:
    suspended = {"suspend": True, "maxNodes": 2}
    cluster.apply("GpuMonitor", "main", spec("cronjob", cronJob=suspended))
    cluster.wait_condition("GpuMonitor", "main", "Available", "False", "Suspended")
    assert pods(cluster) == 1
    fake_nodes.add("gpu-a")
    wait_until(lambda: pods(cluster) == 2, "a pod for the new node")
    fake_nodes.add("gpu-b")
    wait_until(lambda: workloads(cluster) == ["DaemonSet"], "a DaemonSet for three nodes")
    fake_nodes.remove()
    wait_until(lambda: workloads(cluster) == ["CronJob"], "a CronJob instead of the DaemonSet")
    wait_until(lambda: pods(cluster) == 1, "a CronJob for one node")


def test_nodes_that_are_not_known_get_a_daemon_set_beside_a_suspended_cron_job(
    cluster: OperatorRelease,
) -> None:
    affinity: Json = {"nodeAffinity": {}}
    cluster.apply("GpuMonitor", "main", spec("cronjob", affinity=affinity))
    found = cluster.wait_condition("GpuMonitor", "main", "Available", "True", "Running", PATIENCE)
    assert "no GPU nodes are known, so a DaemonSet that runs collect --every 60s covers" in found["message"]
    assert workloads(cluster) == ["CronJob", "DaemonSet"]
    assert cluster.get("CronJob", EXPORTER)["spec"]["suspend"] is True

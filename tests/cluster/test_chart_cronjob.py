"""CronJob mode on the real cluster: each Job runs a pod on every GPU node, which writes the node's file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.control_plane import ControlPlane, Json
from cluster.fake_nodes import FakeNodes
from cluster.helm import Helm
from cluster.node import GPUS, Node
from cluster.pods import NAMESPACE, Pods, container, pod
from cluster.release import Driver, node_values, rows
from running import wait_until

# The names in documents 000 and 001.
RELEASE_NAMESPACE = "gpu-operator"
PROCESSES = "gpu-process-metrics-collector"
SESSIONS = "gpu-session-metrics-collector"
FILE = "var/lib/node_exporter/textfile_collector/gpu_processes.prom"
# Suspended: only the tests create Jobs, because scheduled Jobs would use the same nodes.
SUSPENDED = {"cronjob": {"suspend": True}, "gpu-process-exporter": {"enabled": True}}


@pytest.fixture
def fake_nodes(control_plane: ControlPlane) -> Iterator[FakeNodes]:
    nodes = FakeNodes(control_plane.admin)
    yield nodes
    nodes.remove()


@pytest.fixture
def helm(controllers: None, control_plane: ControlPlane) -> Iterator[Helm]:
    made = Helm(control_plane, "gpu-collector", RELEASE_NAMESPACE)
    try:
        yield made
        made.uninstall()
        wait_until(
            lambda: not _remaining_objects(made, control_plane), "all objects of the release to be gone"
        )
    finally:
        made.close()


def _remaining_objects(helm: Helm, plane: ControlPlane) -> list[str]:
    """Remaining objects of the release. Deletes its pods on fake nodes, where no kubelet does."""
    left = helm.remaining_objects()
    for path in left:
        if path.startswith("api/v1/pods/"):
            name = path.rpartition("/")[2]
            plane.admin.request(
                "DELETE", f"api/v1/namespaces/{RELEASE_NAMESPACE}/pods/{name}", gracePeriodSeconds="0"
            )
    return left


@pytest.fixture(scope="module")
def driver(folder: Path) -> Driver:
    return Driver(folder / "collector-driver", GPUS)


class Jobs:
    """Creates Jobs from the CronJobs, as document 001 does."""

    def __init__(self, plane: ControlPlane) -> None:
        self._api = plane.admin
        self._jobs = f"apis/batch/v1/namespaces/{RELEASE_NAMESPACE}/jobs"
        self._pods = f"api/v1/namespaces/{RELEASE_NAMESPACE}/pods"

    def start(self, cronjob: str, name: str) -> None:
        """Create a Job like `kubectl create job --from=cronjob/...`, which needs batch/v1 in new versions."""
        path = f"apis/batch/v1beta1/namespaces/{RELEASE_NAMESPACE}/cronjobs/{cronjob}"
        found = self._api.call("GET", path)
        template = found["spec"]["jobTemplate"]
        owner = {"apiVersion": found["apiVersion"], "kind": found["kind"], "controller": True}
        owner |= {"name": cronjob, "uid": found["metadata"]["uid"]}
        metadata = {
            "name": name,
            "labels": template["metadata"]["labels"],
            "annotations": {"cronjob.kubernetes.io/instantiate": "manual"},
            "ownerReferences": [owner],
        }
        self._api.call("POST", self._jobs, {"metadata": metadata, "spec": template["spec"]})

    def nodes(self, name: str) -> list[str]:
        """Nodes of the Job's pods, sorted, one entry per pod."""
        found = self._api.call("GET", self._pods, labelSelector=f"job-name={name}")["items"]
        return sorted(one["spec"].get("nodeName", "") for one in found)

    def wait_complete(self, name: str) -> None:
        def complete() -> bool:
            return "completionTime" in self._api.call("GET", f"{self._jobs}/{name}")["status"]

        wait_until(complete, f"job {name} to be complete")


@pytest.fixture
def jobs(control_plane: ControlPlane) -> Jobs:
    return Jobs(control_plane)


def cronjob(plane: ControlPlane, name: str) -> Json:
    return plane.admin.call("GET", f"apis/batch/v1beta1/namespaces/{RELEASE_NAMESPACE}/cronjobs/{name}")


def test_a_job_runs_one_pod_on_each_gpu_node(helm: Helm, jobs: Jobs, fake_nodes: FakeNodes) -> None:
    names = ["gpu-a", "gpu-b", "gpu-c"]
    fake_nodes.add(*names)
    helm.install(SUSPENDED, wait=False)
    jobs.start(PROCESSES, "tick")
    wait_until(lambda: jobs.nodes("tick") == names, "a pod on each of the nodes")


def test_a_node_without_gpus_gets_no_pod(helm: Helm, jobs: Jobs, fake_nodes: FakeNodes) -> None:
    fake_nodes.add("gpu-a")
    fake_nodes.add("plain", **{"nvidia.com/gpu.present": "false"})
    helm.install(SUSPENDED, wait=False)
    jobs.start(PROCESSES, "tick")
    wait_until(lambda: jobs.nodes("tick") == ["gpu-a"], "a pod on the GPU node")


def test_more_than_twenty_nodes_get_a_daemonset(
    helm: Helm, fake_nodes: FakeNodes, control_plane: ControlPlane
) -> None:
    fake_nodes.add(*(f"gpu-{number:02}" for number in range(21)))
    helm.install({"gpu-process-exporter": {"enabled": True}}, wait=False)
    assert {one["kind"] for one in helm.objects()} & {"DaemonSet", "CronJob"} == {"DaemonSet"}
    path = f"apis/apps/v1/namespaces/{RELEASE_NAMESPACE}/daemonsets"

    def scheduled() -> list[int]:
        found = control_plane.admin.call("GET", path)["items"]
        return [one["status"].get("currentNumberScheduled") for one in found]

    wait_until(lambda: scheduled() == [21], "a pod on each of the nodes")


def test_with_both_collectors_enabled_one_writes_and_jobs_can_be_created_from_the_other(
    helm: Helm, jobs: Jobs, fake_nodes: FakeNodes, control_plane: ControlPlane
) -> None:
    fake_nodes.add("gpu-a")
    on = {"enabled": True}
    helm.install({"gpu-process-exporter": on, "gpu-session-monitoring": on}, wait=False)
    suspended = {name: cronjob(control_plane, name)["spec"]["suspend"] for name in (PROCESSES, SESSIONS)}
    assert suspended == {PROCESSES: False, SESSIONS: True}
    jobs.start(SESSIONS, "test-job")
    wait_until(lambda: jobs.nodes("test-job") == ["gpu-a"], "its pod")


def test_the_textfile_names_the_pods_of_its_node(
    helm: Helm, jobs: Jobs, driver: Driver, gpu_node: Node, program_image: str, pods: Pods
) -> None:
    pods.create(pod("train", container("main", gpus=1), node=gpu_node.name))
    running = pods.wait_running("train", "main")
    driver.set_processes(running.devices[0], gpu_node.namespaced_pid(running.pid))
    helm.install({**node_values(program_image, driver), **SUSPENDED}, wait=False)
    jobs.start(PROCESSES, "collect-once")
    jobs.wait_complete("collect-once")
    text = (gpu_node.folder / FILE).read_text()
    (row,) = [labels for labels, _ in rows(text, "gpu_process_info") if labels["status"] == "active"]
    assert (row["namespace"], row["pod"], row["container"]) == (NAMESPACE, "train", "main")
    assert rows(text, "gpu_total_processes") == [({}, 1)]

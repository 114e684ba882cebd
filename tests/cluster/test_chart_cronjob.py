"""CronJob mode on the real cluster: every GPU node has a pod of each tick, which writes its node's file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.control_plane import ControlPlane, Json
from cluster.helm import Helm
from cluster.node import GPUS, Node
from cluster.paper_nodes import PaperNodes
from cluster.pods import NAMESPACE, Pods, container, pod
from cluster.release import Driver, node_values, rows
from running import wait_until

# As documents 000 and 001 name them.
IN = "gpu-operator"
PROCESSES = "gpu-process-metrics-collector"
SESSIONS = "gpu-session-metrics-collector"
FILE = "var/lib/node_exporter/textfile_collector/gpu_processes.prom"
# Only the Jobs that a test makes: those of the schedule would stand on the same nodes.
BY_HAND = {"cronjob": {"suspend": True}, "gpu-process-exporter": {"enabled": True}}


@pytest.fixture
def paper(control_plane: ControlPlane) -> Iterator[PaperNodes]:
    nodes = PaperNodes(control_plane.admin)
    yield nodes
    nodes.remove()


@pytest.fixture
def helm(controllers: None, control_plane: ControlPlane) -> Iterator[Helm]:
    made = Helm(control_plane, "gpu-collector", IN)
    try:
        yield made
        made.uninstall()
        wait_until(lambda: not _swept(made, control_plane), "everything of the release to be gone")
    finally:
        made.close()


def _swept(helm: Helm, plane: ControlPlane) -> list[str]:
    """What is left when the pods are gone, which no kubelet ends on a node of paper."""
    left = helm.left()
    for path in left:
        if path.startswith("api/v1/pods/"):
            name = path.rpartition("/")[2]
            plane.admin.ask("DELETE", f"api/v1/namespaces/{IN}/pods/{name}", gracePeriodSeconds="0")
    return left


@pytest.fixture(scope="module")
def driver(folder: Path) -> Driver:
    return Driver(folder / "collector-driver", GPUS)


class Jobs:
    """Jobs made of the CronJobs, as document 001 makes them."""

    def __init__(self, plane: ControlPlane) -> None:
        self._api = plane.admin
        self._jobs = f"apis/batch/v1/namespaces/{IN}/jobs"
        self._pods = f"api/v1/namespaces/{IN}/pods"

    def start(self, cronjob: str, name: str) -> None:
        """What `kubectl create job --from=cronjob/...` does; a new kubectl does it with batch/v1 alone."""
        path = f"apis/batch/v1beta1/namespaces/{IN}/cronjobs/{cronjob}"
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
        """Where its pods are bound to, each as often as it has one there."""
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
    return plane.admin.call("GET", f"apis/batch/v1beta1/namespaces/{IN}/cronjobs/{name}")


def test_each_gpu_node_that_the_server_has_gets_one_pod_of_a_tick(
    helm: Helm, jobs: Jobs, paper: PaperNodes
) -> None:
    names = ["gpu-a", "gpu-b", "gpu-c"]
    paper.add(*names)
    helm.install(BY_HAND, wait=False)
    jobs.start(PROCESSES, "tick")
    wait_until(lambda: jobs.nodes("tick") == names, "a pod on each of the nodes")


def test_a_node_without_a_gpu_gets_none(helm: Helm, jobs: Jobs, paper: PaperNodes) -> None:
    paper.add("gpu-a")
    paper.add("plain", **{"nvidia.com/gpu.present": "false"})
    helm.install(BY_HAND, wait=False)
    jobs.start(PROCESSES, "tick")
    wait_until(lambda: jobs.nodes("tick") == ["gpu-a"], "a pod on the GPU node")


def test_more_than_twenty_nodes_get_a_daemonset(
    helm: Helm, paper: PaperNodes, control_plane: ControlPlane
) -> None:
    paper.add(*(f"gpu-{number:02}" for number in range(21)))
    helm.install({"gpu-process-exporter": {"enabled": True}}, wait=False)
    assert {one["kind"] for one in helm.objects()} & {"DaemonSet", "CronJob"} == {"DaemonSet"}
    path = f"apis/apps/v1/namespaces/{IN}/daemonsets"

    def scheduled() -> list[int]:
        found = control_plane.admin.call("GET", path)["items"]
        return [one["status"].get("currentNumberScheduled") for one in found]

    wait_until(lambda: scheduled() == [21], "a pod on each of the nodes")


def test_with_both_charts_on_one_writes_and_a_job_can_be_made_of_the_other(
    helm: Helm, jobs: Jobs, paper: PaperNodes, control_plane: ControlPlane
) -> None:
    paper.add("gpu-a")
    on = {"enabled": True}
    helm.install({"gpu-process-exporter": on, "gpu-session-monitoring": on}, wait=False)
    suspended = {name: cronjob(control_plane, name)["spec"]["suspend"] for name in (PROCESSES, SESSIONS)}
    assert suspended == {PROCESSES: False, SESSIONS: True}
    jobs.start(SESSIONS, "test-job")
    wait_until(lambda: jobs.nodes("test-job") == ["gpu-a"], "its pod")


def test_the_file_on_the_node_names_the_pods_of_the_node(
    helm: Helm, jobs: Jobs, driver: Driver, gpu_node: Node, program_image: str, pods: Pods
) -> None:
    pods.create(pod("train", container("main", gpus=1), node=gpu_node.name))
    running = pods.wait_running("train", "main")
    driver.run(running.devices[0], gpu_node.pid_inside(running.pid))
    helm.install({**node_values(program_image, driver), **BY_HAND}, wait=False)
    jobs.start(PROCESSES, "look")
    jobs.wait_complete("look")
    text = (gpu_node.folder / FILE).read_text()
    (row,) = [labels for labels, _ in rows(text, "gpu_process_info") if labels["status"] == "active"]
    assert (row["namespace"], row["pod"], row["container"]) == (NAMESPACE, "train", "main")
    assert rows(text, "gpu_total_processes") == [({}, 1)]

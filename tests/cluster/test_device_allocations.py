"""Allocations of GPUs to pods, as a real kubelet reports them, also during its restart."""

from __future__ import annotations

from pathlib import Path

from cluster.exporter import RunningExporter, running_exporter
from cluster.node import GPUS, Node
from cluster.pods import NAMESPACE, Pods, container, pod


def test_an_unused_gpu_is_held_until_its_pod_is_deleted(
    exporter: RunningExporter, node: Node, pods: Pods
) -> None:
    pods.create(pod("lazy", container("main", gpus=1), node=node.name))
    (uuid,) = pods.wait_running("lazy", "main").devices
    exporter.wait_allocated_to(uuid, (NAMESPACE, "lazy", "main"))
    exporter.wait_state(uuid, "held")
    others = {exporter.device_state(other) for other in GPUS if other != uuid}
    assert others == {"idle"}
    pods.delete("lazy")
    exporter.wait_state(uuid, "idle")
    assert exporter.allocated_to(uuid) == set()


def test_a_completed_pod_holds_no_gpu(exporter: RunningExporter, node: Node, pods: Pods) -> None:
    """The kubelet reports the devices of a completed pod until the pod is deleted."""
    pods.create(pod("witness", container("main", gpus=1), node=node.name))
    witness = pods.wait_running("witness", "main")
    pods.create(pod("done", container("main", gpus=7, ends=True), node=node.name))
    pods.wait_phase("done", "Succeeded")
    exporter.wait_allocated_to(witness.devices[0], (NAMESPACE, "witness", "main"))
    for uuid in set(GPUS) - set(witness.devices):
        exporter.wait_allocated_to(uuid)
        exporter.wait_state(uuid, "idle")


def test_allocations_survive_a_restart_of_the_kubelet(
    exporter: RunningExporter, node: Node, pods: Pods
) -> None:
    pods.create(pod("early", container("main", gpus=1), node=node.name))
    early = pods.wait_running("early", "main")
    exporter.set_processes(early.devices[0], early.pid)
    exporter.wait_allocated_to(early.devices[0], (NAMESPACE, "early", "main"))
    exporter.wait_pod_labels(early.pid, (NAMESPACE, "early", "main"))
    with node.kubelet_stopped():
        exporter.wait_more_ticks()
        assert exporter.allocated_to(early.devices[0]) == {(NAMESPACE, "early", "main")}
        assert exporter.pod_labels(early.pid) == {(NAMESPACE, "early", "main")}
    pods.create(pod("late", container("main", gpus=1), node=node.name))
    late = pods.wait_running("late", "main")
    exporter.wait_allocated_to(late.devices[0], (NAMESPACE, "late", "main"))
    assert exporter.allocated_to(early.devices[0]) == {(NAMESPACE, "early", "main")}


def test_a_static_pod_holds_its_gpu(exporter: RunningExporter, node: Node, pods: Pods) -> None:
    """The kubelet reports the name of the mirror pod, without a UID."""
    with node.static_pod(pod("resident", container("main", gpus=1), node=node.name)) as name:
        (uuid,) = pods.wait_running(name, "main").devices
        exporter.wait_allocated_to(uuid, (NAMESPACE, name, "main"))


def test_without_the_api_server_the_kubelet_reports_allocations(
    node: Node, pods: Pods, tmp_path: Path
) -> None:
    pods.create(pod("logged", container("main", gpus=1), node=node.name))
    (uuid,) = pods.wait_running("logged", "main").devices
    kubelet = ("--pod-logs", str(node.pod_logs), "--pod-resources-socket", str(node.pod_resources))
    with running_exporter(tmp_path, GPUS, "--kubernetes-enabled", "true", *kubelet) as exporter:
        exporter.wait_allocated_to(uuid, (NAMESPACE, "logged", "main"))
        exporter.wait_state(uuid, "held")

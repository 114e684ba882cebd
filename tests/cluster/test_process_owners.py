"""Owners of GPU processes on a real node, with real PIDs, cgroups and pod names."""

from __future__ import annotations

from pathlib import Path

from cluster.control_plane import ControlPlane
from cluster.exporter import NO_POD, RunningExporter, running_exporter
from cluster.node import GPUS, Node
from cluster.pods import NAMESPACE, Pods, container, pod
from running import wait_until


def test_a_process_has_the_labels_of_its_pod_on_every_allocated_gpu(
    exporter: RunningExporter, node: Node, pods: Pods
) -> None:
    pods.create(pod("train", container("main", gpus=2), container("sidecar"), node=node.name))
    main, sidecar = pods.wait_running("train", "main"), pods.wait_running("train", "sidecar")
    for uuid in main.devices:
        exporter.set_processes(uuid, main.pid, sidecar.pid)
    exporter.wait_pod_labels(main.pid, (NAMESPACE, "train", "main"))
    exporter.wait_pod_labels(sidecar.pid, (NAMESPACE, "train", "sidecar"))
    wait_until(lambda: exporter.gpus_of(main.pid) == set(main.devices), "series on both GPUs")
    assert exporter.pod_uids(main.pid) == {main.pod_uid}


def test_a_pod_recreated_with_the_same_name_is_a_different_pod(
    exporter: RunningExporter, node: Node, pods: Pods
) -> None:
    manifest = pod("again", container("main", gpus=1), node=node.name)
    pods.create(manifest)
    first = pods.wait_running("again", "main")
    exporter.set_processes(first.devices[0], first.pid)
    exporter.wait_pod_labels(first.pid, (NAMESPACE, "again", "main"))
    pods.delete("again")
    pods.create(manifest)
    second = pods.wait_running("again", "main")
    assert second.pod_uid != first.pod_uid
    exporter.set_processes(first.devices[0])
    exporter.set_processes(second.devices[0], second.pid)
    exporter.wait_pod_labels(second.pid, (NAMESPACE, "again", "main"))
    assert exporter.pod_uids(second.pid) == {second.pod_uid}
    assert exporter.pod_uids(first.pid) <= {first.pod_uid}


def test_a_static_pod_has_the_name_of_its_mirror_pod(
    exporter: RunningExporter, node: Node, pods: Pods
) -> None:
    """Its cgroup contains the hash of its manifest file, which is not the UID in the API."""
    with node.static_pod(pod("static", container("main", gpus=1), node=node.name)) as name:
        running = pods.wait_running(name, "main")
        cgroup = Path(f"/proc/{running.pid}/cgroup").read_text()
        assert running.pod_uid not in cgroup
        exporter.set_processes(running.devices[0], running.pid)
        exporter.wait_pod_labels(running.pid, (NAMESPACE, name, "main"))


def test_init_containers_have_names(exporter: RunningExporter, node: Node, pods: Pods) -> None:
    first = container("warm-up", gpus=1)
    pods.create(pod("staged", container("main", gpus=1), node=node.name, init=(first,)))
    running = pods.wait_running("staged", "warm-up")
    exporter.set_processes(running.devices[0], running.pid)
    exporter.wait_pod_labels(running.pid, (NAMESPACE, "staged", "warm-up"))


def test_ephemeral_containers_have_names(exporter: RunningExporter, node: Node, pods: Pods) -> None:
    pods.create(pod("debugged", container("main", gpus=1), node=node.name))
    (uuid,) = pods.wait_running("debugged", "main").devices
    pods.add_ephemeral("debugged", container("debugger"))
    debugger = pods.wait_running("debugged", "debugger")
    exporter.set_processes(uuid, debugger.pid)
    exporter.wait_pod_labels(debugger.pid, (NAMESPACE, "debugged", "debugger"))


def test_a_process_outside_of_pods_has_no_pod_labels(exporter: RunningExporter) -> None:
    own = exporter.server.process.pid
    exporter.set_processes(GPUS[0], own)
    exporter.wait_pod_labels(own, NO_POD)


def test_owners_survive_a_restart_of_the_api_server(
    exporter: RunningExporter, node: Node, pods: Pods, control_plane: ControlPlane
) -> None:
    pods.create(pod("early", container("main", gpus=1), node=node.name))
    early = pods.wait_running("early", "main")
    exporter.set_processes(early.devices[0], early.pid)
    exporter.wait_pod_labels(early.pid, (NAMESPACE, "early", "main"))
    with control_plane.server_stopped():
        exporter.wait_more_ticks()
        assert exporter.pod_labels(early.pid) == {(NAMESPACE, "early", "main")}
    pods.create(pod("late", container("main", gpus=1), node=node.name))
    late = pods.wait_running("late", "main")
    exporter.set_processes(late.devices[0], late.pid)
    exporter.wait_pod_labels(late.pid, (NAMESPACE, "late", "main"))


def test_without_the_api_server_log_directories_name_pods(node: Node, pods: Pods, tmp_path: Path) -> None:
    flags = ("--kubernetes-enabled", "true", "--pod-logs", str(node.pod_logs))
    pods.create(pod("logged", container("main", gpus=1), node=node.name))
    running = pods.wait_running("logged", "main")
    with running_exporter(tmp_path, GPUS, *flags) as exporter:
        exporter.set_processes(running.devices[0], running.pid)
        exporter.wait_pod_labels(running.pid, (NAMESPACE, "logged", "main"))

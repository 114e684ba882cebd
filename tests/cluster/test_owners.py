"""Whose GPU process it is, on a real node: pids, cgroups and the names of pods are all real."""

from __future__ import annotations

from pathlib import Path

from cluster.control_plane import ControlPlane
from cluster.ledger import NOBODY, Ledger, ledger
from cluster.node import GPUS, Node
from cluster.pods import NAMESPACE, Pods, container, pod
from running import wait_until


def test_a_process_bears_the_names_of_its_pod_on_every_gpu_it_got(
    books: Ledger, node: Node, pods: Pods
) -> None:
    pods.create(pod("train", container("main", gpus=2), container("beside"), node=node.name))
    main, beside = pods.wait_running("train", "main"), pods.wait_running("train", "beside")
    for uuid in main.devices:
        books.run(uuid, main.pid, beside.pid)
    books.wait_names(main.pid, (NAMESPACE, "train", "main"))
    books.wait_names(beside.pid, (NAMESPACE, "train", "beside"))
    wait_until(lambda: books.gpus_of(main.pid) == set(main.devices), "both GPUs to be told")
    assert books.pod_uid(main.pid) == {main.pod_uid}


def test_a_pod_recreated_under_its_name_is_another_pod(books: Ledger, node: Node, pods: Pods) -> None:
    manifest = pod("again", container("main", gpus=1), node=node.name)
    pods.create(manifest)
    first = pods.wait_running("again", "main")
    books.run(first.devices[0], first.pid)
    books.wait_names(first.pid, (NAMESPACE, "again", "main"))
    pods.delete("again")
    pods.create(manifest)
    second = pods.wait_running("again", "main")
    assert second.pod_uid != first.pod_uid
    books.run(first.devices[0])
    books.run(second.devices[0], second.pid)
    books.wait_names(second.pid, (NAMESPACE, "again", "main"))
    assert books.pod_uid(second.pid) == {second.pod_uid}
    assert books.pod_uid(first.pid) <= {first.pod_uid}


def test_a_static_pod_bears_the_name_of_its_mirror(books: Ledger, node: Node, pods: Pods) -> None:
    """Its cgroup shows the hash of its file, which is no UID that the API knows."""
    with node.static_pod(pod("static", container("main", gpus=1), node=node.name)) as name:
        running = pods.wait_running(name, "main")
        cgroup = Path(f"/proc/{running.pid}/cgroup").read_text()
        assert running.pod_uid not in cgroup
        books.run(running.devices[0], running.pid)
        books.wait_names(running.pid, (NAMESPACE, name, "main"))


def test_init_containers_have_names(books: Ledger, node: Node, pods: Pods) -> None:
    first = container("warm-up", gpus=1)
    pods.create(pod("staged", container("main", gpus=1), node=node.name, init=(first,)))
    running = pods.wait_running("staged", "warm-up")
    books.run(running.devices[0], running.pid)
    books.wait_names(running.pid, (NAMESPACE, "staged", "warm-up"))


def test_ephemeral_containers_have_names(books: Ledger, node: Node, pods: Pods) -> None:
    pods.create(pod("debugged", container("main", gpus=1), node=node.name))
    (uuid,) = pods.wait_running("debugged", "main").devices
    pods.add_ephemeral("debugged", container("debugger"))
    debugger = pods.wait_running("debugged", "debugger")
    books.run(uuid, debugger.pid)
    books.wait_names(debugger.pid, (NAMESPACE, "debugged", "debugger"))


def test_a_process_outside_pods_bears_no_pod(books: Ledger) -> None:
    own = books.server.process.pid
    books.run(GPUS[0], own)
    books.wait_names(own, NOBODY)


def test_a_restart_of_the_api_server_loses_nobody(
    books: Ledger, node: Node, pods: Pods, control_plane: ControlPlane
) -> None:
    pods.create(pod("early", container("main", gpus=1), node=node.name))
    early = pods.wait_running("early", "main")
    books.run(early.devices[0], early.pid)
    books.wait_names(early.pid, (NAMESPACE, "early", "main"))
    with control_plane.server_away():
        books.rest()
        assert books.names(early.pid) == {(NAMESPACE, "early", "main")}
    pods.create(pod("late", container("main", gpus=1), node=node.name))
    late = pods.wait_running("late", "main")
    books.run(late.devices[0], late.pid)
    books.wait_names(late.pid, (NAMESPACE, "late", "main"))


def test_without_the_api_the_logs_of_the_kubelet_name_pods(node: Node, pods: Pods, tmp_path: Path) -> None:
    flags = ("--pod-logs", str(node.pod_logs))
    pods.create(pod("logged", container("main", gpus=1), node=node.name))
    running = pods.wait_running("logged", "main")
    with ledger(tmp_path, GPUS, *flags) as books:
        books.run(running.devices[0], running.pid)
        books.wait_names(running.pid, (NAMESPACE, "logged", "main"))

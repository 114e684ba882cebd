"""Who has a GPU, as a real kubelet hands them out: held, finished with, through the kubelet's restart."""

from __future__ import annotations

from pathlib import Path

from cluster.ledger import Ledger, ledger
from cluster.node import GPUS, Node
from cluster.pods import NAMESPACE, Pods, container, pod


def test_a_gpu_that_a_pod_has_and_does_not_use_is_held_until_the_pod_is_gone(
    books: Ledger, node: Node, pods: Pods
) -> None:
    pods.create(pod("lazy", container("main", gpus=1), node=node.name))
    (uuid,) = pods.wait_running("lazy", "main").devices
    books.wait_holders(uuid, (NAMESPACE, "lazy", "main"))
    books.wait_state(uuid, "held")
    others = {books.device_state(other) for other in GPUS if other != uuid}
    assert others == {"idle"}
    pods.delete("lazy")
    books.wait_state(uuid, "idle")
    assert books.holders(uuid) == set()


def test_a_pod_that_has_finished_holds_nothing(books: Ledger, node: Node, pods: Pods) -> None:
    """The kubelet goes on telling its devices until the pod is deleted."""
    pods.create(pod("witness", container("main", gpus=1), node=node.name))
    witness = pods.wait_running("witness", "main")
    pods.create(pod("done", container("main", gpus=7, ends=True), node=node.name))
    pods.wait_phase("done", "Succeeded")
    books.wait_holders(witness.devices[0], (NAMESPACE, "witness", "main"))
    for uuid in set(GPUS) - set(witness.devices):
        books.wait_holders(uuid)
        books.wait_state(uuid, "idle")


def test_a_restart_of_the_kubelet_loses_nobody(books: Ledger, node: Node, pods: Pods) -> None:
    pods.create(pod("early", container("main", gpus=1), node=node.name))
    early = pods.wait_running("early", "main")
    books.run(early.devices[0], early.pid)
    books.wait_holders(early.devices[0], (NAMESPACE, "early", "main"))
    books.wait_names(early.pid, (NAMESPACE, "early", "main"))
    with node.kubelet_away():
        books.rest()
        assert books.holders(early.devices[0]) == {(NAMESPACE, "early", "main")}
        assert books.names(early.pid) == {(NAMESPACE, "early", "main")}
    pods.create(pod("late", container("main", gpus=1), node=node.name))
    late = pods.wait_running("late", "main")
    books.wait_holders(late.devices[0], (NAMESPACE, "late", "main"))
    assert books.holders(early.devices[0]) == {(NAMESPACE, "early", "main")}


def test_a_static_pod_has_its_gpu(books: Ledger, node: Node, pods: Pods) -> None:
    """The kubelet tells its name in the API, and no UID."""
    with node.static_pod(pod("resident", container("main", gpus=1), node=node.name)) as name:
        (uuid,) = pods.wait_running(name, "main").devices
        books.wait_holders(uuid, (NAMESPACE, name, "main"))


def test_without_the_api_the_kubelet_alone_tells_who_has_a_gpu(
    node: Node, pods: Pods, tmp_path: Path
) -> None:
    pods.create(pod("logged", container("main", gpus=1), node=node.name))
    (uuid,) = pods.wait_running("logged", "main").devices
    flags = ("--pod-logs", str(node.pod_logs), "--pod-resources-socket", str(node.pod_resources))
    with ledger(tmp_path, GPUS, *flags) as books:
        books.wait_holders(uuid, (NAMESPACE, "logged", "main"))
        books.wait_state(uuid, "held")

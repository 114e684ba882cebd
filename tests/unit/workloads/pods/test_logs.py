"""Pods by the names of the kubelet's log files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builders import FakeClock
from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.pods.logs import pod_logs, read_pod_logs
from gpuledger.workloads.pods.pod import Pod

UID, OTHER = "0f3c1f0e-1111-4222-8333-444455556666", "1f3c1f0e-1111-4222-8333-444455556666"
HASH = "0123456789abcdef0123456789abcdef"
ID, ID2 = "a" * 64, "b" * 64


class Tree:
    """/var/log as a kubelet keeps it, mounted somewhere else."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "pods").mkdir()
        (root / "containers").mkdir()

    def pod(self, folder: str, *containers: str, age: int = 0) -> None:
        (self.root / "pods" / folder).mkdir()
        for name in containers:
            (self.root / "pods" / folder / name).mkdir()
        os.utime(self.root / "pods" / folder, (1000 - age, 1000 - age))

    def link(self, name: str, target: str) -> None:
        (self.root / "containers" / name).symlink_to(target)

    def running(self, namespace: str, name: str, uid: str, container: str, container_id: str) -> None:
        self.link(
            f"{name}_{namespace}_{container}-{container_id}.log",
            f"/var/log/pods/{namespace}_{name}_{uid}/{container}/0.log",
        )


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def the(tree: Tree, uid: str) -> Pod:
    pod = read_pod_logs(tree.root).uid(uid)
    assert pod is not None
    return pod


def test_a_pod_has_its_names_its_uid_and_its_containers(tree: Tree) -> None:
    tree.pod(f"ml_train-0_{UID}", "main", "side-car")
    tree.running("ml", "train-0", UID, "main", ID)
    tree.running("ml", "train-0", UID, "side-car", ID2)
    assert the(tree, UID) == Pod(UID, "ml", "train-0", containers={ID: "main", ID2: "side-car"})
    assert read_pod_logs(tree.root).container(ID2) == the(tree, UID)


def test_a_static_pod_bears_the_hash_as_uid(tree: Tree) -> None:
    tree.pod(f"kube-system_dns-node_{HASH}", "dns")
    assert (the(tree, HASH).uid, the(tree, HASH).hash) == (HASH, HASH)


def test_a_pod_without_links_beside_one_that_has_is_finished(tree: Tree) -> None:
    tree.pod(f"ml_done_{UID}", "main")
    tree.pod(f"ml_alive_{OTHER}", "main")
    tree.running("ml", "alive", OTHER, "main", ID)
    assert (the(tree, UID).finished, the(tree, OTHER).finished) == (True, False)


def test_a_pod_that_has_no_container_yet_is_not_finished(tree: Tree) -> None:
    tree.pod(f"ml_pulling_{UID}")
    tree.pod(f"ml_alive_{OTHER}", "main")
    tree.running("ml", "alive", OTHER, "main", ID)
    assert not the(tree, UID).finished


@pytest.mark.parametrize("mounted", [True, False])
def test_where_there_are_no_links_at_all_nobody_is_finished(tree: Tree, mounted: bool) -> None:
    tree.pod(f"ml_train_{UID}", "main")
    if not mounted:
        (tree.root / "containers").rmdir()
    pod = the(tree, UID)
    assert (pod.finished, pod.containers) == (False, {})


def test_of_two_pods_of_one_name_each_has_its_own_container_and_the_younger_the_name(tree: Tree) -> None:
    tree.pod(f"ml_train-0_{UID}", "main", age=500)
    tree.pod(f"ml_train-0_{OTHER}", "main")
    tree.running("ml", "train-0", UID, "main", ID)
    tree.running("ml", "train-0", OTHER, "main", ID2)
    pods = read_pod_logs(tree.root)
    assert (the(tree, UID).containers, the(tree, OTHER).containers) == ({ID: "main"}, {ID2: "main"})
    assert pods.named("ml", "train-0") == the(tree, OTHER)


def test_a_link_that_leads_elsewhere_belongs_to_the_youngest_of_its_name(tree: Tree) -> None:
    tree.pod(f"ml_train-0_{UID}", "main", age=500)
    tree.pod(f"ml_train-0_{OTHER}", "main")
    tree.link(f"train-0_ml_main-{ID}.log", f"/var/lib/docker/containers/{ID}/{ID}-json.log")
    assert (the(tree, UID).containers, the(tree, OTHER).containers) == ({}, {ID: "main"})


@pytest.mark.parametrize("name", ["lost+found", "a_b", "a_b_c_d", "_b_c", "x.log"])
def test_what_the_kubelet_did_not_make_is_no_pod(tree: Tree, name: str) -> None:
    tree.pod(name)
    (tree.root / "containers" / "notes.txt").write_text("")
    (tree.root / "containers" / f"a_b_c-{'z' * 64}.log").symlink_to("/nowhere")
    assert len(read_pod_logs(tree.root)) == 0


def test_a_link_of_a_pod_whose_directory_is_gone_is_nobodys(tree: Tree) -> None:
    tree.running("ml", "gone", UID, "main", ID)
    assert read_pod_logs(tree.root).container(ID) is None


def test_a_directory_that_is_not_there_names_the_mount(tmp_path: Path) -> None:
    with pytest.raises(
        GpuledgerError, match=r"pods cannot be read \(No such file.*mount the node's /var/log"
    ):
        read_pod_logs(tmp_path)


def test_the_map_of_it_keeps_the_last_pods(tree: Tree) -> None:
    tree.pod(f"ml_train_{UID}", "main")
    one = pod_logs(tree.root, clock=FakeClock())
    assert one.refresh()
    (tree.root / "pods" / f"ml_train_{UID}" / "main").rmdir()
    (tree.root / "pods" / f"ml_train_{UID}").rmdir()
    (tree.root / "pods").rmdir()
    assert not one.refresh()
    assert one.value.uid(UID)

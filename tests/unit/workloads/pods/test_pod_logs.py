"""Pods found by the names of the kubelet's log files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builders import FakeClock
from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.pods.pod import Pod
from gpuledger.workloads.pods.pod_logs import open_pod_log_index, read_pod_logs

UID, OTHER = "0f3c1f0e-1111-4222-8333-444455556666", "1f3c1f0e-1111-4222-8333-444455556666"
HASH = "0123456789abcdef0123456789abcdef"
ID, ID2 = "a" * 64, "b" * 64


class LogTree:
    """A /var/log like that of a kubelet, mounted elsewhere."""

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

    def link_container(self, namespace: str, name: str, uid: str, container: str, container_id: str) -> None:
        self.link(
            f"{name}_{namespace}_{container}-{container_id}.log",
            f"/var/log/pods/{namespace}_{name}_{uid}/{container}/0.log",
        )


@pytest.fixture
def tree(tmp_path: Path) -> LogTree:
    return LogTree(tmp_path)


def find_pod(tree: LogTree, uid: str) -> Pod:
    pod = read_pod_logs(tree.root).by_uid(uid)
    assert pod is not None
    return pod


def test_a_pod_directory_gives_names_uid_and_containers(tree: LogTree) -> None:
    tree.pod(f"ml_train-0_{UID}", "main", "side-car")
    tree.link_container("ml", "train-0", UID, "main", ID)
    tree.link_container("ml", "train-0", UID, "side-car", ID2)
    assert find_pod(tree, UID) == Pod(UID, "ml", "train-0", containers={ID: "main", ID2: "side-car"})
    assert read_pod_logs(tree.root).by_container(ID2) == find_pod(tree, UID)


def test_the_directory_of_a_static_pod_has_its_hash_as_uid(tree: LogTree) -> None:
    tree.pod(f"kube-system_dns-node_{HASH}", "dns")
    assert (find_pod(tree, HASH).uid, find_pod(tree, HASH).hash) == (HASH, HASH)


def test_a_pod_without_links_is_finished_if_another_pod_has_links(tree: LogTree) -> None:
    tree.pod(f"ml_done_{UID}", "main")
    tree.pod(f"ml_alive_{OTHER}", "main")
    tree.link_container("ml", "alive", OTHER, "main", ID)
    assert (find_pod(tree, UID).finished, find_pod(tree, OTHER).finished) == (True, False)


def test_a_pod_without_containers_is_not_finished(tree: LogTree) -> None:
    tree.pod(f"ml_pulling_{UID}")
    tree.pod(f"ml_alive_{OTHER}", "main")
    tree.link_container("ml", "alive", OTHER, "main", ID)
    assert not find_pod(tree, UID).finished


@pytest.mark.parametrize("mounted", [True, False])
def test_without_any_links_no_pod_is_finished(tree: LogTree, mounted: bool) -> None:
    tree.pod(f"ml_train_{UID}", "main")
    if not mounted:
        (tree.root / "containers").rmdir()
    pod = find_pod(tree, UID)
    assert (pod.finished, pod.containers) == (False, {})


def test_two_pods_with_one_name_keep_their_containers_and_the_newer_has_the_name(tree: LogTree) -> None:
    tree.pod(f"ml_train-0_{UID}", "main", age=500)
    tree.pod(f"ml_train-0_{OTHER}", "main")
    tree.link_container("ml", "train-0", UID, "main", ID)
    tree.link_container("ml", "train-0", OTHER, "main", ID2)
    pods = read_pod_logs(tree.root)
    assert (find_pod(tree, UID).containers, find_pod(tree, OTHER).containers) == ({ID: "main"}, {ID2: "main"})
    assert pods.by_name("ml", "train-0") == find_pod(tree, OTHER)


def test_a_link_to_another_place_belongs_to_the_newest_pod_with_its_name(tree: LogTree) -> None:
    tree.pod(f"ml_train-0_{UID}", "main", age=500)
    tree.pod(f"ml_train-0_{OTHER}", "main")
    tree.link(f"train-0_ml_main-{ID}.log", f"/var/lib/docker/containers/{ID}/{ID}-json.log")
    assert (find_pod(tree, UID).containers, find_pod(tree, OTHER).containers) == ({}, {ID: "main"})


@pytest.mark.parametrize("name", ["lost+found", "a_b", "a_b_c_d", "_b_c", "x.log"])
def test_files_that_are_not_from_the_kubelet_are_not_pods(tree: LogTree, name: str) -> None:
    tree.pod(name)
    (tree.root / "containers" / "notes.txt").write_text("")
    (tree.root / "containers" / f"a_b_c-{'z' * 64}.log").symlink_to("/nowhere")
    assert len(read_pod_logs(tree.root)) == 0


def test_a_link_without_a_pod_directory_is_ignored(tree: LogTree) -> None:
    tree.link_container("ml", "gone", UID, "main", ID)
    assert read_pod_logs(tree.root).by_container(ID) is None


def test_a_missing_log_directory_is_an_error_that_names_the_mount(tmp_path: Path) -> None:
    with pytest.raises(
        GpuledgerError, match=r"pods cannot be read \(No such file.*mount the node's /var/log"
    ):
        read_pod_logs(tmp_path)


def test_the_log_index_keeps_the_last_pods_after_a_failure(tree: LogTree) -> None:
    tree.pod(f"ml_train_{UID}", "main")
    one = open_pod_log_index(tree.root, clock=FakeClock())
    assert one.refresh()
    (tree.root / "pods" / f"ml_train_{UID}" / "main").rmdir()
    (tree.root / "pods" / f"ml_train_{UID}").rmdir()
    (tree.root / "pods").rmdir()
    assert not one.refresh()
    assert one.value.by_uid(UID)

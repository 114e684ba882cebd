"""Which pods still have a cgroup, in trees of all cgroup drivers."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import FakeClock
from gpuledger.workloads.pods.pod_cgroups import PodCgroups, pod_uids_with_cgroup

UID = "2f1d7c7e-2c1e-4f0a-9a31-0d1f5f7f3b11"
HASH = "0" * 31 + "a"
ESCAPED = UID.replace("-", "_")


@pytest.mark.parametrize(
    "folder",
    [
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{ESCAPED}.slice",
        f"kubepods.slice/kubepods-pod{ESCAPED}.slice/cri-containerd-{'c' * 64}.scope",
        f"kubepods/besteffort/pod{UID}",
        f"kubepods/pod{UID}",
        f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{ESCAPED}.slice",
        f"kubelet/kubepods/burstable/pod{UID}",
        f"memory/kubepods/burstable/pod{UID}",
        f"unified/kubepods.slice/kubepods-pod{ESCAPED}.slice",
    ],
)
def test_a_pod_is_found_in_the_tree_of_every_cgroup_driver(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "system.slice/docker.service").mkdir(parents=True)
    assert pod_uids_with_cgroup(str(tmp_path)) == {UID}


def test_a_static_pod_is_found_by_its_hash(tmp_path: Path) -> None:
    (tmp_path / f"kubepods.slice/kubepods-pod{HASH}.slice").mkdir(parents=True)
    assert pod_uids_with_cgroup(str(tmp_path)) == {HASH}


@pytest.mark.parametrize("folder", ["", "system.slice/kubelet.service", "user.slice"])
def test_without_visible_pod_cgroups_the_answer_is_unknown(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    assert pod_uids_with_cgroup(str(tmp_path)) is None
    assert pod_uids_with_cgroup(str(tmp_path / "none")) is None


def test_a_node_without_pods_has_an_empty_set(tmp_path: Path) -> None:
    (tmp_path / "kubepods.slice").mkdir()
    assert pod_uids_with_cgroup(str(tmp_path)) == frozenset()


def test_a_missing_cgroup_counts_as_being_created_for_30_seconds(tmp_path: Path) -> None:
    (tmp_path / "kubepods").mkdir()
    clock = FakeClock()
    cgroups = PodCgroups(tmp_path, clock)
    assert cgroups(UID) is None, "not read yet"
    results = []
    for _ in range(5):
        cgroups.refresh()
        results.append(cgroups(UID))
        clock.advance(10)
    assert results == [None, None, None, False, False]


def test_a_pod_that_starts_late_is_distinguished_from_one_that_ended(tmp_path: Path) -> None:
    folder = tmp_path / f"kubepods/pod{UID}"
    (tmp_path / "kubepods").mkdir()
    clock = FakeClock()
    cgroups = PodCgroups(tmp_path, clock)
    cgroups.refresh()
    assert cgroups(UID) is None
    folder.mkdir()
    clock.advance(60)
    cgroups.refresh()
    assert cgroups(UID) is True
    folder.rmdir()
    cgroups.refresh()
    assert cgroups(UID) is None, "one read of the tree can be incomplete"
    clock.advance(10)
    cgroups.refresh()
    assert cgroups(UID) is False


def test_a_cgroup_that_one_read_does_not_see_is_no_end(tmp_path: Path) -> None:
    folder = tmp_path / f"kubepods/pod{UID}"
    folder.mkdir(parents=True)
    clock = FakeClock()
    cgroups = PodCgroups(tmp_path, clock)
    found = []
    for there in (True, False, True, True, False):
        folder.mkdir(exist_ok=True) if there else folder.rmdir()
        cgroups.refresh()
        found.append(cgroups(UID))
        clock.advance(10)
    assert found == [True, None, True, True, None]


def test_a_pod_ends_by_a_second_read_however_often_the_first_is_queried(tmp_path: Path) -> None:
    folder = tmp_path / f"kubepods/pod{UID}"
    folder.mkdir(parents=True)
    clock = FakeClock()
    cgroups = PodCgroups(tmp_path, clock)
    cgroups.refresh()
    assert cgroups(UID) is True
    folder.rmdir()
    cgroups.refresh()
    for _ in range(10):
        assert cgroups(UID) is None
        clock.advance(1)
    cgroups.refresh()
    assert cgroups(UID) is False

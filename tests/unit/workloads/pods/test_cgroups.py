"""Which pods still have a cgroup, in trees as the kubelet's drivers make them."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import FakeClock
from gpuledger.workloads.pods.cgroups import PodCgroups, pods_with_cgroup

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
def test_a_pod_is_found_in_the_tree_of_every_driver(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "system.slice/docker.service").mkdir(parents=True)
    assert pods_with_cgroup(str(tmp_path)) == {UID}


def test_a_static_pod_is_known_by_its_hash(tmp_path: Path) -> None:
    (tmp_path / f"kubepods.slice/kubepods-pod{HASH}.slice").mkdir(parents=True)
    assert pods_with_cgroup(str(tmp_path)) == {HASH}


@pytest.mark.parametrize("folder", ["", "system.slice/kubelet.service", "user.slice"])
def test_where_no_cgroup_of_pods_is_to_be_seen_nothing_is_known(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    assert pods_with_cgroup(str(tmp_path)) is None
    assert pods_with_cgroup(str(tmp_path / "none")) is None


def test_a_node_whose_last_pod_has_ended_has_none(tmp_path: Path) -> None:
    (tmp_path / "kubepods.slice").mkdir()
    assert pods_with_cgroup(str(tmp_path)) == frozenset()


def test_a_cgroup_that_is_missing_may_be_being_made_for_half_a_minute(tmp_path: Path) -> None:
    (tmp_path / "kubepods").mkdir()
    clock = FakeClock()
    cgroups = PodCgroups(tmp_path, clock)
    assert cgroups(UID) is None, "nobody has looked"
    told = []
    for _ in range(5):
        cgroups.look()
        told.append(cgroups(UID))
        clock.advance(10)
    assert told == [None, None, None, False, False]


def test_a_pod_that_began_late_and_one_that_has_ended_are_told_apart(tmp_path: Path) -> None:
    folder = tmp_path / f"kubepods/pod{UID}"
    (tmp_path / "kubepods").mkdir()
    clock = FakeClock()
    cgroups = PodCgroups(tmp_path, clock)
    cgroups.look()
    assert cgroups(UID) is None
    folder.mkdir()
    clock.advance(60)
    cgroups.look()
    assert cgroups(UID) is True
    folder.rmdir()
    cgroups.look()
    assert cgroups(UID) is None, "its half minute begins when it is missed"
    clock.advance(30)
    assert cgroups(UID) is False

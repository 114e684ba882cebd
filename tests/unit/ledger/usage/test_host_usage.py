"""CPU time and memory of the cgroups of owners: over restarts, requeues and late names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builders import GIB
from gpuledger.model.snapshot import CgroupUsage
from gpuledger.model.workload import Workload
from ledger_helpers import rows
from usage_helpers import ANN, DAN, SECOND, UsageNode, host_usage_of, usage_node


def see(node: UsageNode, *cgroups: CgroupUsage, seconds: float = 10.0) -> None:
    node.see(cgroups=cgroups, seconds=seconds)


def test_the_last_value_of_the_counter_and_the_largest_memory_are_kept(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    for number in range(1, 6):
        peak = GIB * (3 if number == 2 else 1)
        see(node, CgroupUsage(ANN, number * 20 * SECOND, peak, False, 8 * GIB, 4))
    (found,) = host_usage_of(node.file)
    assert (found.key, found.cpu, found.memory_peak) == (("", "7"), 100 * SECOND, 3 * GIB)
    assert (found.memory_limit, found.cpus) == (8 * GIB, 4)
    assert found.ends - found.begins == 40


UNIT = Workload("unit", unit="whisper.service", found_by="cgroup")
POD = Workload("pod", pod_uid="uid-1", namespace="ml", pod="train-0", found_by="cgroup")
CONTAINER = Workload("container", container_id="c1", container="web", found_by="cgroup")


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("owner", [ANN, UNIT, POD, CONTAINER])
def test_a_restart_continues_the_counter(tmp_path: Path, owner: Workload, kill: bool) -> None:
    node = usage_node(tmp_path)
    see(node, CgroupUsage(owner, 20 * SECOND, 5 * GIB))
    later = node.again(tmp_path, kill=kill)
    see(later, CgroupUsage(owner, 50 * SECOND, 2 * GIB))
    (found,) = host_usage_of(later.file, "owner")
    assert (found.cpu, found.memory_peak) == (50 * SECOND, 5 * GIB)


def test_the_cgroup_of_a_requeued_job_is_added_to_the_one_before(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    see(node, CgroupUsage(ANN, 20 * SECOND))
    see(node, CgroupUsage(ANN, 3 * SECOND))
    see(node, CgroupUsage(ANN, 7 * SECOND))
    (found,) = host_usage_of(node.file)
    assert (found.cpu, found.memory_peak) == (27 * SECOND, None)
    # After a long time, it is another row of the same owner, also if its counter is higher.
    for cpu, total in ((1, 28), (9, 37)):
        for _ in range(10):
            see(node)
        see(node, CgroupUsage(ANN, cpu * SECOND))
        (found,) = host_usage_of(node.file)
        assert found.cpu == total * SECOND
    assert rows(node.file, "SELECT over FROM host_periods") == [(1,), (1,), (0,)]


def test_a_container_with_the_name_of_an_earlier_one_continues_after_a_restart(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    see(node, CgroupUsage(CONTAINER, 10 * SECOND))
    see(node, seconds=3600.0)
    second = replace(CONTAINER, container_id="c2")
    see(node, CgroupUsage(second, 5 * SECOND))
    node = node.again(tmp_path)
    see(node, CgroupUsage(second, 15 * SECOND))
    assert rows(node.file, "SELECT cpu FROM host_periods") == [(10 * SECOND,), (15 * SECOND,)]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("owner", [UNIT, POD, CONTAINER])
def test_a_cgroup_that_is_read_again_after_a_long_time_counts_once(
    tmp_path: Path, owner: Workload, restarts: bool
) -> None:
    node = usage_node(tmp_path)
    for hour in range(3):
        node = node.again(tmp_path) if restarts else node
        see(node, CgroupUsage(owner, (600 + hour * 60) * SECOND, GIB))
        see(node, CgroupUsage(owner, (601 + hour * 60) * SECOND, (3 - hour) * GIB))
        see(node, seconds=3600.0)
    # The service starts again: its new cgroup begins at 0.
    see(node, CgroupUsage(owner, 5 * SECOND, GIB))
    (found,) = host_usage_of(node.file, "owner")
    assert (found.cpu, found.memory_peak) == ((721 + 5) * SECOND, 3 * GIB)
    assert rows(node.file, "SELECT cpu, over FROM host_periods") == [(721 * SECOND, 1), (5 * SECOND, 0)]


def test_owners_are_separate_and_unknown_values_absent(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    see(node, CgroupUsage(ANN, None, GIB, True), CgroupUsage(DAN, SECOND))
    found = {one.key[-1]: one for one in host_usage_of(node.file)}
    assert (found["7"].cpu, found["7"].memory_peak) == (None, GIB)
    assert (found["8"].cpu, found["8"].memory_peak, found["8"].memory_limit) == (SECOND, None, None)


def test_a_pod_that_is_named_later_is_one_row(tmp_path: Path) -> None:
    unnamed = Workload("pod", pod_uid="uid-1", missing="pod_name", found_by="cgroup")
    named = replace(unnamed, namespace="ml", pod="train-0", container="main", container_id="c1", missing="")
    node = usage_node(tmp_path)
    see(node, CgroupUsage(unnamed, SECOND))
    see(node, CgroupUsage(named, 2 * SECOND))
    (found,) = host_usage_of(node.file, "pod")
    assert (found.key, found.cpu) == (("ml", "train-0"), 2 * SECOND)


def test_a_range_has_only_the_owners_that_were_there(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    see(node, CgroupUsage(ANN, SECOND))
    see(node, seconds=3600.0)
    see(node, CgroupUsage(DAN, SECOND))
    first = int(node.clock.now_unix // 900) - 1
    assert [one.key[-1] for one in host_usage_of(node.file, until=first)] == ["7"]

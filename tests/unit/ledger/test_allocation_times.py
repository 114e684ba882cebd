"""Allocation periods and the seconds in which they were unused."""

from __future__ import annotations

import pytest

from builders import gpu, process, reading
from gpuledger.ledger.allocation_times import AllocationPeriod, AllocationTimes
from gpuledger.model.process import GpuProcess
from gpuledger.model.snapshot import Snapshot, SourceInfo
from gpuledger.model.workload import Allocation, Workload

A = gpu(0)
ANNA = Workload("pod", namespace="ml", pod="anna", container="main", found_by="kubelet")
BEN = Workload("pod", namespace="ml", pod="ben", container="main")
UNIX = 1_700_000_040.0


def tick(
    times: AllocationTimes,
    at: float,
    owners: list[Workload],
    *processes: GpuProcess,
    failed: bool = False,
    unix: float | None = None,
) -> None:
    allocations = tuple(Allocation(A, owner) for owner in owners)
    seen = (reading(A, *processes, failed=failed),)
    times.post(Snapshot(UNIX + at if unix is None else unix, at, SourceInfo("test"), seen, allocations))


def only(times: AllocationTimes) -> AllocationPeriod:
    (one,) = times.open()
    return one


def unused(one: AllocationPeriod) -> int:
    return sum(bits.bit_count() for bits in one.unused.unsaved.values())


def test_an_allocation_extends_from_its_first_to_its_last_tick() -> None:
    times = AllocationTimes()
    for at in range(11):
        tick(times, float(at), [ANNA])
    one = only(times)
    assert (one.begins, one.ends) == (UNIX, UNIX + 10)
    tick(times, 11.0, [])
    assert list(times.open()) == []
    assert [(ended.over, ended.ends) for ended in times.ended] == [(True, UNIX + 10)]


def test_an_allocation_without_processes_is_unused() -> None:
    times = AllocationTimes()
    for at in range(11):
        mine = [process(A, 1, workload=Workload("pod", "ml", "anna", "main", "uid-1"))] if at > 4 else []
        tick(times, float(at), [ANNA], *mine)
    assert unused(only(times)) == 4


@pytest.mark.parametrize("used", [False, True])
def test_it_is_unknown_whether_an_allocation_is_used_while_the_list_is_not_read(used: bool) -> None:
    times = AllocationTimes()
    mine = [process(A, 1, workload=ANNA)] if used else []
    for at in range(11):
        tick(times, float(at), [ANNA], *mine, failed=4 <= at < 7)
    one = only(times)
    unread = sum(bits.bit_count() for bits in one.unread.unsaved.values())
    assert (unused(one), unread) == (0 if used else 7, 3)


def test_another_owners_process_does_not_use_the_allocation() -> None:
    times = AllocationTimes()
    for at in range(11):
        tick(times, float(at), [ANNA], process(A, 1, workload=BEN))
    assert unused(only(times)) == 10


def test_an_unreadable_list_marks_no_allocation_as_unused() -> None:
    times = AllocationTimes()
    for at in range(11):
        tick(times, float(at), [ANNA], failed=True)
    assert unused(only(times)) == 0


def test_two_owners_at_once_have_two_allocations() -> None:
    times = AllocationTimes()
    tick(times, 0.0, [ANNA, BEN, ANNA])
    assert [one.owner.pod for one in times.open()] == ["anna", "ben"]


def test_time_between_runs_counts_for_no_allocation() -> None:
    times = AllocationTimes()
    times.resume([AllocationPeriod(A, ANNA, UNIX - 100, UNIX - 50, number=7, stored=True)], 8)
    tick(times, 0.0, [ANNA, BEN])
    assert [(one.number, one.over, one.ends) for one in times.ended] == [(7, True, UNIX - 50)]
    assert [(one.number, one.begins) for one in times.open()] == [(8, UNIX), (9, UNIX)]


@pytest.mark.parametrize("step", [3600.0, -3600.0, 2e9])
def test_setting_the_clock_adds_no_allocated_time(step: float) -> None:
    times = AllocationTimes()
    for at in range(6):
        tick(times, float(at), [ANNA])
    first = only(times)
    for at in range(6, 11):
        tick(times, float(at), [ANNA], unix=UNIX + at + step)
    second = only(times)
    assert (first.over, first.ends - first.begins) == (True, 5.0)
    assert (second.begins, second.ends) == (UNIX + 5 + step, UNIX + 10 + step)

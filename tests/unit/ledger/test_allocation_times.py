"""Handovers: a Device in somebody's hands, and when he had nothing on it."""

from __future__ import annotations

import pytest

from builders import gpu, process, reading
from gpuledger.ledger.allocation_times import Handed, Handover
from gpuledger.model.process import GpuProcess
from gpuledger.model.snapshot import Snapshot, SourceInfo
from gpuledger.model.workload import Allocation, Workload

A = gpu(0)
ANNA = Workload("pod", namespace="ml", pod="anna", container="main", found_by="kubelet")
BEN = Workload("pod", namespace="ml", pod="ben", container="main")
UNIX = 1_700_000_040.0


def tick(
    handed: Handed,
    at: float,
    owners: list[Workload],
    *processes: GpuProcess,
    failed: bool = False,
    unix: float | None = None,
) -> None:
    allocations = tuple(Allocation(A, owner) for owner in owners)
    seen = (reading(A, *processes, failed=failed),)
    handed.post(Snapshot(UNIX + at if unix is None else unix, at, SourceInfo("test"), seen, allocations))


def only(handed: Handed) -> Handover:
    (one,) = handed.open()
    return one


def unused(one: Handover) -> int:
    return sum(bits.bit_count() for bits in one.unused.unsaved.values())


def test_a_device_is_in_hands_from_the_first_tick_to_the_last_that_says_so() -> None:
    handed = Handed()
    for at in range(11):
        tick(handed, float(at), [ANNA])
    one = only(handed)
    assert (one.begins, one.ends) == (UNIX, UNIX + 10)
    tick(handed, 11.0, [])
    assert list(handed.open()) == []
    assert [(ended.over, ended.ends) for ended in handed.ended] == [(True, UNIX + 10)]


def test_whoever_has_nothing_on_it_does_not_use_it() -> None:
    handed = Handed()
    for at in range(11):
        mine = [process(A, 1, workload=Workload("pod", "ml", "anna", "main", "uid-1"))] if at > 4 else []
        tick(handed, float(at), [ANNA], *mine)
    assert unused(only(handed)) == 4


def test_somebody_elses_process_is_no_use_of_his() -> None:
    handed = Handed()
    for at in range(11):
        tick(handed, float(at), [ANNA], process(A, 1, workload=BEN))
    assert unused(only(handed)) == 10


def test_while_the_list_cannot_be_read_nobody_is_said_not_to_use_it() -> None:
    handed = Handed()
    for at in range(11):
        tick(handed, float(at), [ANNA], failed=True)
    assert unused(only(handed)) == 0


def test_two_hands_at_once_are_two_handovers() -> None:
    handed = Handed()
    tick(handed, 0.0, [ANNA, BEN, ANNA])
    assert [one.owner.pod for one in handed.open()] == ["anna", "ben"]


def test_over_a_restart_nothing_is_said_of_the_time_in_which_nobody_looked() -> None:
    handed = Handed()
    handed.resume([Handover(A, ANNA, UNIX - 100, UNIX - 50, number=7, stored=True)], 8)
    tick(handed, 0.0, [ANNA, BEN])
    assert [(one.number, one.over, one.ends) for one in handed.ended] == [(7, True, UNIX - 50)]
    assert [(one.number, one.begins) for one in handed.open()] == [(8, UNIX), (9, UNIX)]


@pytest.mark.parametrize("step", [3600.0, -3600.0, 2e9])
def test_a_clock_that_is_set_makes_no_time(step: float) -> None:
    handed = Handed()
    for at in range(6):
        tick(handed, float(at), [ANNA])
    first = only(handed)
    for at in range(6, 11):
        tick(handed, float(at), [ANNA], unix=UNIX + at + step)
    second = only(handed)
    assert (first.over, first.ends - first.begins) == (True, 5.0)
    assert (second.begins, second.ends) == (UNIX + 5 + step, UNIX + 10 + step)

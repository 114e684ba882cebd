"""Handovers: a Device in somebody's hands, and when he had nothing on it."""

from __future__ import annotations

from builders import gpu, process, reading
from gpuledger.ledger.handed import Handed, Handover
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
) -> None:
    allocations = tuple(Allocation(A, owner) for owner in owners)
    seen = (reading(A, *processes, failed=failed),)
    handed.post(Snapshot(UNIX + at, at, SourceInfo("test"), seen, allocations))


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


def test_one_goes_on_over_a_restart_and_a_new_one_has_a_new_number() -> None:
    handed = Handed()
    handed.resume([Handover(A, ANNA, UNIX - 100, UNIX - 50, number=7, stored=True)], 8)
    tick(handed, 0.0, [ANNA, BEN])
    old, new = handed.open()
    assert (old.number, old.begins, old.ends) == (7, UNIX - 100, UNIX)
    assert (new.number, new.begins) == (8, UNIX)

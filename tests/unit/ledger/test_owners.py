"""Who has each Device, for how long, and for how long without using it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import gpu, instance, process, reading, snapshot
from gpuledger.ledger.owners import OwnerTimes
from gpuledger.model.quantities import ENGINE_ACTIVITY, UTILIZATION
from gpuledger.model.session import OwnerRow
from gpuledger.model.snapshot import Reading
from gpuledger.model.workload import Allocation, Workload

GPU = gpu(0)
TRAINER = Workload(
    kind="pod", namespace="ml", pod="train-0", container="main", pod_uid="u1", container_id="c1"
)
UNNAMED = Workload(kind="pod", pod_uid="u1", container_id="c1", missing="pod_name")
HANDED = (Allocation(GPU, TRAINER, "pod_resources"),)
WHO = ("pod", "ml", "train-0", "main", "", "")
NOT_KNOWN = ("unknown", "", "", "", "", "")


class Node:
    """Posts ticks at given seconds."""

    def __init__(self, retention: float = 300.0) -> None:
        self.times = OwnerTimes(retention)

    def tick(
        self, at: float, *readings: Reading, handed: tuple[Allocation, ...] = ()
    ) -> dict[tuple[str, ...], OwnerRow]:
        seen = replace(snapshot(*readings), elapsed=at, allocations=handed)
        rows = self.times.post(seen)
        told = {(row.device.uuid, *row.labels): row for row in rows}
        assert len(told) == len(rows), "two rows of one owner"
        return told


def only(told: dict[tuple[str, ...], OwnerRow]) -> OwnerRow:
    (row,) = told.values()
    return row


def test_a_device_handed_over_and_left_alone_is_held() -> None:
    node = Node()
    node.tick(0, reading(GPU), handed=HANDED)
    row = only(node.tick(10, reading(GPU), handed=HANDED))
    assert (row.labels, row.processes, row.allocated, row.held) == (WHO, 0, 10, 10)


@pytest.mark.parametrize(("sm", "held"), [(0.5, 0), (0.0, 10)])
def test_a_resident_holds_while_no_engine_works_for_it(sm: float, held: float) -> None:
    node = Node()
    resident = process(GPU, sm=sm, workload=TRAINER)
    node.tick(0, reading(GPU, resident))
    row = only(node.tick(10, reading(GPU, resident)))
    assert (row.processes, row.allocated, row.held) == (1, 0, held)


def test_a_resident_is_one_whether_it_works_or_not_and_an_allocation_is_none() -> None:
    node = Node()
    other = replace(TRAINER, pod="train-1", pod_uid="u2", container_id="c2")
    for at, sm in ((0, 0.5), (10, 0.0)):
        seen = reading(GPU, process(GPU, 1, sm=sm, workload=other), process(GPU, 2, sm=sm, workload=other))
        told = node.tick(at, seen, handed=HANDED)
    assert {key[3]: row.resident for key, row in told.items()} == {"train-0": 0, "train-1": 10}


def test_a_process_and_the_allocation_of_its_container_are_one_owner() -> None:
    node = Node()
    resident = process(GPU, workload=replace(TRAINER, user="root", found_by="cgroup"))
    assert only(node.tick(0, reading(GPU, resident), handed=HANDED)).labels == WHO


def test_who_shares_a_device_and_runs_nothing_holds_it_whatever_the_others_do() -> None:
    node = Node()
    other = replace(TRAINER, pod="train-1", pod_uid="u2", container_id="c2")
    busy = process(GPU, sm=0.9, workload=TRAINER)
    handed = (*HANDED, Allocation(GPU, other, "pod_resources"))
    node.tick(0, reading(GPU, busy), handed=handed)
    told = node.tick(10, reading(GPU, busy), handed=handed)
    assert {key[3]: (row.processes, row.allocated, row.held) for key, row in told.items()} == {
        "train-0": (1, 10, 0),
        "train-1": (0, 10, 10),
    }


def test_a_process_on_a_device_handed_to_somebody_else_shows_both() -> None:
    node = Node()
    stranger = process(GPU, workload=Workload(kind="user", user="alice"))
    told = node.tick(0, reading(GPU, stranger), handed=HANDED)
    assert {row.labels: row.processes for row in told.values()} == {
        WHO: 0,
        ("user", "", "", "", "alice", ""): 1,
    }


@pytest.mark.parametrize(("activity", "held"), [(0.0, 10), (0.4, 0), (None, 0)])
def test_under_mig_the_instance_tells_whether_it_is_held(activity: float | None, held: float) -> None:
    part = instance(GPU, 1)
    values = {} if activity is None else {ENGINE_ACTIVITY: activity}
    seen = reading(part, process(part, sm=None, workload=TRAINER), values=values)
    node = Node()
    node.tick(0, reading(GPU), seen)
    assert only(node.tick(10, reading(GPU), seen)).held == held


def test_where_no_share_is_told_an_idle_gpu_is_held_and_a_busy_one_is_not() -> None:
    resident = process(GPU, sm=None, workload=TRAINER)
    for utilization, held in ((0.0, 10), (0.5, 0)):
        node = Node()
        seen = reading(GPU, resident, values={UTILIZATION: utilization})
        node.tick(0, seen)
        assert only(node.tick(10, seen)).held == held


def test_an_unreadable_list_is_allocated_time_and_nothing_else() -> None:
    node = Node()
    node.tick(0, reading(GPU, failed=True), handed=HANDED)
    row = only(node.tick(10, reading(GPU, failed=True), handed=HANDED))
    assert (row.processes, row.allocated, row.held) == (None, 10, 0)


def test_a_pause_of_more_than_a_minute_is_nobodys_time() -> None:
    node = Node()
    node.tick(0, reading(GPU), handed=HANDED)
    assert only(node.tick(3600, reading(GPU), handed=HANDED)).allocated == 0


def test_what_was_held_before_the_name_came_is_the_owners() -> None:
    node = Node()
    node.tick(0, reading(GPU, process(GPU, sm=0.0, workload=UNNAMED)))
    assert node.tick(10, reading(GPU, process(GPU, sm=0.0, workload=UNNAMED))) == {}
    row = only(node.tick(20, reading(GPU, process(GPU, sm=0.0, workload=TRAINER))))
    assert (row.labels, row.held, row.resident) == (WHO, 20, 20)


def test_owners_without_a_name_are_told_together_after_half_a_minute() -> None:
    node = Node()
    others = replace(UNNAMED, pod_uid="u2", container_id="c2")
    seen = reading(GPU, process(GPU, 1, sm=0.0, workload=UNNAMED), process(GPU, 2, sm=0.0, workload=others))
    for at in (0, 10, 20, 30):
        told = node.tick(at, seen)
    assert only(told).labels == NOT_KNOWN
    row = only(node.tick(40, seen))
    assert (row.processes, row.held) == (2, 60), "two for 20 s, then one row that stands for both"


def test_an_owner_that_went_without_a_name_leaves_its_time_to_the_unknown() -> None:
    node = Node()
    seen = reading(GPU, process(GPU, sm=0.0, workload=UNNAMED))
    node.tick(0, seen)
    node.tick(10, seen)
    row = only(node.tick(11, reading(GPU)))
    assert (row.labels, row.present, row.held) == (NOT_KNOWN, False, 10)


def test_an_owner_that_went_is_told_until_it_was_scraped_and_then_no_more() -> None:
    node = Node(retention=300)
    node.tick(0, reading(GPU), handed=HANDED)
    node.tick(10, reading(GPU), handed=HANDED)
    row = only(node.tick(20, reading(GPU)))
    assert (row.present, row.processes, row.allocated) == (False, None, 10)
    assert only(node.tick(310, reading(GPU)))
    assert node.tick(311, reading(GPU)) == {}


def test_owners_that_come_and_go_leave_nothing_behind() -> None:
    node = Node(retention=5)
    for at in range(1000):
        who = replace(UNNAMED, pod_uid=f"u{at}") if at % 2 else replace(TRAINER, pod=f"p{at}")
        node.tick(at, reading(GPU, process(GPU, at, sm=0.0, workload=who)))
    assert len(node.times._tenures) + len(node.times._waiting) < 20

"""Owners of each Device: allocated, resident and held time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import gpu, instance, node_state, process, reading, snapshot
from gpuledger.dialects.native.owners import owner_families
from gpuledger.ledger.owners import OwnerTimes
from gpuledger.model.quantities import ENGINE_ACTIVITY, UTILIZATION
from gpuledger.model.session import LedgerState, OwnerRow
from gpuledger.model.snapshot import Reading
from gpuledger.model.workload import Allocation, Workload

GPU = gpu(0)
TRAINER = Workload(
    kind="pod", namespace="ml", pod="train-0", container="main", pod_uid="u1", container_id="c1"
)
UNNAMED = Workload(kind="pod", pod_uid="u1", container_id="c1", missing="pod_name")
ALLOCATED = (Allocation(GPU, TRAINER, "pod_resources"),)
WHO = ("pod", "ml", "train-0", "main", "", "")
NOT_KNOWN = ("unknown", "", "", "", "", "")


class Node:
    """Posts ticks at given seconds."""

    def __init__(self, retention: float = 300.0, hold: float = 0.0) -> None:
        self.times = OwnerTimes(hold, retention)

    def tick(
        self, at: float, *readings: Reading, allocated: tuple[Allocation, ...] = ()
    ) -> dict[tuple[str, ...], OwnerRow]:
        seen = replace(snapshot(*readings), elapsed=at, allocations=allocated)
        posted = self.times.post(seen)
        rows = {(row.device.uuid, *row.labels): row for row in posted}
        assert len(rows) == len(posted), "two rows of one owner"
        return rows


def only(rows: dict[tuple[str, ...], OwnerRow]) -> OwnerRow:
    (row,) = rows.values()
    return row


def exported_seconds(row: OwnerRow) -> tuple[float, ...]:
    """Allocated, held and resident seconds on the native page; the three series begin together."""
    families = owner_families(node_state(None, LedgerState(owners=(row,))))
    names = [f"gpuledger_owner_{name}_seconds_total" for name in ("allocated", "held", "resident")]
    found = {family.spec.name: list(family.samples.values()) for family in families}
    return tuple(value for name in names for value in found[name])


def test_an_allocated_unused_device_is_held() -> None:
    node = Node()
    node.tick(0, reading(GPU), allocated=ALLOCATED)
    row = only(node.tick(10, reading(GPU), allocated=ALLOCATED))
    assert (row.labels, row.processes, row.allocated, row.held) == (WHO, 0, 10, 10)


@pytest.mark.parametrize(("sm", "held"), [(0.5, 0), (0.0, 10)])
def test_a_resident_process_holds_while_it_uses_no_engine(sm: float, held: float) -> None:
    node = Node()
    resident = process(GPU, sm=sm, workload=TRAINER)
    node.tick(0, reading(GPU, resident))
    row = only(node.tick(10, reading(GPU, resident)))
    assert (row.processes, row.allocated, row.held) == (1, 0, held)


def test_resident_time_needs_a_process_active_or_not() -> None:
    node = Node()
    other = replace(TRAINER, pod="train-1", pod_uid="u2", container_id="c2")
    for at, sm in ((0, 0.5), (10, 0.0)):
        seen = reading(GPU, process(GPU, 1, sm=sm, workload=other), process(GPU, 2, sm=sm, workload=other))
        rows = node.tick(at, seen, allocated=ALLOCATED)
    assert {key[3]: row.resident for key, row in rows.items()} == {"train-0": 0, "train-1": 10}


def test_a_process_and_the_allocation_of_its_container_are_one_owner() -> None:
    node = Node()
    resident = process(GPU, workload=replace(TRAINER, user="root", found_by="cgroup"))
    assert only(node.tick(0, reading(GPU, resident), allocated=ALLOCATED)).labels == WHO


def test_an_owner_without_processes_holds_a_shared_device_regardless_of_others() -> None:
    node = Node()
    other = replace(TRAINER, pod="train-1", pod_uid="u2", container_id="c2")
    busy = process(GPU, sm=0.9, workload=TRAINER)
    allocated = (*ALLOCATED, Allocation(GPU, other, "pod_resources"))
    node.tick(0, reading(GPU, busy), allocated=allocated)
    rows = node.tick(10, reading(GPU, busy), allocated=allocated)
    assert {key[3]: (row.processes, row.allocated, row.held) for key, row in rows.items()} == {
        "train-0": (1, 10, 0),
        "train-1": (0, 10, 10),
    }


def test_a_process_on_a_device_allocated_to_another_owner_shows_both() -> None:
    node = Node()
    stranger = process(GPU, workload=Workload(kind="user", user="alice"))
    rows = node.tick(0, reading(GPU, stranger), allocated=ALLOCATED)
    assert {row.labels: row.processes for row in rows.values()} == {
        WHO: 0,
        ("user", "", "", "", "alice", ""): 1,
    }


@pytest.mark.parametrize(("activity", "held"), [(0.0, 10), (0.4, 0), (None, 0)])
def test_under_mig_the_instances_activity_decides_whether_it_is_held(
    activity: float | None, held: float
) -> None:
    part = instance(GPU, 1)
    values = {} if activity is None else {ENGINE_ACTIVITY: activity}
    seen = reading(part, process(part, sm=None, workload=TRAINER), values=values)
    node = Node()
    node.tick(0, reading(GPU), seen)
    assert only(node.tick(10, reading(GPU), seen)).held == held


def test_without_process_utilization_an_idle_gpu_is_held_and_a_busy_one_is_not() -> None:
    resident = process(GPU, sm=None, workload=TRAINER)
    for utilization, held in ((0.0, 10), (0.5, 0)):
        node = Node()
        seen = reading(GPU, resident, values={UTILIZATION: utilization})
        node.tick(0, seen)
        assert only(node.tick(10, seen)).held == held


def test_an_unreadable_list_counts_only_allocated_time() -> None:
    node = Node()
    node.tick(0, reading(GPU, failed=True), allocated=ALLOCATED)
    row = only(node.tick(10, reading(GPU, failed=True), allocated=ALLOCATED))
    assert (row.processes, row.allocated, row.held) == (None, 10, 0)


def test_a_gap_of_more_than_a_minute_counts_for_no_owner() -> None:
    node = Node()
    node.tick(0, reading(GPU), allocated=ALLOCATED)
    assert only(node.tick(3600, reading(GPU), allocated=ALLOCATED)).allocated == 0


def test_time_held_before_the_name_arrived_goes_to_the_owner() -> None:
    node = Node()
    node.tick(0, reading(GPU, process(GPU, sm=0.0, workload=UNNAMED)))
    assert node.tick(10, reading(GPU, process(GPU, sm=0.0, workload=UNNAMED))) == {}
    row = only(node.tick(20, reading(GPU, process(GPU, sm=0.0, workload=TRAINER))))
    assert (row.labels, row.held, row.resident) == (WHO, 20, 20)


def test_unnamed_owners_are_exported_together_after_half_a_minute() -> None:
    node = Node()
    others = replace(UNNAMED, pod_uid="u2", container_id="c2")
    seen = reading(GPU, process(GPU, 1, sm=0.0, workload=UNNAMED), process(GPU, 2, sm=0.0, workload=others))
    for at in (0, 10, 20, 30):
        rows = node.tick(at, seen)
    assert only(rows).labels == NOT_KNOWN
    row = only(node.tick(40, seen))
    assert (row.processes, row.held) == (2, 60), "two for 20 s, then one row for both"


def test_time_of_an_owner_that_left_unnamed_goes_to_unknown_after_half_a_minute() -> None:
    node = Node(retention=5, hold=10)
    seen = reading(GPU, process(GPU, sm=0.0, workload=UNNAMED))
    node.tick(0, seen)
    node.tick(10, seen)
    assert [node.tick(at, reading(GPU)) for at in (11, 29)] == [{}, {}]
    row = only(node.tick(30, reading(GPU)))
    assert (row.labels, row.present, row.held) == (NOT_KNOWN, False, 10)
    # Its series begin now: at 0 for the hold, and then in full for as long.
    exported = {
        at: [exported_seconds(row) for row in node.tick(at, reading(GPU)).values()] for at in (39, 40, 49, 50)
    }
    assert exported == {39: [(0, 0, 0)], 40: [(0, 10, 10)], 49: [(0, 10, 10)], 50: []}


@pytest.mark.parametrize(
    "meanwhile",
    [reading(GPU), reading(GPU, failed=True)],
    ids=["it was not listed", "the list could not be read"],
)
def test_an_owner_that_is_not_seen_for_a_moment_still_waits_for_its_name(meanwhile: Reading) -> None:
    """Otherwise its first moments would be those of an owner without names, for ever."""
    node = Node()
    for at in (0, 1):
        node.tick(at, reading(GPU, process(GPU, sm=0.0, workload=UNNAMED)))
    assert node.tick(2, meanwhile) == {}
    row = only(node.tick(3, reading(GPU, process(GPU, sm=0.0, workload=TRAINER))))
    assert (row.labels, row.held) == (WHO, 2)


def test_an_allocation_by_uid_alone_gets_its_time_when_the_pod_and_its_container_id_are_known() -> None:
    node = Node()
    unnamed = Workload(kind="pod", container="main", pod_uid="u1", missing="pod_name")
    for at in (0, 1):
        node.tick(at, reading(GPU), allocated=(Allocation(GPU, unnamed, "checkpoint"),))
    row = only(node.tick(2, reading(GPU), allocated=ALLOCATED))
    assert (row.labels, row.allocated, row.held) == (WHO, 2, 2)
    assert {labels[1:] for labels in node.tick(40, reading(GPU), allocated=ALLOCATED)} == {WHO}


@pytest.mark.parametrize("pod_uid", ["", "hash-of-a-static-pod"])
def test_an_owner_is_found_by_its_container_although_its_uid_changes_with_its_name(pod_uid: str) -> None:
    node = Node()
    unnamed = replace(UNNAMED, pod_uid=pod_uid)
    node.tick(0, reading(GPU, process(GPU, sm=0.0, workload=unnamed)))
    node.tick(1, reading(GPU, process(GPU, sm=0.0, workload=unnamed)))
    row = only(node.tick(2, reading(GPU, process(GPU, sm=0.0, workload=TRAINER))))
    assert (row.labels, row.held) == (WHO, 2)
    assert {labels[1:] for labels in node.tick(40, reading(GPU))} == {WHO}


def test_an_owner_that_left_is_exported_until_the_retention_ends() -> None:
    node = Node(retention=300)
    node.tick(0, reading(GPU), allocated=ALLOCATED)
    node.tick(10, reading(GPU), allocated=ALLOCATED)
    row = only(node.tick(20, reading(GPU)))
    assert (row.present, row.processes, row.allocated) == (False, None, 10)
    assert only(node.tick(310, reading(GPU)))
    assert node.tick(311, reading(GPU)) == {}


def test_the_seconds_of_a_new_owner_are_exported_as_0_and_then_in_full() -> None:
    """A counter that begins with a value loses that value in increase()."""
    node = Node(hold=30)
    seen = reading(GPU, process(GPU, sm=0.0, workload=TRAINER))
    exported = {}
    for at in (0, 1, 29, 30, 31):
        row = only(node.tick(at, seen, allocated=ALLOCATED))
        assert (row.allocated, row.held, row.resident) == (at, at, at), "people see what is counted"
        exported[at] = exported_seconds(row)
    assert exported == {0: (0, 0, 0), 1: (0, 0, 0), 29: (0, 0, 0), 30: (30, 30, 30), 31: (31, 31, 31)}


def test_an_owner_that_returns_within_the_retention_continues() -> None:
    node = Node(hold=30, retention=300)
    for at in (0, 40):
        node.tick(at, reading(GPU), allocated=ALLOCATED)
    for at in (50, 100):
        node.tick(at, reading(GPU))
    assert exported_seconds(only(node.tick(101, reading(GPU), allocated=ALLOCATED))) == (41, 41, 0)


def test_an_owner_that_returns_later_begins_at_0_again() -> None:
    node = Node(hold=30, retention=60)
    for at in (0, 40):
        node.tick(at, reading(GPU), allocated=ALLOCATED)
    assert node.tick(101, reading(GPU)) == {}
    for at, exported in ((102, (0, 0, 0)), (131, (0, 0, 0)), (132, (31, 31, 0))):
        row = only(node.tick(at, reading(GPU), allocated=ALLOCATED))
        assert exported_seconds(row) == exported, at


def test_a_job_shorter_than_the_hold_is_exported_in_full_for_as_long() -> None:
    """Even if the retention is shorter."""
    node = Node(hold=30, retention=5)
    node.tick(0, reading(GPU), allocated=ALLOCATED)
    node.tick(8, reading(GPU), allocated=ALLOCATED)
    exported = {
        at: [exported_seconds(row) for row in node.tick(at, reading(GPU)).values()] for at in (29, 30, 59, 60)
    }
    assert exported == {29: [(0, 0, 0)], 30: [(8, 8, 0)], 59: [(8, 8, 0)], 60: []}


def test_a_late_name_begins_its_series_at_0() -> None:
    node = Node(hold=30)
    for at in (0, 20):
        node.tick(at, reading(GPU, process(GPU, sm=0.0, workload=UNNAMED)))
    for at, exported in ((25, (0, 0, 0)), (54, (0, 0, 0)), (55, (0, 55, 55))):
        row = only(node.tick(at, reading(GPU, process(GPU, sm=0.0, workload=TRAINER))))
        assert exported_seconds(row) == exported, at


def test_owners_that_left_use_no_memory() -> None:
    node = Node(retention=5)
    for at in range(1000):
        who = replace(UNNAMED, pod_uid=f"u{at}") if at % 2 else replace(TRAINER, pod=f"p{at}")
        node.tick(at, reading(GPU, process(GPU, at, sm=0.0, workload=who)))
    assert len(node.times._entries) + len(node.times._waiting) < 20

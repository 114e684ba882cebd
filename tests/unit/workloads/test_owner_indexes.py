"""OwnerIndexes: allocations of several sources, silent sources, and waiting for the first reading."""

from __future__ import annotations

import pytest

from builders import gpu, reading, snapshot
from gpuledger.host.owner_index import BackgroundIndex
from gpuledger.model.devices import Device
from gpuledger.model.node_state import IndexHealth
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.owner_indexes import AllocatingIndex, OwnerIndexes
from gpuledger.workloads.owner_lookup import OwnerLookup
from running import PATIENCE

CARD = gpu(0)


def test_two_sources_of_one_job_give_one_allocation_and_two_pods_give_two() -> None:
    job = Workload(kind="slurm", job="815")
    slurm = (Allocation(CARD, job, "slurm_cgroup"),)
    files = (Allocation(CARD, job, "job_map"),)
    pods = tuple(Allocation(CARD, Workload(kind="pod", pod=name), "pod_resources") for name in ("a", "b"))
    indexes = OwnerIndexes(allocation_sources=[lambda _: slurm, lambda _: files, lambda _: pods])
    assert indexes.allocations((CARD,)) == (*slurm, *pods)


def test_allocations_are_the_same_object_while_no_index_changes() -> None:
    parts = [(Allocation(CARD, Workload(kind="slurm", job="1")),)]
    indexes = OwnerIndexes(allocation_sources=[lambda _: parts[0]])
    first = indexes.allocations((CARD,))
    assert indexes.allocations((CARD,)) is first
    parts[0] = ()
    assert indexes.allocations((CARD,)) == ()


@pytest.mark.parametrize(
    ("last_success", "success", "is_named", "complete"),
    [
        (None, False, False, True),
        (None, False, True, False),
        (700.0, False, False, True),
        (699.0, False, False, False),
        (1.0, True, True, True),
    ],
    ids=["never there", "named, never there", "silent for 300 s", "silent for longer", "answers"],
)
def test_a_silent_source_of_allocations_is_noticed(
    last_success: float | None, success: bool, is_named: bool, complete: bool
) -> None:
    index = Slow()
    index.answer = IndexHealth("slow", success, last_success)
    indexes = OwnerIndexes([index], allocating=[AllocatingIndex(index, is_named)])
    assert indexes.has_all_allocations(1000.0) is complete


def test_a_source_is_incomplete_while_it_is_not_known_what_it_lists() -> None:
    """What the source says is known only after it was read in the same tick."""
    index, known = Slow(), False
    index.answer = IndexHealth("slow", success=True, last_success=1.0)

    def read(_devices: tuple[Device, ...]) -> tuple[Allocation, ...]:
        nonlocal known
        known = not known
        return ()

    sources = [AllocatingIndex(index, is_known=lambda: known)]
    lookup = OwnerLookup(directory=OwnerIndexes([index], allocation_sources=[read], allocating=sources))
    found = [lookup.assign_owners(snapshot(reading(CARD))).allocations_complete for _ in range(3)]
    assert found == [True, False, True]


def test_a_snapshot_says_that_a_source_of_allocations_is_silent() -> None:
    index = Slow()
    index.answer = IndexHealth("slow", success=False)
    lookup = OwnerLookup(directory=OwnerIndexes([index], allocating=[AllocatingIndex(index, is_named=True)]))
    assert not lookup.assign_owners(snapshot(reading(CARD))).allocations_complete
    index.answer = IndexHealth("slow", success=True, last_success=1.0)
    assert lookup.assign_owners(snapshot(reading(CARD))).allocations_complete


class Slow(BackgroundIndex):
    """An index that is read when its health is queried for the third time."""

    def __init__(self) -> None:
        self.health_queries = 0
        self.nudges = 0
        self.answer: IndexHealth | None = None

    @property
    def health(self) -> IndexHealth:
        if self.answer is not None:
            return self.answer
        self.health_queries += 1
        is_read = self.health_queries > 2
        return IndexHealth("slow", success=is_read, error="" if is_read else "not read yet")

    def start(self) -> None: ...

    def stop(self, patience: float = 2.0) -> None: ...

    def nudge(self) -> None:
        self.nudges += 1


def test_wait_returns_once_every_index_was_read() -> None:
    slow = Slow()
    OwnerIndexes([slow]).wait(PATIENCE)
    assert slow.health_queries == 3


def test_wait_gives_up_on_a_hanging_index_after_the_timeout() -> None:
    slow = Slow()
    slow.health_queries = -1000
    OwnerIndexes([slow]).wait(0.05)
    assert not slow.health.success

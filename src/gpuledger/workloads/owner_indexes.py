"""OwnerIndexes: all owner indexes of this machine behind the one interface that the owner lookup uses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from os.path import exists
from typing import TYPE_CHECKING, NamedTuple

from gpuledger.host.owner_index import BackgroundIndex, is_tried
from gpuledger.model.devices import Device
from gpuledger.model.node_state import IndexHealth
from gpuledger.model.source import Clock
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.device_index import same_objects
from gpuledger.workloads.owner_resolution import OwnerFacts

if TYPE_CHECKING:
    from gpuledger.workloads.pods.pod import Pods

# The allocations that one index knows; the same object while neither the index nor the Devices change.
AllocationSource = Callable[[tuple[Device, ...]], tuple[Allocation, ...]]


class AllocatingIndex(NamedTuple):
    """An index that is a source of Allocations.

    `is_named` if a setting names or enables it. `has_existed` returns whether its socket, file or directory
    was ever seen here, `is_known` whether it is known what everything means that it last said.
    """

    source: BackgroundIndex
    is_named: bool = False
    has_existed: Callable[[], bool] = lambda: False
    is_known: Callable[[], bool] = lambda: True

    def has_all_allocations(self, unix: float) -> bool:
        """Whether the source does not exist here, or has answered in the last five minutes and is known."""
        health = self.source.health
        if health.last_success is None:
            return not (self.is_named or self.has_existed())
        return not is_silent(health, unix) and self.is_known()


# Seconds for which the last allocations of a silent index are all that there are.
_LONGEST_SILENCE = 300.0


def is_silent(health: IndexHealth, unix: float) -> bool:
    """Whether an index answered before, but not in the last five minutes."""
    last = health.last_success
    return last is not None and not health.success and unix - last > _LONGEST_SILENCE


class StandingAllocations:
    """The allocations of one index; after five minutes of silence only those of owners that still exist.

    `still_exists` returns whether the owner certainly has a cgroup. Neither it nor `read` blocks.
    """

    def __init__(
        self,
        index: BackgroundIndex,
        read: AllocationSource,
        clock: Clock,
        still_exists: Callable[[Workload], bool] = lambda _: False,
    ) -> None:
        self._index = index
        self._read = read
        self._clock = clock
        self._still_exists = still_exists
        self._standing: tuple[Allocation, ...] = ()

    def __call__(self, devices: tuple[Device, ...]) -> tuple[Allocation, ...]:
        """The allocations now; the same object while nothing changes."""
        found = self._read(devices)
        if not is_silent(self._index.health, self._clock.unix()):
            return found
        standing = [one for one in found if self._still_exists(one.workload)]
        if not same_objects(standing, self._standing):
            self._standing = tuple(standing)
        return self._standing


class SeenPaths:
    """Remembers whether any of these paths was there when `look` was called."""

    def __init__(self, *paths: str) -> None:
        self._paths = paths
        self._seen = False

    def look(self) -> None:
        """Look for the paths. Not for the tick: a file system can hang."""
        self._seen = self._seen or any(map(exists, self._paths))

    def __call__(self) -> bool:
        """Whether one of them was ever there."""
        return self._seen


# Seconds. Covers the jitter before a watch, a kubelet that takes its whole deadline, and a slow disk.
_READ_ONCE_TIMEOUT = 10.0


class OwnerIndexes:
    """The owner indexes of this machine; without indexes it knows nothing. The methods of a tick never block.

    `facts` returns what is known now. Each allocation source returns the allocations of one index;
    `allocating` are these indexes.
    """

    def __init__(
        self,
        indexes: Sequence[BackgroundIndex] = (),
        facts: Callable[[], OwnerFacts] = OwnerFacts,
        allocation_sources: Sequence[AllocationSource] = (),
        allocating: Sequence[AllocatingIndex] = (),
    ) -> None:
        self._indexes = tuple(indexes)
        self.facts = facts
        self._allocation_sources = tuple(allocation_sources)
        self._allocating = tuple(allocating)
        self._parts: tuple[tuple[Allocation, ...], ...] = ()
        self._joined: tuple[Allocation, ...] = ()
        self._started = False

    def __len__(self) -> int:
        return len(self._indexes)

    def start(self) -> None:
        """Start all index threads. Idempotent: `read_once` may have started them before the node does."""
        if self._started:
            return
        self._started = True
        for index in self._indexes:
            index.start()

    def stop(self) -> None:
        """Stop all index threads."""
        for index in self._indexes:
            index.stop()

    def read_once(self) -> None:
        """Start and wait at most 10 s, for commands that read a single Snapshot."""
        self.start()
        self.wait(_READ_ONCE_TIMEOUT)

    def wait(self, timeout: float) -> None:
        """Wait at most `timeout` seconds until every index was read or has failed."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and not all(is_tried(index.health) for index in self._indexes):
            # Polling is enough: each index has its own lock, and this runs once per program.
            time.sleep(0.02)

    def health(self) -> tuple[IndexHealth, ...]:
        """The health of each index."""
        return tuple([index.health for index in self._indexes])

    def allocations(self, devices: tuple[Device, ...]) -> tuple[Allocation, ...]:
        """All device allocations; the same object while nothing changes."""
        parts = tuple([source(devices) for source in self._allocation_sources])
        if not same_objects(parts, self._parts):
            self._parts = parts
            self._joined = tuple(_without_repeated_jobs(item for part in parts for item in part))
        return self._joined

    def has_all_allocations(self, unix: float) -> bool:
        """Whether the last `allocations` are all that there are at this time.

        A source that answered before is silent after five minutes. One that never answered is silent if it is
        configured, else it does not exist here.
        """
        return all(one.has_all_allocations(unix) for one in self._allocating)

    def known_pods(self) -> Pods | None:
        """The pods of this node; None while the API server does not list them: all may still run."""
        listed = any(index.name == "pods" and index.health.success for index in self._indexes)
        return self.facts().pods if listed else None

    def nudge(self) -> None:
        """Request an early refresh of every index, because a process has an owner without a name."""
        for index in self._indexes:
            index.nudge()


def _without_repeated_jobs(allocations: Iterable[Allocation]) -> Iterator[Allocation]:
    """Each job once per Device: Slurm and the job-mapping directory may report the same allocation."""
    seen: set[tuple[str, str, str]] = set()
    for item in allocations:
        job = (item.device.uuid, item.workload.kind, item.workload.job)
        if not item.workload.job or job not in seen:
            yield item
        seen.add(job)

"""OwnerIndexes: all owner indexes of this machine behind the one interface that the owner lookup uses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from gpuledger.host.owner_index import OwnerIndex, is_tried
from gpuledger.model.devices import Device
from gpuledger.model.node_state import IndexHealth
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.device_index import same_objects
from gpuledger.workloads.owner_resolution import resolve_owner
from gpuledger.workloads.pods.pod import NO_PODS, Pods

# The allocations that one index knows; the same object while neither the index nor the Devices change.
AllocationSource = Callable[[tuple[Device, ...]], tuple[Allocation, ...]]
# Adds what an index knows to an owner; returns the owner itself if there is nothing to add.
EnrichOwner = Callable[[Workload], Workload]

# Seconds. Covers the jitter before a watch, a kubelet that takes its whole deadline, and a slow disk.
_READ_ONCE_TIMEOUT = 10.0


class OwnerIndexes:
    """The owner indexes of this machine as an OwnerDirectory; without indexes it knows nothing.

    `pods` returns the pods known now. Each allocation source returns the allocations of one index. `enrich`
    adds job numbers, users and container names to an owner; `enrich_inputs` returns the objects that its
    results depend on.
    """

    def __init__(
        self,
        indexes: Sequence[OwnerIndex] = (),
        pods: Callable[[], Pods] = lambda: NO_PODS,
        allocation_sources: Sequence[AllocationSource] = (),
        enrich: EnrichOwner = lambda owner: owner,
        enrich_inputs: Callable[[], tuple[object, ...]] = tuple,
    ) -> None:
        self._indexes = tuple(indexes)
        self._pods = pods
        self._allocation_sources = tuple(allocation_sources)
        self._enrich = enrich
        self._enrich_inputs = enrich_inputs
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

    def identity_inputs(self) -> tuple[object, ...]:
        """Objects that all results depend on."""
        return (self._pods(), *self._enrich_inputs())

    def allocations(self, devices: tuple[Device, ...]) -> tuple[Allocation, ...]:
        """All device allocations; the same object while nothing changes."""
        parts = tuple([source(devices) for source in self._allocation_sources])
        if not same_objects(parts, self._parts):
            self._parts = parts
            self._joined = tuple(_without_repeated_jobs(item for part in parts for item in part))
        return self._joined

    def resolve_owner(
        self, found: Workload, allocations: Sequence[Allocation], *, computes: bool
    ) -> Workload:
        """The owner `found`, completed with everything that the indexes know."""
        return self._enrich(resolve_owner(found, self._pods(), allocations, computes=computes))

    def nudge(self) -> None:
        """Request an early refresh of every index."""
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

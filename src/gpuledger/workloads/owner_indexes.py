"""Every map of owners of this machine, joined: what the naming of a Snapshot asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from gpuledger.host.background import OwnerIndex, is_tried
from gpuledger.model.devices import Device
from gpuledger.model.node_state import IndexHealth
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.device_index import same_objects
from gpuledger.workloads.joining import join
from gpuledger.workloads.pods.pod import NO_PODS, Pods

# Of one kind of maps: answers the same object while neither the map nor the Devices changed.
Allocations = Callable[[tuple[Device, ...]], tuple[Allocation, ...]]
# Adds what a map knows to an owner, or answers the owner itself.
Enrich = Callable[[Workload], Workload]

# For a watch that begins with a pause, a kubelet that takes its deadline, a slow disk.
_PATIENCE = 10.0


class OwnerIndexes:
    """The maps of this machine as naming's Knowledge. Empty where there are none, and then it knows nothing.

    `pods` tells the pods known now. Each of `handed` answers the Devices that one kind of map says were
    handed out; `enrich` adds what the others know. `moments` answer the values on which `enrich` rests.
    """

    def __init__(
        self,
        maps: Sequence[OwnerIndex] = (),
        pods: Callable[[], Pods] = lambda: NO_PODS,
        handed: Sequence[Allocations] = (),
        enrich: Enrich = lambda owner: owner,
        moments: Callable[[], tuple[object, ...]] = tuple,
    ) -> None:
        self._maps = tuple(maps)
        self._pods = pods
        self._handed = tuple(handed)
        self._enrich = enrich
        self._moments = moments
        self._parts: tuple[tuple[Allocation, ...], ...] = ()
        self._joined: tuple[Allocation, ...] = ()
        self._started = False

    def __len__(self) -> int:
        return len(self._maps)

    def start(self) -> None:
        """Begin to keep all of them up to date. Idempotent: who waits for names first starts a node later."""
        if self._started:
            return
        self._started = True
        for one in self._maps:
            one.start()

    def stop(self) -> None:
        """End their threads."""
        for one in self._maps:
            one.stop()

    def read_once(self) -> None:
        """For a program that looks only once: names are worth a wait, and processes are told without them."""
        self.start()
        self.wait(_PATIENCE)

    def wait(self, patience: float) -> None:
        """Until every map was read or has failed, `patience` seconds at most."""
        until = time.monotonic() + patience
        while time.monotonic() < until and not all(is_tried(one.health) for one in self._maps):
            # Each map has a lock of its own, and this is done once in the life of a program.
            time.sleep(0.02)

    def health(self) -> tuple[IndexHealth, ...]:
        """How each of them stands."""
        return tuple([one.health for one in self._maps])

    def moment(self) -> tuple[object, ...]:
        """The values that answers rest on."""
        return (self._pods(), *self._moments())

    def allocations(self, devices: tuple[Device, ...]) -> tuple[Allocation, ...]:
        """Everything that was handed out, the same object while nothing changed."""
        parts = tuple([handed(devices) for handed in self._handed])
        if not same_objects(parts, self._parts):
            self._parts = parts
            self._joined = tuple(_once(item for part in parts for item in part))
        return self._joined

    def join(self, found: Workload, handed: Sequence[Allocation], *, computes: bool) -> Workload:
        """The owner, as far as anybody knows him."""
        return self._enrich(join(found, self._pods(), handed, computes=computes))

    def nudge(self) -> None:
        """Somebody's name is still missing."""
        for one in self._maps:
            one.nudge()


def _once(handed: Iterable[Allocation]) -> Iterator[Allocation]:
    """Without the second word on a job's Device: Slurm and the job-mapping directory may tell the same."""
    seen: set[tuple[str, str, str]] = set()
    for item in handed:
        job = (item.device.uuid, item.workload.kind, item.workload.job)
        if not item.workload.job or job not in seen:
            yield item
        seen.add(job)

"""Allocations over time: the Device, the owner, the period, and the seconds in which it was unused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpuledger.ledger.device_states import are_inactive
from gpuledger.ledger.holders import is_same_pod, keeps_something, may_be_pod
from gpuledger.ledger.owners import Labels, labels_of
from gpuledger.ledger.watched_time import MarkedSeconds, new_stretch_start
from gpuledger.model.devices import Device
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.model.workload import Workload

_Key = tuple[str, Labels]


@dataclass(slots=True)
class AllocationPeriod:
    """A period in which a Device is allocated to one owner; times are unix seconds.

    `unused` are the seconds in which no process of the owner was on it, `unread` those of which that is not
    known. `over` is True once the allocation has ended. `number`, `changed` and `stored` are used by the
    store, as in `OpenSession`.
    """

    device: Device
    owner: Workload
    begins: float
    ends: float
    number: int = 0
    over: bool = False
    changed: bool = True
    stored: bool = False
    unused: MarkedSeconds = field(default_factory=MarkedSeconds)
    unread: MarkedSeconds = field(default_factory=MarkedSeconds)

    @property
    def key(self) -> _Key:
        """The allocation continues while this key is the same from tick to tick."""
        return (self.device.uuid, labels_of(self.owner))


class AllocationTimes:
    """Active allocations, and those that ended with the last tick. Used only by the tick thread."""

    def __init__(self) -> None:
        self._open: dict[_Key, AllocationPeriod] = {}
        # Time of the last tick on the source's clock and on the wall clock.
        self._seen: tuple[float, float] | None = None
        self._next = 1
        self.ended: list[AllocationPeriod] = []

    def resume(self, stored: Iterable[AllocationPeriod], next_number: int) -> None:
        """Continue from an earlier run. Its active allocations end when last seen.

        New allocations are numbered from `next_number`.
        """
        self._open = {one.key: one for one in stored}
        self._next = next_number

    def open(self) -> Iterable[AllocationPeriod]:
        """The active allocations."""
        return self._open.values()

    def interrupt(self) -> None:
        """Observation stops until the next tick: that time is counted for no allocation."""
        self._seen = None

    def post(self, snapshot: Snapshot) -> None:
        """Add one tick, with the owners of its processes."""
        gap = None if self._seen is None else snapshot.elapsed - self._seen[0]
        begins = new_stretch_start(gap, snapshot.unix, 0.0 if self._seen is None else self._seen[1])
        self._seen = (snapshot.elapsed, snapshot.unix)
        readings = {reading.device.uuid: reading for reading in snapshot.readings}
        before, self._open = self._open, {}
        cut: dict[_Key, AllocationPeriod] = {}
        if begins is not None:
            cut, before = before, {}
        for allocation in filter(keeps_something, snapshot.allocations):
            key = (allocation.device.uuid, labels_of(allocation.workload))
            if key in self._open:
                continue
            one = before.pop(key, None)
            if one is None:
                # If the clock was set, an active allocation continues at the new time.
                first = snapshot.unix if begins is None or key not in cut else begins
                one = AllocationPeriod(allocation.device, allocation.workload, first, snapshot.unix)
                one.number, self._next = self._next, self._next + 1
            else:
                since, one.ends = one.ends, snapshot.unix
                is_used = _is_used(readings.get(key[0]), allocation.workload)
                if is_used is None:
                    one.unread.mark(since, snapshot.unix)
                elif not is_used:
                    one.unused.mark(since, snapshot.unix)
            one.changed = True
            self._open[key] = one
        self.ended = [*cut.values(), *before.values()]
        for one in self.ended:
            one.over = one.changed = True


def _is_used(reading: Reading | None, owner: Workload) -> bool | None:
    """Return whether a process of the owner is present.

    None if the Device or its list was not read, or if a process there may be the owner's.
    """
    if reading is None or not are_inactive((), reading):
        return None
    labels = labels_of(owner)
    found = [one.workload for one in reading.processes or ()]
    if any(labels_of(one) == labels or is_same_pod(one, owner) for one in found):
        return True
    return None if any(may_be_pod(one, owner) for one in found) else False

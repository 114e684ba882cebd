"""Allocations over time: which Device was handed to whom, from when to when, and when it stood unused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpuledger.ledger.device_states import all_hold
from gpuledger.ledger.owners import Labels, labels_of
from gpuledger.ledger.watched_time import Marked, begins_anew
from gpuledger.model.devices import Device
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.model.workload import Workload

_Key = tuple[str, Labels]


@dataclass(slots=True)
class Handover:
    """A Device in one owner's hands; times are unix seconds.

    `unused` are the seconds in which no process of the owner was on it. `over` is true once it was taken
    back. `number`, `changed` and `stored` belong to the store, as in `OpenSession`.
    """

    device: Device
    owner: Workload
    begins: float
    ends: float
    number: int = 0
    over: bool = False
    changed: bool = True
    stored: bool = False
    unused: Marked = field(default_factory=Marked)

    @property
    def key(self) -> _Key:
        """What must be the same in two ticks for the handover to go on."""
        return (self.device.uuid, labels_of(self.owner))


class Handed:
    """Handovers that are in force, and those that ended with the last tick. Used by the tick thread alone."""

    def __init__(self) -> None:
        self._open: dict[_Key, Handover] = {}
        # When the last tick was, on the source's and on the wall clock.
        self._seen: tuple[float, float] | None = None
        self._next = 1
        self.ended: list[Handover] = []

    def resume(self, kept: Iterable[Handover], following: int) -> None:
        """What an earlier run left in force ends when it was last seen; new ones are numbered from
        `following`.
        """
        self._open = {one.key: one for one in kept}
        self._next = following

    def open(self) -> Iterable[Handover]:
        """Those in force."""
        return self._open.values()

    def interrupt(self) -> None:
        """Nobody looks until the next tick: until then nothing is said to be in anybody's hands."""
        self._seen = None

    def post(self, snapshot: Snapshot) -> None:
        """Take in one tick, its processes named."""
        gap = None if self._seen is None else snapshot.elapsed - self._seen[0]
        begins = begins_anew(gap, snapshot.unix, 0.0 if self._seen is None else self._seen[1])
        since = snapshot.unix - (gap or 0.0)
        self._seen = (snapshot.elapsed, snapshot.unix)
        readings = {reading.device.uuid: reading for reading in snapshot.readings}
        before, self._open = self._open, {}
        cut: dict[_Key, Handover] = {}
        if begins is not None:
            cut, before = before, {}
        for allocation in snapshot.allocations:
            key = (allocation.device.uuid, labels_of(allocation.workload))
            if key in self._open:
                continue
            one = before.pop(key, None)
            if one is None:
                # Where the clock was set, one that was in force goes on by the new time.
                first = snapshot.unix if begins is None or key not in cut else begins
                one = Handover(allocation.device, allocation.workload, first, snapshot.unix)
                one.number, self._next = self._next, self._next + 1
            else:
                one.ends = snapshot.unix
                if not _is_used(readings.get(key[0]), key[1]):
                    one.unused.mark(since, snapshot.unix)
            one.changed = True
            self._open[key] = one
        self.ended = [*cut.values(), *before.values()]
        for one in self.ended:
            one.over = one.changed = True


def _is_used(reading: Reading | None, owner: Labels) -> bool:
    """Whether some process of the owner is there, or nobody can tell."""
    if reading is None or not all_hold((), reading):
        return True
    return any(labels_of(process.workload) == owner for process in reading.processes or ())

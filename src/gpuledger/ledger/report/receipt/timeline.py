"""When the owners of a receipt had each device and used it: bars over time, and idle seconds by place.

Reads the same sets of seconds as reports (`TimeEntry`), so that both agree to the second.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from gpuledger.ledger.report.receipt.content import BarScale, DeviceBars
from gpuledger.ledger.report.tally import TimeEntry
from gpuledger.ledger.watched_time import QUARTER

# Most bars, and their lengths in seconds, of which the shortest possible one is used.
MOST_BARS: Final = 48
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_STEPS: Final = (
    *(5, 10, 15, 30),
    *(number * _MINUTE for number in (1, 2, 5, 10, 15, 30)),
    *(number * _HOUR for number in (1, 2, 3, 6, 12)),
    *(number * _DAY for number in (1, 2, 4, 7, 14, 28, 56)),
)


def choose_bars(begins: float, ends: float) -> BarScale:
    """At most MOST_BARS bars of a round length that cover the time from `begins` to `ends` (unix seconds)."""
    for step in _STEPS:
        first = int(begins // step) * step
        count = max(-(-(int(ends) + 1 - first) // step), 1)
        if count <= MOST_BARS:
            break
    return BarScale(begins=first, step_seconds=step, count=min(count, MOST_BARS))


def empty_bars(scale: BarScale) -> DeviceBars:
    """The bars of a device that was never there."""
    count = scale["count"]
    return DeviceBars(
        present=[0] * count, active=[0] * count, unknown=[0] * count, utilization=[None] * count
    )


@dataclass(slots=True)
class IdleSeconds:
    """Seconds in which an owner had a device and no engine was busy: before the first use, between, after.

    None of the device's seconds counts for two of them. `unclear_wait` and `unclear_tail`: in some second
    before the first, or after the last use it is not known whether an engine was busy.
    """

    wait: int = 0
    gap: int = 0
    tail: int = 0
    unclear_wait: bool = False
    unclear_tail: bool = False
    first_active: int | None = None
    last_active: int | None = None

    def add(self, origin: int, present: int, busy: int, unknown: int) -> None:
        """Add the seconds from `origin` (unix) on, which are later than those added before."""
        idle = present & ~busy & ~unknown
        if not busy:
            if self.first_active is None:
                self.wait += idle.bit_count()
                self.unclear_wait |= bool(unknown)
            else:
                self.tail += idle.bit_count()
                self.unclear_tail |= bool(unknown)
            return
        lowest, highest = (busy & -busy).bit_length() - 1, busy.bit_length() - 1
        before = (1 << lowest) - 1
        after = ~((1 << highest + 1) - 1)
        if self.first_active is None:
            self.first_active = origin + lowest
            self.wait += (idle & before).bit_count()
            self.unclear_wait |= bool(unknown & before)
        else:
            self.gap += self.tail + (idle & before).bit_count()
        self.gap += (idle & ~before & ~after).bit_count()
        self.tail = (idle & after).bit_count()
        self.unclear_tail = bool(unknown & after)
        self.last_active = origin + highest


@dataclass(slots=True)
class DeviceTimeline:
    """One device: the seconds that the receipt's owners had it, and their bars.

    `begins` and `ends` are the first and last second, in unix time; `owners` has the idle seconds of each.
    """

    bars: DeviceBars
    present: int = 0
    unknown: int = 0
    begins: int | None = None
    ends: int | None = None
    owners: dict[str, IdleSeconds] = field(default_factory=dict)

    @property
    def first_active(self) -> int | None:
        """The first second in which an engine was busy."""
        return min((one.first_active for one in self._users if one.first_active is not None), default=None)

    @property
    def last_active(self) -> int | None:
        """The last second in which an engine was busy."""
        return max((one.last_active for one in self._users if one.last_active is not None), default=None)

    @property
    def _users(self) -> list[IdleSeconds]:
        return [one for one in self.owners.values() if one.first_active is not None]

    @property
    def wait(self) -> int | None:
        """Seconds before the first use, of owners that used it; None if some of them are not known."""
        return None if any(one.unclear_wait for one in self._users) else sum(one.wait for one in self._users)

    @property
    def gap(self) -> int:
        """Seconds that are known to be idle between the first and the last use of each owner."""
        return sum(one.gap for one in self._users)

    @property
    def tail(self) -> int | None:
        """Seconds after the last use, of owners that used it; None if some of them are not known."""
        return None if any(one.unclear_tail for one in self._users) else sum(one.tail for one in self._users)


@dataclass(slots=True)
class _OwnSeconds:
    """The sets of seconds of one owner on one device, from the begin of a quarter."""

    resident: int = 0
    held: int = 0
    busy: int = 0
    allocated: int = 0
    unclear: int = 0
    old: int = 0

    def add(self, other: TimeEntry | _OwnSeconds) -> None:
        """Unite with the seconds of one party, or of another owner."""
        self.resident |= other.resident
        self.held |= other.held
        self.busy |= other.busy
        self.allocated |= other.allocated
        self.unclear |= other.unknown if isinstance(other, TimeEntry) else other.unclear
        self.old |= other.old

    @property
    def present(self) -> int:
        """The seconds in which the owner had the device."""
        return self.resident | self.allocated

    @property
    def unknown(self) -> int:
        """The seconds of unknown activity, by the rule of `Tally.settle`."""
        return (self.unclear | self.old & self.present & ~self.held) & ~self.busy


class ReceiptTimeline:
    """Collects the seconds of a receipt, in order of time. Call `settle` when some quarters are complete."""

    def __init__(self, scale: BarScale) -> None:
        self.scale = scale
        # By quarter, then by device and owner.
        self._cells: dict[int, dict[tuple[str, str], _OwnSeconds]]
        self._cells = defaultdict(lambda: defaultdict(_OwnSeconds))
        self.devices: dict[str, DeviceTimeline] = {}

    def add(self, entry: TimeEntry, owner: str) -> None:
        """Add the seconds of one party of an owner."""
        if entry.resident or entry.allocated:
            self._cells[entry.quarter][entry.party.device, owner].add(entry)

    def settle(self) -> None:
        """Count the collected seconds: later ones follow."""
        for quarter in sorted(self._cells):
            together: dict[str, _OwnSeconds] = defaultdict(_OwnSeconds)
            cells = sorted(self._cells[quarter].items())
            for (device, _), seconds in cells:
                together[device].add(seconds)
            # Seconds of a device that are another owner's: busy ones, and those that count already.
            taken = {device: seconds.busy for device, seconds in together.items()}
            for (device, owner), seconds in cells:
                idle = self._device(device).owners.setdefault(owner, IdleSeconds())
                free = seconds.present & ~taken[device] | seconds.busy
                idle.add(quarter * QUARTER, free, seconds.busy, seconds.unknown & free)
                taken[device] |= free
            for device, seconds in together.items():
                self._count(self.devices[device], quarter * QUARTER, seconds)
        self._cells.clear()

    def _device(self, uuid: str) -> DeviceTimeline:
        if uuid not in self.devices:
            self.devices[uuid] = DeviceTimeline(empty_bars(self.scale))
        return self.devices[uuid]

    def _count(self, line: DeviceTimeline, origin: int, seconds: _OwnSeconds) -> None:
        present, unknown = seconds.present, seconds.unknown
        line.present += present.bit_count()
        line.unknown += unknown.bit_count()
        first = origin + (present & -present).bit_length() - 1
        line.begins = first if line.begins is None else min(line.begins, first)
        line.ends = max(line.ends or 0, origin + present.bit_length())
        for values, bits in (
            (line.bars["present"], present),
            (line.bars["active"], seconds.busy),
            (line.bars["unknown"], unknown),
        ):
            self._fill(values, origin, bits)

    def _fill(self, values: list[int], origin: int, bits: int) -> None:
        """Add the seconds to the bars; those outside belong to the nearest one."""
        begins, step, last = self.scale["begins"], self.scale["step_seconds"], self.scale["count"] - 1
        while bits:
            lowest = (bits & -bits).bit_length() - 1
            place = min(max((origin + lowest - begins) // step, 0), last)
            ends = bits.bit_length()
            if place < last:
                ends = max(begins + (place + 1) * step - origin, lowest + 1)
            part = bits & ((1 << ends) - 1)
            values[place] += part.bit_count()
            bits &= ~part

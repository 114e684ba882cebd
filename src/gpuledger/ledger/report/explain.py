"""Why somebody's bill is what it is: the intervals that make it, with whom, by which method, and why so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpuledger.ledger.energy.booking import ACTIVITY, EQUAL, INTEGRATED, MEASURED, SLICES


class With(NamedTuple):
    """Another owner or command that was on the Gpu, and the millijoules booked to it."""

    name: str
    millijoules: int


@dataclass(frozen=True, slots=True)
class Interval:
    """A stretch of time on one Gpu with the same residents and method.

    Times are unix seconds. `millijoules` are those booked to whoever is explained, `gpu_millijoules` all that
    the Gpu used, of which `idle` and `unattributed` are its own accounts'. `instance` is `GI_CI` under MIG.
    `exact` is false for an hour whose detail is no longer kept: then it is some part of the hour.
    """

    begins: float
    ends: float
    gpu: str
    instance: str
    method: str
    millijoules: int
    gpu_millijoules: int
    idle: int = 0
    unattributed: int = 0
    others: tuple[With, ...] = ()
    exact: bool = True

    @property
    def high(self) -> int:
        """The most that it can have used: all of the Gpu's, or what was measured, which is its own."""
        return self.millijoules if self.method == MEASURED else self.gpu_millijoules

    @property
    def why(self) -> str:
        """Why the energy was booked by this method."""
        return _why(self)


class SessionLine(NamedTuple):
    """A Session of whoever is explained. Times are unix seconds, energy is millijoules of its whole life."""

    pid: int
    command: str
    gpu: str
    instance: str
    first_seen: float
    last_seen: float
    ended: bool
    exit_seen: bool
    held_seconds: float
    measured: int
    apportioned: int
    high: int


class HandoverLine(NamedTuple):
    """A Device in its hands, in detail as long as that is kept. Unix seconds, and seconds unused."""

    gpu: str
    instance: str
    begins: float
    ends: float
    unused: int


class Lost(NamedTuple):
    """Millijoules without detail: all, the part that was measured, and the most that it can have been."""

    millijoules: int = 0
    measured: int = 0
    high: int = 0


NOTHING_LOST = Lost()


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything of one owner or process, in order of time.

    `lost` is what its Sessions have and no interval or hour of its own has any more: that of one process,
    when only the hours of all of its kind are kept.
    """

    who: str
    intervals: Sequence[Interval]
    sessions: Sequence[SessionLine] = ()
    lost: Lost = NOTHING_LOST
    handovers: Sequence[HandoverLine] = ()

    @property
    def millijoules(self) -> int:
        """The bill."""
        return sum(one.millijoules for one in self.intervals) + self.lost.millijoules

    @property
    def measured(self) -> int:
        """The least that it can be."""
        kept = sum(one.millijoules for one in self.intervals if one.method == MEASURED)
        return kept + self.lost.measured

    @property
    def high(self) -> int:
        """The most that it can be."""
        return sum(one.high for one in self.intervals) + self.lost.high


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Fewer of them: those that follow each other with the same people by the same method are one."""
    open_: dict[tuple[str, str], int] = {}
    found: list[Interval] = []
    for one in intervals:
        place = (one.gpu, one.instance)
        before = found[open_[place]] if place in open_ else None
        if before is not None and _continues(before, one):
            found[open_[place]] = _joined(before, one)
        else:
            open_[place] = len(found)
            found.append(one)
    return found


def _continues(before: Interval, one: Interval) -> bool:
    same = before.method == one.method and before.exact == one.exact
    return same and before.ends == one.begins and _names(before) == _names(one)


def _names(one: Interval) -> frozenset[str]:
    return frozenset(other.name for other in one.others)


def _joined(before: Interval, one: Interval) -> Interval:
    others: Counter[str] = Counter()
    for name, millijoules in (*before.others, *one.others):
        others[name] += millijoules
    return Interval(
        before.begins,
        one.ends,
        one.gpu,
        one.instance,
        one.method,
        before.millijoules + one.millijoules,
        before.gpu_millijoules + one.gpu_millijoules,
        before.idle + one.idle,
        before.unattributed + one.unattributed,
        tuple(With(*other) for other in sorted(others.items())),
        one.exact,
    )


def _why(one: Interval) -> str:
    if one.method == MEASURED:
        return "alone on the whole GPU, so the counter is its own"
    if one.method == INTEGRATED:
        return "the GPU has no energy counter, or it stood still: its power was integrated"
    if one.method == SLICES:
        return "MIG: the driver tells no use by process; split by the instances' multiprocessors"
    if one.method == EQUAL:
        return "no engine time was told, so it was split by time on the GPU"
    if one.method == ACTIVITY and one.instance:
        return "MIG: split by the instances' activity, within an instance by time"
    if one.method == ACTIVITY and one.others:
        return "shared: split by engine time, and the idle power, where it is known, equally"
    if one.method == ACTIVITY:
        return "it came or went within the interval, or somebody unlisted was at work"
    return "the books could not be written for long: whose it was is not kept"

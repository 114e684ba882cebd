"""Explains a bill: the report's row, its intervals, the sharing parties, and the method with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpuledger.ledger.energy.booking import ACTIVITY, EQUAL, INTEGRATED, MEASURED, SLICES
from gpuledger.ledger.report.usage_report import ReportLine, UsageReport
from gpuledger.model.session import IDLE, UNATTRIBUTED, UNOBSERVED

_REASONS = {
    MEASURED: "alone on the whole GPU, so it gets all of the counter's energy",
    INTEGRATED: "the GPU has no energy counter or a frozen one: its power was integrated",
    SLICES: "MIG: the driver reports no utilization per process; split by the instances' multiprocessors",
    EQUAL: "no engine time was reported, so it was split by time on the GPU",
    UNATTRIBUTED: "an engine was active, but not for a known process; or energy.policy splits nothing",
    UNOBSERVED: "gpuledger was not reading the GPU, and its counter went on",
}
_OWN_ACCOUNTS = (IDLE, UNATTRIBUTED, UNOBSERVED)
_PARTLY_IDLE = "no process was there for a part of the time, or on a part of the GPU (MIG)"
_LOST = "the ledger could not be written for a long time: the shares are lost"


class ReportRow(NamedTuple):
    """A row and the report that has it."""

    report: UsageReport
    line: ReportLine


class OtherShare(NamedTuple):
    """Another owner or command that was on the Gpu, and the millijoules booked to it."""

    name: str
    millijoules: int


@dataclass(frozen=True, slots=True)
class Interval:
    """A stretch of time on one Gpu with the same residents and method.

    `method` is the account if one of the Gpu's own accounts is explained.
    Times are unix seconds. `millijoules` are booked to the explained target, `gpu_millijoules` is all that
    the Gpu used; `idle` and `unattributed` of it are in its own accounts. `instance` is `GI_CI` under MIG.
    `exact` is False for an hour without kept detail: the stretch is then some part of the hour.
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
    others: tuple[OtherShare, ...] = ()
    exact: bool = True

    @property
    def high(self) -> int | None:
        """The most that the target can have used: all of the Gpu's energy, or its own if it was measured.

        None for the Gpus' own accounts, which have no bounds.
        """
        if self.method in _OWN_ACCOUNTS:
            return None
        return self.millijoules if self.method == MEASURED else self.gpu_millijoules

    @property
    def why(self) -> str:
        """The reason for the method."""
        if self.method == IDLE:
            return _PARTLY_IDLE if self.others else "no process was on the GPU"
        if self.method != ACTIVITY:
            return _REASONS.get(self.method, _LOST)
        if self.instance:
            return "MIG: split by the instances' activity, within an instance by time"
        if self.others:
            return "shared: split by engine time; idle power, if known, split equally"
        return "it began or ended within the interval, or an unlisted process was active"


class SessionLine(NamedTuple):
    """A Session of the explained target. Times are unix seconds, energy is millijoules of its whole life."""

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

    @property
    def metered(self) -> bool:
        """Whether its energy is known: an interval in which it was resident was measured."""
        return self.high > 0


class AllocationLine(NamedTuple):
    """A Device allocated to the target, while its detail is kept: unix seconds, and seconds unused."""

    gpu: str
    instance: str
    begins: float
    ends: float
    unused: int


class LostDetail(NamedTuple):
    """Millijoules without detail: all, the part that was measured, and the upper bound."""

    millijoules: int = 0
    measured: int = 0
    high: int = 0


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything about one row of a report or one process, in order of time.

    `by` is the grouping of the row, empty for a process, which reports do not list. `row` is None for a
    process, and for those that only serve others, such as an MPS server: they own no time and no energy.
    `lost` is energy of its Sessions that no interval or hour holds any more: for a single process, if only
    the hours of its party are kept.
    """

    who: str
    intervals: Sequence[Interval]
    sessions: Sequence[SessionLine] = ()
    lost: LostDetail = field(default_factory=LostDetail)
    allocations: Sequence[AllocationLine] = ()
    row: ReportRow | None = None
    by: str = ""

    @property
    def metered(self) -> bool:
        """Whether some of its energy was measured; else the bill is unknown, not 0."""
        if self.row is not None:
            return self.row.line.metered
        if self.by:
            return True
        return bool(self.intervals) or self.lost.high > 0 or not self.sessions

    @property
    def millijoules(self) -> int:
        """The bill."""
        return sum(one.millijoules for one in self.intervals) + self.lost.millijoules

    @property
    def measured(self) -> int | None:
        """The lower bound of the bill; None if it has none, as the row."""
        if self.row is not None:
            return self.row.line.low
        kept = sum(one.millijoules for one in self.intervals if one.method == MEASURED)
        return kept + self.lost.measured

    @property
    def high(self) -> int | None:
        """The upper bound of the bill; None if it has none, as the row."""
        if self.row is not None:
            return self.row.line.high
        return sum(one.high or 0 for one in self.intervals) + self.lost.high


def merge_intervals(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge consecutive intervals with the same parties and method."""
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
    return replace(
        before,
        ends=one.ends,
        millijoules=before.millijoules + one.millijoules,
        gpu_millijoules=before.gpu_millijoules + one.gpu_millijoules,
        idle=before.idle + one.idle,
        unattributed=before.unattributed + one.unattributed,
        others=tuple(OtherShare(*other) for other in sorted(others.items())),
    )

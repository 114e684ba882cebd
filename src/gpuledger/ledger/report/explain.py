"""Explains a bill: the report's row, its intervals of time and of energy, and the sharing parties."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import NamedTuple, TypeVar

from gpuledger.ledger.energy.booking import ACTIVITY, EQUAL, INTEGRATED, MEASURED, SLICES
from gpuledger.ledger.report.charges import MICROSECONDS_PER_HOUR, Charges, Rate
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH, SPREAD
from gpuledger.ledger.report.usage_report import ReportLine, UnbilledTime, UsageReport
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
    `exact` is False for an hour without kept detail: the stretch is then some part of the hour. `rate` is the
    price of its energy, None if energy has no price at all.
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
    rate: Rate | None = None

    @property
    def cost(self) -> Fraction | None:
        """The exact cost of its energy; None without a price."""
        return _cost(self.rate, self.millijoules, MILLIJOULES_PER_KWH)

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


class OtherTime(NamedTuple):
    """Another owner, or an account of the Gpu, and its part of the time, in microseconds."""

    name: str
    microseconds: int


@dataclass(frozen=True, slots=True)
class TimeInterval:
    """A stretch of watched time of one Gpu with the same split.

    `microseconds` are those of the target on one part of the Gpu, `watched` are those of the whole Gpu.
    `estimated` microseconds rest on an allocation of unknown fraction. `rate` is the price, None if time has
    no price at all, or this time is not billed. The other fields are as those of `Interval`.
    """

    begins: float
    ends: float
    gpu: str
    instance: str
    microseconds: int
    watched: int
    estimated: int = 0
    others: tuple[OtherTime, ...] = ()
    exact: bool = True
    rate: Rate | None = None

    @property
    def cost(self) -> Fraction | None:
        """The exact cost; None without a price."""
        return _cost(self.rate, self.microseconds, MICROSECONDS_PER_HOUR)


def _cost(rate: Rate | None, amount: int, size: int) -> Fraction | None:
    return None if rate is None or rate.price is None else rate.price * amount / size


class SpreadLine(NamedTuple):
    """Idle time or energy that the row is charged for, less what others are charged for (price.idle: spread).

    The amounts are microseconds and millijoules of one Gpu at one price.
    """

    rate: Rate
    is_time: bool
    amount: int

    @property
    def cost(self) -> Fraction:
        """The exact cost; negative for the account idle."""
        size = MICROSECONDS_PER_HOUR if self.is_time else MILLIJOULES_PER_KWH
        return _cost(self.rate, self.amount, size) or Fraction(0)


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

    `by` is the grouping of the row, empty for a process, which reports do not list: `row` is then computed as
    those of reports. `row` is None for processes that only serve others, such as an MPS server: they own no
    time and no energy; and for the account `down`, which is not billed: its time is `unbilled`. `lost` is
    energy of its Sessions that no interval or hour holds any more: for a single process, if only the hours of
    its party are kept. `spread` lines and intervals sum to the charges of the row.
    """

    who: str
    intervals: Sequence[Interval]
    sessions: Sequence[SessionLine] = ()
    lost: LostDetail = field(default_factory=LostDetail)
    allocations: Sequence[AllocationLine] = ()
    row: ReportRow | None = None
    by: str = ""
    time_intervals: Sequence[TimeInterval] = ()
    spread: Sequence[SpreadLine] = ()
    unbilled: UnbilledTime | None = None
    report: UsageReport | None = None

    @property
    def metered(self) -> bool:
        """Whether some of its energy was measured; else the bill is unknown, not 0."""
        if self.by:
            return self.row is None or self.row.line.metered
        return bool(self.intervals) or self.lost.high > 0 or not self.sessions

    @property
    def millijoules(self) -> int:
        """The energy of the bill."""
        return sum(one.millijoules for one in self.intervals) + self.lost.millijoules

    @property
    def microseconds(self) -> int:
        """The GPU time of the target, billed or not."""
        return sum(one.microseconds for one in self.time_intervals)

    @property
    def billed_microseconds(self) -> int:
        """The GPU time in the row. Time that could not be observed, and that of lost GPUs, is not billed."""
        return self.microseconds if self.unbilled is None else 0

    @property
    def since(self) -> float:
        """The begin of the range, or of the ledger if that is later, in unix seconds; 0 without a report."""
        return max(self.report.period.since, self.report.period.first) if self.report else 0.0

    @property
    def until(self) -> float:
        """The end of the range, at most the last posting, in unix seconds; 0 without a report."""
        return min(float(self.report.period.until), self.report.period.last) if self.report else 0.0

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on the numbers: those of the report, and if the intervals do not sum to the row."""
        report, row = self.report, self.row
        if report is None:
            return ()
        notes = list(report.notes)
        if row is not None and self.lost == LostDetail():
            line = row.line
            sums = (self.billed_microseconds, self.millijoules)
            if sums != (line.gpu_microseconds or 0, line.millijoules) or (
                self.spread and report.prices.idle != SPREAD
            ):
                notes.append("THE INTERVALS DO NOT SUM TO THE ROW.")
        return tuple(notes)

    @property
    def measured(self) -> int | None:
        """The lower bound of the bill; None if it has none, as the row."""
        if self.row is not None and self.by:
            return self.row.line.low
        kept = sum(one.millijoules for one in self.intervals if one.method == MEASURED)
        return kept + self.lost.measured

    @property
    def high(self) -> int | None:
        """The upper bound of the bill; None if it has none, as the row."""
        if self.row is not None and self.by:
            return self.row.line.high
        return sum(one.high or 0 for one in self.intervals) + self.lost.high


def merge_intervals(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge consecutive intervals with the same parties, method and price."""
    return _merged(intervals, lambda one: (one.gpu, one.instance), _continues, _joined)


def merge_time_intervals(intervals: Iterable[TimeInterval]) -> list[TimeInterval]:
    """Merge consecutive intervals of a part of a Gpu with the same others, price and exactness."""
    return _merged(intervals, lambda one: (one.gpu, one.instance, one.rate), _follows, _joined_time)


AnyInterval = TypeVar("AnyInterval", Interval, TimeInterval)


def _merged(
    intervals: Iterable[AnyInterval],
    place_of: Callable[[AnyInterval], Hashable],
    continues: Callable[[AnyInterval, AnyInterval], bool],
    join: Callable[[AnyInterval, AnyInterval], AnyInterval],
) -> list[AnyInterval]:
    """Join each interval to the last one of its place if it continues that."""
    newest: dict[Hashable, int] = {}
    found: list[AnyInterval] = []
    for one in intervals:
        place = place_of(one)
        at = newest.get(place)
        if at is not None and continues(found[at], one):
            found[at] = join(found[at], one)
        else:
            newest[place] = len(found)
            found.append(one)
    return found


def _continues(before: Interval, one: Interval) -> bool:
    return before.method == one.method and before.rate == one.rate and _follows(before, one)


def _follows(before: Interval | TimeInterval, one: Interval | TimeInterval) -> bool:
    """Whether an interval begins where the other one ends, with the same others and exactness."""
    same = before.exact == one.exact and before.ends == one.begins
    return same and {name for name, _ in before.others} == {name for name, _ in one.others}


def _sum_others(before: Interval | TimeInterval, one: Interval | TimeInterval) -> list[tuple[str, int]]:
    """The amounts of both by name."""
    others: Counter[str] = Counter()
    for name, amount in (*before.others, *one.others):
        others[name] += amount
    return sorted(others.items())


def _joined(before: Interval, one: Interval) -> Interval:
    return replace(
        before,
        ends=one.ends,
        millijoules=before.millijoules + one.millijoules,
        gpu_millijoules=before.gpu_millijoules + one.gpu_millijoules,
        idle=before.idle + one.idle,
        unattributed=before.unattributed + one.unattributed,
        others=tuple(OtherShare(*other) for other in _sum_others(before, one)),
    )


def _joined_time(before: TimeInterval, one: TimeInterval) -> TimeInterval:
    return replace(
        before,
        ends=one.ends,
        microseconds=before.microseconds + one.microseconds,
        watched=before.watched + one.watched,
        estimated=before.estimated + one.estimated,
        others=tuple(OtherTime(*other) for other in _sum_others(before, one)),
    )


def spread_lines(
    charges: Charges | None, intervals: Iterable[tuple[Rate | None, int]], *, is_time: bool
) -> list[SpreadLine]:
    """The charges of a row that none of its intervals, each a rate and an amount, have."""
    left: dict[Rate, int] = defaultdict(int, charges or {})
    for rate, amount in intervals:
        if rate is not None:
            left[rate] -= amount
    return [SpreadLine(rate, is_time, amount) for rate, amount in left.items() if amount]

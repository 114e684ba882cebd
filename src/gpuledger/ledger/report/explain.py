"""Explains a bill: the report's row, its intervals of time and of energy, and the sharing parties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuledger.ledger.report.charges import Charges
from gpuledger.ledger.report.explain_intervals import Interval, SpreadLine, TimeInterval
from gpuledger.ledger.report.explain_lists import ChargeSums, EnergySums, StoredList, StreamedList, TimeSums
from gpuledger.ledger.report.settings import SPREAD
from gpuledger.ledger.report.usage_report import ReportLine, UnbilledTime, UsageReport, row_notes


class ReportRow(NamedTuple):
    """A row and the report that has it."""

    report: UsageReport
    line: ReportLine


class SessionLine(NamedTuple):
    """A Session of the explained target. Times are unix seconds, energy is millijoules of its whole life.

    `held_seconds` is None if activity is unknown.
    """

    pid: int
    command: str
    gpu: str
    instance: str
    first_seen: float
    last_seen: float
    ended: bool
    exit_seen: bool
    held_seconds: float | None
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
    intervals: StreamedList[Interval]
    energy: EnergySums
    time_intervals: StreamedList[TimeInterval]
    time: TimeSums
    spread: StreamedList[SpreadLine]
    sessions: StoredList[SessionLine]
    allocations: StoredList[AllocationLine]
    lost: LostDetail = field(default_factory=LostDetail)
    row: ReportRow | None = None
    by: str = ""
    unbilled: UnbilledTime | None = None
    report: UsageReport | None = None

    @property
    def metered(self) -> bool:
        """Whether some of its energy was measured; else the bill is unknown, not 0."""
        if self.by:
            return self.row is None or self.row.line.metered
        return self.intervals.count > 0 or self.lost.high > 0 or not self.sessions.count

    @property
    def millijoules(self) -> int:
        """The energy of the bill."""
        return self.energy.millijoules + self.lost.millijoules

    @property
    def microseconds(self) -> int:
        """The GPU time of the target, billed or not."""
        return self.time.microseconds

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
        notes = row_notes(report, None if row is None else row.line)
        if row is not None and self.lost == LostDetail():
            line = row.line
            sums = (self.billed_microseconds, self.millijoules)
            if sums != (line.gpu_microseconds or 0, line.millijoules) or (
                self.spread.count and report.prices.idle != SPREAD
            ):
                notes.append("THE INTERVALS DO NOT SUM TO THE ROW.")
        return tuple(notes)

    @property
    def measured(self) -> int | None:
        """The lower bound of the bill; None if it has none, as the row."""
        if self.row is not None and self.by:
            return self.row.line.low
        return self.energy.measured + self.lost.measured

    @property
    def high(self) -> int | None:
        """The upper bound of the bill; None if it has none, as the row."""
        if self.row is not None and self.by:
            return self.row.line.high
        return self.energy.high + self.lost.high


def spread_lines(row: ReportLine | None, time: TimeSums, energy: EnergySums) -> list[SpreadLine]:
    """The charges of a row that none of its intervals have."""
    if row is None:
        return []
    pairs = ((True, row.time_charges, time.charges), (False, row.energy_charges, energy.charges))
    return [line for pair in pairs for line in _spread(*pair)]


def _spread(is_time: bool, charges: Charges | None, intervals: ChargeSums) -> Iterator[SpreadLine]:
    left = Counter(charges or {})
    left.subtract(intervals.by_rate())
    yield from (SpreadLine(rate, is_time, amount) for rate, amount in left.items() if amount)

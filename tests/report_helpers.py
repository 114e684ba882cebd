"""Reports from a ledger file, and copies of the file with everything folded."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, tzinfo
from fractions import Fraction
from pathlib import Path

from gpuledger.ledger.report.charges import Rate
from gpuledger.ledger.report.explain import Explanation
from gpuledger.ledger.report.grouping import Key
from gpuledger.ledger.report.ranges import ReportRange
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.usage_report import ReportLine, UsageReport
from gpuledger.ledger.store import report_query
from gpuledger.ledger.store.folding import fold_spans, fold_time_spans, fold_times
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.hour_cells import HourCells

HOUR, QUARTER = 3600, 900
EVER = (0, 2**40 // HOUR * HOUR)


def report_of(
    file: Path,
    by: str = "owner",
    between: tuple[int, int] = EVER,
    prices: Prices | None = None,
    every: str = "",
) -> UsageReport:
    with closing(History(file)) as history:
        return report_query.build_report(history, by, prices or Prices(), quarters(*between), every=every)


def quarters(since: int, until: int) -> ReportRange:
    """The range between two full quarters, in unix seconds."""
    return ReportRange(since // QUARTER, until // QUARTER, float(until), UTC)


def lines_of(found: UsageReport) -> dict[Key, ReportLine]:
    return {line.key: line for line in found.lines}


def exact_costs(found: Explanation, *, is_time: bool) -> Fraction:
    """The sum of the exact costs of an explanation's intervals and spread lines."""
    size = 3_600_000_000  # microseconds of an hour, and millijoules of a kilowatt-hour
    amounts: list[tuple[Rate | None, int]]
    if is_time:
        amounts = [(one.rate, one.microseconds) for one in found.time_intervals]
    else:
        amounts = [(one.rate, one.millijoules) for one in found.intervals]
    amounts += [(one.rate, one.amount) for one in found.spread if one.is_time is is_time]
    return sum((rate.price * amount / size for rate, amount in amounts if rate and rate.price), Fraction(0))


def folded(file: Path, before: float, target: Path, zone: tzinfo = UTC) -> Path:
    """A copy of the ledger in which every full hour of a zone before this time (unix) is folded."""
    with closing(sqlite3.connect(file)) as books, closing(sqlite3.connect(target)) as copy:
        books.backup(copy)
    with closing(sqlite3.connect(target, isolation_level=None)) as copy:
        cells = HourCells(copy, zone)
        hour = cells.begins(int(before // QUARTER))
        copy.execute("BEGIN")
        while fold_spans(copy, hour, 1000, cells):
            pass
        while fold_time_spans(copy, hour, 1000, cells):
            pass
        while fold_times(copy, hour, cells):
            pass
        copy.execute("COMMIT")
    return target


def same(one: UsageReport, other: UsageReport) -> bool:
    """Whether two reports are equal to the last digit."""
    facts = [
        (found.lines, found.gpu_accounts, found.total, found.gpus, found.occupied, found.period)
        for found in (one, other)
    ]
    return facts[0] == facts[1]

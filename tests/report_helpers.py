"""Reports from a ledger file, and copies of the file with everything folded."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, tzinfo
from fractions import Fraction
from pathlib import Path

import pytest

from gpuledger.ledger.report.charges import Rate
from gpuledger.ledger.report.explain import Explanation
from gpuledger.ledger.report.explain_intervals import Interval
from gpuledger.ledger.report.grouping import Grouping, Key
from gpuledger.ledger.report.ranges import ReportRange
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.usage_report import ReportLine, UsageReport
from gpuledger.ledger.store import explain_query, report_query
from gpuledger.ledger.store.folding import fold_spans, fold_time_spans, fold_times
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.hour_cells import HourCells
from gpuledger.ledger.store.usage_folding import fold_usage

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


def reports_of(file: Path, wanted: Iterable[tuple[str, tuple[int, int]]]) -> list[UsageReport]:
    """The reports by these keys and ranges. What several of them need is read once."""
    with closing(History(file)) as history:
        return [
            report_query.build_report(history, by, Prices(), quarters(*between)) for by, between in wanted
        ]


def quarters(since: int, until: int) -> ReportRange:
    """The range between two full quarters, in unix seconds."""
    return ReportRange(since // QUARTER, until // QUARTER, float(until), UTC)


def build_reports_of_rows_once(patch: pytest.MonkeyPatch) -> None:
    """Explain the rows of one report by the same report: it is built once in a test instead of once a row."""
    built: dict[object, UsageReport] = {}

    def build(
        history: History, grouping: Grouping, prices: Prices, within: ReportRange, *, node: str
    ) -> UsageReport:
        key = (history.file, grouping.columns, prices, within, node)
        if key not in built:
            built[key] = report_query.build_report(history, grouping, prices, within, node=node)
        return built[key]

    patch.setattr(explain_query, "build_report", build)


def lines_of(found: UsageReport) -> dict[Key, ReportLine]:
    return {line.key: line for line in found.lines}


def exact_time_cost(found: Explanation) -> Fraction:
    """The sum of the exact costs of an explanation's time intervals and spread lines."""
    amounts = [(one.rate, one.microseconds) for one in found.time_intervals]
    return _exact_cost(found, amounts, is_time=True)


def exact_energy_cost(found: Explanation, intervals: Iterable[Interval] | None = None) -> Fraction:
    """The sum of the exact costs of spread lines and intervals of energy, which are read if not given."""
    read = found.intervals if intervals is None else intervals
    return _exact_cost(found, [(one.rate, one.millijoules) for one in read], is_time=False)


def _exact_cost(found: Explanation, amounts: list[tuple[Rate | None, int]], *, is_time: bool) -> Fraction:
    size = 3_600_000_000  # microseconds of an hour, and millijoules of a kilowatt-hour
    amounts += [(one.rate, one.amount) for one in found.spread if one.is_time is is_time]
    prices: Counter[Fraction] = Counter()
    for rate, amount in amounts:
        if rate and rate.price:
            prices[rate.price] += amount
    return sum((price * amount / size for price, amount in prices.items()), Fraction(0))


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
        while fold_usage(copy, hour, 1000, cells):
            pass
        copy.execute("COMMIT")
    return target


def same(one: UsageReport, other: UsageReport) -> bool:
    """Whether two reports are equal to the last digit. A folded ledger begins with a full hour."""
    facts = []
    for found in (one, other):
        period = replace(found.period, first=found.period.first // HOUR * HOUR)
        facts.append((found.lines, found.gpu_accounts, found.total, found.gpus, found.occupied, period))
    return facts[0] == facts[1]

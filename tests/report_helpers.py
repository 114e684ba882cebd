"""Reports from a ledger file, and copies of the file with everything folded."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from gpuledger.ledger.report.grouping import Key
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.usage_report import ReportLine, UsageReport
from gpuledger.ledger.store import history as billing
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.retention import fold_spans, fold_times

HOUR = 3600
EVER = (0, 2**40 // HOUR * HOUR)


def report_of(
    file: Path, by: str = "owner", between: tuple[int, int] = EVER, prices: Prices | None = None
) -> UsageReport:
    with closing(History(file)) as history:
        return billing.build_report(history, by, prices or Prices(), between)


def lines_of(found: UsageReport) -> dict[Key, ReportLine]:
    return {line.key: line for line in found.lines}


def folded(file: Path, before: float, target: Path) -> Path:
    """A copy of the ledger in which every hour before this time (unix) is folded."""
    with closing(sqlite3.connect(file)) as books, closing(sqlite3.connect(target)) as copy:
        books.backup(copy)
    with closing(sqlite3.connect(target, isolation_level=None)) as copy:
        hour = int(before // HOUR)
        copy.execute("BEGIN")
        while fold_spans(copy, hour, 1000):
            pass
        while fold_times(copy, hour):
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

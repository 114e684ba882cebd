"""Reports out of a file of books, and the same file with everything folded that can be."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from gpuledger.ledger.report.grouping import Key
from gpuledger.ledger.report.report import Line, Report
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.store import history as billing
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.retention import fold_spans, fold_times

HOUR = 3600
EVER = (0, 2**40 // HOUR * HOUR)


def report_of(
    file: Path, by: str = "owner", between: tuple[int, int] = EVER, prices: Prices | None = None
) -> Report:
    with closing(History(file)) as history:
        return billing.report_of(history, by, prices or Prices(), between)


def lines_of(found: Report) -> dict[Key, Line]:
    return {line.key: line for line in found.lines}


def folded(file: Path, before: float, target: Path) -> Path:
    """A copy of the books in which every hour before this time (unix) is folded."""
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


def same(one: Report, other: Report) -> bool:
    """Whether two reports say the same, to the last digit."""
    facts = [
        (found.lines, found.own, found.total, found.gpus, found.occupied, found.period)
        for found in (one, other)
    ]
    return facts[0] == facts[1]

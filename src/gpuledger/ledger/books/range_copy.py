"""Copies a range of a ledger to another file, and folds it into the smallest cells at which it can be cut."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

from gpuledger.ledger.store.folding import TIMES_FROM, fold_spans, fold_time_spans, fold_times, times_from
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.presence import LIVED_BETWEEN
from gpuledger.ledger.store.schema import migrate_schema
from gpuledger.ledger.watched_time import MINUTE, QUARTER

_STEP = 2000
_WITHIN = "quarter >= :first AND quarter < :end"
_MINUTES = f"minute >= :first * {QUARTER // MINUTE} AND minute < :end * {QUARTER // MINUTE}"
# Rows of the range by table, in any order: no table refers to another by a constraint.
_COPIED: Final = {
    "meta": "SELECT * FROM meta",
    "devices": "SELECT * FROM devices",
    "gpu_parts": "SELECT * FROM gpu_parts",
    "time_owners": "SELECT * FROM time_owners",
    **{
        table: f"SELECT * FROM {table} WHERE {_WITHIN}"
        for table in ("spans", "time_spans", "hours", "hour_gpu_time", "hour_times")
    },
    "time_splits": f"""
        SELECT * FROM time_splits WHERE number IN (SELECT split FROM time_spans WHERE {_WITHIN})
    """,
    "shares": f"SELECT shares.* FROM shares JOIN spans ON span = number WHERE {_WITHIN}",
    "hour_shares": f"SELECT hour_shares.* FROM hour_shares JOIN hours USING (number) WHERE {_WITHIN}",
    "parties": f"""
        SELECT * FROM parties WHERE number IN (
            SELECT party FROM hour_shares JOIN hours USING (number) WHERE {_WITHIN}
            UNION SELECT party FROM hour_times WHERE {_WITHIN}
            UNION SELECT party FROM hour_gpu_time WHERE {_WITHIN})
    """,
    "handovers": f"SELECT * FROM handovers WHERE ends >= :first * {QUARTER} AND begins < :end * {QUARTER}",
    **{table: f"SELECT * FROM {table} WHERE {_MINUTES}" for table in ("held", "unknown", "unused", "unread")},
}
_ALIVE = " UNION ".join(f"SELECT number FROM usage WHERE {life}" for life in LIVED_BETWEEN)
_SHARING = f"SELECT DISTINCT session FROM shares JOIN spans ON span = number WHERE {_WITHIN}"
_OF_SESSION = ("sessions WHERE number", "usage WHERE number", "stays WHERE session")


class LedgerCells:
    """The smallest cells at which a ledger can be cut: a quarter, or the hour to which it is folded."""

    def __init__(self, history: History) -> None:
        self.around = lru_cache(None)(history.cuts_around)

    def begins(self, quarter: int) -> int:
        """The first quarter of the cell."""
        return self.around(quarter)[0]

    def ends(self, quarter: int) -> int:
        """The quarter after the cell."""
        return self.around(quarter + 1)[1]


def copy_range(history: History, copy: sqlite3.Connection, first: int, end: int, cells: LedgerCells) -> None:
    """Copy the quarters from `first` to before `end` into an empty file, all of them folded.

    Raises sqlite3.Error.
    """
    migrate_schema(copy)
    copy.execute("PRAGMA synchronous=OFF")
    copy.execute("BEGIN")
    within = {"first": first, "end": end}
    for table, query in _COPIED.items():
        _insert(copy, table, history.connection.execute(query, within))
    times = times_from(history.connection)
    detail = end if times is None else min(max(times, first), end)
    _copy_sessions(history, copy, within, detail)
    if times is not None:
        copy.execute("REPLACE INTO meta VALUES (?, ?)", (TIMES_FROM, detail))
    while fold_spans(copy, end, _STEP, cells) or fold_time_spans(copy, end, _STEP, cells):
        pass
    while fold_times(copy, end, cells):
        pass
    copy.execute("COMMIT")


def _insert(copy: sqlite3.Connection, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
    columns = len(copy.execute(f"PRAGMA table_info({table})").fetchall())
    copy.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * columns)})", rows)


def _copy_sessions(history: History, copy: sqlite3.Connection, within: dict[str, int], detail: int) -> None:
    """The sessions alive from the quarter `detail` on, and those that rows of the range name."""
    unix = {"since": detail * QUARTER, "until": within["end"] * QUARTER}
    numbers = {number for (number,) in history.connection.execute(_ALIVE, unix)}
    numbers |= {number for (number,) in history.connection.execute(_SHARING, within)}
    numbers |= set(_sessions_of_splits(copy))
    for number in sorted(numbers):
        for of_session in _OF_SESSION:
            rows = history.connection.execute(f"SELECT * FROM {of_session} = ?", (number,)).fetchall()
            if rows:
                _insert(copy, of_session.partition(" ")[0], rows)


def _sessions_of_splits(copy: sqlite3.Connection) -> Iterator[int]:
    for (text,) in copy.execute("SELECT split FROM time_splits"):
        for basis in json.loads(text):
            for _, _, _, session, _, _ in basis or ():
                if session is not None:
                    yield session

"""Limits the history: folds what is old into hours, in small steps, and deletes what has expired."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger.ledger.store.hour_cells import HourCells
from gpuledger.ledger.watched_time import MICRO, QUARTER

if TYPE_CHECKING:
    from sqlite3 import Connection

log = logging.getLogger("gpuledger.store")

# Seconds without a clock step before history is deleted by age: a wrong year at boot must not delete the
# ledger.
_CLOCK_TRUSTED = 3600.0
_CLOCK_STEP = 60.0
_PRUNE_EVERY = 60.0
_STEP = 200
# Folding a span costs more than deleting a row.
_FOLDS = 50
# Quarters. Spans are at most an hour long and final afterwards; younger ones may still change.
_YOUNG = 8
_DAY = 86_400
_QUIET_DAYS = 7

_OLD_HOURS = "SELECT number FROM hours WHERE quarter < ? ORDER BY quarter LIMIT ?"
_FORGET_HOURS = f"""
INSERT INTO forgotten
SELECT uuid, life, sum(idle + unattributed + unobserved
    + coalesce((SELECT sum(millijoules) FROM hour_shares WHERE number = hours.number), 0))
FROM hours WHERE life >= 0 AND number IN ({_OLD_HOURS})
GROUP BY uuid, life
ON CONFLICT (uuid, life) DO UPDATE SET millijoules = millijoules + excluded.millijoules
"""
_OLD_SESSIONS = """
SELECT number FROM usage WHERE ended IS NOT NULL AND ended < ? ORDER BY ended, number LIMIT ?
"""


@dataclass(frozen=True)
class RetentionLimits:
    """How much history is kept.

    Seconds, infinite for unlimited: `detail` of spans and of times within an hour, `hours` of hours and
    sessions. `max_size` is in bytes. `zone` is the time zone of folded hours.
    """

    detail: float = 7 * 86_400.0
    hours: float = 400 * 86_400.0
    max_size: int = 2**30
    zone: tzinfo = UTC


@dataclass(frozen=True)
class PruneResult:
    """The result of one step. `more` requests another step soon; `for_size`: the size limit caused a
    deletion.
    """

    deleted: int = 0
    more: bool = False
    for_size: bool = False


class HistoryPruner:
    """Prunes the ledger that a program writes: a step at a time, or one each minute while nothing is old.

    `error` says why the last step failed because of its rows; empty if it did not.
    """

    def __init__(self, file: Path, now: float) -> None:
        """`now` is in seconds of the clock that `run` gets."""
        self._file = file
        self._next = now
        # Wall time minus `now`, and since when: a clock that was just set is not trusted yet.
        self._wall: tuple[float, float] | None = None
        self._too_large = False
        self.error = ""

    def run(self, connection: Connection, now: float, unix: float, limits: RetentionLimits) -> None:
        """Run a step if it is time for one. Raises sqlite3.Error if the file cannot be read or written.

        Rows that no program can read, for example after a fault of the memory, remain as they are: the rest
        of the ledger is used and written as before.
        """
        # Imported lazily: a node without a ledger file does not need it.
        import sqlite3

        if self._wall is None or abs(unix - now - self._wall[0]) > _CLOCK_STEP:
            self._wall = (unix - now, now)
        if now < self._next:
            return
        if now - self._wall[1] < _CLOCK_TRUSTED:
            limits = replace(limits, detail=inf, hours=inf)
        try:
            pruned = prune_history(connection, unix, limits)
        except (sqlite3.OperationalError, MemoryError):
            raise
        except Exception as error:
            # SQLite's error for a damaged file; its subclasses are about values.
            if type(error) is sqlite3.DatabaseError:
                raise
            self._next = now + _PRUNE_EVERY
            self._report(f"{type(error).__name__}: {error}")
            return
        if not pruned.more:
            self.error = ""
        if pruned.for_size and not self._too_large:
            log.warning(
                "%s is larger than store.max_size: folding and deleting its oldest history (%d rows so far)",
                self._file,
                pruned.deleted,
            )
        # Logged once until it fits again.
        self._too_large = pruned.for_size or (self._too_large and pruned.more)
        self._next = now if pruned.more else now + _PRUNE_EVERY

    def _report(self, why: str) -> None:
        what = f"{self._file}: old history is neither summed to hours nor deleted ({why})"
        text = f"{what}: run `gpuledger books check`"
        if text != self.error:
            log.error("%s", text)
        self.error = text


def prune_history(connection: Connection, unix: float, limits: RetentionLimits) -> PruneResult:
    """Run one step in a separate transaction. Raises sqlite3.Error."""
    # Used bytes only: freed pages are reused before the file grows. While the clock is not trusted, nothing
    # is deleted for any reason.
    for_size = isfinite(limits.hours) and used_bytes(connection) > limits.max_size
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        cells = HourCells(connection, limits.zone)
        folded = _fold(connection, unix, limits.detail, cells)
        deleted = _delete(connection, unix - limits.hours, sessions=not folded)
        if for_size and not folded and not deleted:
            deleted = _delete_oldest(connection, unix, cells)
        if isfinite(limits.hours):
            oldest = int(unix // _DAY) - _QUIET_DAYS
            connection.execute("DELETE FROM floors WHERE day < ?", (oldest,))
            connection.execute("DELETE FROM xids WHERE last < ?", (unix - limits.hours,))
    if deleted or folded:
        connection.execute(f"PRAGMA incremental_vacuum({_STEP})").fetchall()
    more = folded or deleted >= _STEP or (for_size and deleted > 0)
    return PruneResult(deleted, more=more, for_size=for_size and deleted > 0)


def used_bytes(connection: Connection) -> int:
    """Bytes of pages in use."""
    count, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((count - free) * size)


def _fold(connection: Connection, unix: float, detail: float, cells: HourCells) -> bool:
    """Return whether something was folded, so that there may be more."""
    return isfinite(detail) and _fold_before(connection, int((unix - detail) // QUARTER), cells)


def _fold_before(connection: Connection, before: int, cells: HourCells) -> bool:
    """Fold some of the full hours before this quarter; return whether there were any."""
    # Imported lazily: the first step is an hour after the start.
    from gpuledger.ledger.store.folding import fold_spans, fold_time_spans

    hour = cells.begins(before)
    return (
        fold_spans(connection, hour, _FOLDS, cells) > 0
        or fold_time_spans(connection, hour, _FOLDS, cells) > 0
        or _fold_presence(connection, hour, cells)
    )


def _fold_presence(connection: Connection, hour: int, cells: HourCells) -> bool:
    """Fold an hour of times, and some of what owners used; return whether there was any."""
    from gpuledger.ledger.store.folding import fold_times
    from gpuledger.ledger.store.usage_folding import fold_usage

    has_usage = fold_usage(connection, hour, _FOLDS, cells) > 0
    return fold_times(connection, hour, cells) or has_usage


def _delete(connection: Connection, before: float, *, sessions: bool) -> int:
    """Delete history that ended before this time, at most one step per kind; return the number of rows.

    `sessions` are deleted only when no span refers to them any more.
    """
    if not isfinite(before):
        return 0
    deleted = _delete_hours(connection, int(before // QUARTER))
    return deleted + _delete_sessions(connection, before) if sessions else deleted


def _delete_hours(connection: Connection, before: int) -> int:
    """Delete the oldest hours before this quarter. No kind of rows begins earlier than the others."""
    which = (before, _STEP)
    connection.execute(_FORGET_HOURS, which)
    connection.execute(f"DELETE FROM hour_shares WHERE number IN ({_OLD_HOURS})", which)
    deleted = connection.execute(f"DELETE FROM hours WHERE number IN ({_OLD_HOURS})", which).rowcount
    gone = _oldest(connection, "hours", before)
    deleted += _delete_gpu_time(connection, gone)
    gone = _oldest(connection, "hour_gpu_time", gone)
    deleted += connection.execute("DELETE FROM hour_times WHERE quarter < ?", (gone,)).rowcount
    connection.execute("DELETE FROM parties WHERE last_quarter < ?", (gone,))
    return int(deleted) + _delete_usage(connection, gone)


def _delete_usage(connection: Connection, before: int) -> int:
    """Delete what owners used in the oldest hours before this quarter; return the number of rows."""
    deleted = connection.execute("DELETE FROM usage_hours WHERE quarter < ?", (before,)).rowcount
    connection.execute("DELETE FROM usage_periods WHERE last_quarter < ?", (before,))
    connection.execute("DELETE FROM host_periods WHERE over AND ends < ?", (before * QUARTER,))
    return int(deleted)


def _oldest(connection: Connection, table: str, before: int) -> int:
    """The first quarter of a table, at most `before`."""
    (oldest,) = connection.execute(f"SELECT min(quarter) FROM {table}").fetchone()
    return before if oldest is None else min(oldest, before)


def _delete_gpu_time(connection: Connection, before: int) -> int:
    """Delete the oldest hours of time before this quarter, as a whole, so that both bases stay balanced."""
    deleted = 0
    while deleted < _STEP and (oldest := _oldest(connection, "hour_gpu_time", before)) < before:
        query = """
            SELECT part.part, sum(allocation) FROM hour_gpu_time AS time JOIN gpu_parts AS part
            ON part.number = time.part WHERE quarter = ? GROUP BY part.number
        """
        for text, microseconds in connection.execute(query, (oldest,)).fetchall():
            connection.execute(
                "UPDATE gpu_times SET forgotten = forgotten + ? WHERE uuid = ?",
                (microseconds, json.loads(text)[0]),
            )
        deleted += connection.execute("DELETE FROM hour_gpu_time WHERE quarter = ?", (oldest,)).rowcount
    if deleted:
        first = (_oldest(connection, "hour_gpu_time", before) * QUARTER * MICRO,)
        connection.execute("UPDATE gpu_times SET first = max(first, ?)", first)
    return deleted


def _delete_sessions(connection: Connection, before: float) -> int:
    which = (before, _STEP)
    connection.execute(f"DELETE FROM stays WHERE session IN ({_OLD_SESSIONS})", which)
    connection.execute(f"UPDATE xids SET session = NULL WHERE session IN ({_OLD_SESSIONS})", which)
    connection.execute(f"DELETE FROM sessions WHERE number IN ({_OLD_SESSIONS})", which)
    return int(connection.execute(f"DELETE FROM usage WHERE number IN ({_OLD_SESSIONS})", which).rowcount)


def _delete_oldest(connection: Connection, unix: float, cells: HourCells) -> int:
    """A step for size: fold what is not folded yet, then delete the oldest hours and sessions."""
    # A full hour: spans of the hour that is cut by it are not folded, and need their sessions.
    young = cells.begins(int(unix // QUARTER) - _YOUNG)
    if _fold_before(connection, young, cells):
        return 1
    return _delete_hours(connection, young) + _delete_sessions(connection, young * QUARTER)

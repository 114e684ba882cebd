"""Old history is folded, then deleted, in small steps: no tick waits for it, and the books still balance."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from gpuledger.ledger.seconds import HOUR
from gpuledger.ledger.store.fold import fold_spans, fold_times

if TYPE_CHECKING:
    from sqlite3 import Connection

_STEP = 200
# A span that is folded costs more than a row that is deleted.
_FOLDS = 50
# Spans are an hour long at most and final after it: what is younger may still be written to.
_YOUNG = 2
_DAY = 86_400
_QUIET_DAYS = 7

_OLD_HOURS = "SELECT number FROM hours WHERE hour < ? ORDER BY hour LIMIT ?"
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


@dataclass(frozen=True, slots=True)
class Limits:
    """How much history is kept. Seconds, infinite for ever: `detail` of spans and of who did what when within
    an hour, `hours` of hours and sessions. `max_size` is bytes.
    """

    detail: float = 7 * 86_400.0
    hours: float = 400 * 86_400.0
    max_size: int = 2**30


@dataclass(frozen=True, slots=True)
class Pruned:
    """What one step did. `more` asks for another step soon; `for_size` tells why something was deleted."""

    deleted: int = 0
    more: bool = False
    for_size: bool = False


def prune(connection: Connection, unix: float, limits: Limits) -> Pruned:
    """One step, in a transaction of its own. Raises sqlite3.Error."""
    # The books' own bytes: pages that were freed are used again before the file grows. While the clock is not
    # trusted nothing goes, for whatever reason.
    for_size = isfinite(limits.hours) and used_bytes(connection) > limits.max_size
    connection.execute("BEGIN IMMEDIATE")
    try:
        folded = _fold(connection, unix, limits.detail)
        deleted = _delete(connection, unix - limits.hours, sessions=not folded)
        if for_size and not folded and not deleted:
            deleted = _delete_oldest(connection, unix)
        if isfinite(limits.hours):
            oldest = int(unix // _DAY) - _QUIET_DAYS
            connection.execute("DELETE FROM floors WHERE day < ?", (oldest,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    if deleted or folded:
        connection.execute(f"PRAGMA incremental_vacuum({_STEP})").fetchall()
    more = folded or deleted >= _STEP or (for_size and deleted > 0)
    return Pruned(deleted, more=more, for_size=for_size and deleted > 0)


def used_bytes(connection: Connection) -> int:
    """Bytes of pages in use."""
    count, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((count - free) * size)


def _fold(connection: Connection, unix: float, detail: float) -> bool:
    """Whether there was something to fold, so that there may be more."""
    if not isfinite(detail):
        return False
    before = int((unix - detail) // HOUR)
    return fold_spans(connection, before, _FOLDS) > 0 or fold_times(connection, before)


def _delete(connection: Connection, before: float, *, sessions: bool) -> int:
    """History that ended before this time, at most a step of each kind; answers how many rows of it.

    `sessions` go only when no span has shares of theirs any more.
    """
    if not isfinite(before):
        return 0
    hour = int(before // HOUR)
    deleted = _delete_hours(connection, hour)
    return deleted + _delete_sessions(connection, before) if sessions else deleted


def _delete_hours(connection: Connection, before: int) -> int:
    which = (before, _STEP)
    connection.execute(_FORGET_HOURS, which)
    connection.execute(f"DELETE FROM hour_shares WHERE number IN ({_OLD_HOURS})", which)
    deleted = connection.execute(f"DELETE FROM hours WHERE number IN ({_OLD_HOURS})", which).rowcount
    (oldest,) = connection.execute("SELECT min(hour) FROM hours").fetchone()
    gone = (before if oldest is None else min(oldest, before),)
    deleted += connection.execute("DELETE FROM hour_times WHERE hour < ?", gone).rowcount
    connection.execute("DELETE FROM parties WHERE last_hour < ?", gone)
    return int(deleted)


def _delete_sessions(connection: Connection, before: float) -> int:
    which = (before, _STEP)
    connection.execute(f"DELETE FROM stays WHERE session IN ({_OLD_SESSIONS})", which)
    connection.execute(f"DELETE FROM sessions WHERE number IN ({_OLD_SESSIONS})", which)
    return int(connection.execute(f"DELETE FROM usage WHERE number IN ({_OLD_SESSIONS})", which).rowcount)


def _delete_oldest(connection: Connection, unix: float) -> int:
    """A step for size: what is not folded yet is folded first, then the oldest hours and sessions go."""
    young = int(unix // HOUR) - _YOUNG
    if fold_spans(connection, young, _FOLDS) or fold_times(connection, young):
        return 1
    return _delete_hours(connection, young) + _delete_sessions(connection, young * HOUR)

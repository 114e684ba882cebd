"""Old history is deleted in small steps, so that no tick waits for it; what it held still balances."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite3 import Connection

_STEP = 200
# Spans are an hour long at most and final after it: what is younger may still be written to.
_YOUNG = 2 * 3600.0
_DAY = 86_400
_QUIET_DAYS = 7

_FORGET = """
INSERT INTO forgotten
SELECT uuid, life, sum(idle + unattributed + unobserved
    + coalesce((SELECT sum(millijoules) FROM shares WHERE span = spans.number), 0))
FROM spans WHERE life IS NOT NULL AND number IN (SELECT number FROM spans WHERE begins < ?
    ORDER BY begins, number LIMIT ?)
GROUP BY uuid, life
ON CONFLICT (uuid, life) DO UPDATE SET millijoules = millijoules + excluded.millijoules
"""
_OLD_SPANS = "SELECT number FROM spans WHERE begins < ? ORDER BY begins, number LIMIT ?"
_OLD_SESSIONS = """
SELECT number FROM usage WHERE ended IS NOT NULL AND ended < ? ORDER BY ended, number LIMIT ?
"""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What one step did. `more` asks for another step soon; `for_size` tells why it was done."""

    deleted: int = 0
    more: bool = False
    for_size: bool = False


def prune(connection: Connection, unix: float, retention: float, most: int) -> Pruned:
    """One step, in a transaction of its own. `retention` is seconds (infinite: nothing goes for its age),
    `most` bytes. Raises sqlite3.Error.
    """
    before = unix - retention
    # The books' own bytes: pages that were freed are used again before the file grows.
    for_size = used_bytes(connection) > most
    if for_size:
        before = max(before, unix - _YOUNG)
    connection.execute("BEGIN IMMEDIATE")
    try:
        deleted = _delete(connection, before)
        if isfinite(retention):
            oldest = int(unix // _DAY) - _QUIET_DAYS
            connection.execute("DELETE FROM floors WHERE day < ?", (oldest,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    if deleted:
        connection.execute(f"PRAGMA incremental_vacuum({_STEP})").fetchall()
    return Pruned(deleted, more=deleted >= _STEP or (for_size and deleted > 0), for_size=for_size)


def used_bytes(connection: Connection) -> int:
    """Bytes of pages in use."""
    count, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((count - free) * size)


def _delete(connection: Connection, before: float) -> int:
    which = (before, _STEP)
    connection.execute(_FORGET, which)
    connection.execute(f"DELETE FROM shares WHERE span IN ({_OLD_SPANS})", which)
    spans = connection.execute(f"DELETE FROM spans WHERE number IN ({_OLD_SPANS})", which).rowcount
    connection.execute(f"DELETE FROM sessions WHERE number IN ({_OLD_SESSIONS})", which)
    sessions = connection.execute(f"DELETE FROM usage WHERE number IN ({_OLD_SESSIONS})", which).rowcount
    return int(spans + sessions)

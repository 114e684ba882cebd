"""Folds old spans and sessions into hours, in small steps, and deletes expired history.

Folding changes no report total. A folded hour keeps what reports can distinguish: energy by the set of
parties that were resident together (the bounds need it), and the seconds in which each was present and
inactive. The single processes and the times within the hour are lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from math import isfinite
from typing import TYPE_CHECKING

from gpuledger.ledger.report.grouping import Party, party_text
from gpuledger.ledger.store.presence import (
    LIVED_BETWEEN,
    allocation_hours,
    party_of_session,
    session_lives,
)
from gpuledger.ledger.watched_time import HOUR, MINUTE, pack_seconds

if TYPE_CHECKING:
    from sqlite3 import Connection


# Progress of folding times: the first unix hour that sessions still describe.
TIMES_FROM = "times_from"
INTEGRATED_LIFE = -1

_OLD_SPANS = """
SELECT number, hour, uuid, life, method, begins, ends, idle, unattributed, unobserved FROM spans
    WHERE hour < ? ORDER BY hour LIMIT ?
"""
_ADD_HOUR = """
INSERT INTO hours (hour, uuid, life, method, residents, microseconds, idle, unattributed, unobserved)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (hour, uuid, life, method, residents) DO UPDATE SET
    microseconds = microseconds + excluded.microseconds, idle = idle + excluded.idle,
    unattributed = unattributed + excluded.unattributed, unobserved = unobserved + excluded.unobserved
    RETURNING number
"""
_ADD_SHARE = """
INSERT INTO hour_shares VALUES (?, ?, ?)
    ON CONFLICT (number, party) DO UPDATE SET millijoules = millijoules + excluded.millijoules
"""
# The next sight of any session or allocation from :since on: of those alive already, and of later ones.
_NEXT_TIMES = f"""
WITH living AS ({" UNION ALL ".join(f"SELECT * FROM usage WHERE {life}" for life in LIVED_BETWEEN)})
SELECT min(latest) FROM living
UNION ALL SELECT min(max(stay, :since)) FROM living WHERE last_seen >= :since
UNION ALL SELECT min(max(begins, :since)) FROM living JOIN stays ON session = number WHERE ends >= :since
UNION ALL SELECT min(begun) FROM usage WHERE ended IS NOT NULL AND begun >= :since
UNION ALL SELECT min(begun) FROM usage WHERE ended IS NULL AND begun >= :since
UNION ALL SELECT min(max(begins, :since)) FROM handovers WHERE ends >= :since
"""
_NAME = """
INSERT INTO parties (who, last_hour) VALUES (?, ?)
    ON CONFLICT (who) DO UPDATE SET last_hour = max(last_hour, excluded.last_hour) RETURNING number
"""


def fold_spans(connection: Connection, before: int, most: int) -> int:
    """Fold the oldest spans of hours before this unix hour, at most `most`; return their number.

    Runs within a transaction of the caller. Raises sqlite3.Error.
    """
    number_of, party = _party_numbers(connection), cache(partial(party_of_session, connection))
    spans = connection.execute(_OLD_SPANS, (before, most)).fetchall()
    for number, hour, uuid, life, method, begins, ends, *own in spans:
        shares: dict[int, int] = defaultdict(int)
        query = "SELECT session, millijoules FROM shares WHERE span = ?"
        for session, millijoules in connection.execute(query, (number,)).fetchall():
            shares[number_of(party(session), hour)] += millijoules
        residents = ",".join(map(str, sorted(shares)))
        kind = (hour, uuid, INTEGRATED_LIFE if life is None else life, method, residents)
        ((folded,),) = connection.execute(_ADD_HOUR, (*kind, microseconds(begins, ends), *own)).fetchall()
        rows = [(folded, resident, millijoules) for resident, millijoules in shares.items()]
        connection.executemany(_ADD_SHARE, rows)
        connection.execute("DELETE FROM shares WHERE span = ?", (number,))
        connection.execute("DELETE FROM spans WHERE number = ?", (number,))
    return len(spans)


def fold_times(connection: Connection, before: int) -> bool:
    """Fold the times of the oldest hour before this unix hour; return False if there is none.

    Runs within a transaction of the caller. Raises sqlite3.Error.
    """
    hour = times_from(connection)
    if hour is None:
        return False
    # Stored once: without it, each call would read all sessions.
    connection.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (TIMES_FROM, hour))
    while hour < before:
        if times := _read_hour(connection, hour):
            _write_hour(connection, hour, times)
            return True
        following = _next_hour(connection, hour + 1)
        if following is None:
            # Do not advance further: the clock may be set back.
            return False
        hour = following
    return False


def _write_hour(connection: Connection, hour: int, times: Mapping[int, _Times]) -> None:
    rows = [
        (
            hour,
            party,
            pack_seconds(one.resident),
            pack_seconds(one.held & ~one.busy),
            pack_seconds(one.allocated),
            one.running,
            one.begun,
        )
        for party, one in times.items()
    ]
    connection.executemany("REPLACE INTO hour_times VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    minutes = ((hour + 1) * HOUR // MINUTE,)
    connection.execute("DELETE FROM held WHERE minute < ?", minutes)
    connection.execute("DELETE FROM unused WHERE minute < ?", minutes)
    connection.execute("DELETE FROM handovers WHERE over AND ends < ?", ((hour + 1) * HOUR,))
    connection.execute("REPLACE INTO meta VALUES (?, ?)", (TIMES_FROM, hour + 1))


def _next_hour(connection: Connection, hour: int) -> int | None:
    """The next hour, from this one on, in which anything was seen."""
    since = hour * HOUR
    times = connection.execute(_NEXT_TIMES, {"since": since, "until": since}).fetchall()
    known = [time for (time,) in times if time is not None]
    return int(min(known) // HOUR) if known else None


def microseconds(begins: float, ends: float) -> int:
    """Length of a span in whole microseconds, so that sums are exact; 0 if the clock was set back."""
    return max(round((ends - begins) * 1_000_000), 0)


def times_from(connection: Connection) -> int | None:
    """The first unix hour with times that are not folded; None if there never were any."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (TIMES_FROM,)).fetchone()
    if row is not None:
        return int(row[0])
    begun = connection.execute(
        "SELECT min(first) FROM (SELECT min(begun) AS first FROM usage WHERE ended IS NOT NULL"
        " UNION ALL SELECT min(begun) FROM usage WHERE ended IS NULL"
        " UNION ALL SELECT min(begins) FROM handovers)"
    ).fetchone()
    return None if begun[0] is None else int(begun[0] // HOUR)


@dataclass(slots=True)
class _Times:
    """One party's data of an hour."""

    resident: int = 0
    held: int = 0
    busy: int = 0
    allocated: int = 0
    running: int = 0
    begun: int = 0


def _read_hour(connection: Connection, hour: int) -> dict[int, _Times]:
    """Each party's data of the hour; empty if it is only known that some sessions were alive.

    So an unobserved gap costs nothing, and a report that begins in one counts the sessions alive during it in
    its first hour with data.
    """
    times: dict[int, _Times] = defaultdict(_Times)
    number_of = _party_numbers(connection)
    for party, hours in list(allocation_hours(connection, hour, hour + 1)):
        for allocated, unused in hours.values():
            one = times[number_of(party, hour)]
            one.allocated |= allocated
            one.held |= unused
    lives = list(session_lives(connection, hour, hour + 1))
    if not times and not any(life.is_seen(hour, hour + 1) for life in lives):
        return times
    for life in lives:
        one = times[number_of(life.party, hour)]
        resident, held = life.hours.get(hour, (0, 0))
        one.resident |= resident
        one.held |= held
        one.busy |= resident & ~held
        one.running += life.number
        one.begun += life.number if life.begun == hour else 0
    return times


def _party_numbers(connection: Connection) -> Callable[[Party, int], int]:
    """Return a function: the number of a party, new or existing. It updates the party's last hour."""

    @cache
    def number_of(party: Party, hour: int) -> int:
        ((number,),) = connection.execute(_NAME, (party_text(party), hour)).fetchall()
        return int(number)

    return number_of


_STEP = 200
# Folding a span costs more than deleting a row.
_FOLDS = 50
# Hours. Spans are at most an hour long and final afterwards; younger ones may still change.
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
class RetentionLimits:
    """How much history is kept.

    Seconds, infinite for unlimited: `detail` of spans and of times within an hour, `hours` of hours and
    sessions. `max_size` is in bytes.
    """

    detail: float = 7 * 86_400.0
    hours: float = 400 * 86_400.0
    max_size: int = 2**30


@dataclass(frozen=True, slots=True)
class PruneResult:
    """The result of one step. `more` requests another step soon; `for_size`: the size limit caused a
    deletion.
    """

    deleted: int = 0
    more: bool = False
    for_size: bool = False


def prune_history(connection: Connection, unix: float, limits: RetentionLimits) -> PruneResult:
    """Run one step in a separate transaction. Raises sqlite3.Error."""
    # Used bytes only: freed pages are reused before the file grows. While the clock is not trusted, nothing
    # is deleted for any reason.
    for_size = isfinite(limits.hours) and used_bytes(connection) > limits.max_size
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        folded = _fold(connection, unix, limits.detail)
        deleted = _delete(connection, unix - limits.hours, sessions=not folded)
        if for_size and not folded and not deleted:
            deleted = _delete_oldest(connection, unix)
        if isfinite(limits.hours):
            oldest = int(unix // _DAY) - _QUIET_DAYS
            connection.execute("DELETE FROM floors WHERE day < ?", (oldest,))
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


def _fold(connection: Connection, unix: float, detail: float) -> bool:
    """Return whether something was folded, so that there may be more."""
    if not isfinite(detail):
        return False
    before = int((unix - detail) // HOUR)
    return fold_spans(connection, before, _FOLDS) > 0 or fold_times(connection, before)


def _delete(connection: Connection, before: float, *, sessions: bool) -> int:
    """Delete history that ended before this time, at most one step per kind; return the number of rows.

    `sessions` are deleted only when no span refers to them any more.
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
    """A step for size: fold what is not folded yet, then delete the oldest hours and sessions."""
    young = int(unix // HOUR) - _YOUNG
    if fold_spans(connection, young, _FOLDS) or fold_times(connection, young):
        return 1
    return _delete_hours(connection, young) + _delete_sessions(connection, young * HOUR)

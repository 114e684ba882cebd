"""Old spans and sessions become hours, in small steps. No total of any report changes by it.

What is kept of an hour is what a report can tell apart: energy by the set of parties who were resident
together (bounds need to know who was with whom), and the seconds in which each was there and did nothing.
What goes is which process it was, and when within the hour.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from gpuledger.ledger.report.grouping import Party, party_text
from gpuledger.ledger.store.presence import LIVES, handovers_there, party_of_session, sessions_there
from gpuledger.ledger.store.rows import Row
from gpuledger.ledger.watched_time import HOUR, MINUTE, pack

if TYPE_CHECKING:
    from sqlite3 import Connection


# Where the folding of times has come to: the first unix hour that is still told by sessions.
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
# When somebody is seen next from :since on: of those who live then already, and of those who come later.
_NEXT_TIMES = f"""
WITH living AS ({" UNION ALL ".join(f"SELECT * FROM usage WHERE {life}" for life in LIVES)})
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
    """Fold the oldest spans of hours before this one (unix hour), at most so many; answers how many.

    Within a transaction of the caller's. Raises sqlite3.Error.
    """
    parties = Parties(connection)
    spans = connection.execute(_OLD_SPANS, (before, most)).fetchall()
    for number, hour, uuid, life, method, begins, ends, *own in spans:
        shares: dict[int, int] = defaultdict(int)
        query = "SELECT session, millijoules FROM shares WHERE span = ?"
        for session, millijoules in connection.execute(query, (number,)).fetchall():
            shares[parties.of_session(session, hour)] += millijoules
        residents = ",".join(map(str, sorted(shares)))
        kind = (hour, uuid, INTEGRATED_LIFE if life is None else life, method, residents)
        ((folded,),) = connection.execute(_ADD_HOUR, (*kind, microseconds(begins, ends), *own)).fetchall()
        rows = [(folded, party, millijoules) for party, millijoules in shares.items()]
        connection.executemany(_ADD_SHARE, rows)
        connection.execute("DELETE FROM shares WHERE span = ?", (number,))
        connection.execute("DELETE FROM spans WHERE number = ?", (number,))
    return len(spans)


def fold_times(connection: Connection, before: int) -> bool:
    """Fold the times of the oldest hour that is before this one (unix hour); False when there is none.

    Within a transaction of the caller's. Raises sqlite3.Error.
    """
    hour = times_from(connection)
    if hour is None:
        return False
    # Looked for but once: without it, all sessions are read for it.
    connection.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (TIMES_FROM, hour))
    parties = Parties(connection)
    while hour < before:
        if times := _take_hour(connection, hour, parties):
            _keep_times(connection, hour, times)
            return True
        following = _following(connection, hour + 1)
        if following is None:
            # Not gone beyond: who knows where the clock will stand.
            return False
        hour = following
    return False


def _keep_times(connection: Connection, hour: int, times: Mapping[int, _Times]) -> None:
    rows = [(hour, party, *one.row) for party, one in times.items()]
    connection.executemany("REPLACE INTO hour_times VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    minutes = ((hour + 1) * HOUR // MINUTE,)
    connection.execute("DELETE FROM held WHERE minute < ?", minutes)
    connection.execute("DELETE FROM unused WHERE minute < ?", minutes)
    connection.execute("DELETE FROM handovers WHERE over AND ends < ?", ((hour + 1) * HOUR,))
    connection.execute("REPLACE INTO meta VALUES (?, ?)", (TIMES_FROM, hour + 1))


def _following(connection: Connection, hour: int) -> int | None:
    """The next hour from this one on in which somebody was seen."""
    since = hour * HOUR
    times = connection.execute(_NEXT_TIMES, {"since": since, "until": since}).fetchall()
    known = [time for (time,) in times if time is not None]
    return int(min(known) // HOUR) if known else None


def microseconds(begins: float, ends: float) -> int:
    """Length of a span: whole, so that sums of them are exact. A clock that was set back made none."""
    return max(round((ends - begins) * 1_000_000), 0)


def times_from(connection: Connection) -> int | None:
    """The first unix hour whose times are not folded; None while nothing was ever there."""
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
    """What an hour has of one party."""

    resident: int = 0
    held: int = 0
    busy: int = 0
    allocated: int = 0
    running: int = 0
    begun: int = 0

    @property
    def row(self) -> Row:
        held = self.held & ~self.busy
        return pack(self.resident), pack(held), pack(self.allocated), self.running, self.begun


def _take_hour(connection: Connection, hour: int, parties: Parties) -> dict[int, _Times]:
    """What the hour has of each party; nothing of an hour in which all that is known is that some lived.

    So a gap that nobody watched costs nothing, and a report that begins in it counts in the first hour that
    it has all who lived through the gap.
    """
    times: dict[int, _Times] = defaultdict(_Times)
    for party, hours in list(handovers_there(connection, hour, hour + 1)):
        for allocated, unused in hours.values():
            one = times[parties.number(party, hour)]
            one.allocated |= allocated
            one.held |= unused
    lives = list(sessions_there(connection, hour, hour + 1))
    if not times and not any(life.is_seen(hour, hour + 1) for life in lives):
        return times
    for life in lives:
        one = times[parties.number(life.party, hour)]
        resident, held = life.hours.get(hour, (0, 0))
        one.resident |= resident
        one.held |= held
        one.busy |= resident & ~held
        one.running += 1
        one.begun += life.begun == hour
    return times


class Parties:
    """Numbers of parties in the table, which is added to."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._numbers: dict[tuple[Party, int], int] = {}
        self._sessions: dict[int, Party] = {}

    def number(self, party: Party, hour: int) -> int:
        """Its number, new or known, in this hour."""
        number = self._numbers.get((party, hour))
        if number is None:
            ((number,),) = self._connection.execute(_NAME, (party_text(party), hour)).fetchall()
            self._numbers[party, hour] = number
        return number

    def of_session(self, session: int, hour: int) -> int:
        """The number of a session's party in this hour."""
        party = self._sessions.get(session)
        if party is None:
            party = self._sessions[session] = party_of_session(self._connection, session)
        return self.number(party, hour)


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

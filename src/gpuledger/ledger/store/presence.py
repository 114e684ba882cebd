"""Who was there in which second: read alike by a report of it and by the folding that keeps it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuledger.ledger.report.grouping import Party, party_of
from gpuledger.ledger.store.rows import owner_of, workload_of
from gpuledger.ledger.watched_time import HOUR, MINUTE, seconds_within
from gpuledger.model.workload import UNKNOWN

if TYPE_CHECKING:
    from sqlite3 import Connection

# Seconds (`ledger.seconds`) by unix hour: those there or handed over, and those of them without any use.
Hours = Mapping[int, tuple[int, int]]

# Rows of usage whose life has some time from :since to before :until in it, by indexes: most end in a day.
LIVES = (
    "ended IS NOT NULL AND begun >= :since - 86400 AND begun < :until AND latest >= :since",
    "ended IS NOT NULL AND latest - begun > 86400 AND begun < :since - 86400 AND latest >= :since",
    "ended IS NULL AND begun < :until AND latest >= :since",
)
NOBODY = party_of("", UNKNOWN)
_SESSIONS = " UNION ALL ".join(
    "SELECT sessions.*, begun, latest, last_seen, stay, stays FROM usage JOIN sessions USING (number)"
    f" WHERE {life}"
    for life in LIVES
)


class Life(NamedTuple):
    """Whose session it is, the unix hours in which it was seen first and last, and when it was watched.

    In gaps that nobody watched it lives on, and has no seconds; nor has one that was seen but once.
    """

    party: Party
    begun: int
    latest: int
    hours: Hours

    def is_seen(self, since: int, until: int) -> bool:
        """Whether anything of it is known of these unix hours but that it lived."""
        return bool(self.hours) or self.begun >= since or self.latest < until


def sessions_there(connection: Connection, since: int, until: int) -> Iterator[Life]:
    """Sessions that lived in the unix hours from `since` to before `until`. Raises sqlite3.Error."""
    held = _minutes(connection, "held", "session", since, until)
    asked = {"since": since * HOUR, "until": until * HOUR}
    for *row, begun, latest, last_seen, stay, stays in connection.execute(_SESSIONS, asked):
        stretches = _stays_of(connection, row[0], (stay, last_seen), stays)
        hours = _hours(stretches, since, until, row[0], held)
        yield Life(session_party(row), int(begun // HOUR), int(latest // HOUR), hours)


def handovers_there(connection: Connection, since: int, until: int) -> Iterator[tuple[Party, Hours]]:
    """Handovers of the unix hours from `since` to before `until`: to whom, and when. Raises sqlite3.Error."""
    unused = _minutes(connection, "unused", "handover", since, until)
    query = "SELECT number, device, owner, begins, ends FROM handovers WHERE ends >= ? AND begins < ?"
    for number, device, owner, begins, ends in connection.execute(query, (since * HOUR, until * HOUR)):
        party = party_of(device, workload_of(owner) or UNKNOWN)
        yield party, _hours([(begins, ends)], since, until, number, unused)


def session_party(row: Sequence[Any]) -> Party:
    """The party of a row of `sessions`."""
    return party_of(row[1], owner_of(tuple(row)), row[10])


def party_of_session(connection: Connection, number: int) -> Party:
    """The party of a session; of one that was lost, nobody who is known. Raises sqlite3.Error."""
    row = connection.execute("SELECT * FROM sessions WHERE number = ?", (number,)).fetchone()
    return session_party(row) if row else NOBODY


def _stays_of(
    connection: Connection, session: int, present: tuple[float, float], earlier: int
) -> list[tuple[float, float]]:
    """The stretches in which a session was watched, the present one last."""
    if not earlier:
        return [present]
    query = "SELECT begins, ends FROM stays WHERE session = ?"
    return [*connection.execute(query, (session,)).fetchall(), present]


def _hours(
    stretches: Iterable[tuple[float, float]],
    since: int,
    until: int,
    number: int,
    marked: Mapping[tuple[int, int], int],
) -> Hours:
    """The seconds of the stretches, by hour of the range, with those that are marked of this number; hours
    without any are left out.
    """
    found: dict[int, int] = {}
    for begins, ends in stretches:
        for hour in range(max(int(begins // HOUR), since), min(int(ends // HOUR) + 1, until)):
            seconds = seconds_within(begins, ends, hour * HOUR, HOUR)
            if seconds:
                found[hour] = found.get(hour, 0) | seconds
    return {hour: (seconds, marked.get((hour, number), 0)) for hour, seconds in found.items()}


def _minutes(
    connection: Connection, table: str, whose: str, since: int, until: int
) -> Mapping[tuple[int, int], int]:
    """Marked seconds by unix hour and number of session or handover."""
    per_hour = HOUR // MINUTE
    found: dict[tuple[int, int], int] = defaultdict(int)
    query = f"SELECT minute, {whose}, bits FROM {table} WHERE minute >= ? AND minute < ?"
    for minute, number, bits in connection.execute(query, (since * per_hour, until * per_hour)):
        hour, place = divmod(minute, per_hour)
        found[hour, number] |= bits << place * MINUTE
    return found

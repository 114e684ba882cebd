"""Reads the seconds in which sessions and allocations were present; shared by reports and folding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuledger.ledger.report.grouping import Party, party_of
from gpuledger.ledger.service_processes import is_service
from gpuledger.ledger.store.rows import owner_from_row, workload_from_text
from gpuledger.ledger.watched_time import HOUR, MINUTE, seconds_within
from gpuledger.model.workload import UNKNOWN

if TYPE_CHECKING:
    from sqlite3 import Connection

# Sets of seconds (`ledger.watched_time`) by unix hour: those resident or allocated, and those of them without
# any use.
Hours = Mapping[int, tuple[int, int]]

# Conditions for rows of `usage` that lived at some time from :since to before :until, by indexes: most end
# within a day.
LIVED_BETWEEN = (
    "ended IS NOT NULL AND begun >= :since - 86400 AND begun < :until AND latest >= :since",
    "ended IS NOT NULL AND latest - begun > 86400 AND begun < :since - 86400 AND latest >= :since",
    "ended IS NULL AND begun < :until AND latest >= :since",
)
UNKNOWN_PARTY = party_of("", UNKNOWN)
_SESSIONS = " UNION ALL ".join(
    "SELECT sessions.*, begun, latest, last_seen, stay, stays FROM usage JOIN sessions USING (number)"
    f" WHERE {life}"
    for life in LIVED_BETWEEN
)


class SessionLife(NamedTuple):
    """The party of a session, the unix hours in which it was first and last seen, and the seconds watched.

    During unwatched gaps it counts as alive but has no seconds; the same applies to a session seen only once.
    `number` is 1, and 0 for a process that serves others: it is in no report's number of sessions.
    """

    party: Party
    begun: int
    latest: int
    hours: Hours
    number: int = 1

    def is_seen(self, since: int, until: int) -> bool:
        """Return whether more is known about it in these unix hours than that it was alive."""
        return bool(self.hours) or self.begun >= since or self.latest < until


def session_lives(connection: Connection, since: int, until: int) -> Iterator[SessionLife]:
    """Sessions alive in the unix hours [since, until). Raises sqlite3.Error.

    Omits processes that only served others in these hours, such as an MPS server with clients.
    """
    held = _marked_seconds(connection, "held", "session", since, until)
    parameters = {"since": since * HOUR, "until": until * HOUR}
    for *row, begun, latest, last_seen, stay, stays in connection.execute(_SESSIONS, parameters):
        stretches = [(stay, last_seen)]
        if stays:
            stretches += connection.execute("SELECT begins, ends FROM stays WHERE session = ?", row[:1])
        hours = _hours(stretches, since, until, row[0], held)
        party = session_party(row)
        serves = is_service(party.command)
        if hours or not serves:
            yield SessionLife(party, int(begun // HOUR), int(latest // HOUR), hours, int(not serves))


def allocation_hours(connection: Connection, since: int, until: int) -> Iterator[tuple[Party, Hours]]:
    """Party and seconds of allocations in the unix hours [since, until). Raises sqlite3.Error."""
    unused = _marked_seconds(connection, "unused", "handover", since, until)
    query = "SELECT number, device, owner, begins, ends FROM handovers WHERE ends >= ? AND begins < ?"
    for number, device, owner, begins, ends in connection.execute(query, (since * HOUR, until * HOUR)):
        party = party_of(device, workload_from_text(owner) or UNKNOWN)
        yield party, _hours([(begins, ends)], since, until, number, unused)


def session_party(row: Sequence[Any]) -> Party:
    """The party of a row of `sessions`."""
    return party_of(row[1], owner_from_row(tuple(row)), row[10])


def party_of_session(connection: Connection, number: int) -> Party:
    """The party of a session; UNKNOWN_PARTY if the session was lost. Raises sqlite3.Error."""
    row = connection.execute("SELECT * FROM sessions WHERE number = ?", (number,)).fetchone()
    return session_party(row) if row else UNKNOWN_PARTY


def _hours(
    stretches: Iterable[tuple[float, float]],
    since: int,
    until: int,
    number: int,
    marked: Mapping[tuple[int, int], int],
) -> Hours:
    """The seconds of the stretches by hour, with the marked seconds of this number; without empty hours."""
    found: dict[int, int] = {}
    for begins, ends in stretches:
        for hour in range(max(int(begins // HOUR), since), min(int(ends // HOUR) + 1, until)):
            seconds = seconds_within(begins, ends, hour * HOUR, HOUR)
            if seconds:
                found[hour] = found.get(hour, 0) | seconds
    return {hour: (seconds, marked.get((hour, number), 0)) for hour, seconds in found.items()}


def _marked_seconds(
    connection: Connection, table: str, key_column: str, since: int, until: int
) -> Mapping[tuple[int, int], int]:
    """Marked seconds by unix hour and number of session or allocation."""
    per_hour = HOUR // MINUTE
    found: dict[tuple[int, int], int] = defaultdict(int)
    query = f"SELECT minute, {key_column}, bits FROM {table} WHERE minute >= ? AND minute < ?"
    for minute, number, bits in connection.execute(query, (since * per_hour, until * per_hour)):
        hour, place = divmod(minute, per_hour)
        found[hour, number] |= bits << place * MINUTE
    return found

"""Who was there in which second: read alike by a report of it and by the folding that keeps it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuledger.ledger.report.party import Party, party_of
from gpuledger.ledger.seconds import HOUR, MINUTE, seconds_within
from gpuledger.ledger.store.rows import owner_of, workload_of
from gpuledger.model.workload import UNKNOWN

if TYPE_CHECKING:
    from sqlite3 import Connection

# Seconds (`ledger.seconds`) by unix hour: those there or handed over, and those of them without any use.
Hours = Mapping[int, tuple[int, int]]

# Sessions that were there at some time from :since to before :until.
_SESSIONS = """
SELECT sessions.*, last_seen, stay, stays FROM usage JOIN sessions USING (number)
    WHERE ended IS NOT NULL AND begun >= :since - 86400 AND begun < :until AND latest >= :since
UNION ALL
SELECT sessions.*, last_seen, stay, stays FROM usage JOIN sessions USING (number)
    WHERE ended IS NOT NULL AND latest - begun > 86400 AND begun < :since - 86400 AND latest >= :since
UNION ALL
SELECT sessions.*, last_seen, stay, stays FROM usage JOIN sessions USING (number)
    WHERE ended IS NULL AND begun < :until AND latest >= :since
"""


def sessions_there(connection: Connection, since: int, until: int) -> Iterator[tuple[Party, int, Hours]]:
    """Sessions of the unix hours from `since` to before `until`: whose, first seen in which hour, and when.

    One that was seen but once has no seconds. Raises sqlite3.Error.
    """
    held = _minutes(connection, "held", "session", since, until)
    asked = {"since": since * HOUR, "until": until * HOUR}
    for *row, last_seen, stay, stays in connection.execute(_SESSIONS, asked):
        stretches = _stays_of(connection, row[0], (stay, last_seen), stays)
        yield session_party(row), int(row[30] // HOUR), _hours(stretches, since, until, row[0], held)


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

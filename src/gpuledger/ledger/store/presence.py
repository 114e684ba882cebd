"""Reads the seconds in which sessions and allocations were present; shared by reports and folding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuledger.ledger.report.gpu_time import NONE_RUNNING
from gpuledger.ledger.report.party import Party, party_of, shared
from gpuledger.ledger.service_processes import is_service
from gpuledger.ledger.store.rows import SESSION_COLUMNS, owner_from_row, workload_from_text
from gpuledger.ledger.store.schema import ACTIVITY_FROM, meta_value
from gpuledger.ledger.watched_time import HOUR, MINUTE, QUARTER, seconds_within
from gpuledger.model.workload import UNKNOWN

if TYPE_CHECKING:
    from sqlite3 import Connection

# Sets of seconds (`ledger.watched_time`, from the begin of the cell) by cell: those resident or allocated,
# those of them without any use, and those of unknown use. A cell is one or more quarters; its key is the
# first one.
Cells = Mapping[int, tuple[int, int, int]]
_Marks = Mapping[tuple[int, int], int]

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
    """The party of a session, the quarters in which it was first and last seen, and the seconds watched.

    During unwatched gaps it counts as alive but has no seconds; the same applies to a session seen only once.
    `number` is 1, and 0 for a process that serves others: it is in no report's number of sessions.
    """

    party: Party
    begun: int
    latest: int
    cells: Cells
    number: int = 1

    def is_seen(self, since: int, until: int) -> bool:
        """Return whether more is known about it in these quarters than that it was alive."""
        return bool(self.cells) or self.begun >= since or self.latest < until


def session_lives(
    connection: Connection,
    since: int,
    until: int,
    size: int = 1,
    rename: Callable[[int, Party], Party] = lambda _, party: party,
) -> Iterator[SessionLife]:
    """Sessions alive in the quarters [since, until), in cells of `size` quarters. Raises sqlite3.Error.

    Omits processes that only served others in this time, such as an MPS server with clients. `rename` returns
    the party under which a session (by number) counts. Seconds from before ACTIVITY_FROM that are not held
    are unknown.
    """
    places = range(since, until, size)
    held = _marked_seconds(connection, "held", "session", places)
    unknown = _marked_seconds(connection, "unknown", "session", places)
    known_from = activity_from(connection)
    parameters = {"since": since * QUARTER, "until": until * QUARTER}
    for *row, begun, latest, last_seen, stay, stays in connection.execute(_SESSIONS, parameters):
        stretches = [(stay, last_seen)]
        if stays:
            stretches += connection.execute("SELECT begins, ends FROM stays WHERE session = ?", row[:1])
        cells = _cells(stretches, places, row[0], held, unknown)
        if begun < known_from:
            cells = {
                cell: (resident, idle, unclear | (resident & ~idle & old_seconds(cell, known_from)))
                for cell, (resident, idle, unclear) in cells.items()
            }
        party = session_party(row)
        serves = is_service(party.command)
        if cells or not serves:
            party = rename(row[0], party)
            yield SessionLife(party, int(begun // QUARTER), int(latest // QUARTER), cells, int(not serves))


def allocation_cells(
    connection: Connection, since: int, until: int, size: int = 1
) -> Iterator[tuple[Party, Cells]]:
    """Party and seconds of allocations in the quarters [since, until), as in `session_lives`.

    Raises sqlite3.Error.
    """
    places = range(since, until, size)
    unused = _marked_seconds(connection, "unused", "handover", places)
    unread = _marked_seconds(connection, "unread", "handover", places)
    query = "SELECT number, device, owner, begins, ends FROM handovers WHERE ends >= ? AND begins < ?"
    for number, device, owner, begins, ends in connection.execute(query, (since * QUARTER, until * QUARTER)):
        # As rows are named: a party without a command is that of a process without a known name.
        party = party_of(device, workload_from_text(owner) or UNKNOWN, NONE_RUNNING)
        yield party, _cells([(begins, ends)], places, number, unused, unread)


def activity_from(connection: Connection) -> float:
    """The unix seconds from which the file says in which seconds activity was unknown."""
    found = meta_value(connection, ACTIVITY_FROM)
    return 0.0 if found is None else float(found)


def old_seconds(quarter: int, known_from: float) -> int:
    """The seconds of the hour from a quarter on that are from before `activity_from`."""
    return seconds_within(0.0, known_from, quarter * QUARTER, HOUR)


def session_party(row: Sequence[Any]) -> Party:
    """The party of a row of `sessions`."""
    # Without what identifies the process, its pod and container, and how they were found.
    kind, namespace, pod, container, _, _, runtime, job, _, unit, user, *_ = row[17:30]
    kind, namespace, container, runtime, user = map(shared, (kind, namespace, container, runtime, user))
    names = (kind, namespace, pod, container, "", "", runtime, job, "", unit, user, "", "")
    return _party(row[1], row[10], names, tuple(row[31:SESSION_COLUMNS]))


@lru_cache(512)
def _party(device: str, command: str, names: tuple[str, ...], facts: tuple[Any, ...]) -> Party:
    """Most sessions of a time are not the first of their party. Few are cached: `serve` uses this, too."""
    row = (*("" for _ in range(17)), *names, "", *facts)
    return party_of(device, owner_from_row(row), command)


def party_of_session(connection: Connection, number: int) -> Party:
    """The party of a session; UNKNOWN_PARTY if the session was lost. Raises sqlite3.Error."""
    row = connection.execute("SELECT * FROM sessions WHERE number = ?", (number,)).fetchone()
    return session_party(row) if row else UNKNOWN_PARTY


def _cells(
    stretches: Iterable[tuple[float, float]],
    places: range,
    number: int,
    unused: _Marks,
    unknown: _Marks,
) -> Cells:
    """The seconds of the stretches by cell, with the marked seconds of this number; without empty cells.

    `places` are the first quarters of the cells.
    """
    found: dict[int, int] = {}
    origin, length = places.start * QUARTER, places.step * QUARTER
    for begins, ends in stretches:
        first, last = (max(int((at - origin) // length), -1) for at in (begins, ends))
        for cell in places[max(first, 0) : last + 1]:
            seconds = seconds_within(begins, ends, cell * QUARTER, length)
            if seconds:
                found[cell] = found.get(cell, 0) | seconds
    return {
        cell: (seconds, unused.get((cell, number), 0), unknown.get((cell, number), 0))
        for cell, seconds in found.items()
    }


def _marked_seconds(connection: Connection, table: str, key_column: str, places: range) -> _Marks:
    """Marked seconds by cell and number of session or allocation."""
    per_cell = places.step * QUARTER // MINUTE
    origin = places.start * QUARTER // MINUTE
    found: dict[tuple[int, int], int] = defaultdict(int)
    query = f"SELECT minute, {key_column}, bits FROM {table} WHERE minute >= ? AND minute < ?"
    between = (origin, origin + len(places) * per_cell)
    for minute, number, bits in connection.execute(query, between):
        cell, place = divmod(minute - origin, per_cell)
        found[places[cell], number] |= bits << place * MINUTE
    return found

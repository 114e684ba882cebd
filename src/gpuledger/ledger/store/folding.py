"""Folds old spans and sessions into hours, in small steps.

Folding changes no report total. A folded hour keeps what reports can distinguish: energy by the set of
parties that were resident together (the bounds need it), the seconds in which each was present and inactive,
and the time of each account by both bases. The single processes and the times within the hour are lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from gpuledger.ledger.report.party import Party, party_text
from gpuledger.ledger.store.hour_cells import CellBounds
from gpuledger.ledger.store.presence import (
    LIVED_BETWEEN,
    allocation_cells,
    party_of_session,
    session_lives,
)
from gpuledger.ledger.store.schema import meta_value
from gpuledger.ledger.store.time_history import TimeReader
from gpuledger.ledger.watched_time import MICRO, MINUTE, QUARTER, pack_seconds

if TYPE_CHECKING:
    from sqlite3 import Connection


# Progress of folding times: the first quarter that sessions still describe.
TIMES_FROM = "times_from"
INTEGRATED_LIFE = -1

_OLD_SPANS = """
SELECT number, quarter, uuid, life, method, begins, ends, idle, unattributed, unobserved FROM spans
    WHERE quarter < ? ORDER BY quarter LIMIT ?
"""
_ADD_HOUR = """
INSERT INTO hours (quarter, uuid, life, method, residents, microseconds, idle, unattributed, unobserved)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (quarter, uuid, life, method, residents) DO UPDATE SET
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
INSERT INTO parties (who, last_quarter) VALUES (?, ?)
    ON CONFLICT (who) DO UPDATE SET last_quarter = max(last_quarter, excluded.last_quarter) RETURNING number
"""


def fold_spans(connection: Connection, before: int, most: int, cells: CellBounds) -> int:
    """Fold the oldest energy spans of quarters before this one, at most `most`; return their number.

    Runs within a transaction of the caller. Raises sqlite3.Error.
    """
    number_of, party = _party_numbers(connection), cache(partial(party_of_session, connection))
    spans = connection.execute(_OLD_SPANS, (before, most)).fetchall()
    for number, quarter, uuid, life, method, begins, ends, *own in spans:
        hour = cells.begins(quarter)
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


_OLD_TIME_SPANS = """
SELECT number, quarter, ends, split, microseconds FROM time_spans WHERE quarter < ?
    ORDER BY quarter, number LIMIT ?
"""
_ADD_GPU_TIME = """
INSERT INTO hour_gpu_time VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (quarter, part, account, party, is_estimate) DO UPDATE SET
    allocation = allocation + excluded.allocation, residence = residence + excluded.residence
"""
_KEEP_TIME = """
UPDATE gpu_times SET posted = posted + ?, span = NULL, last = coalesce(max(last, ?), ?) WHERE span = ?
"""
_DELETE_SPLIT = """
DELETE FROM time_splits WHERE number = ?
    AND NOT EXISTS (SELECT 1 FROM time_spans WHERE split = time_splits.number)
"""


def fold_time_spans(connection: Connection, before: int, most: int, cells: CellBounds) -> int:
    """Fold the oldest time spans of quarters before this one, at most `most`; return their number.

    Runs within a transaction of the caller. Raises sqlite3.Error.
    """
    number_of, session = _party_numbers(connection), cache(partial(party_of_session, connection))
    reader = TimeReader(connection, session)
    spans = connection.execute(_OLD_TIME_SPANS, (before, most)).fetchall()
    folded: dict[tuple[int, int, str, int, bool], list[int]] = {}
    # Read before the splits are deleted.
    owners: dict[int, set[int]] = {}
    for number, quarter, ends, split, length in spans:
        hour = cells.begins(quarter)
        owners[split] = _owners_of(reader, split)
        for entry, (allocation, residence) in reader.split(split).amounts(length).items():
            party = reader.entry_party(entry.session, entry.owner)
            owner = 0 if party is None else number_of(party, hour)
            amounts = folded.setdefault((hour, entry.part, entry.account, owner, entry.is_estimate), [0, 0])
            amounts[0] += allocation
            amounts[1] += residence
        # The newest span of a Gpu that is absent: its time is now posted without a span.
        connection.execute(_KEEP_TIME, (length, ends, ends, number))
        connection.execute("DELETE FROM time_spans WHERE number = ?", (number,))
    connection.executemany(_ADD_GPU_TIME, [(*key, *amounts) for key, amounts in folded.items()])
    deleted = {
        split: mine for split, mine in owners.items() if connection.execute(_DELETE_SPLIT, (split,)).rowcount
    }
    _delete_owners(connection, reader, deleted)
    return len(spans)


def _delete_owners(connection: Connection, reader: TimeReader, splits: Mapping[int, set[int]]) -> None:
    """Delete the owners that had one of these deleted splits, which are with their owners, as their last."""
    query = "SELECT number FROM time_owners WHERE number = ? AND split = ?"
    rows = ((owner, split) for split, mine in splits.items() for owner in mine)
    left = {owner for row in rows for (owner,) in connection.execute(query, row)}
    if not left:
        return
    # After the clock was set back, earlier splits belong to later times.
    earlier = "SELECT number FROM time_splits WHERE number < ? ORDER BY number DESC"
    for (split,) in connection.execute(earlier, (max(splits),)).fetchall():
        found = left & _owners_of(reader, split)
        moved = [(split, owner) for owner in found]
        connection.executemany("UPDATE time_owners SET split = ? WHERE number = ?", moved)
        left -= found
    connection.executemany("DELETE FROM time_owners WHERE number = ?", [(owner,) for owner in left])


def _owners_of(reader: TimeReader, split: int) -> set[int]:
    """The numbers of the owners in a split that have no Session."""
    entries = (entry for basis in reader.split(split) for entry in basis.entries)
    return {entry.owner for entry in entries if entry.owner is not None}


def fold_times(connection: Connection, before: int, cells: CellBounds) -> bool:
    """Fold the times of the oldest hour that ends before this quarter; return False if there is none.

    Runs within a transaction of the caller. Raises sqlite3.Error.
    """
    first = times_from(connection)
    if first is None:
        return False
    # Stored once: without it, each call would read all sessions.
    connection.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (TIMES_FROM, cells.begins(first)))
    begins, ends = first, cells.ends(first)
    while ends <= before:
        if times := _read_hour(connection, begins, ends):
            _write_hour(connection, begins, ends, times)
            return True
        following = _next_quarter(connection, ends)
        if following is None:
            # Do not advance further: the clock may be set back.
            return False
        begins, ends = max(cells.begins(following), ends), cells.ends(following)
    return False


def _write_hour(connection: Connection, begins: int, ends: int, times: Mapping[int, _Times]) -> None:
    rows = [
        (
            begins,
            party,
            pack_seconds(one.resident),
            pack_seconds(one.held & ~one.busy & ~one.unknown),
            pack_seconds(one.unknown & ~one.busy),
            pack_seconds(one.allocated),
            one.running,
            one.begun,
        )
        for party, one in times.items()
    ]
    connection.executemany("REPLACE INTO hour_times VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    minutes = (ends * QUARTER // MINUTE,)
    for table in ("held", "unknown", "unused", "unread"):
        connection.execute(f"DELETE FROM {table} WHERE minute < ?", minutes)
    connection.execute("DELETE FROM handovers WHERE over AND ends < ?", (ends * QUARTER,))
    connection.execute("REPLACE INTO meta VALUES (?, ?)", (TIMES_FROM, ends))


def _next_quarter(connection: Connection, quarter: int) -> int | None:
    """The next quarter, from this one on, in which anything was seen."""
    since = quarter * QUARTER
    times = connection.execute(_NEXT_TIMES, {"since": since, "until": since}).fetchall()
    known = [time for (time,) in times if time is not None]
    return int(min(known) // QUARTER) if known else None


def microseconds(begins: float, ends: float) -> int:
    """Length of a span in whole microseconds, so that sums are exact; 0 if the clock was set back."""
    return max(round((ends - begins) * MICRO), 0)


def times_from(connection: Connection) -> int | None:
    """The first quarter with times that are not folded; None if there never were any."""
    found = meta_value(connection, TIMES_FROM)
    return first_presence(connection) if found is None else int(found)


def first_presence(connection: Connection) -> int | None:
    """The quarter in which the first known session or Allocation began; None without one."""
    begun = connection.execute(
        "SELECT min(first) FROM (SELECT min(begun) AS first FROM usage WHERE ended IS NOT NULL"
        " UNION ALL SELECT min(begun) FROM usage WHERE ended IS NULL"
        " UNION ALL SELECT min(begins) FROM handovers)"
    ).fetchone()
    return None if begun[0] is None else int(begun[0] // QUARTER)


@dataclass(slots=True)
class _Times:
    """One party's data of an hour."""

    resident: int = 0
    held: int = 0
    unknown: int = 0
    busy: int = 0
    allocated: int = 0
    running: int = 0
    begun: int = 0


def _read_hour(connection: Connection, begins: int, ends: int) -> dict[int, _Times]:
    """Each party's data of the hour; empty if it is only known that some sessions were alive.

    So an unobserved gap costs nothing, and a report that begins in one counts the sessions alive during it in
    its first hour with data.
    """
    times: dict[int, _Times] = defaultdict(_Times)
    number_of = _party_numbers(connection)
    for party, cells in list(allocation_cells(connection, begins, ends, ends - begins)):
        for allocated, unused, unread in cells.values():
            one = times[number_of(party, begins)]
            one.allocated |= allocated
            one.held |= unused
            one.unknown |= unread
    lives = list(session_lives(connection, begins, ends, ends - begins))
    if not times and not any(life.is_seen(begins, ends) for life in lives):
        return times
    for life in lives:
        one = times[number_of(life.party, begins)]
        resident, held, unknown = life.cells.get(begins, (0, 0, 0))
        one.resident |= resident
        one.held |= held
        one.unknown |= unknown
        one.busy |= resident & ~held & ~unknown
        one.running += life.number
        one.begun += life.number if life.begun >= begins else 0
    return times


def _party_numbers(connection: Connection) -> Callable[[Party, int], int]:
    """Return a function: the number of a party, new or existing. It updates the party's last quarter."""

    @cache
    def number_of(party: Party, quarter: int) -> int:
        ((number,),) = connection.execute(_NAME, (party_text(party), quarter)).fetchall()
        return int(number)

    return number_of

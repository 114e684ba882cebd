"""Read access to a ledger file for reports, also while another program writes it.

Times are quarters of an hour: unix seconds // 900. Folded hours have the quarter of their beginning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger.ledger.report.party import Party, party_from_text
from gpuledger.ledger.report.tally import EnergyEntry, TimeEntry
from gpuledger.ledger.store.cuts import Cuts
from gpuledger.ledger.store.folding import first_presence, microseconds, times_from
from gpuledger.ledger.store.hour_cells import stored_hour_cells
from gpuledger.ledger.store.own_rows import HIDDEN_PARTY, restrict_rows
from gpuledger.ledger.store.presence import (
    UNKNOWN_PARTY,
    activity_from,
    allocation_cells,
    old_seconds,
    party_of_session,
    session_lives,
)
from gpuledger.ledger.store.read_only_file import open_ledger
from gpuledger.ledger.store.rows import devices_from_rows
from gpuledger.ledger.store.schema import BEGUN, NODE_NAME, TIME_FROM, ZONE
from gpuledger.ledger.store.time_history import TimeReader, TimeSpanEntry
from gpuledger.ledger.watched_time import CLOCK_STEP, QUARTER, unpack_seconds
from gpuledger.model.access import EVERYTHING, OTHERS, Reader
from gpuledger.model.devices import Device

if TYPE_CHECKING:
    from sqlite3 import Connection


# No process has this name.
PROCESS_COMMAND = "\0"
# Parties by number. Rows are read in the order of time: more would only remember those of long ago.
_CACHED = 2048
# Pages of the file that SQLite keeps, 2 MiB if nothing is set; the kernel has them, too.
_CACHE_KIB = 512
# Quarters per query: of energy and of times.
_ENERGY_CHUNK = 960
_TIME_CHUNK = 24

_SPANS = """
SELECT spans.number, uuid, method, begins, ends, idle, unattributed, unobserved, life IS NULL, session,
    millijoules FROM spans LEFT JOIN shares ON span = number WHERE quarter >= ? AND quarter < ?
    ORDER BY quarter, number
"""
# Hours with the same residents and method are summed: the bounds of the sum are the sum of the bounds.
_HOURS = """
SELECT uuid, method, life < 0, residents, sum(microseconds), sum(idle), sum(unattributed), sum(unobserved)
    FROM hours WHERE quarter >= ? AND quarter < ? GROUP BY uuid, method, life < 0, residents
"""
# The party comes first: numbers are compared faster than texts.
_HOUR_SHARES = """
SELECT uuid, method, life < 0, residents, party, sum(millijoules) FROM hours JOIN hour_shares USING (number)
    WHERE quarter >= ? AND quarter < ? GROUP BY party, residents, uuid, method, life < 0
"""
# Separate queries for both ends: each reads one row of an index.
_BOUNDS = f"""
SELECT min(first), max(last) FROM ({
    " UNION ALL ".join(
        f"SELECT (SELECT min(quarter) FROM {table}) AS first, (SELECT max(quarter) FROM {table}) AS last"
        for table in ("spans", "hours", "hour_times", "time_spans", "hour_gpu_time")
    )
})
"""
# Separate queries as above. A quarter has few spans.
_ENDS = """
SELECT (SELECT max(ends) FROM spans WHERE quarter = (SELECT max(quarter) FROM spans)),
    (SELECT max(ends) FROM time_spans WHERE quarter = (SELECT max(quarter) FROM time_spans))
"""
_SIGHTS = """
SELECT uuid, first, coalesce(max(last, ends), last, ends) AS latest
    FROM gpu_times LEFT JOIN time_spans ON number = span WHERE first IS NOT NULL AND first < latest
"""
_TIMES = "SELECT * FROM hour_times WHERE quarter >= ? AND quarter < ? ORDER BY quarter"

Progress = Callable[[str, float], None]


class History:
    """A consistent snapshot of a ledger file: later writes are not visible. Close it after use."""

    def __init__(self, file: Path) -> None:
        """Raises GpuledgerError if the file is missing, unreadable or of another version."""
        self.file = file
        self.connection = open_ledger(file)
        try:
            self.connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            self.devices: Mapping[str, Device] = devices_from_rows(
                self.connection.execute("SELECT * FROM devices").fetchall()
            )
            self._meta = dict(self.connection.execute("SELECT key, value FROM meta"))
            self.last = float(self._meta.get("unix", 0.0))
            self._times_from = times_from(self.connection)
            # Read once, and of all owners: a reader may see only some of them.
            self._first_unfolded = self._find_first_unfolded()
            self.activity_from = activity_from(self.connection)
        except BaseException:
            self.connection.close()
            raise
        self._process: frozenset[int] = frozenset()
        self.reader = EVERYTHING
        # The party of numbers without a row.
        self._missing = UNKNOWN_PARTY
        self._read_names()

    def _read_names(self) -> None:
        """Create the caches of parties, which do not refer to the History: it is freed with its user."""
        connection, missing = self.connection, self._missing
        self.party = lru_cache(_CACHED)(partial(_read_party, connection, missing))
        self.session = lru_cache(_CACHED)(partial(_read_session, connection, missing))
        self.time_reader = TimeReader(connection, self.session, missing)

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    def restrict(self, reader: Reader) -> None:
        """Show only the rows that the reader may read, in all queries on `connection`; call it once, first.

        Parties of others are HIDDEN_PARTY. Amounts remain whole, so that those of own rows are the same for
        everybody: `is_own` is for what sums them.
        """
        if not reader.reads_all:
            restrict_rows(self.connection, reader)
            self.reader, self._missing = reader, HIDDEN_PARTY
            self._read_names()

    def is_own(self, party: Party) -> bool:
        """Whether the reader may read the rows of this party."""
        return party.owner.kind != OTHERS.kind

    def with_process(self, numbers: Collection[int]) -> History:
        """A view of the same file in which these Sessions have the command PROCESS_COMMAND.

        So that a grouping can distinguish them from other processes of their owner. Close the original only.
        """
        view = copy(self)
        chosen, session = frozenset(numbers), self.session
        view._process = chosen
        view.session = lru_cache(_CACHED)(lambda number: _renamed(chosen, number, session(number)))
        view.time_reader = TimeReader(view.connection, view.session, self._missing)
        return view

    def _rename(self, number: int, party: Party) -> Party:
        return _renamed(self._process, number, party)

    def meta_time(self, key: str) -> float | None:
        """The unix seconds that `meta` has for this key; None if it has none."""
        value = self._meta.get(key)
        return None if value is None else float(value)

    def unaccounted_millijoules(self, booked: Mapping[str, int]) -> dict[str, int]:
        """Millijoules in the Gpus' totals that no span or hour has, by uuid.

        `booked` is the sum of spans and hours by uuid. Gpus with deleted history, by age or with a damaged
        file, are omitted.
        """
        gone = {uuid for (uuid,) in self.connection.execute("SELECT DISTINCT uuid FROM forgotten")}
        totals = self.connection.execute("SELECT uuid, total FROM gpus").fetchall()
        found = {uuid: total - booked.get(uuid, 0) for uuid, total in totals if uuid not in gone}
        return {uuid: millijoules for uuid, millijoules in found.items() if millijoules}

    @property
    def unmetered_gpus(self) -> frozenset[str]:
        """Uuids of Gpus that have had neither an energy counter nor a power reading so far."""
        found = self.connection.execute("SELECT uuid FROM gpus WHERE total = 0 AND last IS NULL")
        return frozenset(uuid for (uuid,) in found)

    @property
    def zone(self) -> str:
        """The name of the time zone of folded hours; empty if no hour was folded in a known one."""
        return str(self._meta.get(ZONE, ""))

    @property
    def node(self) -> str:
        """The name of the node that `serve` stored; empty for a ledger of an earlier version."""
        return str(self._meta.get(NODE_NAME, ""))

    @property
    def time_from(self) -> int | None:
        """The first quarter with time spans; earlier ones have only the seconds of Sessions."""
        value = self._meta.get(TIME_FROM)
        return None if value is None else int(value)

    def cuts_around(self, quarter: int) -> tuple[int, int]:
        """The nearest cuts of all rows at or before a quarter, and at or after it.

        Rows are cut at each quarter. A folded hour is cut only at its ends, and so are hours of a version
        without time books.
        """
        return self._cuts.around(quarter)

    def cell_end(self, quarter: int) -> int:
        """The quarter at which the folded hour ends that begins with this one."""
        return self._cuts.after(quarter + 1)

    @cached_property
    def _cuts(self) -> Cuts:
        return Cuts(self.connection, self.time_from, stored_hour_cells(self.connection))

    @property
    def end_quarter(self) -> int:
        """The quarter after the last one with data, even if the clock was set since.

        If the last data are of a folded hour, it can be less than that hour's end.
        """
        _, last = self.connection.execute(_BOUNDS).fetchone()
        return max(int(self.last // QUARTER), -1 if last is None else last) + 1

    @property
    def latest(self) -> float:
        """Unix seconds at which the data end: `last`, or more if the clock was set back since."""
        ends, time_ends = self.connection.execute(_ENDS).fetchone()
        end = self.end_quarter * QUARTER
        newest = max(self.last, min(max(ends or 0.0, (time_ends or 0) / 1e6), float(end)))
        if end - QUARTER > newest:
            # The last data are folded.
            return float(end)
        return newest if newest - self.last > CLOCK_STEP else self.last

    @property
    def first_detail(self) -> int | None:
        """The first quarter with energy spans."""
        quarter: int | None = self.connection.execute("SELECT min(quarter) FROM spans").fetchone()[0]
        return quarter

    @property
    def first_quarter(self) -> int | None:
        """The first quarter with data."""
        first, _ = self.connection.execute(_BOUNDS).fetchone()
        known = [quarter for quarter in (first, self._first_unfolded) if quarter is not None]
        begun = self.meta_time(BEGUN)
        if not known and begun is not None:
            # Only Gpus that were watched in one reading, which leave no rows.
            known.append(int(begun // QUARTER))
        return min(known, default=None)

    def _find_first_unfolded(self) -> int | None:
        """The first hour, as it will be folded, with times that are not folded yet."""
        present = first_presence(self.connection)
        if present is None or self._times_from is None:
            return None
        return stored_hour_cells(self.connection).begins(max(self._times_from, present))

    @property
    def gpu_sights(self) -> Mapping[str, tuple[int, int]]:
        """Unix microseconds of the first and the last sight of each Gpu in the time books, by uuid."""
        return {uuid: (first, last) for uuid, first, last in self.connection.execute(_SIGHTS)}

    def time_spans(self, since: int, until: int) -> Iterator[TimeSpanEntry]:
        """The time spans of these quarters that are not folded, in order."""
        return self.time_reader.spans(since, until)

    def energy(self, since: int, until: int, progress: Progress | None = None) -> Iterator[EnergyEntry]:
        """Energy booked in the quarters from `since` to before `until`."""
        for first in range(since, until, _ENERGY_CHUNK):
            last = min(first + _ENERGY_CHUNK, until)
            yield from self._folded_energy(first, last)
            yield from self._detailed_energy(first, last)
            if progress is not None:
                progress("energy", (last - since) / (until - since))

    def _detailed_energy(self, since: int, until: int) -> Iterator[EnergyEntry]:
        for *kind, idle, unattributed, unobserved, is_integrated, shares in self.spans(since, until):
            uuid, method, begins, ends = kind
            parties = [(self.session(session), millijoules) for session, millijoules in shares.items()]
            length = microseconds(begins, ends)
            yield EnergyEntry(
                uuid, method, length, idle, unattributed, unobserved, parties, bool(is_integrated)
            )

    def spans(self, since: int, until: int) -> Iterator[tuple[Any, ...]]:
        """The spans of these quarters, in order.

        Each is the Gpu's uuid, the method, begin, end, the energy in the accounts idle, unattributed and
        unobserved, 1 if it was integrated from power, and the shares by number of session.
        """
        found = self.connection.execute(_SPANS, (since, until))
        for (_, *span), rows in groupby(found, key=itemgetter(slice(9))):
            yield (*span, {session: share for *_, session, share in rows if session is not None})

    def _folded_energy(self, since: int, until: int) -> Iterator[EnergyEntry]:
        shares: dict[tuple[str, str, int, str], list[tuple[Party, int]]] = defaultdict(list)
        for *together, party, millijoules in self.connection.execute(_HOUR_SHARES, (since, until)):
            shares[*together].append((self.party(party), millijoules))
        for row in self.connection.execute(_HOURS, (since, until)):
            uuid, method, life, residents, length, idle, unattributed, unobserved = row
            own = shares.get((uuid, method, life, residents), ())
            yield EnergyEntry(uuid, method, length, idle, unattributed, unobserved, own, bool(life))

    def times(
        self, since: int, until: int, settle: Callable[[], None], progress: Progress | None = None
    ) -> Iterator[TimeEntry]:
        """Presence in these quarters: by quarter, and by hour where it is folded.

        Calls `settle` when all entries of some quarters have been yielded.
        """
        detail = until if self._times_from is None else min(max(self._times_from, since), until)
        seen = yield from self._folded_times(since, detail, settle)
        for first in range(detail, until, _TIME_CHUNK):
            last = min(first + _TIME_CHUNK, until)
            seen |= yield from self._detailed_times(first, last, first=not seen)
            settle()
            if progress is not None:
                progress("time", (last - since) / (until - since))

    def _folded_times(
        self, since: int, until: int, settle: Callable[[], None]
    ) -> Generator[TimeEntry, None, bool]:
        """Yields entries; returns whether these quarters have any."""
        first = True
        found = self.connection.execute(_TIMES, (since, until))
        for quarter, rows in groupby(found, key=itemgetter(0)):
            old = self._old_seconds(quarter)
            for _, party, *packed, running, begun in rows:
                resident, held, busy, allocated, unknown = _unpack(old, *packed)
                yield TimeEntry(
                    quarter,
                    self.party(party),
                    resident,
                    held,
                    busy,
                    allocated,
                    running if first else begun,
                    unknown,
                    old,
                )
            first = False
            settle()
        return not first

    def _detailed_times(self, since: int, until: int, *, first: bool) -> Generator[TimeEntry, None, bool]:
        """Yields entries; returns whether these quarters have any. `first`: there were none before.

        Sessions begun earlier are counted in the first quarters with any data, as `fold_times` counts them.
        """
        seen = False
        unseen: list[Party] = []
        for life in session_lives(self.connection, since, until, rename=self._rename):
            is_seen = life.is_seen(since, until)
            seen |= is_seen
            new = life.number if life.begun >= since or (first and is_seen) else 0
            for quarter, (resident, held, unknown) in life.cells.items():
                busy, old = resident & ~held & ~unknown, self._old_seconds(quarter)
                yield TimeEntry(quarter, life.party, resident, held, busy, 0, new, unknown, old)
                new = 0
            if new:
                yield TimeEntry(since, life.party, 0, 0, 0, 0, 1)
            elif first and not is_seen:
                unseen.append(life.party)
        for party, cells in allocation_cells(self.connection, since, until):
            for quarter, (allocated, unused, unread) in cells.items():
                old = self._old_seconds(quarter)
                yield TimeEntry(quarter, party, 0, unused, 0, allocated, 0, unread, old)
                seen = True
        for party in unseen if seen else ():
            yield TimeEntry(since, party, 0, 0, 0, 0, 1)
        return seen

    def _old_seconds(self, quarter: int) -> int:
        return old_seconds(quarter, self.activity_from) if quarter * QUARTER < self.activity_from else 0


def _renamed(chosen: frozenset[int], number: int, party: Party) -> Party:
    return replace(party, command=PROCESS_COMMAND) if number in chosen else party


def _read_party(connection: Connection, missing: Party, number: int) -> Party:
    row = connection.execute("SELECT who FROM parties WHERE number = ?", (number,)).fetchone()
    return party_from_text(row[0]) if row else missing


def _read_session(connection: Connection, missing: Party, number: int) -> Party:
    found = party_of_session(connection, number)
    return missing if found is UNKNOWN_PARTY else found


@lru_cache(4096)
def _unpack(
    old: int, resident: bytes | None, held: bytes | None, unknown: bytes | None, allocated: bytes | None
) -> tuple[int, int, int, int, int]:
    """Seconds resident, held, busy, allocated and unknown of a folded hour. Cached as `unpack_seconds`."""
    present, unused = unpack_seconds(resident), unpack_seconds(held)
    unclear = unpack_seconds(unknown) | (present & ~unused & old)
    return present, unused, present & ~unused & ~unclear, unpack_seconds(allocated), unclear

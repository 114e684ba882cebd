"""The books as a report reads them: beside the program that writes them, and hour by hour."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger.ledger.energy.shares import share_of
from gpuledger.ledger.report.grouping import Party, grouping, party_from
from gpuledger.ledger.report.report import Period, Report, report
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.tally import Energy, Tally, Times
from gpuledger.ledger.store.presence import NOBODY, handovers_there, party_of_session, sessions_there
from gpuledger.ledger.store.retention import microseconds, times_from
from gpuledger.ledger.store.rows import devices_of
from gpuledger.ledger.store.schema import APPLICATION_ID, MIGRATIONS
from gpuledger.ledger.watched_time import HOUR, unpack
from gpuledger.model.devices import Device
from gpuledger.model.errors import GpuledgerError

if TYPE_CHECKING:
    from sqlite3 import Connection


_CACHED = 20_000
# Hours that are gathered at once: of energy and of time.
_ENERGY_CHUNK = 240
_CHUNK = 24
_BUSY_SECONDS = 5.0

_SPANS = """
SELECT spans.number, uuid, method, begins, ends, idle, unattributed, unobserved, session, millijoules
    FROM spans LEFT JOIN shares ON span = number WHERE hour >= ? AND hour < ? ORDER BY hour, number
"""
# Hours with the same residents and method are summed: the bounds of the sum are the sum of their bounds.
_HOURS = """
SELECT uuid, method, residents, sum(microseconds), sum(idle), sum(unattributed), sum(unobserved)
    FROM hours WHERE hour >= ? AND hour < ? GROUP BY uuid, method, residents
"""
_HOUR_SHARES = """
SELECT uuid, method, residents, party, sum(millijoules) FROM hours JOIN hour_shares USING (number)
    WHERE hour >= ? AND hour < ? GROUP BY uuid, method, residents, party
"""
_TIMES = "SELECT * FROM hour_times WHERE hour >= ? AND hour < ? ORDER BY hour"

Progress = Callable[[str, float], None]


class History:
    """One reading of a file of books: what is written meanwhile is not seen. Close it after use."""

    def __init__(self, file: Path) -> None:
        """Raises GpuledgerError for a file that is not there, cannot be read or is of another version."""
        self.file = file
        self.connection = _open(file)
        self.devices: Mapping[str, Device] = devices_of(
            self.connection.execute("SELECT * FROM devices").fetchall()
        )
        meta = dict(self.connection.execute("SELECT key, value FROM meta"))
        self.last = float(meta.get("unix", 0.0))
        self._times_from = times_from(self.connection)
        self.party = lru_cache(_CACHED)(self._read_party)
        self.session = lru_cache(_CACHED)(partial(party_of_session, self.connection))

    def close(self) -> None:
        """Let go of the file."""
        self.connection.close()

    def missing(self, booked: Mapping[str, int]) -> dict[str, int]:
        """Millijoules that the Gpus' totals have and spans and hours have not, by uuid.

        `booked` is what these have in all. Nothing is said of books of which something was deleted, for age
        or with a damaged file.
        """
        gone = {uuid for (uuid,) in self.connection.execute("SELECT DISTINCT uuid FROM forgotten")}
        totals = self.connection.execute("SELECT uuid, total FROM gpus").fetchall()
        found = {uuid: total - booked.get(uuid, 0) for uuid, total in totals if uuid not in gone}
        return {uuid: millijoules for uuid, millijoules in found.items() if millijoules}

    @property
    def end_hour(self) -> int:
        """The unix hour after the last one that something is known of, however the clock was set since."""
        hours = self.connection.execute(
            "SELECT max(hour) FROM (SELECT max(hour) AS hour FROM spans UNION ALL SELECT max(hour) FROM hours"
            " UNION ALL SELECT max(hour) FROM hour_times)"
        ).fetchone()[0]
        return max(int(self.last // HOUR), -1 if hours is None else hours) + 1

    @property
    def first_detail(self) -> int | None:
        """The first unix hour of which there are spans."""
        hour: int | None = self.connection.execute("SELECT min(hour) FROM spans").fetchone()[0]
        return hour

    @property
    def first_hour(self) -> int | None:
        """The first unix hour that something is known of."""
        hours = self.connection.execute(
            "SELECT min(hour) FROM (SELECT min(hour) AS hour FROM spans UNION ALL SELECT min(hour) FROM hours"
            " UNION ALL SELECT min(hour) FROM hour_times)"
        ).fetchone()[0]
        known = [hour for hour in (hours, self._times_from) if hour is not None]
        return min(known, default=None)

    def energy(self, since: int, until: int, progress: Progress | None = None) -> Iterator[Energy]:
        """What was booked in the hours from `since` to before `until` (unix hours)."""
        for hour in range(since, until, _ENERGY_CHUNK):
            last = min(hour + _ENERGY_CHUNK, until)
            yield from self._folded_energy(hour, last)
            yield from self._detailed_energy(hour, last)
            if progress is not None:
                progress("energy", (last - since) / (until - since))

    def _detailed_energy(self, since: int, until: int) -> Iterator[Energy]:
        found = self.connection.execute(_SPANS, (since, until))
        for span, rows in groupby(found, key=lambda row: row[:8]):
            _, uuid, method, begins, ends, idle, unattributed, unobserved = span
            shares = [(self.session(row[8]), row[9]) for row in rows if row[8] is not None]
            length = microseconds(begins, ends)
            yield Energy(uuid, method, length, idle, unattributed, unobserved, shares)

    def _folded_energy(self, since: int, until: int) -> Iterator[Energy]:
        shares: dict[tuple[str, str, str], list[tuple[Party, int]]] = defaultdict(list)
        for *together, party, millijoules in self.connection.execute(_HOUR_SHARES, (since, until)):
            shares[*together].append((self.party(party), millijoules))
        for row in self.connection.execute(_HOURS, (since, until)):
            uuid, method, residents, length, idle, unattributed, unobserved = row
            mine = shares.get((uuid, method, residents), ())
            yield Energy(uuid, method, length, idle, unattributed, unobserved, mine)

    def times(
        self, since: int, until: int, settle: Callable[[], None], progress: Progress | None = None
    ) -> Iterator[Times]:
        """Who was there in these hours (unix hours). `settle` is called when all of some hours were told."""
        detail = until if self._times_from is None else min(max(self._times_from, since), until)
        seen = yield from self._folded_times(since, detail, settle)
        for hour in range(detail, until, _CHUNK):
            last = min(hour + _CHUNK, until)
            seen |= yield from self._detailed_times(hour, last, first=not seen)
            settle()
            if progress is not None:
                progress("time", (last - since) / (until - since))

    def _folded_times(
        self, since: int, until: int, settle: Callable[[], None]
    ) -> Generator[Times, None, bool]:
        """Answers whether there is anything in these hours."""
        first = True
        found = self.connection.execute(_TIMES, (since, until))
        for _, rows in groupby(found, key=lambda row: row[0]):
            for hour, party, there, idle, handed, running, begun in rows:
                resident, held = unpack(there), unpack(idle)
                busy, sessions = resident & ~held, running if first else begun
                yield Times(hour, self.party(party), resident, held, busy, unpack(handed), sessions)
            first = False
            settle()
        return not first

    def _detailed_times(self, since: int, until: int, *, first: bool) -> Generator[Times, None, bool]:
        """Answers whether there is anything in these hours. `first`: there was nothing in the hours before.

        Who had begun before is counted in the first hours in which there is anything, as `fold` counts.
        """
        seen = False
        through: list[Party] = []
        for life in sessions_there(self.connection, since, until):
            here = life.is_seen(since, until)
            seen |= here
            new = life.begun >= since or (first and here)
            for hour, (resident, held) in life.hours.items():
                yield Times(hour, life.party, resident, held, resident & ~held, 0, int(new))
                new = False
            if new:
                yield Times(since, life.party, 0, 0, 0, 0, 1)
            elif first and not here:
                through.append(life.party)
        for party, handed in handovers_there(self.connection, since, until):
            for hour, (allocated, unused) in handed.items():
                yield Times(hour, party, 0, unused, 0, allocated, 0)
                seen = True
        for party in through if seen else ():
            yield Times(since, party, 0, 0, 0, 0, 1)
        return seen

    def _read_party(self, number: int) -> Party:
        row = self.connection.execute("SELECT who FROM parties WHERE number = ?", (number,)).fetchone()
        return party_from(row[0]) if row else NOBODY


def _remedy(error: Exception) -> str:
    text = str(error)
    if "locked" in text:
        return "another program holds them for itself; try again when it is done"
    if "unable to open" in text or "readonly" in text:
        return "run this as the user who writes them"
    return "is it whole?"


def _open(file: Path) -> Connection:
    import os
    import sqlite3

    if file.exists() and not file.is_file():
        raise GpuledgerError(f"{file} is no file: name the directory of the books with --state-dir")
    if not file.exists():
        raise GpuledgerError(
            f"there are no books at {file}: name their directory with --state-dir, or let `gpuledger serve` "
            "keep some first"
        )
    try:
        # Closed well, and where nobody can write (an archive): it does not change.
        still = not os.access(file.parent, os.W_OK) and not file.with_name(file.name + "-wal").exists()
        how = "mode=ro&immutable=1" if still else "mode=ro"
        connection = sqlite3.connect(f"{file.absolute().as_uri()}?{how}", uri=True, timeout=_BUSY_SECONDS)
        try:
            # What is read from here on is of one moment.
            connection.execute("BEGIN")
            (identity,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise GpuledgerError(f"the books in {file} cannot be read: {error}; {_remedy(error)}") from None
    if identity != APPLICATION_ID:
        connection.close()
        raise GpuledgerError(f"{file} is not a file of gpuledger's books")
    if version != len(MIGRATIONS):
        connection.close()
        older = "start `gpuledger serve` of this version once, and it is brought up to date"
        newer = "report with the gpuledger that wrote it"
        raise GpuledgerError(
            f"{file} was written by another version of gpuledger (schema {version}, this one has "
            f"{len(MIGRATIONS)}): {older if version < len(MIGRATIONS) else newer}"
        )
    return connection


def report_of(
    history: History,
    by: str,
    prices: Prices,
    between: tuple[int, int],
    progress: Progress | None = None,
) -> Report:
    """The report of these unix seconds, at full hours. What lies before the first hour is not looked for.

    Raises UsageError for a grouping that is not there.
    """
    by_whom = grouping(by, history.devices)
    shares = {uuid: share_of(device) for uuid, device in history.devices.items()}
    tally = Tally(by_whom, lambda uuid: shares.get(uuid, Fraction(1)))
    since, until = (unix // HOUR for unix in between)
    end, first = history.end_hour, history.first_hour
    begin = end if first is None else first
    hours = (max(since, begin), min(until, end))
    for energy in history.energy(*hours, progress):
        tally.add_energy(energy)
    for times in history.times(*hours, tally.settle, progress):
        tally.add_times(times)
    tally.finish()
    period = Period(*between, begin * HOUR, history.last)
    found = report(tally, by_whom, prices, history.devices, period)
    if not period.whole:
        return found
    missing = history.missing({uuid: gpu.millijoules for uuid, gpu in tally.gpus.items()})
    notes = [
        f"THE BOOKS DO NOT MEET: {uuid} has {millijoules / 1000:+.3f} J in its total that no row has."
        for uuid, millijoules in missing.items()
    ]
    return replace(found, notes=notes) if notes else found

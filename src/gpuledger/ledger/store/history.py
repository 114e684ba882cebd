"""Read access to a ledger file for reports, hour by hour, also while another program writes it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger.ledger.energy.shares import device_share
from gpuledger.ledger.report.grouping import Party, find_grouping, party_from_text
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.tally import EnergyEntry, Tally, TimeEntry
from gpuledger.ledger.report.usage_report import Period, UsageReport, report_from_tally
from gpuledger.ledger.store.presence import UNKNOWN_PARTY, allocation_hours, party_of_session, session_lives
from gpuledger.ledger.store.retention import microseconds, times_from
from gpuledger.ledger.store.rows import devices_from_rows
from gpuledger.ledger.store.schema import APPLICATION_ID, BEGUN, MIGRATIONS
from gpuledger.ledger.watched_time import HOUR, unpack_seconds
from gpuledger.model.devices import Device
from gpuledger.model.errors import GpuledgerError

if TYPE_CHECKING:
    from sqlite3 import Connection


_CACHED = 20_000
# Hours per query: of energy and of times.
_ENERGY_CHUNK = 240
_TIME_CHUNK = 24
_BUSY_SECONDS = 5.0

_SPANS = """
SELECT spans.number, uuid, method, begins, ends, idle, unattributed, unobserved, session, millijoules
    FROM spans LEFT JOIN shares ON span = number WHERE hour >= ? AND hour < ? ORDER BY hour, number
"""
# Hours with the same residents and method are summed: the bounds of the sum are the sum of the bounds.
_HOURS = """
SELECT uuid, method, residents, sum(microseconds), sum(idle), sum(unattributed), sum(unobserved)
    FROM hours WHERE hour >= ? AND hour < ? GROUP BY uuid, method, residents
"""
_HOUR_SHARES = """
SELECT uuid, method, residents, party, sum(millijoules) FROM hours JOIN hour_shares USING (number)
    WHERE hour >= ? AND hour < ? GROUP BY uuid, method, residents, party
"""
_BOUNDS = """
SELECT min(first), max(last) FROM (SELECT min(hour) AS first, max(hour) AS last FROM spans
    UNION ALL SELECT min(hour), max(hour) FROM hours UNION ALL SELECT min(hour), max(hour) FROM hour_times)
"""
_TIMES = "SELECT * FROM hour_times WHERE hour >= ? AND hour < ? ORDER BY hour"

Progress = Callable[[str, float], None]


class History:
    """A consistent snapshot of a ledger file: later writes are not visible. Close it after use."""

    def __init__(self, file: Path) -> None:
        """Raises GpuledgerError if the file is missing, unreadable or of another version."""
        self.file = file
        self.connection = _open_read_only(file)
        try:
            self.devices: Mapping[str, Device] = devices_from_rows(
                self.connection.execute("SELECT * FROM devices").fetchall()
            )
            self._meta = dict(self.connection.execute("SELECT key, value FROM meta"))
            self.last = float(self._meta.get("unix", 0.0))
            self._times_from = times_from(self.connection)
        except BaseException:
            self.connection.close()
            raise
        self.party = lru_cache(_CACHED)(self._read_party)
        self.session = lru_cache(_CACHED)(partial(party_of_session, self.connection))

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

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
    def end_hour(self) -> int:
        """The unix hour after the last one with data, even if the clock was set since."""
        _, last = self.connection.execute(_BOUNDS).fetchone()
        return max(int(self.last // HOUR), -1 if last is None else last) + 1

    @property
    def first_detail(self) -> int | None:
        """The first unix hour with spans."""
        hour: int | None = self.connection.execute("SELECT min(hour) FROM spans").fetchone()[0]
        return hour

    @property
    def first_hour(self) -> int | None:
        """The first unix hour with data."""
        first, _ = self.connection.execute(_BOUNDS).fetchone()
        known = [hour for hour in (first, self._times_from) if hour is not None]
        begun = self.meta_time(BEGUN)
        if not known and begun is not None:
            # Only idle GPUs without energy and power readings, which leave no rows.
            known.append(int(begun // HOUR))
        return min(known, default=None)

    def energy(self, since: int, until: int, progress: Progress | None = None) -> Iterator[EnergyEntry]:
        """Energy booked in the unix hours from `since` to before `until`."""
        for hour in range(since, until, _ENERGY_CHUNK):
            last = min(hour + _ENERGY_CHUNK, until)
            yield from self._folded_energy(hour, last)
            yield from self._detailed_energy(hour, last)
            if progress is not None:
                progress("energy", (last - since) / (until - since))

    def _detailed_energy(self, since: int, until: int) -> Iterator[EnergyEntry]:
        for uuid, method, begins, ends, idle, unattributed, unobserved, shares in self.spans(since, until):
            parties = [(self.session(session), millijoules) for session, millijoules in shares.items()]
            length = microseconds(begins, ends)
            yield EnergyEntry(uuid, method, length, idle, unattributed, unobserved, parties)

    def spans(self, since: int, until: int) -> Iterator[tuple[Any, ...]]:
        """The spans of these unix hours, in order.

        Each is the Gpu's uuid, the method, begin, end, the energy in the accounts idle, unattributed and
        unobserved, and the shares by number of session.
        """
        found = self.connection.execute(_SPANS, (since, until))
        for (_, *span), rows in groupby(found, key=lambda row: row[:8]):
            yield (*span, {session: share for *_, session, share in rows if session is not None})

    def _folded_energy(self, since: int, until: int) -> Iterator[EnergyEntry]:
        shares: dict[tuple[str, str, str], list[tuple[Party, int]]] = defaultdict(list)
        for *together, party, millijoules in self.connection.execute(_HOUR_SHARES, (since, until)):
            shares[*together].append((self.party(party), millijoules))
        for row in self.connection.execute(_HOURS, (since, until)):
            uuid, method, residents, length, idle, unattributed, unobserved = row
            own = shares.get((uuid, method, residents), ())
            yield EnergyEntry(uuid, method, length, idle, unattributed, unobserved, own)

    def times(
        self, since: int, until: int, settle: Callable[[], None], progress: Progress | None = None
    ) -> Iterator[TimeEntry]:
        """Presence in these unix hours. Calls `settle` when all entries of some hours have been yielded."""
        detail = until if self._times_from is None else min(max(self._times_from, since), until)
        seen = yield from self._folded_times(since, detail, settle)
        for hour in range(detail, until, _TIME_CHUNK):
            last = min(hour + _TIME_CHUNK, until)
            seen |= yield from self._detailed_times(hour, last, first=not seen)
            settle()
            if progress is not None:
                progress("time", (last - since) / (until - since))

    def _folded_times(
        self, since: int, until: int, settle: Callable[[], None]
    ) -> Generator[TimeEntry, None, bool]:
        """Yields entries; returns whether these hours have any."""
        first = True
        found = self.connection.execute(_TIMES, (since, until))
        for _, rows in groupby(found, key=lambda row: row[0]):
            for hour, party, present, unused, allocated, running, begun in rows:
                resident, held = unpack_seconds(present), unpack_seconds(unused)
                busy, sessions = resident & ~held, running if first else begun
                yield TimeEntry(
                    hour, self.party(party), resident, held, busy, unpack_seconds(allocated), sessions
                )
            first = False
            settle()
        return not first

    def _detailed_times(self, since: int, until: int, *, first: bool) -> Generator[TimeEntry, None, bool]:
        """Yields entries; returns whether these hours have any. `first`: there were none in the hours before.

        Sessions begun earlier are counted in the first hours with any data, as `fold_times` counts them.
        """
        seen = False
        unseen: list[Party] = []
        for life in session_lives(self.connection, since, until):
            is_seen = life.is_seen(since, until)
            seen |= is_seen
            new = life.number if life.begun >= since or (first and is_seen) else 0
            for hour, (resident, held) in life.hours.items():
                yield TimeEntry(hour, life.party, resident, held, resident & ~held, 0, new)
                new = 0
            if new:
                yield TimeEntry(since, life.party, 0, 0, 0, 0, 1)
            elif first and not is_seen:
                unseen.append(life.party)
        for party, hours in allocation_hours(self.connection, since, until):
            for hour, (allocated, unused) in hours.items():
                yield TimeEntry(hour, party, 0, unused, 0, allocated, 0)
                seen = True
        for party in unseen if seen else ():
            yield TimeEntry(since, party, 0, 0, 0, 0, 1)
        return seen

    def _read_party(self, number: int) -> Party:
        row = self.connection.execute("SELECT who FROM parties WHERE number = ?", (number,)).fetchone()
        return party_from_text(row[0]) if row else UNKNOWN_PARTY


def _remedy(error: Exception) -> str:
    text = str(error)
    if "locked" in text:
        return "another program has locked it; try again when that program is done"
    if "unable to open" in text or "readonly" in text:
        return "run this as the user that writes the ledger"
    return "check that the file is complete"


def _open_read_only(file: Path) -> Connection:
    import os
    import sqlite3

    if file.exists() and not file.is_file():
        raise GpuledgerError(f"{file} is not a file: set --state-dir to the directory of the ledger")
    if not file.exists():
        raise GpuledgerError(
            f"there is no ledger at {file}: set --state-dir to its directory, or run `gpuledger serve` first "
            "to create one"
        )
    try:
        # Immutable: cleanly closed, in a directory that is not writable (an archive).
        still = not os.access(file.parent, os.W_OK) and not file.with_name(file.name + "-wal").exists()
        how = "mode=ro&immutable=1" if still else "mode=ro"
        connection = sqlite3.connect(f"{file.absolute().as_uri()}?{how}", uri=True, timeout=_BUSY_SECONDS)
        try:
            # All later reads see one snapshot.
            connection.execute("BEGIN")
            (identity,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise GpuledgerError(f"cannot read the ledger {file}: {error}; {_remedy(error)}") from None
    if identity != APPLICATION_ID:
        connection.close()
        raise GpuledgerError(f"{file} is not a gpuledger ledger")
    if version != len(MIGRATIONS):
        connection.close()
        older = "start `gpuledger serve` of this version once to upgrade it"
        newer = "use the gpuledger version that wrote it"
        raise GpuledgerError(
            f"{file} was written by another version of gpuledger (schema {version}, this one has "
            f"{len(MIGRATIONS)}): {older if version < len(MIGRATIONS) else newer}"
        )
    return connection


def build_report(
    history: History,
    by: str,
    prices: Prices,
    between: tuple[int, int],
    progress: Progress | None = None,
) -> UsageReport:
    """Build the report for these unix seconds, at full hours, from the first hour with data on.

    Raises UsageError for an unknown grouping. See `require_watched_range` for ranges without data.
    """
    group_by = find_grouping(by, history.devices)
    shares = {uuid: device_share(device) for uuid, device in history.devices.items()}
    gpus = {uuid: device.gpu.uuid for uuid, device in history.devices.items()}
    tally = Tally(group_by, lambda uuid: shares.get(uuid, Fraction(1)), gpus.get)
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
    found = report_from_tally(tally, group_by, prices, history.devices, period, history.unmetered_gpus)
    if not period.whole:
        return found
    missing = history.unaccounted_millijoules({uuid: gpu.millijoules for uuid, gpu in tally.gpus.items()})
    notes = [
        f"THE BOOKS DO NOT BALANCE: the total of {uuid} has {millijoules / 1000:+.3f} J that no row has."
        for uuid, millijoules in missing.items()
    ]
    return replace(found, notes=(*notes, *found.notes)) if notes else found

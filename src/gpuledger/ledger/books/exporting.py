"""Exports a range of a ledger: folds a copy into the smallest cells of the ledger, and writes its rows."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from gpuledger import __version__
from gpuledger.ledger.books.layout import (
    ENERGY,
    GPU_TIME,
    GPUS,
    INTERVALS,
    OWNER_FIELDS,
    PARTIES,
    PRESENCE,
    TABLES,
    columns_of,
)
from gpuledger.ledger.books.manifest import (
    GpuTotals,
    Manifest,
    TableFacts,
    file_hash,
    file_name,
    write_manifest,
)
from gpuledger.ledger.books.range_copy import LedgerCells, copy_range
from gpuledger.ledger.books.table_files import Row, write_table
from gpuledger.ledger.energy.booking import MEASURED
from gpuledger.ledger.report.grouping import find_grouping
from gpuledger.ledger.report.party import party_from_text, party_text
from gpuledger.ledger.report.ranges import ReportRange
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.schema import BEGUN, BOOKS_ID, MIGRATIONS, meta_value
from gpuledger.ledger.store.time_sums import gpu_sights
from gpuledger.ledger.watched_time import MICRO, QUARTER, unpack_seconds
from gpuledger.model.errors import GpuledgerError

_HOURS = """
SELECT number, quarter, uuid, life, method, residents, microseconds, idle, unattributed, unobserved FROM hours
    WHERE quarter >= ? AND quarter < ? ORDER BY quarter, uuid, method, life
"""
_TIMES = """
SELECT quarter, gpu_parts.part, account, party, is_estimate, allocation, residence FROM hour_gpu_time
    JOIN gpu_parts ON number = hour_gpu_time.part WHERE quarter >= ? AND quarter < ? ORDER BY quarter
"""
_PRESENCE = """
SELECT quarter, party, resident, held, unknown, allocated, running, begun FROM hour_times
    WHERE quarter >= ? AND quarter < ? ORDER BY quarter
"""


@dataclass(frozen=True, slots=True)
class ExportScope:
    """What an export is of, beside the ledger: names of the node and the machine, range and format."""

    node: str
    host: str
    within: ReportRange
    format: str
    is_simulated: bool = False


def books_id(connection: sqlite3.Connection, file: Path) -> str:
    """The id of a ledger. Raises GpuledgerError if an earlier version wrote it, sqlite3.Error if damaged."""
    found = meta_value(connection, BOOKS_ID)
    if found is None:
        raise GpuledgerError(
            f"{file} has no id yet: start `gpuledger serve` of this version once, which gives it one"
        )
    return str(found)


def export_ledger(history: History, scope: ExportScope, folder: Path) -> Manifest:
    """Write all tables and the manifest into an empty directory.

    Raises GpuledgerError, OSError and sqlite3.Error.
    """
    books = books_id(history.connection, history.file)
    begins, ends = _quarters(history, scope.within)
    copy_file = folder / "copy.db"
    try:
        with closing(sqlite3.connect(copy_file, isolation_level=None)) as copy:
            cells = LedgerCells(history)
            copy_range(history, copy, begins, ends, cells)
            reader = _CopyReader(copy, history, cells, (begins, ends), (books, scope.node))
            tables = {name: _write(folder, scope.format, name, rows) for name, rows in reader.tables()}
    finally:
        copy_file.unlink(missing_ok=True)
    time_from, first = history.time_from, history.first_quarter
    manifest = Manifest(
        books,
        scope.node,
        scope.host,
        begins * QUARTER,
        ends * QUARTER,
        first=(begins if first is None else first) * QUARTER,
        last=min(float(ends * QUARTER), history.latest),
        complete=history.latest >= ends * QUARTER,
        time_zone=history.zone,
        time_books_from=None if time_from is None else time_from * QUARTER,
        activity_from=history.activity_from,
        begun=history.meta_time(BEGUN),
        is_simulated=scope.is_simulated,
        version=__version__,
        schema=len(MIGRATIONS),
        format=scope.format,
        tables=tables,
        totals=reader.totals,
    )
    write_manifest(folder, manifest)
    return manifest


def _quarters(history: History, within: ReportRange) -> tuple[int, int]:
    """The quarters of the range. It ends with the last cell that has data."""
    ends = max(min(within.ends, history.end_quarter), within.begins + 1)
    return within.begins, history.cuts_around(ends)[1]


def _write(folder: Path, form: str, name: str, rows: Iterator[Row]) -> TableFacts:
    file = folder / file_name(name, form)
    written = write_table(file, form, columns_of(name), rows)
    return TableFacts(written.rows, file.stat().st_size, file_hash(file), written.content)


class _CopyReader:
    """Rows of the tables from a folded copy, sorted, with ids that do not depend on the copy's numbers."""

    def __init__(
        self,
        copy: sqlite3.Connection,
        history: History,
        cells: LedgerCells,
        within: tuple[int, int],
        common: tuple[str, str],
    ) -> None:
        self._copy = copy
        self._history = history
        self._cells = cells
        self._within = within
        self._common = common
        self._parties: dict[str, str] = {}
        self._party = lru_cache(None)(self._read_party)
        self.totals: dict[str, GpuTotals] = {}

    def tables(self) -> Iterator[tuple[str, Iterator[Row]]]:
        """The tables and their rows, to be read in this order: parties are those that the others name."""
        found = {
            GPU_TIME: self._gpu_time(),
            INTERVALS: self._intervals(),
            ENERGY: self._energy(),
            PRESENCE: self._presence(),
            PARTIES: self._party_rows(),
            GPUS: self._gpus(),
        }
        assert found.keys() == TABLES.keys()
        for name, rows in found.items():
            yield name, ((*self._common, *row) for row in rows)

    def _read_party(self, number: int) -> str:
        """The id of a party: a hash of its names, so that it is the same in all exports."""
        ((text,),) = self._copy.execute("SELECT who FROM parties WHERE number = ?", (number,)).fetchall()
        found = hashlib.sha256(text.encode()).hexdigest()[:20]
        self._parties[found] = text
        return found

    def _cell(self, quarter: int) -> tuple[int, int]:
        return quarter * QUARTER * MICRO, self._cells.ends(quarter) * QUARTER * MICRO

    def _gpu_time(self) -> Iterator[Row]:
        yield from _by_cell(self._time_rows(), lambda row: row)

    def _time_rows(self) -> Iterator[Row]:
        for quarter, text, account, party, is_estimate, *both in self._copy.execute(_TIMES, self._within):
            gpu, model, instance, profile, numerator, denominator = json.loads(text)
            self._add(gpu, GpuTotals(watched_microseconds=both[0]))
            owner = self._party(party) if party else ""
            part = (gpu, model, instance, profile, numerator, denominator)
            yield (*self._cell(quarter), *part, account, owner, bool(is_estimate), *both)

    def _intervals(self) -> Iterator[Row]:
        for quarter, interval, row, shares in self._hours():
            _, gpu, life, method, microseconds, *own = row
            used = sum(shares.values())
            self._add(gpu, GpuTotals(millijoules=sum(own) + used))
            yield (*self._cell(quarter), gpu, interval, life, method, microseconds, *own, used)

    def _energy(self) -> Iterator[Row]:
        for quarter, interval, row, shares in self._hours():
            _, gpu, _, method, _, idle, unattributed, _ = row
            most = idle + unattributed + sum(shares.values())
            for party, millijoules in sorted(shares.items()):
                bounds = (millijoules, millijoules) if method == MEASURED else (0, most)
                yield (*self._cell(quarter), gpu, interval, method, party, millijoules, *bounds)

    def _hours(self) -> Iterator[tuple[int, int, Row, Mapping[str, int]]]:
        """Quarter, number within the cell and Gpu, row and shares of each folded interval."""
        place: tuple[int, str] | None = None
        pending: list[tuple[Row, dict[str, int]]] = []
        for number, quarter, gpu, life, method, _, *amounts in self._copy.execute(_HOURS, self._within):
            if (quarter, gpu) != place:
                yield from _numbered(pending)
                place, pending = (quarter, gpu), []
            query = "SELECT party, millijoules FROM hour_shares WHERE number = ?"
            shares = {self._party(party): share for party, share in self._copy.execute(query, (number,))}
            pending.append(((quarter, gpu, life, method, *amounts), shares))
        yield from _numbered(pending)

    def _presence(self) -> Iterator[Row]:
        yield from _by_cell(self._presence_rows(), itemgetter(0, 1, 2))

    def _presence_rows(self) -> Iterator[Row]:
        for quarter, party, *packed, running, begun in self._copy.execute(_PRESENCE, self._within):
            seconds = [unpack_seconds(one).bit_count() for one in packed]
            yield (*self._cell(quarter), self._party(party), *seconds, *packed, running, begun)

    def _party_rows(self) -> Iterator[Row]:
        by_owner = find_grouping("owner", {})
        for party, text in sorted(self._parties.items()):
            found = party_from_text(text)
            assert party_text(found) == text
            names = [getattr(found.owner, name) for name in OWNER_FIELDS]
            labels = json.dumps(found.owner.labels, ensure_ascii=False)
            yield (party, found.device, found.command, by_owner.key(found)[-1], *names, labels)

    def _gpus(self) -> Iterator[Row]:
        unmetered, sights = self._history.unmetered_gpus, gpu_sights(self._history)
        first, end = (quarter * QUARTER * MICRO for quarter in self._within)
        for device, gpu, index, name, bus, *rest in sorted(self._copy.execute("SELECT * FROM devices")):
            seen = sights.get(gpu)
            within: tuple[int | None, int | None] = (None, None)
            if seen is not None and seen[0] < end and first < seen[1]:
                within = (max(seen[0], first), min(seen[1], end))
            if device == gpu:
                self._add(gpu, GpuTotals(first_seen=within[0], last_seen=within[1]))
            sms, gi, ci, position, profile = rest
            row = (device, gpu, index, name, bus, sms, gi, ci, position, profile or "")
            yield (*row, gpu not in unmetered, *within)

    def _add(self, gpu: str, more: GpuTotals) -> None:
        known = self.totals.get(gpu, GpuTotals())
        self.totals[gpu] = replace(
            known,
            watched_microseconds=known.watched_microseconds + more.watched_microseconds,
            millijoules=known.millijoules + more.millijoules,
            first_seen=more.first_seen,
            last_seen=more.last_seen,
        )


def _by_cell(rows: Iterator[Row], key: Callable[[Row], Any]) -> Iterator[Row]:
    """Rows in the order of their cells, sorted within each: a month is never in memory as a whole."""
    for _, cell in groupby(rows, key=itemgetter(0)):
        yield from sorted(cell, key=key)


def _numbered(
    pending: list[tuple[Row, dict[str, int]]],
) -> Iterator[tuple[int, int, Row, Mapping[str, int]]]:
    """The intervals of one cell and Gpu, numbered in the order of their content."""
    ordered = sorted(pending, key=lambda one: (one[0], sorted(one[1].items())))
    for interval, (row, shares) in enumerate(ordered):
        yield row[0], interval, row, shares

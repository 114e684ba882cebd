"""Reads exports of one ledger as a `History`, so that a report of them is a report of a ledger.

Their rows are loaded into a temporary SQLite file with the ledger's tables, as folded cells.
"""

from __future__ import annotations

import csv
import json
import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property, lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from gpuledger.ledger.books.layout import (
    ENERGY,
    GPU_TIME,
    GPUS,
    INTERVALS,
    OWNER_FIELDS,
    PARTIES,
    PRESENCE,
    columns_of,
)
from gpuledger.ledger.books.manifest import Manifest, file_name, verify_tables
from gpuledger.ledger.books.table_files import Row, read_table
from gpuledger.ledger.ownership import owner_from_fields
from gpuledger.ledger.report.party import Party, party_text
from gpuledger.ledger.store.cuts import Cuts
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.schema import ACTIVITY_FROM, BEGUN, TIME_FROM, ZONE, migrate_schema
from gpuledger.ledger.store.tables import WRITE_DEVICE
from gpuledger.ledger.watched_time import MICRO, QUARTER
from gpuledger.model.errors import GpuledgerError

_MICRO_QUARTER = QUARTER * MICRO
_CELLS = "CREATE TABLE export_cells (begins INTEGER PRIMARY KEY, ends INTEGER NOT NULL)"
_GPU = """
INSERT INTO gpus VALUES (?, 0, '', '', NULL, 0, NULL, 0, NULL, NULL, ?, 0, 0)
    ON CONFLICT (uuid) DO UPDATE SET total = max(total, excluded.total)
"""
_SIGHT = """
INSERT INTO gpu_times (uuid, basis, posted, base, closed, state, first, last)
    VALUES (?, '', 0, 0, 0, '{}', ?, ?) ON CONFLICT (uuid) DO UPDATE SET
    first = min(first, excluded.first), last = max(last, excluded.last)
"""


class Export(NamedTuple):
    """An exported range of a ledger: its directory and its manifest."""

    folder: Path
    manifest: Manifest


class _StoredCells:
    """The cells of the loaded rows: a quarter each, or the hour to which it was folded."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        rows = connection.execute("SELECT begins, ends FROM export_cells ORDER BY begins").fetchall()
        self._begins = [begins for begins, _ in rows]
        self._ends = [ends for _, ends in rows]

    def begins(self, quarter: int) -> int:
        """The first quarter of the cell."""
        place = bisect_right(self._begins, quarter) - 1
        return self._begins[place] if place >= 0 and quarter < self._ends[place] else quarter

    def ends(self, quarter: int) -> int:
        """The quarter after the cell."""
        place = bisect_right(self._begins, quarter) - 1
        return self._ends[place] if place >= 0 and quarter < self._ends[place] else quarter + 1


class ExportedHistory(History):
    """A History of loaded exports, which messages call by the directory of the first one."""

    def __init__(self, file: Path, exports: Sequence[Export]) -> None:
        super().__init__(file)
        self.file = exports[0].folder
        first = exports[0].manifest
        self._first = max(first.first, first.begins) // QUARTER
        self._end = exports[-1].manifest.quarters[1]

    @property
    def first_quarter(self) -> int | None:
        """The first quarter with data, also if these leave no rows."""
        return self._first

    @property
    def end_quarter(self) -> int:
        """The quarter after the last one with data."""
        return min(super().end_quarter, self._end)

    @cached_property
    def _cuts(self) -> Cuts:
        return Cuts(self.connection, self.time_from, _StoredCells(self.connection))


@contextmanager
def open_exports(exports: Sequence[Export]) -> Iterator[ExportedHistory]:
    """The History of exports of one ledger and node, in order and without a gap between them.

    Raises GpuledgerError for the first file that is damaged, or cannot be read.
    """
    for one in exports:
        verify_tables(*one)
    with TemporaryDirectory(prefix="gpuledger-books-") as folder:
        file = Path(folder, "gpuledger.db")
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            migrate_schema(connection)
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("BEGIN")
            connection.execute(_CELLS)
            loader = _Loader(connection)
            for one in exports:
                loader.load(one)
            _write_meta(connection, [one.manifest for one in exports])
            connection.execute("COMMIT")
        with closing(ExportedHistory(file, exports)) as history:
            yield history


def _write_meta(connection: sqlite3.Connection, manifests: Sequence[Manifest]) -> None:
    last = manifests[-1]
    times = [one.time_books_from for one in manifests if one.time_books_from is not None]
    values = {
        "unix": last.last,
        ZONE: last.time_zone,
        ACTIVITY_FROM: last.activity_from,
        BEGUN: last.begun,
        TIME_FROM: min(times) // QUARTER if times else None,
    }
    rows = [(key, value) for key, value in values.items() if value is not None]
    connection.executemany("INSERT INTO meta VALUES (?, ?)", rows)


class _Loader:
    """Inserts the rows of exports into the ledger's tables."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._parties: dict[str, int] = {}
        self._part = lru_cache(None)(self._find_part)
        self._next_hour = 1

    def load(self, export: Export) -> None:
        """Insert all rows of an export. Raises GpuledgerError."""
        tables: dict[str, Callable[[Iterable[Row]], None]] = {
            GPUS: self._load_gpus,
            PARTIES: self._load_parties,
            GPU_TIME: self._load_gpu_time,
            PRESENCE: self._load_presence,
        }
        try:
            for table, insert in tables.items():
                insert(_rows(export, table))
            self._load_energy(_rows(export, INTERVALS), _rows(export, ENERGY))
        except (
            OSError,
            ValueError,
            LookupError,
            TypeError,
            OverflowError,
            csv.Error,
            sqlite3.Error,
        ) as error:
            raise GpuledgerError(
                f"the export {export.folder} cannot be read ({type(error).__name__}: {error}): export it "
                "again"
            ) from None

    def _load_gpus(self, rows: Iterable[Row]) -> None:
        for device, gpu, index, name, bus, sms, gi, ci, position, profile, metered, *seen in rows:
            own = (None if gi is None else profile) if profile == "" else profile
            self._execute(WRITE_DEVICE, device, gpu, index, name, bus, sms, gi, ci, position, own)
            self._execute(_GPU, gpu, int(metered))
            # Not all of its energy is here: the total is not that of the rows.
            self._execute("INSERT OR IGNORE INTO forgotten VALUES (?, 0, 0)", gpu)
            if None not in seen:
                self._execute(_SIGHT, gpu, *seen)

    def _load_parties(self, rows: Iterable[Row]) -> None:
        for party, device, command, _, *names, labels in rows:
            values: dict[str, Any] = dict(zip(OWNER_FIELDS, names, strict=True))
            owner = owner_from_fields({**values, "labels": json.loads(labels)})
            text = party_text(Party(device, owner, command))
            query = """
                INSERT INTO parties (who, last_quarter) VALUES (?, 0)
                    ON CONFLICT (who) DO UPDATE SET last_quarter = 0 RETURNING number
            """
            ((number,),) = self._connection.execute(query, (text,)).fetchall()
            self._parties[party] = number

    def _load_gpu_time(self, rows: Iterable[Row]) -> None:
        for begins, ends, *part, account, party, is_estimate, allocation, residence in rows:
            owner = self._parties[party] if party else 0
            cell = self._cell(begins, ends)
            row = (cell, self._part(*part), account, owner, is_estimate, allocation, residence)
            self._execute("INSERT INTO hour_gpu_time VALUES (?, ?, ?, ?, ?, ?, ?)", *row)

    def _find_part(self, *part: Any) -> int:
        text = json.dumps(part, separators=(",", ":"))
        query = "INSERT INTO gpu_parts (part) VALUES (?) RETURNING number"
        ((number,),) = self._connection.execute(query, (text,)).fetchall()
        return int(number)

    def _load_energy(self, intervals: Iterable[Row], shares: Iterable[Row]) -> None:
        # Both tables are in the order of cells, Gpus and intervals.
        by_interval = groupby(shares, key=itemgetter(0, 2, 3))
        following = next(by_interval, None)
        for begins, ends, gpu, interval, epoch, method, *amounts in intervals:
            found: dict[int, int] = {}
            if following is not None and following[0] == (begins, gpu, interval):
                found = {self._parties[party]: share for _, _, _, _, _, party, share, *_ in following[1]}
                following = next(by_interval, None)
            residents = ",".join(map(str, sorted(found)))
            number, self._next_hour = self._next_hour, self._next_hour + 1
            row = (number, self._cell(begins, ends), gpu, epoch, method, residents, *amounts[:4])
            self._execute("INSERT INTO hours VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", *row)
            for party, millijoules in found.items():
                self._execute("INSERT INTO hour_shares VALUES (?, ?, ?)", number, party, millijoules)
        if following is not None:
            raise ValueError(f"energy of the interval {following[0]}, which is missing or in another order")

    def _load_presence(self, rows: Iterable[Row]) -> None:
        for begins, ends, party, _, _, _, _, *packed, running, begun in rows:
            row = (self._cell(begins, ends), self._parties[party], *packed, running, begun)
            self._execute("INSERT INTO hour_times VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *row)

    def _cell(self, begins: int, ends: int) -> int:
        """The first quarter of a cell; its end is kept if it is longer."""
        quarter = begins // _MICRO_QUARTER
        if ends != begins + _MICRO_QUARTER:
            query = "INSERT OR IGNORE INTO export_cells VALUES (?, ?)"
            self._execute(query, quarter, ends // _MICRO_QUARTER)
        return quarter

    def _execute(self, statement: str, *values: object) -> None:
        self._connection.execute(statement, values)


def _rows(export: Export, table: str) -> Iterator[Row]:
    """The rows of a table without its common columns."""
    form = export.manifest.format
    file = export.folder / file_name(table, form)
    for row in read_table(file, form, columns_of(table)):
        yield row[2:]

"""Writes a journal to the tables, within a transaction of the caller, and loads the stored ledger."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING

from gpuledger.ledger.energy.counter import EnergyCounter, Epoch
from gpuledger.ledger.energy.floor import QuietPower
from gpuledger.ledger.journal import ROWS, Journal, StoredGpu, StoredLedger, StoredOwner, StoredSeries
from gpuledger.ledger.store import rows
from gpuledger.ledger.store.rows import (
    Row,
    allocation_from_row,
    devices_from_rows,
    process_from_text,
    session_from_row,
    workload_from_text,
)
from gpuledger.model.devices import Device

if TYPE_CHECKING:
    from sqlite3 import Connection


_UPDATE_USAGE = """
UPDATE usage SET last_seen = ?, peak_memory = ?, sm_seconds = ?, sm_known = ?, sm_most = ?, held_seconds = ?,
    measured = ?, apportioned = ?, high = ?, begun = ?, latest = ?, stay = ?, stays = ?
    WHERE number = ?
"""
# The size of an Instance prices its history: a tick without it must not erase the known one.
_DEVICE = f"""
INSERT INTO devices VALUES ({", ".join("?" * 10)}) ON CONFLICT (uuid) DO UPDATE SET gpu = excluded.gpu,
    gpu_index = excluded.gpu_index, name = excluded.name, pci_bus_id = excluded.pci_bus_id,
    sm_count = coalesce(excluded.sm_count, sm_count), gi = excluded.gi, ci = excluded.ci,
    position = excluded.position, profile = excluded.profile
"""
_UPDATE_SERIES = "UPDATE told SET millijoules = ?, measured = ? WHERE number = ?"
_UPDATE_SPAN = """
UPDATE spans SET ends = ?, idle = ?, unattributed = ?, unobserved = ?, empty_floor = ?, resident_floor = ?
    WHERE number = ?
"""
# A restart within the minute adds to the seconds of the earlier run.
_ADD_SECONDS = """
INSERT INTO {0} VALUES (?, ?, ?) ON CONFLICT (minute, {1}) DO UPDATE SET bits = bits | excluded.bits
"""
_UPDATE_SHARE = "UPDATE shares SET millijoules = ?, resident = ?, work = ? WHERE span = ? AND session = ?"


def write_journal(connection: Connection, journal: Journal) -> None:
    """Write the whole journal. Raises sqlite3.Error."""
    many = connection.executemany
    if journal.shift:
        connection.execute("UPDATE series SET born_at = born_at + ?", (journal.shift,))
        connection.execute("UPDATE owners SET since_at = since_at + ?", (journal.shift,))
    many("REPLACE INTO meta VALUES (?, ?)", [("elapsed", journal.elapsed), ("unix", journal.unix)])
    if journal.devices:
        many(_DEVICE, map(rows.device_row, journal.devices.values()))
    many(_insert("gpus", 13), map(rows.gpu_row, journal.gpus.values()))
    if journal.epochs:
        _write_epochs(connection, journal)
    if journal.floors:
        many(_insert("floors", 6), [(*key, seconds) for key, seconds in journal.floors.items()])
    if journal.forgotten:
        many(_insert("forgotten", 3), [(*key, joules) for key, joules in journal.forgotten.items()])
    _write_sessions(connection, journal)
    if journal.allocations:
        _write_allocations(connection, journal)
    _write_spans(connection, journal)
    _write_series(connection, journal)


def _insert(table: str, columns: int) -> str:
    return f"REPLACE INTO {table} VALUES ({', '.join('?' * columns)})"


def _write_epochs(connection: Connection, journal: Journal) -> None:
    connection.executemany(
        _insert("epochs", 7),
        [
            (
                entry.uuid,
                entry.counter.epoch_number,
                entry.counter.epoch.boot_id,
                entry.counter.epoch.driver_load,
                entry.counter.opening,
                entry.counter.booked,
                entry.unix,
            )
            for entry in journal.epochs
        ],
    )


def _write_spans(connection: Connection, journal: Journal) -> None:
    new = [span for span in journal.spans.values() if not span.stored]
    if new:
        connection.executemany(_insert("spans", 12), map(rows.span_row, new))
        connection.executemany(_insert("shares", 5), chain.from_iterable(map(rows.share_rows, new)))
    known = [span for span in journal.spans.values() if span.stored]
    connection.executemany(_UPDATE_SPAN, map(rows.span_update_row, known))
    connection.executemany(_UPDATE_SHARE, chain.from_iterable(map(rows.share_update_rows, known)))


def _write_sessions(connection: Connection, journal: Journal) -> None:
    sessions = journal.sessions.values()
    new = [rows.session_row(one) for one in sessions if one.renamed or not one.stored]
    if new:
        connection.executemany(_insert("sessions", rows.SESSION_COLUMNS), new)
    # Most are open and stored: updating them does not touch the index of ended ones.
    open_rows = [rows.open_usage_row(one) for one in sessions if one.stored and one.ended is None]
    connection.executemany(_UPDATE_USAGE, open_rows)
    others = [rows.usage_row(one) for one in sessions if not one.stored or one.ended is not None]
    if others:
        connection.executemany(_insert("usage", 16), others)
    _write_held(connection, journal)


def _write_held(connection: Connection, journal: Journal) -> None:
    minutes = [
        (minute, number, bits)
        for number, one in journal.sessions.items()
        for minute, bits in one.held.unsaved.items()
    ]
    if minutes:
        connection.executemany(_ADD_SECONDS.format("held", "session"), minutes)
    stretches = [
        (number, *stretch) for number, one in journal.sessions.items() for stretch in one.stretch.unsaved
    ]
    if stretches:
        connection.executemany(_insert("stays", 3), stretches)


def _write_allocations(connection: Connection, journal: Journal) -> None:
    allocations = journal.allocations
    new = [rows.allocation_row(one) for one in allocations.values() if one.over or not one.stored]
    if new:
        connection.executemany(_insert("handovers", 6), new)
    known = [(one.ends, number) for number, one in allocations.items() if one.stored and not one.over]
    connection.executemany("UPDATE handovers SET ends = ? WHERE number = ?", known)
    minutes = [
        (minute, number, bits)
        for number, one in allocations.items()
        for minute, bits in one.unused.unsaved.items()
    ]
    if minutes:
        connection.executemany(_ADD_SECONDS.format("unused", "handover"), minutes)


def _write_series(connection: Connection, journal: Journal) -> None:
    series = journal.series
    new = [rows.series_row(number, entry) for number, entry in series.items() if entry.counter.renamed]
    if new:
        connection.executemany(_insert("series", 6), new)
    stored = [entry.counter for entry in series.values() if entry.counter.stored]
    connection.executemany(
        _UPDATE_SERIES, [(counter.millijoules, counter.measured, counter.number) for counter in stored]
    )
    new_counters = [entry.counter for entry in series.values() if not entry.counter.stored]
    if new_counters:
        values = [(counter.number, counter.millijoules, counter.measured) for counter in new_counters]
        connection.executemany(_insert("told", 3), values)
    for number in journal.dropped:
        connection.execute("DELETE FROM series WHERE number = ?", (number,))
        connection.execute("DELETE FROM told WHERE number = ?", (number,))
    if journal.ended_owners:
        connection.executemany(
            "DELETE FROM owners WHERE device = ? AND pid = ? AND start = ?",
            [rows.owner_key(key) for key in journal.ended_owners],
        )
    if journal.owners:
        connection.executemany(
            _insert("owners", 9), [rows.owner_row(key, owner) for key, owner in journal.owners.items()]
        )


def load_ledger(connection: Connection) -> StoredLedger:
    """Load everything that continues.

    Raises sqlite3.Error, ValueError, KeyError or TypeError for damaged tables.
    """
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    elapsed = float(meta.get("elapsed", 0.0))
    devices = devices_from_rows(connection.execute("SELECT * FROM devices").fetchall())
    floors = _floors(connection)
    series, owners = _series(connection, devices, elapsed), _owners(connection, devices, elapsed)
    gpus = {}
    for row in connection.execute("SELECT * FROM gpus").fetchall():
        uuid = row[0]
        last_unix, total, base, closed = row[9:13]
        gpus[uuid] = StoredGpu(
            uuid,
            _counter(row),
            {
                driver: (QuietPower.from_rows(quiet[0]), QuietPower.from_rows(quiet[1]))
                for driver, quiet in floors[uuid].items()
            },
            last_unix,
            total,
            base,
            closed,
            tuple(series[uuid]),
            tuple(owners[uuid]),
        )
    opened = connection.execute(
        "SELECT * FROM sessions JOIN usage USING (number) WHERE ended IS NULL"
    ).fetchall()
    allocations = connection.execute("SELECT * FROM handovers WHERE NOT over").fetchall()
    return StoredLedger(
        gpus,
        tuple(session_from_row(row, devices) for row in opened),
        tuple(allocation_from_row(row, devices) for row in allocations if row[1] in devices),
        elapsed,
        float(meta.get("unix", 0.0)),
        _next_number(connection, "sessions"),
        _next_number(connection, "spans"),
        _next_number(connection, "series"),
        _next_number(connection, "handovers"),
    )


def _counter(row: Row) -> EnergyCounter:
    _, life, boot, driver, opening, booked, last, last_at, refresh = row[:9]
    epoch = Epoch(boot, driver)
    return EnergyCounter(epoch, opening, booked, last, last_at, refresh=refresh, epoch_number=life)


_Quiet = tuple[list[tuple[int, int, float]], list[tuple[int, int, float]]]


def _floors(connection: Connection) -> dict[str, dict[str, _Quiet]]:
    """Day, step and seconds, without and with residents, by Gpu uuid and driver version."""
    found: dict[str, dict[str, _Quiet]] = defaultdict(dict)
    for uuid, driver, resident, day, step, seconds in connection.execute("SELECT * FROM floors"):
        found[uuid].setdefault(driver, ([], []))[resident].append((day, step, seconds))
    return found


def _series(
    connection: Connection, devices: dict[str, Device], elapsed: float
) -> dict[str, list[StoredSeries]]:
    found: dict[str, list[StoredSeries]] = defaultdict(list)
    rows = connection.execute("SELECT * FROM series JOIN told USING (number) ORDER BY number")
    for number, book, text, process, born, lasting, millijoules, measured in rows:
        labels = tuple(json.loads(text))
        labeled = process_from_text(process, devices) if book == ROWS else None
        one = StoredSeries(number, labels, labeled, elapsed - born, bool(lasting), millijoules, measured)
        found[labels[0]].append(one)
    return found


def _owners(
    connection: Connection, devices: dict[str, Device], elapsed: float
) -> dict[str, list[StoredOwner]]:
    found: dict[str, list[StoredOwner]] = defaultdict(list)
    for row in connection.execute("SELECT * FROM owners"):
        process, owner, since, resolved, waiting, methods = row[3:]
        labeled = process_from_text(process, devices)
        found[labeled.device.gpu.uuid].append(
            StoredOwner(
                labeled,
                elapsed - since,
                workload_from_text(owner),
                bool(resolved),
                json.loads(waiting),
                tuple(json.loads(methods)),
            )
        )
    return found


def _next_number(connection: Connection, table: str) -> int:
    (highest,) = connection.execute(f"SELECT max(number) FROM {table}").fetchone()
    return (highest or 0) + 1

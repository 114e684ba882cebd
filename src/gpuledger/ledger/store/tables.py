"""A journal into the tables, within a transaction that the caller holds."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING

from gpuledger.ledger.energy.counter import Counter, Epoch
from gpuledger.ledger.energy.floor import QuietPower
from gpuledger.ledger.journal import ROWS, Journal, Kept, KeptGpu, KeptOwner, KeptSeries
from gpuledger.ledger.store import rows
from gpuledger.ledger.store.rows import (
    Row,
    devices_of,
    handover_of,
    process_of,
    session_of,
    workload_of,
)
from gpuledger.model.devices import Device

if TYPE_CHECKING:
    from sqlite3 import Connection


_GO_ON = """
UPDATE usage SET last_seen = ?, peak_memory = ?, sm_seconds = ?, sm_known = ?, sm_most = ?, held_seconds = ?,
    measured = ?, apportioned = ?, high = ?, begun = ?, latest = ?, stay = ?, stays = ?
    WHERE number = ?
"""
# How large a part of its Gpu an Instance is prices its history: a tick that cannot tell takes nothing away.
_DEVICE = f"""
INSERT INTO devices VALUES ({", ".join("?" * 10)}) ON CONFLICT (uuid) DO UPDATE SET gpu = excluded.gpu,
    gpu_index = excluded.gpu_index, name = excluded.name, pci_bus_id = excluded.pci_bus_id,
    sm_count = coalesce(excluded.sm_count, sm_count), gi = excluded.gi, ci = excluded.ci,
    position = excluded.position, profile = excluded.profile
"""
_TELL = "UPDATE told SET millijoules = ?, measured = ? WHERE number = ?"
_LENGTHEN = """
UPDATE spans SET ends = ?, idle = ?, unattributed = ?, unobserved = ?, empty_floor = ?, resident_floor = ?
    WHERE number = ?
"""
# A run that began within the minute adds to what the one before had of it.
_HOLD = """
INSERT INTO {0} VALUES (?, ?, ?) ON CONFLICT (minute, {1}) DO UPDATE SET bits = bits | excluded.bits
"""
_ADD_SHARE = "UPDATE shares SET millijoules = ?, resident = ?, work = ? WHERE span = ? AND session = ?"


def write(connection: Connection, journal: Journal) -> None:
    """Everything in it. Raises sqlite3.Error."""
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
    if journal.handovers:
        _write_handovers(connection, journal)
    _write_spans(connection, journal)
    _write_told(connection, journal)


def _insert(table: str, columns: int) -> str:
    return f"REPLACE INTO {table} VALUES ({', '.join('?' * columns)})"


def _write_epochs(connection: Connection, journal: Journal) -> None:
    connection.executemany(
        _insert("epochs", 7),
        [
            (
                entry.uuid,
                entry.counter.life,
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
        connection.executemany(_insert("shares", 5), chain.from_iterable(map(rows.new_shares, new)))
    known = [span for span in journal.spans.values() if span.stored]
    connection.executemany(_LENGTHEN, map(rows.longer_span, known))
    connection.executemany(_ADD_SHARE, chain.from_iterable(map(rows.grown_shares, known)))


def _write_sessions(connection: Connection, journal: Journal) -> None:
    sessions = journal.sessions.values()
    new = [rows.session_row(one) for one in sessions if one.renamed or not one.stored]
    if new:
        connection.executemany(_insert("sessions", rows.SESSION_COLUMNS), new)
    # Most are open and known: for them the index of ended ones need not be looked at.
    going_on = [rows.going_on_row(one) for one in sessions if one.stored and one.ended is None]
    connection.executemany(_GO_ON, going_on)
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
        connection.executemany(_HOLD.format("held", "session"), minutes)
    stays = [(number, *stay) for number, one in journal.sessions.items() for stay in one.stay.over]
    if stays:
        connection.executemany(_insert("stays", 3), stays)


def _write_handovers(connection: Connection, journal: Journal) -> None:
    handovers = journal.handovers
    new = [rows.handover_row(one) for one in handovers.values() if one.over or not one.stored]
    if new:
        connection.executemany(_insert("handovers", 6), new)
    known = [(one.ends, number) for number, one in handovers.items() if one.stored and not one.over]
    connection.executemany("UPDATE handovers SET ends = ? WHERE number = ?", known)
    minutes = [
        (minute, number, bits)
        for number, one in handovers.items()
        for minute, bits in one.unused.unsaved.items()
    ]
    if minutes:
        connection.executemany(_HOLD.format("unused", "handover"), minutes)


def _write_told(connection: Connection, journal: Journal) -> None:
    series = journal.series
    new = [rows.series_row(number, entry) for number, entry in series.items() if entry.held.renamed]
    if new:
        connection.executemany(_insert("series", 6), new)
    heard = [entry.held for entry in series.values() if entry.held.stored]
    connection.executemany(_TELL, [(held.millijoules, held.measured, held.number) for held in heard])
    born = [entry.held for entry in series.values() if not entry.held.stored]
    if born:
        told = [(held.number, held.millijoules, held.measured) for held in born]
        connection.executemany(_insert("told", 3), told)
    for number in journal.dropped:
        connection.execute("DELETE FROM series WHERE number = ?", (number,))
        connection.execute("DELETE FROM told WHERE number = ?", (number,))
    if journal.left:
        connection.executemany(
            "DELETE FROM owners WHERE device = ? AND pid = ? AND start = ?",
            [rows.owner_key(key) for key in journal.left],
        )
    if journal.owners:
        connection.executemany(
            _insert("owners", 9), [rows.owner_row(key, owner) for key, owner in journal.owners.items()]
        )


def load(connection: Connection) -> Kept:
    """Everything that goes on. Raises sqlite3.Error, ValueError, KeyError or TypeError for damaged tables."""
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    elapsed = float(meta.get("elapsed", 0.0))
    devices = devices_of(connection.execute("SELECT * FROM devices").fetchall())
    floors = _floors(connection)
    series, owners = _series(connection, devices, elapsed), _owners(connection, devices, elapsed)
    gpus = {}
    for row in connection.execute("SELECT * FROM gpus").fetchall():
        uuid = row[0]
        last_unix, total, base, closed = row[9:13]
        gpus[uuid] = KeptGpu(
            uuid,
            _counter(row),
            {
                driver: (QuietPower.restored(quiet[0]), QuietPower.restored(quiet[1]))
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
    handed = connection.execute("SELECT * FROM handovers WHERE NOT over").fetchall()
    return Kept(
        gpus,
        tuple(session_of(row, devices) for row in opened),
        tuple(handover_of(row, devices) for row in handed if row[1] in devices),
        elapsed,
        float(meta.get("unix", 0.0)),
        _following(connection, "sessions"),
        _following(connection, "spans"),
        _following(connection, "series"),
        _following(connection, "handovers"),
    )


def _counter(row: Row) -> Counter:
    _, life, boot, driver, opening, booked, last, last_at, refresh = row[:9]
    epoch = Epoch(boot, driver)
    return Counter(epoch, opening, booked, last, last_at, refresh=refresh, life=life)


_Quiet = tuple[list[tuple[int, int, float]], list[tuple[int, int, float]]]


def _floors(connection: Connection) -> dict[str, dict[str, _Quiet]]:
    """Day, step and seconds, without and with residents, by Gpu uuid and driver version."""
    found: dict[str, dict[str, _Quiet]] = defaultdict(dict)
    for uuid, driver, resident, day, step, seconds in connection.execute("SELECT * FROM floors"):
        found[uuid].setdefault(driver, ([], []))[resident].append((day, step, seconds))
    return found


def _series(
    connection: Connection, devices: dict[str, Device], elapsed: float
) -> dict[str, list[KeptSeries]]:
    found: dict[str, list[KeptSeries]] = defaultdict(list)
    rows = connection.execute("SELECT * FROM series JOIN told USING (number) ORDER BY number")
    for number, book, text, process, born, lasting, millijoules, measured in rows:
        labels = tuple(json.loads(text))
        behind = process_of(process, devices) if book == ROWS else None
        one = KeptSeries(number, labels, behind, elapsed - born, bool(lasting), millijoules, measured)
        found[labels[0]].append(one)
    return found


def _owners(connection: Connection, devices: dict[str, Device], elapsed: float) -> dict[str, list[KeptOwner]]:
    found: dict[str, list[KeptOwner]] = defaultdict(list)
    for row in connection.execute("SELECT * FROM owners"):
        process, owner, since, resolved, waiting, methods = row[3:]
        behind = process_of(process, devices)
        found[behind.device.gpu.uuid].append(
            KeptOwner(
                behind,
                elapsed - since,
                workload_of(owner),
                bool(resolved),
                json.loads(waiting),
                tuple(json.loads(methods)),
            )
        )
    return found


def _following(connection: Connection, table: str) -> int:
    (highest,) = connection.execute(f"SELECT max(number) FROM {table}").fetchone()
    return (highest or 0) + 1

"""Writes a journal to the tables, within a transaction of the caller, and loads the stored ledger."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gpuledger.ledger.energy.counter import EnergyCounter, Epoch
from gpuledger.ledger.energy.floor import QuietPower
from gpuledger.ledger.journal import (
    ROWS,
    TIME,
    GpuEntry,
    GpuTimeEntry,
    Journal,
    StoredGpu,
    StoredLedger,
    StoredOwner,
    StoredSeries,
    StoredTimes,
    TimeOwner,
)
from gpuledger.ledger.store import rows
from gpuledger.ledger.store.rows import (
    Row,
    allocation_from_row,
    devices_from_rows,
    process_from_text,
    session_from_row,
    workload_from_text,
)
from gpuledger.ledger.store.schema import ACTIVITY_FROM, TIME_FROM, ZERO_HOLD
from gpuledger.ledger.store.usage_tables import (
    execute_all,
    load_host_periods,
    load_usage,
    next_number,
    write_usage,
)
from gpuledger.ledger.time.account import is_named
from gpuledger.ledger.time.stored import time_from_fields
from gpuledger.ledger.watched_time import MarkedSeconds
from gpuledger.ledger.xid_log import KEPT_ROWS
from gpuledger.model.devices import Device
from gpuledger.model.session import XidRow
from gpuledger.model.workload import UNKNOWN

if TYPE_CHECKING:
    from sqlite3 import Connection


_DROP_XIDS = """
DELETE FROM xids WHERE gpu = ? AND xid = ? AND number NOT IN
    (SELECT number FROM xids WHERE gpu = ? AND xid = ? ORDER BY number DESC LIMIT ?)
"""
_UPDATE_USAGE = """
UPDATE usage SET last_seen = ?, peak_memory = ?, sm_seconds = ?, sm_known = ?, sm_most = ?, held_seconds = ?,
    measured = ?, apportioned = ?, high = ?, begun = ?, latest = ?, stay = ?, stays = ?
    WHERE number = ?
"""
# The size of an Instance prices its history: a tick without it must not erase the known one.
WRITE_DEVICE = f"""
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
_GPU_TIME = """
INSERT INTO gpu_times (uuid, basis, posted, span, base, closed, state, first, last)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (uuid) DO UPDATE SET
    basis = excluded.basis, posted = excluded.posted, span = excluded.span,
    base = excluded.base, closed = excluded.closed, state = excluded.state,
    first = coalesce(first, excluded.first),
    last = coalesce(max(last, excluded.last), last, excluded.last)
"""
# The newest span of a Gpu that is absent may have been folded since: its time is posted without a span.
_FOLDED_SPAN = """
UPDATE gpu_times SET posted = posted + ?, span = NULL
    WHERE uuid = ? AND NOT EXISTS (SELECT 1 FROM time_spans WHERE number = span)
"""
_UPDATE_SHARE = "UPDATE shares SET millijoules = ?, resident = ?, work = ? WHERE span = ? AND session = ?"

_TIME_FROM_ZERO = """
UPDATE gpu_times SET closed = 0,
    base = posted + coalesce((SELECT microseconds FROM time_spans WHERE number = span), 0)
"""


def write_journal(connection: Connection, journal: Journal) -> None:
    """Write the whole journal. Raises sqlite3.Error."""
    if journal.shift:
        connection.execute("UPDATE series SET born_at = born_at + ?", (journal.shift,))
        connection.execute("UPDATE owners SET since_at = since_at + ?", (journal.shift,))
    _replace(connection, "meta", [("elapsed", journal.elapsed), ("unix", journal.unix)])
    if journal.activity_from is not None:
        _replace(connection, "meta", [(ACTIVITY_FROM, journal.activity_from)])
    execute_all(connection, WRITE_DEVICE, [rows.device_row(device) for device in journal.devices.values()])
    _replace(connection, "gpus", [rows.gpu_row(entry) for entry in journal.gpus.values()])
    _replace(connection, "epochs", [rows.epoch_row(entry) for entry in journal.epochs])
    _replace(connection, "floors", [(*key, seconds) for key, seconds in journal.floors.items()])
    _replace(connection, "forgotten", [(*key, joules) for key, joules in journal.forgotten.items()])
    _write_sessions(connection, journal)
    _write_allocations(connection, journal)
    _write_spans(connection, journal)
    _write_times(connection, journal)
    _write_series(connection, journal)
    write_usage(connection, journal)
    if journal.xids:
        _write_xids(connection, journal)


def _replace(connection: Connection, table: str, values: Sequence[Row]) -> None:
    """Insert whole rows, or replace those with the same key."""
    if values:
        connection.executemany(f"REPLACE INTO {table} VALUES ({', '.join('?' * len(values[0]))})", values)


def _add_seconds(connection: Connection, table: str, key: str, marked: Mapping[int, MarkedSeconds]) -> None:
    minutes = [
        (minute, number, bits) for number, one in marked.items() for minute, bits in one.unsaved.items()
    ]
    execute_all(connection, _ADD_SECONDS.format(table, key), minutes)


def _write_spans(connection: Connection, journal: Journal) -> None:
    new = [span for span in journal.spans.values() if not span.stored]
    _replace(connection, "spans", [rows.span_row(span) for span in new])
    _replace(connection, "shares", [row for span in new for row in rows.share_rows(span)])
    known = [span for span in journal.spans.values() if span.stored]
    execute_all(connection, _UPDATE_SPAN, [rows.span_update_row(span) for span in known])
    execute_all(connection, _UPDATE_SHARE, [row for span in known for row in rows.share_update_rows(span)])


def _write_times(connection: Connection, journal: Journal) -> None:
    _replace(connection, "gpu_parts", [(number, text) for text, number in journal.gpu_parts.items()])
    owners = [rows.time_owner_row(owner) for owner in journal.time_owners.values()]
    _replace(connection, "time_owners", owners)
    _replace(connection, "time_splits", list(journal.splits.items()))
    spans = journal.time_spans.values()
    new = [rows.time_span_row(entry) for entry in spans if not entry.stored]
    if new:
        from_quarter = min(row[1] for row in new)
        connection.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (TIME_FROM, from_quarter))
    _replace(connection, "time_spans", new)
    known = [(one.span.ends, one.span.microseconds, one.span.number) for one in spans if one.stored]
    execute_all(connection, "UPDATE time_spans SET ends = ?, microseconds = ? WHERE number = ?", known)
    execute_all(connection, _GPU_TIME, [rows.gpu_time_row(entry) for entry in journal.gpu_times.values()])
    lengths = [(one.span_length, uuid) for uuid, one in journal.gpu_times.items() if one.span is not None]
    execute_all(connection, _FOLDED_SPAN, lengths)
    lost = [(lost, uuid) for uuid, lost in journal.lost_time.items()]
    execute_all(connection, "UPDATE gpu_times SET forgotten = ? WHERE uuid = ?", lost)


def _write_sessions(connection: Connection, journal: Journal) -> None:
    sessions = journal.sessions.values()
    new = [rows.session_row(one) for one in sessions if one.renamed or not one.stored]
    _replace(connection, "sessions", new)
    # Most are open and stored: updating them does not touch the index of ended ones.
    open_rows = [rows.open_usage_row(one) for one in sessions if one.stored and one.ended is None]
    execute_all(connection, _UPDATE_USAGE, open_rows)
    others = [rows.usage_row(one) for one in sessions if not one.stored or one.ended is not None]
    _replace(connection, "usage", others)
    _add_seconds(connection, "held", "session", {one.number: one.held for one in sessions})
    _add_seconds(connection, "unknown", "session", {one.number: one.unknown for one in sessions})
    stretches = [(one.number, *stretch) for one in sessions for stretch in one.stretch.unsaved]
    _replace(connection, "stays", stretches)


def _write_allocations(connection: Connection, journal: Journal) -> None:
    allocations = journal.allocations.values()
    new = [rows.allocation_row(one) for one in allocations if one.over or not one.stored]
    _replace(connection, "handovers", new)
    known = [(one.ends, one.number) for one in allocations if one.stored and not one.over]
    execute_all(connection, "UPDATE handovers SET ends = ? WHERE number = ?", known)
    _add_seconds(connection, "unused", "handover", {one.number: one.unused for one in allocations})
    _add_seconds(connection, "unread", "handover", {one.number: one.unread for one in allocations})


def _write_series(connection: Connection, journal: Journal) -> None:
    series = journal.series
    new = [rows.series_row(number, entry) for number, entry in series.items() if entry.counter.renamed]
    _replace(connection, "series", new)
    stored = [entry.counter for entry in series.values() if entry.counter.stored]
    execute_all(connection, _UPDATE_SERIES, [(one.amount, one.measured, one.number) for one in stored])
    unknown = [entry.counter for entry in series.values() if not entry.counter.stored]
    _replace(connection, "told", [(one.number, one.amount, one.measured) for one in unknown])
    for number in journal.dropped:
        connection.execute("DELETE FROM series WHERE number = ?", (number,))
        connection.execute("DELETE FROM told WHERE number = ?", (number,))
    ended = [rows.owner_key(key) for key in journal.ended_owners]
    execute_all(connection, "DELETE FROM owners WHERE device = ? AND pid = ? AND start = ?", ended)
    _replace(connection, "owners", [rows.owner_row(key, owner) for key, owner in journal.owners.items()])


def _write_xids(connection: Connection, journal: Journal) -> None:
    """Write the rows; keep only the newest of each Gpu and Xid."""
    _replace(connection, "xids", [(*row[:7], session) for row, session in journal.xids.values()])
    for key in sorted({(row.uuid, row.xid) for row, _ in journal.xids.values()}):
        connection.execute(_DROP_XIDS, (*key, *key, KEPT_ROWS))


def load_ledger(connection: Connection) -> StoredLedger:
    """Load everything that continues.

    Raises sqlite3.Error, ValueError, KeyError or TypeError for damaged tables.
    """
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    elapsed = float(meta.get("elapsed", 0.0))
    devices = devices_from_rows(connection.execute("SELECT * FROM devices").fetchall())
    floors = _floors(connection)
    series, owners = _series(connection, devices, elapsed), _owners(connection, devices, elapsed)
    time_series = {uuid: found.pop(TIME) for uuid, found in series.items() if TIME in found}
    gpus = {}
    for row in connection.execute("SELECT * FROM gpus").fetchall():
        uuid, life, boot, driver, opening, booked, last, last_at, refresh, *more = row
        epoch = Epoch(boot, driver)
        counter = EnergyCounter(epoch, opening, booked, last, last_at, refresh=refresh, epoch_number=life)
        entry = GpuEntry(uuid, counter, *more)
        energy_series = tuple(one for found in series[uuid].values() for one in found)
        gpus[uuid] = StoredGpu(entry, floors[uuid], energy_series, tuple(owners[uuid]))
    opened = connection.execute("SELECT * FROM sessions JOIN usage USING (number) WHERE ended IS NULL")
    allocations = connection.execute("SELECT * FROM handovers WHERE NOT over")
    return StoredLedger(
        gpus,
        _times(connection, devices, time_series),
        tuple(session_from_row(row, devices) for row in opened),
        tuple(allocation_from_row(row, devices) for row in allocations if row[1] in devices),
        elapsed,
        float(meta.get("unix", 0.0)),
        next_number(connection, "sessions"),
        next_number(connection, "spans"),
        next_number(connection, "series"),
        next_number(connection, "handovers"),
        tuple(load_xids(connection)),
        next_number(connection, "xids"),
        float(meta.get(ZERO_HOLD, 0.0)),
        load_usage(connection, devices),
        load_host_periods(connection),
    )


def load_xids(connection: Connection) -> Iterator[tuple[XidRow, int | None]]:
    """Load the kept Xids, oldest first, each with the number of the Session of its process."""
    query = """
        SELECT xids.number, xids.gpu, xids.instance, xid, first, last, times, pid, coalesce(command, ''),
            session
        FROM xids LEFT JOIN sessions ON sessions.number = session ORDER BY last, xids.number
    """
    for *row, session in connection.execute(query):
        yield XidRow(*row), session


def _floors(connection: Connection) -> dict[str, dict[str, tuple[QuietPower, QuietPower]]]:
    """Quiet power without and with residents, by Gpu uuid and driver version."""
    found: dict[str, dict[str, tuple[QuietPower, QuietPower]]] = defaultdict(dict)
    for uuid, driver, resident, day, step, seconds in connection.execute("SELECT * FROM floors"):
        quiet = found[uuid].setdefault(driver, (QuietPower(), QuietPower()))[resident]
        quiet.days.setdefault(day, {})[step] = seconds
    return found


def _times(
    connection: Connection, devices: dict[str, Device], series: Mapping[str, Sequence[StoredSeries]]
) -> StoredTimes:
    gpus = {}
    query = """
        SELECT uuid, basis, posted, span, microseconds, base, closed, state, first,
            coalesce(max(last, ends), last, ends)
        FROM gpu_times LEFT JOIN time_spans ON number = span
    """
    for uuid, basis, posted, span, length, base, closed, state, *sights in connection.execute(query):
        time = time_from_fields(devices[uuid].gpu, posted + (length or 0), json.loads(state))
        gpus[uuid] = GpuTimeEntry(time, basis, span, length or 0, base, closed, *sights)
    unnamed = []
    for number, device, text, command, split in connection.execute("SELECT * FROM time_owners"):
        owner = workload_from_text(text) or UNKNOWN
        if owner.pod_uid and not is_named(owner):
            unnamed.append(TimeOwner(number, device, owner, command, split))
    return StoredTimes(
        gpus,
        series,
        dict(connection.execute("SELECT part, number FROM gpu_parts")),
        unnamed,
        next_number(connection, "time_spans"),
        next_number(connection, "time_splits"),
        next_number(connection, "time_owners"),
    )


def _series(
    connection: Connection, devices: dict[str, Device], elapsed: float
) -> dict[str, dict[str, list[StoredSeries]]]:
    """Exported counters by the Gpu's uuid and by book."""
    found: dict[str, dict[str, list[StoredSeries]]] = defaultdict(lambda: defaultdict(list))
    rows = connection.execute("SELECT * FROM series JOIN told USING (number) ORDER BY number")
    for number, book, text, process, born, lasting, amount, measured in rows:
        labels = tuple(json.loads(text))
        labeled = process_from_text(process, devices) if book == ROWS else None
        one = StoredSeries(number, labels, labeled, elapsed - born, bool(lasting), amount, measured)
        found[labels[0]][book].append(one)
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


def restart_counters(connection: Connection) -> None:
    """Let the exported counters of energy and time begin at 0; accounts continue. Raises sqlite3.Error."""
    connection.execute("DELETE FROM series")
    connection.execute("DELETE FROM told")
    connection.execute("DELETE FROM owners")
    connection.execute("UPDATE gpus SET base = total, closed = 0")
    connection.execute(_TIME_FROM_ZERO)

"""What an earlier run left, out of its tables."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING

from gpuledger.ledger.energy.counter import Counter, Epoch
from gpuledger.ledger.energy.floor import QuietPower
from gpuledger.ledger.journal import ROWS
from gpuledger.ledger.kept import Kept, KeptGpu, KeptOwner, KeptSeries
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

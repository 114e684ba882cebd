"""Writes what owners used to the tables, within a transaction of the caller, and reads it back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gpuledger.ledger.journal import Journal, StoredHosts, StoredUsage
from gpuledger.ledger.ownership import owner_fields, owner_from_fields
from gpuledger.ledger.sessions import PAGE
from gpuledger.ledger.store.rows import usage_sums_row
from gpuledger.ledger.store.schema import USAGE_FROM
from gpuledger.ledger.time.account import is_named
from gpuledger.ledger.usage.host_usage import MOST_ENDED, HostPeriod
from gpuledger.ledger.usage.usage_bars import UsageBars
from gpuledger.ledger.usage.usage_cell import BYTES, PEAKS, SUMS, UsageCell
from gpuledger.ledger.usage.usage_period import STARTS, UNKNOWN_START, UsagePeriod, usage_key
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.model.devices import Device
from gpuledger.model.workload import Workload

if TYPE_CHECKING:
    from sqlite3 import Connection

# The owner in rows of earlier versions: the presence of a Device itself.
_DEVICE_ITSELF: Final = "null"
# The columns of a cell, in the order of the schema.
_SIGHTS: Final = ("begins", "ends")
NUMBERS: Final = (*SUMS, *PEAKS, *BYTES)
COLUMNS: Final = (*_SIGHTS, *NUMBERS, "throttled", "bars")
_CHANGES: Final = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS)
WRITE_CELL: Final = (
    f"INSERT INTO {{0}} (quarter, period, {', '.join(COLUMNS)})"
    f" VALUES ({', '.join('?' * (len(COLUMNS) + 2))})"
    f" ON CONFLICT (quarter, period) DO UPDATE SET {_CHANGES}"
)
_WRITE_QUARTER: Final = WRITE_CELL.format("usage_quarters")
_READ_QUARTER: Final = f"SELECT {', '.join(COLUMNS)} FROM usage_quarters WHERE quarter = ? AND period = ?"
_PERIOD: Final = """
INSERT INTO usage_periods VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (number) DO UPDATE SET
    owner = excluded.owner, start = excluded.start, over = excluded.over,
    last_quarter = max(last_quarter, excluded.last_quarter)
"""
_UPDATE_SUMS: Final = (
    "UPDATE usage SET memory_pages = ?, memory_known = ?, active = ?, first_active = ? WHERE number = ?"
)
_LAST_QUARTER: Final = "UPDATE usage_periods SET last_quarter = max(last_quarter, ?) WHERE number = ?"


def write_usage(connection: Connection, journal: Journal) -> None:
    """Write the periods, cells and memory sizes of the journal. Raises sqlite3.Error."""
    periods = [_period_row(one, journal.unix) for one in journal.usage_periods.values()]
    execute_all(connection, _PERIOD, periods)
    execute_all(connection, "REPLACE INTO device_memory VALUES (?, ?)", list(journal.device_memory.items()))
    hosts = [_host_row(one) for one in journal.host_periods.values()]
    execute_all(connection, f"REPLACE INTO host_periods VALUES ({', '.join('?' * 12)})", hosts)
    if journal.is_usage_due:
        _write_cells(connection, journal)
        sums = [usage_sums_row(one) for one in journal.session_sums.values() if one.ended is None]
        execute_all(connection, _UPDATE_SUMS, sums)


def execute_all(connection: Connection, statement: str, values: Sequence[tuple[object, ...]]) -> None:
    """Execute the statement for each row. Most kinds of rows do not change in most ticks."""
    if values:
        connection.executemany(statement, values)


def _write_cells(connection: Connection, journal: Journal) -> None:
    new = [(key, cell) for key, cell in journal.usage_cells.items() if not cell.is_loaded]
    for (quarter, number), cell in new:
        _load_into(connection, cell, number)
        connection.execute(_LAST_QUARTER, (quarter, number))
    if new:
        first = min(quarter for (quarter, _), _ in new)
        connection.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (USAGE_FROM, first))
    rows = [(*key, *cell_columns(cell)) for key, cell in journal.usage_cells.items()]
    connection.executemany(_WRITE_QUARTER, rows)


def _load_into(connection: Connection, cell: UsageCell, number: int) -> None:
    """Add what the table has of the cell: of an earlier run, or from before the clock was set back."""
    row = connection.execute(_READ_QUARTER, (cell.quarter, number)).fetchone()
    if row is not None:
        cell.add(cell_from_row(cell.quarter, row))
    # Also if the transaction fails: the table is then as before.
    cell.is_loaded = True


def cell_columns(cell: UsageCell) -> tuple[object, ...]:
    """The columns of a cell, in the order of COLUMNS."""
    throttled = json.dumps(cell.throttled, separators=(",", ":")) if cell.throttled else "{}"
    return (
        cell.begins,
        cell.ends,
        cell.seen,
        cell.resident,
        cell.allocated,
        cell.shared,
        cell.active,
        cell.inactive,
        cell.sm,
        cell.sm_known,
        cell.busy,
        cell.busy_known,
        cell.memory // PAGE,
        cell.memory_known,
        cell.starts,
        cell.waited,
        cell.throttle_known,
        cell.sm_peak,
        cell.memory_peak,
        cell.pcie_tx,
        cell.pcie_rx,
        cell.nvlink_tx,
        cell.nvlink_rx,
        throttled,
        cell.bars.encoded(),
    )


def cell_from_row(quarter: int, row: Sequence[Any]) -> UsageCell:
    """The inverse of `cell_columns`."""
    begins, ends, *numbers, throttled, bars = row
    found = UsageCell(quarter, begins, ends, bars=UsageBars(bytearray(bars)), is_loaded=True)
    for name, number in zip(NUMBERS, numbers, strict=True):
        setattr(found, name, number)
    found.memory *= PAGE
    found.throttled = json.loads(throttled)
    return found


def owner_text(owner: Workload) -> str:
    """The owner as JSON, without what differs between its processes; without a name, it keeps its ids."""
    if is_named(owner):
        owner = replace(owner, pod_uid="", container_id="", step="", found_by="", missing="")
    return json.dumps(owner_fields(owner), separators=(",", ":"), sort_keys=True)


def owner_from_text(text: str) -> Workload | None:
    """The inverse of `owner_text`; None for a Device itself."""
    return None if text == _DEVICE_ITSELF else owner_from_fields(json.loads(text))


def _period_row(period: UsagePeriod, unix: float) -> tuple[object, ...]:
    quarter = int(unix // QUARTER) if period.cell is None else period.cell.quarter
    device, owner = period.device.uuid, owner_text(period.owner)
    return (period.number, device, owner, period.begins, period.start, int(period.over), quarter)


def _host_row(period: HostPeriod) -> tuple[object, ...]:
    return (
        period.number,
        owner_text(period.owner),
        period.begins,
        period.ends,
        period.cpu,
        period.closed,
        period.memory_peak,
        period.is_sampled,
        period.memory_limit,
        period.cpus,
        period.is_limited,
        period.over,
    )


def load_usage(connection: Connection, devices: Mapping[str, Device]) -> StoredUsage:
    """The presences that continue, and the next number."""
    query = "SELECT number, device, owner, begins, start FROM usage_periods WHERE NOT over"
    found = []
    for number, device, text, begins, start in connection.execute(query):
        owner = owner_from_text(text)
        if device in devices and owner is not None:
            key = usage_key(owner)
            found.append(UsagePeriod(number, devices[device], owner, begins, 0.0, key, _known_start(start)))
    return StoredUsage(tuple(found), next_number(connection, "usage_periods"))


def _known_start(text: str) -> str:
    # The same objects: they are compared by identity.
    return next((one for one in STARTS if one == text), UNKNOWN_START)


def load_host_periods(connection: Connection) -> StoredHosts:
    """The cgroups that continue or can be read again, and the next number."""
    rows = connection.execute(
        "SELECT * FROM host_periods WHERE NOT over OR number IN "
        "(SELECT number FROM host_periods WHERE over ORDER BY ends DESC LIMIT ?) ORDER BY ends, number",
        (MOST_ENDED,),
    )
    return StoredHosts(tuple(host_periods_from_rows(rows)), next_number(connection, "host_periods"))


def host_periods_from_rows(rows: Iterable[Sequence[Any]]) -> list[HostPeriod]:
    """Values of rows of `host_periods`."""
    found = []
    for number, text, begins, ends, cpu, closed, peak, is_sampled, limit, cpus, is_limited, over in rows:
        owner = owner_from_text(text)
        if owner is not None:
            sums = (cpu, closed, peak, bool(is_sampled), limit, cpus, bool(is_limited), bool(over))
            found.append(HostPeriod(number, owner, begins, ends, 0.0, *sums))
    return found


def next_number(connection: Connection, table: str) -> int:
    """The number after the highest one in the table."""
    (highest,) = connection.execute(f"SELECT max(number) FROM {table}").fetchone()
    return (highest or 0) + 1

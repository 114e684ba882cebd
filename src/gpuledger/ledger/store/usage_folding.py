"""Folds what owners used in quarters into hours; no sum changes."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from gpuledger.ledger.store.hour_cells import CellBounds
from gpuledger.ledger.store.usage_tables import COLUMNS, WRITE_CELL, cell_columns, cell_from_row
from gpuledger.ledger.usage.usage_bars import (
    HOUR_BAR_MINUTES,
    QUARTER_BARS,
    UsageBars,
    added_bars,
    no_hour_bars,
)
from gpuledger.ledger.usage.usage_cell import UsageCell

if TYPE_CHECKING:
    from sqlite3 import Connection

_OLD: Final = f"""
SELECT quarter, period, device, owner, {", ".join(f"cell.{name}" for name in COLUMNS)}
    FROM usage_quarters AS cell LEFT JOIN usage_periods ON number = period
    WHERE quarter < ? ORDER BY quarter, period LIMIT ?
"""
# The presence that stands for all of an owner on a Device in a folded hour.
_SAME_OWNER: Final = """
SELECT period FROM usage_hours JOIN usage_periods ON number = period
    WHERE quarter = ? AND device = ? AND owner = ? ORDER BY period LIMIT 1
"""
_READ_HOUR: Final = f"SELECT {', '.join(COLUMNS)} FROM usage_hours WHERE quarter = ? AND period = ?"
_WRITE_HOUR: Final = WRITE_CELL.format("usage_hours")


def fold_usage(connection: Connection, before: int, most: int, cells: CellBounds) -> int:
    """Fold the oldest cells of quarters before this one, at most `most`; return their number.

    Presences of the same owner on a Device within the hour become one. Runs within a transaction of the
    caller. Raises sqlite3.Error.
    """
    rows = connection.execute(_OLD, (before, most)).fetchall()
    folded: dict[tuple[int, int], UsageCell] = {}
    numbers: dict[tuple[int, str, str], int] = {}
    last: dict[int, int] = defaultdict(int)
    for quarter, period, device, owner, *columns in rows:
        hour = cells.begins(quarter)
        number = period
        if device is not None:
            kind = (hour, device, owner)
            if kind not in numbers:
                found = connection.execute(_SAME_OWNER, kind).fetchone()
                numbers[kind] = period if found is None else found[0]
            number = numbers[kind]
        cell = cell_from_row(quarter, columns)
        known = folded.get((hour, number)) or _read_hour(connection, hour, number)
        folded[hour, number] = cell if known is None else known
        _add_quarter(folded[hour, number], cell, hour, is_first=known is None)
        last[number] = max(last[number], quarter)
        connection.execute("DELETE FROM usage_quarters WHERE quarter = ? AND period = ?", (quarter, period))
    connection.executemany(_WRITE_HOUR, [(*key, *cell_columns(cell)) for key, cell in folded.items()])
    connection.executemany(
        "UPDATE usage_periods SET last_quarter = max(last_quarter, ?) WHERE number = ?",
        [(quarter, number) for number, quarter in last.items()],
    )
    return len(rows)


def _read_hour(connection: Connection, hour: int, number: int) -> UsageCell | None:
    row = connection.execute(_READ_HOUR, (hour, number)).fetchone()
    return None if row is None else cell_from_row(hour, row)


def _add_quarter(hour_cell: UsageCell, cell: UsageCell, hour: int, *, is_first: bool) -> None:
    """Add a quarter to its hour. `is_first`: `hour_cell` is the cell itself, and becomes the hour's."""
    bars = no_hour_bars() if is_first else hour_cell.bars.encoded()
    place = (cell.quarter - hour) * QUARTER_BARS
    packed = added_bars(bars, cell.bars.encoded(), place, HOUR_BAR_MINUTES)
    if not is_first:
        hour_cell.add_sums(cell)
    hour_cell.quarter, hour_cell.bars = hour, UsageBars(bytearray(packed))

"""Reports as CSV and JSON for spreadsheets and programs, with full precision."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from math import lcm
from operator import attrgetter
from typing import Any, Final

from gpuledger.ledger.energy.shares import round_shares
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH, SECONDS_PER_HOUR, Prices
from gpuledger.ledger.report.usage_report import ReportLine, UsageReport
from gpuledger.model.session import PROCESS
from gpuledger.model.text import escape_to_one_line


@dataclass(frozen=True, slots=True)
class ReportColumn:
    """`name` is used in CSV and JSON; `digits` suffice for further computations, `shown` is for people.

    `amount` returns the amount of a row, of which `unit` are 1 in the column; None if a row cannot have it.
    People see the column `always`, or if some row has a value; never if not `people`. `scraped` columns are
    only in fleet reports. `metered`: the amount rests on the Gpus' energy, which can be unknown.
    """

    name: str
    heading: str
    digits: int
    shown: int
    amount: Callable[[ReportLine], int | Fraction | None]
    unit: int = 1
    always: bool = False
    people: bool = True
    scraped: bool = False
    metered: bool = False

    def value(self, line: ReportLine) -> Fraction | None:
        """The number of a row in this column."""
        amount = self.amount(line)
        return None if amount is None else Fraction(amount) / self.unit


def report_columns(prices: Prices, *, scraped: bool = False) -> tuple[ReportColumn, ...]:
    """The columns for these prices; prices that are not set have no column."""
    hour = SECONDS_PER_HOUR
    columns = [
        ReportColumn("sessions", "sessions", 0, 0, attrgetter("sessions")),
        ReportColumn("gpu_hours", "GPU-hours", 6, 2, attrgetter("resident"), hour, always=True),
        ReportColumn("held_gpu_hours", "held idle", 6, 2, attrgetter("held"), hour),
        ReportColumn("allocated_gpu_hours", "allocated", 6, 2, attrgetter("allocated"), hour),
        _energy_column("kwh", "kWh", 3, "energy", always=True),
        _energy_column("bound_kwh", "± kWh", 5, "bound", scraped=True),
        _energy_column("measured_kwh", "measured", 3, "measured"),
        _energy_column("apportioned_kwh", "apportioned", 3, "apportioned"),
        _energy_column("low_kwh", "at least", 3, "low", people=False),
        _energy_column("high_kwh", "at most", 3, "high"),
    ]
    if prices.any_price:
        heading, metered = f"cost {prices.currency}".strip(), prices.kwh is not None
        columns.append(ReportColumn("cost", heading, 6, 2, attrgetter("cost"), always=True, metered=metered))
    if prices.co2 is not None:
        columns.append(
            ReportColumn("co2_kg", "kg CO2", 6, 2, attrgetter("grams"), 1000, always=True, metered=True)
        )
    columns.append(ReportColumn("unmetered_gpus", "", 0, 0, lambda line: len(line.unmetered), people=False))
    return tuple(column for column in columns if scraped or not column.scraped)


def _energy_column(name: str, heading: str, shown: int, amount: str, **more: bool) -> ReportColumn:
    """A column of kilowatt-hours: an attribute of ReportLine, None if the row's energy is unknown."""
    value = attrgetter(amount)

    def known(line: ReportLine) -> int | None:
        return value(line) if line.metered else None

    return ReportColumn(name, heading, 9, shown, known, MILLIJOULES_PER_KWH, metered=True, **more)


def round_column(lines: Sequence[ReportLine], column: ReportColumn, digits: int) -> list[Decimal | None]:
    """The column's numbers of these rows, rounded to `digits` so that they sum to the rounded sum.

    Each is within one unit of the last digit of its exact value.
    """
    scale = 10**digits
    exact = {
        number: value * scale
        for number, line in enumerate(lines)
        if (value := column.value(line)) is not None
    }
    if not exact:
        return [None] * len(lines)
    common = lcm(*(value.denominator for value in exact.values()))
    parts = {number: int(value * common) for number, value in exact.items()}
    total = round(Fraction(sum(parts.values()), common))
    units = _spread(total, parts, common)
    return [
        Decimal(units[number]).scaleb(-digits) if number in units else None for number in range(len(lines))
    ]


def _spread(total: int, parts: dict[int, int], common: int) -> dict[int, int]:
    # The rounded total can differ from the exact one by half a unit: the largest row absorbs it.
    largest = max(parts, key=lambda number: (parts[number], -number))
    parts = {**parts, largest: parts[largest] + total * common - sum(parts.values())}
    return round_shares(total, parts, common)


def shown_columns(report: UsageReport) -> tuple[ReportColumn, ...]:
    """The columns with data in this report: without allocations, for example, there is no such column."""
    lines = (*report.lines, *report.gpu_accounts)
    columns = report_columns(report.prices, scraped=report.scraped)
    return tuple(
        column for column in columns if column.always or (column.people and any(map(column.value, lines)))
    )


JSON_VERSION = 1

# Includes the full-width forms, which spreadsheets treat alike.
_FORMULA: Final = re.compile("(?:^|(?<=;))(?=\\s*[=+@\uff1d\uff0b\uff0d\uff20-])")


def as_csv(report: UsageReport) -> str:
    """A header, a row per line, the Gpus' own accounts last: the columns sum to the Gpus' usage.

    Names are escaped with `escape_cell`. `millijoules` is exact; other numbers have the digits of
    `report_columns`.
    """
    lines = (*report.lines, *report.gpu_accounts)
    columns = report_columns(report.prices, scraped=report.scraped)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        (*report.grouping.columns, "account", *(column.name for column in columns), "millijoules")
    )
    for line, numbers in zip(lines, _round_rows(lines, columns), strict=True):
        # Nothing is written as 0: with decimals it would look like a rounded amount.
        cells = ["" if number is None else format(number, "f") if number else "0" for number in numbers]
        names = map(escape_cell, _key(line, report))
        writer.writerow((*names, line.account, *cells, line.energy))
    return out.getvalue()


def as_json(report: UsageReport) -> dict[str, Any]:
    """Plain values, times in ISO 8601 and UTC. Numbers are JSON numbers; millijoules are exact."""
    columns = report_columns(report.prices, scraped=report.scraped)
    prices = report.prices
    return {
        "version": JSON_VERSION,
        "by": report.grouping.name,
        "since": format_time(report.period.since),
        "until": format_time(report.period.until),
        "books_from": format_time(report.period.first),
        "books_until": format_time(report.period.last),
        "settings": {
            "price.kwh": _number(prices.kwh),
            "price.gpu_hour": _number(prices.gpu_hour),
            "price.currency": prices.currency or None,
            "pue": _number(prices.pue),
            "co2.g_per_kwh": _number(prices.co2),
        },
        "rows": _rows(report.lines, columns, report),
        "own": _rows(report.gpu_accounts, columns, report),
        "total": _row(report.total, columns, *_round_rows([report.total], columns)),
        "gpus": [
            {
                "uuid": gpu.uuid,
                "gpu": gpu.index,
                "model": gpu.model,
                "millijoules": gpu.millijoules,
                "observed_hours": None if gpu.observed is None else _hours(gpu.observed),
            }
            for gpu in report.gpus
        ],
        "occupied_gpu_hours": None if report.occupied is None else _hours(report.occupied),
        **({"notes": list(report.notes)} if report.notes else {}),
    }


def row_as_json(report: UsageReport, line: ReportLine) -> dict[str, Any]:
    """The values that `as_json` has for this row of the report."""
    lines = report.lines if line.account == PROCESS else report.gpu_accounts
    columns = report_columns(report.prices, scraped=report.scraped)
    return _rows(lines, columns, report)[lines.index(line)]


def escape_cell(name: str) -> str:
    """Escape a name for a cell: process names are untrusted and could be run by a spreadsheet or terminal.

    A name like a formula gets an apostrophe in front, also after a semicolon, which separates cells in
    locales with a decimal comma. Unprintable characters are escaped.
    """
    return _FORMULA.sub("'", escape_to_one_line(name))


def format_time(unix: float) -> str:
    """A time as `2026-11-28T08:00:00Z`."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _rows(
    lines: Sequence[ReportLine], columns: Sequence[ReportColumn], report: UsageReport
) -> list[dict[str, Any]]:
    rows = []
    for line, numbers in zip(lines, _round_rows(lines, columns), strict=True):
        names = dict(zip(report.grouping.columns, _key(line, report), strict=True))
        rows.append({**names, "account": line.account, **_row(line, columns, numbers)})
    return rows


def _round_rows(
    lines: Sequence[ReportLine], columns: Sequence[ReportColumn]
) -> Iterable[Sequence[Decimal | None]]:
    """The rounded numbers of each row."""
    return zip(*(round_column(lines, column, column.digits) for column in columns), strict=True)


def _row(
    line: ReportLine, columns: Sequence[ReportColumn], numbers: Sequence[Decimal | None]
) -> dict[str, Any]:
    values = {column.name: _number(number) for column, number in zip(columns, numbers, strict=True)}
    exact = {
        "millijoules": line.energy,
        "high_millijoules": line.high,
        "gpu_microseconds": None if line.resident is None else round(line.resident * 1_000_000),
    }
    if line.bound is not None:
        exact["bound_millijoules"] = line.bound
    return {**values, **exact, "millijoules_by_method": dict(sorted(line.methods.items()))}


def _key(line: ReportLine, report: UsageReport) -> tuple[str, ...]:
    """The cells that name a row; empty for the Gpus' own accounts, which only have an account."""
    width = len(report.grouping.columns)
    return line.key if line.account == PROCESS else ("",) * width


def _hours(seconds: Fraction) -> float:
    return round(float(seconds / SECONDS_PER_HOUR), 6)


def _number(number: Decimal | None) -> int | float | None:
    if number is None:
        return None
    return int(number) if number == number.to_integral_value() else float(number)

"""A report as CSV and JSON: for spreadsheets and programs, with every digit."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from math import lcm
from typing import Any, Final

from gpuledger.ledger.energy.shares import whole
from gpuledger.ledger.report.report import Line, Report
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH, SECONDS_PER_HOUR, Prices
from gpuledger.model.session import PROCESS
from gpuledger.model.text import in_one_line


@dataclass(frozen=True, slots=True)
class Column:
    """`name` is that of CSV and JSON; `digits` are enough to carry on reckoning, `shown` those for people.

    `value` answers None for what a row cannot have. People are shown it `always`, or if some row has any of
    it; not at all unless `people`. What is `scraped` is in no report out of books.
    """

    name: str
    heading: str
    digits: int
    shown: int
    value: Callable[[Line], Fraction | None]
    always: bool = False
    people: bool = True
    scraped: bool = False


def columns(prices: Prices, *, scraped: bool = False) -> tuple[Column, ...]:
    """Those that the prices allow: what is not set has no column."""
    every = [
        Column("sessions", "sessions", 0, 0, lambda line: _fraction(line.sessions)),
        Column("gpu_hours", "GPU-hours", 6, 2, lambda line: _hours_text(line.resident), always=True),
        Column("held_gpu_hours", "held idle", 6, 2, lambda line: _hours_text(line.held)),
        Column("allocated_gpu_hours", "allocated", 6, 2, lambda line: _hours_text(line.allocated)),
        Column("kwh", "kWh", 9, 3, lambda line: _kwh(line.millijoules), always=True),
        Column("bound_kwh", "± kWh", 9, 5, _bound, scraped=True),
        Column("measured_kwh", "measured", 9, 3, lambda line: _kwh(line.measured)),
        Column("apportioned_kwh", "apportioned", 9, 3, lambda line: _kwh(line.apportioned)),
        Column("low_kwh", "at least", 9, 3, _low, people=False),
        Column("high_kwh", "at most", 9, 3, lambda line: None if line.high is None else _kwh(line.high)),
    ]
    if prices.any_price:
        heading = f"cost {prices.currency}".strip()
        every.append(Column("cost", heading, 6, 2, lambda line: line.cost, always=True))
    if prices.co2 is not None:
        every.append(Column("co2_kg", "kg CO2", 6, 2, lambda line: _kilo(line.grams), always=True))
    return tuple(column for column in every if scraped or not column.scraped)


def rounded(lines: Sequence[Line], column: Column, digits: int) -> list[Decimal | None]:
    """The column's numbers of these rows with so many digits: they sum to the rounded sum, as whoever adds
    them up expects, and each is within one unit of the last digit of what it is.
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
    # The rounded total may be off the exact one by half a unit: the largest row bears it.
    largest = max(parts, key=lambda number: (parts[number], -number))
    parts = {**parts, largest: parts[largest] + total * common - sum(parts.values())}
    return whole(total, parts, common)


def shown_columns(report: Report) -> tuple[Column, ...]:
    """Those that say something in this report: a machine without allocations has no such column."""
    lines = (*report.lines, *report.own)
    told = columns(report.prices, scraped=report.scraped)
    return tuple(
        column for column in told if column.always or (column.people and any(map(column.value, lines)))
    )


def _fraction(number: int | None) -> Fraction | None:
    return None if number is None else Fraction(number)


def _hours_text(seconds: Fraction | None) -> Fraction | None:
    return None if seconds is None else seconds / SECONDS_PER_HOUR


def _kwh(millijoules: int) -> Fraction:
    return Fraction(millijoules, MILLIJOULES_PER_KWH)


def _bound(line: Line) -> Fraction | None:
    return None if line.bound is None else _kwh(line.bound)


def _low(line: Line) -> Fraction | None:
    # What the Gpu's own accounts have is not bounded: it is nobody's bill.
    return None if line.high is None else _kwh(line.measured)


def _kilo(grams: Fraction | None) -> Fraction | None:
    return None if grams is None else grams / 1000


JSON_VERSION = 1

# The full-width ones are taken for the others where they are in use.
_FORMULA: Final = re.compile("(?:^|(?<=;))(?=\\s*[=+@\uff1d\uff0b\uff0d\uff20-])")


def as_csv(report: Report) -> str:
    """A header, a row per line, the Gpus' own accounts last: the columns sum to what the Gpus used.

    Names are `harmless`.
    `millijoules` is exact; the other numbers have the digits of `columns`.
    """
    lines = (*report.lines, *report.own)
    told = columns(report.prices, scraped=report.scraped)
    numbers = [rounded(lines, column, column.digits) for column in told]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*report.grouping.columns, "account", *(column.name for column in told), "millijoules"))
    for place, line in enumerate(lines):
        cells = ["" if values[place] is None else _plain(values[place]) for values in numbers]
        names = map(harmless, _key(line, report))
        writer.writerow((*names, line.account, *cells, line.millijoules))
    return out.getvalue()


def as_json(report: Report) -> dict[str, Any]:
    """Plain values, times in ISO 8601 and UTC. Numbers are JSON numbers; millijoules are exact."""
    told = columns(report.prices, scraped=report.scraped)
    prices = report.prices
    return {
        "version": JSON_VERSION,
        "by": report.grouping.name,
        "since": iso(report.period.since),
        "until": iso(report.period.until),
        "books_from": iso(report.period.first),
        "books_until": iso(report.period.last),
        "settings": {
            "price.kwh": _number(prices.kwh),
            "price.gpu_hour": _number(prices.gpu_hour),
            "price.currency": prices.currency or None,
            "pue": _number(prices.pue),
            "co2.g_per_kwh": _number(prices.co2),
        },
        "rows": _rows(report.lines, told, report),
        "own": _rows(report.own, told, report),
        "total": _row(report.total, told, [_exact(report.total, column) for column in told]),
        "gpus": [
            {
                "uuid": gpu.uuid,
                "gpu": gpu.index,
                "model": gpu.model,
                "millijoules": gpu.millijoules,
                "observed_hours": _hours(gpu.observed),
            }
            for gpu in report.gpus
        ],
        "occupied_gpu_hours": None if report.occupied is None else _hours(report.occupied),
        **({"notes": list(report.notes)} if report.notes else {}),
    }


def harmless(name: str) -> str:
    """A name for a cell: anybody may name a process so that a spreadsheet runs it or a terminal obeys it.

    What begins like a formula has an apostrophe before it, also behind a semicolon: there a cell begins for
    spreadsheets of countries in which the comma is in numbers. What cannot be printed is spelled out.
    """
    return _FORMULA.sub("'", in_one_line(name))


def iso(unix: float) -> str:
    """A moment as `2026-11-28T08:00:00Z`."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _rows(lines: Sequence[Line], told: Sequence[Column], report: Report) -> list[dict[str, Any]]:
    numbers = [rounded(lines, column, column.digits) for column in told]
    rows = []
    for place, line in enumerate(lines):
        names = dict(zip(report.grouping.columns, _key(line, report), strict=True))
        own = {"account": line.account}
        rows.append({**names, **own, **_row(line, told, [values[place] for values in numbers])})
    return rows


def _row(line: Line, told: Sequence[Column], numbers: Sequence[Decimal | None]) -> dict[str, Any]:
    values = {column.name: _number(number) for column, number in zip(told, numbers, strict=True)}
    exact = {"millijoules": line.millijoules, "high_millijoules": line.high}
    if line.bound is not None:
        exact["bound_millijoules"] = line.bound
    return {**values, **exact, "millijoules_by_method": dict(sorted(line.methods.items()))}


def _exact(line: Line, column: Column) -> Decimal | None:
    return rounded([line], column, column.digits)[0]


def _key(line: Line, report: Report) -> tuple[str, ...]:
    """The cells that name a row; the Gpus' own accounts have no name but their account."""
    width = len(report.grouping.columns)
    return line.key if line.account == PROCESS else ("",) * width


def _hours(seconds: Fraction) -> float:
    return round(float(seconds / SECONDS_PER_HOUR), 6)


def _plain(number: Decimal | None) -> str:
    return "" if number is None else format(number, "f")


def _number(number: Decimal | None) -> int | float | None:
    if number is None:
        return None
    return int(number) if number == number.to_integral_value() else float(number)

"""The columns of a report: what each says, in which unit, and how its numbers are rounded and still sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import lcm

from gpuledger.ledger.energy.rounding import whole
from gpuledger.ledger.report.report import Line, Report
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH, SECONDS_PER_HOUR, Prices


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
        Column("gpu_hours", "GPU-hours", 6, 2, lambda line: _hours(line.resident), always=True),
        Column("held_gpu_hours", "held idle", 6, 2, lambda line: _hours(line.held)),
        Column("allocated_gpu_hours", "allocated", 6, 2, lambda line: _hours(line.allocated)),
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


def _hours(seconds: Fraction | None) -> Fraction | None:
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

"""The exact amounts of the lines of an explanation by column: each column sums to that of the row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gpuledger.ledger.energy.booking import MEASURED
from gpuledger.ledger.report.charges import MICROSECONDS_PER_HOUR, Rate
from gpuledger.ledger.report.explain_intervals import Interval, SpreadLine, TimeInterval
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH


class ExactAmount(NamedTuple):
    """A column, and the amount as a fraction: fractions of integers are faster than Fraction."""

    column: str
    numerator: int
    denominator: int


def time_costs(one: TimeInterval) -> Iterator[ExactAmount]:
    """The cost of GPU time, if it has a price."""
    yield from _cost("time_cost", one.rate, one.microseconds, MICROSECONDS_PER_HOUR)


def energy_costs(one: Interval) -> Iterator[ExactAmount]:
    """The cost of energy, if it has a price."""
    yield from _cost("energy_cost", one.rate, one.millijoules, MILLIJOULES_PER_KWH)


def spread_costs(one: SpreadLine) -> Iterator[ExactAmount]:
    """The cost of idle time or energy that the row is charged for, if it has a price."""
    name, size = _kind(one)
    yield from _cost(name, one.rate, one.amount, size)


def time_amounts(one: TimeInterval) -> Iterator[ExactAmount]:
    """All amounts of billed time."""
    hour = MICROSECONDS_PER_HOUR
    yield ExactAmount("gpu_hours", one.microseconds, hour)
    yield ExactAmount("estimated_gpu_hours", one.estimated, hour)
    yield ExactAmount("unpriced_gpu_hours", one.microseconds if _is_unpriced(one.rate) else 0, hour)
    yield from _cost("cost", one.rate, one.microseconds, hour)
    yield from time_costs(one)


def energy_amounts(one: Interval) -> Iterator[ExactAmount]:
    """All amounts of energy."""
    kwh, used = MILLIJOULES_PER_KWH, one.millijoules
    measured = used if one.method == MEASURED else 0
    yield ExactAmount("kwh", used, kwh)
    yield ExactAmount("measured_kwh", measured, kwh)
    yield ExactAmount("apportioned_kwh", used - measured, kwh)
    yield ExactAmount("low_kwh", measured, kwh)
    yield ExactAmount("unpriced_kwh", used if _is_unpriced(one.rate) else 0, kwh)
    yield from _cost("cost", one.rate, used, kwh)
    yield from energy_costs(one)


def spread_amounts(one: SpreadLine) -> Iterator[ExactAmount]:
    """All amounts of idle time or energy that the row is charged for."""
    _, size = _kind(one)
    if _is_unpriced(one.rate):
        yield ExactAmount("unpriced_gpu_hours" if one.is_time else "unpriced_kwh", one.amount, size)
    yield from _cost("cost", one.rate, one.amount, size)
    yield from spread_costs(one)


def _kind(one: SpreadLine) -> tuple[str, int]:
    return ("time_cost", MICROSECONDS_PER_HOUR) if one.is_time else ("energy_cost", MILLIJOULES_PER_KWH)


def _cost(column: str, rate: Rate | None, amount: int, size: int) -> Iterator[ExactAmount]:
    if rate is not None and rate.price is not None:
        price = rate.price
        yield ExactAmount(column, amount * price.numerator, size * price.denominator)


def _is_unpriced(rate: Rate | None) -> bool:
    return rate is not None and rate.price is None

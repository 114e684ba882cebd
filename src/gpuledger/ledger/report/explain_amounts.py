"""Rounds the amounts of the intervals of an explanation, so that they sum to those of the row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from gpuledger.ledger.energy.booking import MEASURED
from gpuledger.ledger.report.charges import MICROSECONDS_PER_HOUR, Rate
from gpuledger.ledger.report.explain import Explanation, Interval, SpreadLine, TimeInterval
from gpuledger.ledger.report.money import FILE_DIGITS, round_decimal, split_known, split_rounded
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH

Costs = Sequence[Decimal | None]


@dataclass(frozen=True, slots=True)
class RoundedCosts:
    """Rounded costs of intervals, and of what `price.idle: spread` adds; they sum to those of the row."""

    time: Costs
    energy: Costs
    time_spread: Costs
    energy_spread: Costs


def rounded_costs(found: Explanation, numbers: Mapping[str, Decimal | None]) -> RoundedCosts:
    """The costs of the intervals. `numbers` are the rounded ones of the row."""
    spread = [[one for one in found.spread if one.is_time is is_time] for is_time in (True, False)]
    time, time_spread = _split(numbers.get("time_cost"), found.time_intervals, spread[0])
    energy, energy_spread = _split(numbers.get("energy_cost"), found.intervals, spread[1])
    return RoundedCosts(time, energy, time_spread, energy_spread)


def _split(
    total: Decimal | None,
    intervals: Sequence[TimeInterval] | Sequence[Interval],
    spread: Sequence[SpreadLine],
) -> tuple[Costs, Costs]:
    """Costs that sum to the rounded total; None for what has no price."""
    exact = [*(one.cost for one in intervals), *(one.cost for one in spread)]
    if total is None:
        costs = [None if cost is None else round_decimal(cost, FILE_DIGITS) for cost in exact]
    else:
        costs = split_known(total, exact, FILE_DIGITS)
    return costs[: len(intervals)], costs[len(intervals) :]


def spread_costs(found: Explanation, costs: RoundedCosts) -> list[dict[str, Decimal | None]]:
    """The cost of each line of `spread`, by column."""
    time, energy = iter(costs.time_spread), iter(costs.energy_spread)
    return [
        {"time_cost": next(time)} if one.is_time else {"energy_cost": next(energy)} for one in found.spread
    ]


# Amounts of one line of the CSV by column, rounded so that each column sums to the row's.
Cells = Mapping[str, Decimal]


class IntervalCells(NamedTuple):
    """The cells of `time_intervals`, `intervals` and `spread`."""

    time: Sequence[Cells]
    energy: Sequence[Cells]
    spread: Sequence[Cells]


def interval_cells(
    found: Explanation, numbers: Mapping[str, Decimal | None], digits: Mapping[str, int]
) -> IntervalCells:
    """The amounts of each interval. `numbers` are the rounded ones of the row, with these digits."""
    costs = rounded_costs(found, numbers)
    by_line: list[dict[str, Decimal]] = [
        *(_known("time_cost", cost) for cost in costs.time),
        *(_known("energy_cost", cost) for cost in costs.energy),
        *(_known(*item) for line in spread_costs(found, costs) for item in line.items()),
    ]
    exact = [
        *(({} if found.unbilled else _exact_time(one)) for one in found.time_intervals),
        *(_exact_energy(one) for one in found.intervals),
        *(_exact_spread(one) for one in found.spread),
    ]
    for name in sorted({name for amounts in exact for name in amounts}):
        total = numbers.get(name)
        if total is None:
            continue
        places = [place for place, amounts in enumerate(exact) if name in amounts]
        rounded = split_rounded(total, [exact[place][name] for place in places], digits[name])
        for place, number in zip(places, rounded, strict=True):
            by_line[place][name] = number
    time, energy = len(found.time_intervals), len(found.time_intervals) + len(found.intervals)
    return IntervalCells(by_line[:time], by_line[time:energy], by_line[energy:])


def _known(name: str, cost: Decimal | None) -> dict[str, Decimal]:
    return {} if cost is None else {name: cost}


def _exact_time(one: TimeInterval) -> dict[str, Fraction]:
    """The amounts of billed time, by column."""
    hours = Fraction(one.microseconds, MICROSECONDS_PER_HOUR)
    amounts = {
        "gpu_hours": hours,
        "estimated_gpu_hours": Fraction(one.estimated, MICROSECONDS_PER_HOUR),
        "unpriced_gpu_hours": hours if _is_unpriced(one.rate) else Fraction(0),
    }
    return amounts if one.cost is None else {**amounts, "cost": one.cost}


def _exact_energy(one: Interval) -> dict[str, Fraction]:
    """The amounts of energy, by column."""
    kwh, none = Fraction(one.millijoules, MILLIJOULES_PER_KWH), Fraction(0)
    measured = kwh if one.method == MEASURED else none
    amounts = {
        "kwh": kwh,
        "measured_kwh": measured,
        "apportioned_kwh": kwh - measured,
        "low_kwh": measured,
        "unpriced_kwh": kwh if _is_unpriced(one.rate) else none,
    }
    return amounts if one.cost is None else {**amounts, "cost": one.cost}


def _exact_spread(one: SpreadLine) -> dict[str, Fraction]:
    """The amounts of idle time or energy that the row is charged for, by column."""
    if one.rate.price is not None:
        return {"cost": one.cost}
    if one.is_time:
        return {"unpriced_gpu_hours": Fraction(one.amount, MICROSECONDS_PER_HOUR)}
    return {"unpriced_kwh": Fraction(one.amount, MILLIJOULES_PER_KWH)}


def _is_unpriced(rate: Rate | None) -> bool:
    return rate is not None and rate.price is None

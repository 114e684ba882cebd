"""Charges: amounts of time and energy by the price that applied to them, and their exact cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH, SECONDS_PER_HOUR
from gpuledger.ledger.watched_time import MICRO

MICROSECONDS_PER_HOUR = SECONDS_PER_HOUR * MICRO


class Rate(NamedTuple):
    """The price of an hour of a whole Gpu, or of a kilowatt-hour with its overhead (pue).

    `gpu` is the uuid of the Gpu that was used. `entry` identifies the entry of the price list, and `price` is
    None if no entry matched: the amount is unpriced. `pue` is the overhead in a price of energy.
    """

    gpu: str
    entry: str = ""
    price: Fraction | None = None
    pue: Fraction = Fraction(1)

    def __hash__(self) -> int:
        # Fractions are slow to hash, and reports hash rates once per share of energy.
        return hash((self.gpu, self.entry))


# Microseconds or millijoules by rate.
Charges = Mapping[Rate, int]


def time_cost(charges: Charges | None) -> Fraction | None:
    """The cost of the priced microseconds; None if time has no price at all."""
    return None if charges is None else _priced(charges) / MICROSECONDS_PER_HOUR


def energy_cost(charges: Charges | None) -> Fraction | None:
    """The cost of the priced millijoules; None if energy has no price at all, or is unknown."""
    return None if charges is None else _priced(charges) / MILLIJOULES_PER_KWH


def unpriced_amount(charges: Charges | None) -> int:
    """The amount that no entry of the price list matched."""
    return sum(amount for rate, amount in (charges or {}).items() if rate.price is None)


def sum_charges(summed: Iterable[Charges | None]) -> Charges | None:
    """The sum by rate; None if none of them has a price."""
    total: dict[Rate, int] | None = None
    for charges in summed:
        if charges is not None:
            total = {} if total is None else total
            for rate, amount in charges.items():
                total[rate] = total.get(rate, 0) + amount
    return total


def _priced(charges: Charges) -> Fraction:
    # Few prices have many rates: sums of integers are faster than sums of fractions.
    by_price: dict[Fraction, int] = {}
    for rate, amount in charges.items():
        if rate.price is not None:
            by_price[rate.price] = by_price.get(rate.price, 0) + amount
    return sum((price * amount for price, amount in by_price.items()), Fraction(0))

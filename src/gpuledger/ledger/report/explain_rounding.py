"""Rounds the amounts of lists by largest remainder so that they sum to a total, without holding the lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from math import gcd
from typing import NamedTuple

from gpuledger.ledger.report.money import decimal_of_units, half_up


class RoundedPart(NamedTuple):
    """One amount: its whole units, the remainder as a fraction, and how many equal remainders precede it."""

    units: int
    remainder: tuple[int, int]
    rank: int


class ListColumn:
    """A column of one list. Add all amounts, call `settle_column`, then read their numbers.

    To read a list a second time, add its amounts again in the same order.
    """

    def __init__(self, digits: int) -> None:
        self._digits = digits
        self.scale = 10**digits
        self.units = 0
        self.remainders: Counter[tuple[int, int]] = Counter()
        # Remainders above this one are rounded up, and the first `_ties` equal ones.
        self._lowest: tuple[int, int] | None = None
        self._ties = 0

    def add(self, numerator: int, denominator: int) -> RoundedPart:
        """Add an exact amount."""
        units, left = divmod(numerator * self.scale, denominator)
        common = gcd(left, denominator)
        remainder = (left // common, denominator // common)
        rank = self.remainders[remainder]
        self.remainders[remainder] = rank + 1
        self.units += units
        return RoundedPart(units, remainder, rank)

    def settle(self, lowest: tuple[int, int] | None, ties: int) -> Decimal:
        """Set which remainders are rounded up; return the sum of the numbers, and begin again."""
        self._lowest, self._ties = lowest, ties
        above = (count for one, count in self.remainders.items() if self._is_up(RoundedPart(0, one, ties)))
        total = decimal_of_units(self.units + sum(above) + ties, self._digits)
        self.units, self.remainders = 0, Counter()
        return total

    def number(self, part: RoundedPart) -> Decimal:
        """The rounded amount."""
        return decimal_of_units(part.units + self._is_up(part), self._digits)

    def _is_up(self, part: RoundedPart) -> bool:
        if self._lowest is None:
            return False
        if part.remainder == self._lowest:
            return part.rank < self._ties
        (one, whole), (lowest, of) = part.remainder, self._lowest
        return one * of > lowest * whole


def settle_column(lists: Sequence[ListColumn], total: Decimal | None) -> list[Decimal]:
    """Round one column of several lists so that it sums to the total; return the sum of each list.

    Of equal remainders the first is rounded up. None is the exact sum, rounded half up.
    """
    counts: Counter[tuple[int, int]] = Counter()
    for one in lists:
        counts.update(one.remainders)
    floors = sum(one.units for one in lists)
    unit = lists[0].scale
    rest = sum((Fraction(*remainder) * count for remainder, count in counts.items()), Fraction(0))
    missing = (half_up(floors + rest) if total is None else int(Fraction(total) * unit)) - floors
    lowest: tuple[int, int] | None = None
    for remainder in sorted(counts, key=lambda one: Fraction(*one), reverse=True) if missing else ():
        lowest = remainder
        if missing <= counts[remainder]:
            break
        missing -= counts[remainder]
    totals = []
    for one in lists:
        ties = min(missing, one.remainders[lowest]) if lowest else 0
        missing -= ties
        totals.append(one.settle(lowest, ties))
    return totals

"""Money in decimals: exact amounts are rounded only where they are written, so that they add up to the total.

Ties are decided by the order of the amounts: callers pass them in an order that does not depend on the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor

from gpuledger.ledger.energy.shares import round_parts

# Digits of money in files; a table for people has two.
FILE_DIGITS = 10
TABLE_DIGITS = 2


def split_decimals(parts: Sequence[Fraction], digits: int) -> list[Decimal]:
    """Round amounts to `digits` decimals by largest remainder; they sum to the exact sum, rounded half up."""
    return split_rounded(round_decimal(sum(parts, Fraction(0)), digits), parts, digits)


def split_rounded(total: Decimal, parts: Sequence[Fraction], digits: int) -> list[Decimal]:
    """Round amounts to `digits` decimals so that they sum to this total, which has no more decimals.

    The total is within one unit of the last digit of the exact sum.
    """
    unit = 10**digits
    rounded = round_parts(int(Fraction(total) * unit), [part * unit for part in parts])
    return [decimal_of_units(amount, digits) for amount in rounded]


def split_known(total: Decimal, parts: Sequence[Fraction | None], digits: int) -> list[Decimal | None]:
    """Round the known amounts as `split_rounded` does; the others remain None."""
    rounded = iter(split_rounded(total, [part for part in parts if part is not None], digits))
    return [None if part is None else next(rounded) for part in parts]


def round_decimal(amount: Fraction, digits: int) -> Decimal:
    """One amount with `digits` decimals, rounded half up."""
    return decimal_of_units(half_up(amount * 10**digits), digits)


def round_up(amount: Fraction, digits: int) -> Decimal:
    """The least decimal with `digits` decimals that is not below the amount: an upper bound remains one."""
    return decimal_of_units(ceil(amount * 10**digits), digits)


def exact_text(amount: Fraction, digits: int) -> str:
    """One amount without trailing zeros, with at most `digits` decimals: 0.3, 1200."""
    text = format(round_decimal(amount, digits), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def half_up(amount: Fraction) -> int:
    """The nearest integer, of two the larger."""
    return floor(amount + Fraction(1, 2))


def decimal_of_units(units: int, digits: int) -> Decimal:
    """An amount in units of its last digit, as a decimal."""
    # From text: arithmetic of decimals rounds to 28 digits.
    return Decimal(f"{units}e-{digits}")

"""Rounding of money: by largest remainder, so that the parts add up to the rounded total."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from math import ceil, floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.report.money import (
    FILE_DIGITS,
    TABLE_DIGITS,
    exact_text,
    round_decimal,
    round_up,
    split_decimals,
    split_rounded,
)

AMOUNTS = st.lists(st.fractions(min_value=0, max_value=10**12), max_size=12)
DIGITS = st.sampled_from((0, TABLE_DIGITS, FILE_DIGITS))


def split(digits: int, *parts: Fraction) -> list[str]:
    return [f"{part:f}" for part in split_decimals(parts, digits)]


def test_t22_equal_thirds_of_ten_cents() -> None:
    thirds = [Fraction(1, 30)] * 3
    assert split(FILE_DIGITS, *thirds) == ["0.0333333334", "0.0333333333", "0.0333333333"]
    assert split(TABLE_DIGITS, *thirds) == ["0.04", "0.03", "0.03"]


@pytest.mark.parametrize(
    ("digits", "parts", "rounded"),
    [
        (2, [], []),
        (2, ["0"], ["0.00"]),
        (2, ["0.005"], ["0.01"]),
        (2, ["0.0049"], ["0.00"]),
        # The largest remainder is rounded up, whatever its position; equal ones in their order.
        (2, ["0.001", "0.009"], ["0.00", "0.01"]),
        (2, ["0.005", "0.005"], ["0.01", "0.00"]),
        (0, ["0.75", "0.75"], ["1", "1"]),
        # More digits than decimal arithmetic keeps by default.
        (10, ["1234567890123456789012.0000000001"], ["1234567890123456789012.0000000001"]),
    ],
)
def test_parts_are_rounded_by_largest_remainder(digits: int, parts: list[str], rounded: list[str]) -> None:
    assert split(digits, *map(Fraction, parts)) == rounded


@given(AMOUNTS, DIGITS)
def test_rounded_parts_sum_to_the_rounded_total(parts: list[Fraction], digits: int) -> None:
    total = sum(parts, Fraction(0))
    found = [Fraction(part) for part in split_decimals(parts, digits)]
    assert sum(found) == Fraction(round_decimal(total, digits))


@given(AMOUNTS, DIGITS)
def test_a_rounded_part_is_at_most_one_digit_off_and_nothing_is_nothing(
    parts: list[Fraction], digits: int
) -> None:
    found = split_decimals(parts, digits)
    for exact, rounded in zip(parts, found, strict=True):
        assert abs(Fraction(rounded) - exact) < Fraction(1, 10**digits)
        assert exact or not rounded
        assert rounded.as_tuple().exponent == -digits


@pytest.mark.parametrize(
    ("amount", "rounded"), [("0.125", "0.13"), ("0.1249", "0.12"), ("7", "7.00"), ("-0.125", "-0.12")]
)
def test_one_amount_is_rounded_half_up(amount: str, rounded: str) -> None:
    assert f"{round_decimal(Fraction(amount), 2):f}" == rounded


@pytest.mark.parametrize(
    ("amount", "rounded"), [("0.121", "0.13"), ("0.12", "0.12"), ("0", "0.00"), ("0.0000001", "0.01")]
)
def test_an_upper_bound_is_rounded_up(amount: str, rounded: str) -> None:
    assert f"{round_up(Fraction(amount), 2):f}" == rounded


@given(AMOUNTS, DIGITS)
def test_no_rounded_part_is_above_its_rounded_bound(parts: list[Fraction], digits: int) -> None:
    for exact, rounded in zip(parts, split_decimals(parts, digits), strict=True):
        assert rounded <= round_up(exact, digits)


@given(AMOUNTS, DIGITS, st.booleans())
def test_parts_are_rounded_to_a_total_that_was_rounded_with_others(
    parts: list[Fraction],
    digits: int,
    up: bool,
) -> None:
    exact = sum(parts, Fraction(0)) * 10**digits
    total = Decimal(f"{ceil(exact) if up else floor(exact)}e-{digits}")
    rounded = split_rounded(total, parts, digits)
    assert sum(map(Fraction, rounded)) == (Fraction(total) if parts else 0)
    for number, part in zip(rounded, parts, strict=True):
        assert abs(Fraction(number) - part) <= Fraction(1, 10**digits)


def test_negative_parts_sum_to_the_total() -> None:
    parts = [Fraction(1, 3), Fraction(-1, 7), Fraction(1, 3)]
    assert sum(split_rounded(Decimal("0.52"), parts, 2)) == Decimal("0.52")


@pytest.mark.parametrize(
    ("amount", "text"),
    [("0", "0"), ("0.30", "0.3"), ("1200", "1200"), ("1/3", "0.3333333333"), ("-0.5", "-0.5")],
)
def test_an_amount_alone_has_no_trailing_zeros(amount: str, text: str) -> None:
    assert exact_text(Fraction(amount), FILE_DIGITS) == text

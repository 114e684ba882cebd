"""Rounding of streamed lists: equal to that of lists in memory."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.report.explain_rounding import ListColumn, settle_column
from gpuledger.ledger.report.money import round_decimal, split_rounded

AMOUNTS = st.lists(st.tuples(st.integers(-50, 5000), st.sampled_from([1, 3, 7, 900])), max_size=30)


@given(AMOUNTS, AMOUNTS, st.integers(0, 3))
def test_a_column_of_two_lists_is_rounded_as_if_all_were_in_memory(
    first: list[tuple[int, int]], second: list[tuple[int, int]], digits: int
) -> None:
    exact = [Fraction(*amount) for amount in (*first, *second)]
    total = round_decimal(sum(exact, Fraction(0)), digits)
    columns = (ListColumn(digits), ListColumn(digits))
    parts = [
        [column.add(*one) for one in amounts]
        for column, amounts in zip(columns, (first, second), strict=True)
    ]
    sums = settle_column(columns, total)
    numbers = [[column.number(part) for part in own] for column, own in zip(columns, parts, strict=True)]
    assert [*numbers[0], *numbers[1]] == split_rounded(total, exact, digits)
    assert sums == [sum(own, Decimal(0)) for own in numbers]
    # Read a second time.
    again = [
        [column.number(column.add(*one)) for one in amounts]
        for column, amounts in zip(columns, (first, second), strict=True)
    ]
    assert again == numbers


@pytest.mark.parametrize(
    ("total", "numbers"),
    [(None, ["0.4", "0.3", "0.3"]), (Decimal("1.0"), ["0.4", "0.3", "0.3"]), (Decimal("0.9"), ["0.3"] * 3)],
    ids=["the exact sum", "rounded up in the report", "rounded down in the report"],
)
def test_the_total_decides_how_many_are_rounded_up(total: Decimal | None, numbers: list[str]) -> None:
    column = ListColumn(1)
    parts = [column.add(1, 3) for _ in range(3)]
    assert settle_column([column], total) == [total or Decimal("1.0")]
    assert [str(column.number(part)) for part in parts] == numbers

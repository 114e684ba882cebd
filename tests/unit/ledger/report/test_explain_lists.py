"""Lists of an explanation: the largest lines are kept, all lines are read again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.report.charges import Rate
from gpuledger.ledger.report.explain_amounts import time_amounts
from gpuledger.ledger.report.explain_intervals import TimeInterval
from gpuledger.ledger.report.explain_lists import ShownLines, StreamedList, TimeSums

HOUR = 3_600_000_000
RATES = [
    None,
    Rate("GPU-0", "a", Fraction(1, 7)),
    Rate("GPU-0", "b", Fraction("2.41")),
    Rate("GPU-0", "none"),
]
DIGITS = {"gpu_hours": 3, "time_cost": 2, "cost": 2}
LINES = st.lists(st.tuples(st.integers(1, 3 * HOUR), st.sampled_from(RATES)), max_size=20)


def lines(amounts: Iterable[tuple[int, Rate | None]]) -> list[TimeInterval]:
    return [
        TimeInterval(float(place), place + 1.0, "0 GPU-0", "", amount, amount, rate=rate)
        for place, (amount, rate) in enumerate(amounts)
    ]


def streamed(every: list[TimeInterval], limit: int) -> tuple[StreamedList[TimeInterval], TimeSums]:
    sums = TimeSums()
    return StreamedList(lambda: iter(every), sums, time_amounts, DIGITS, limit), sums


@given(LINES, st.integers(1, 25))
def test_the_lines_of_a_limit_are_the_largest_with_the_numbers_of_all(
    amounts: list[tuple[int, Rate | None]], limit: int
) -> None:
    every = lines(amounts)
    (few, few_sums), (whole, sums) = streamed(every, limit), streamed(every, 0)
    assert few_sums.microseconds == sums.microseconds == sum(one.microseconds for one in every)
    total = sum((Fraction(one.microseconds, HOUR) for one in every), Fraction(0))
    numbers = {"gpu_hours": Decimal(round(total * 1000)) / 1000}
    for one in (few, whole):
        StreamedList.settle([one], numbers)
    rounded = list(whole.rounded())
    largest = sorted(range(len(every)), key=lambda place: (-every[place].microseconds, place))[:limit]
    shown = ShownLines(few, lambda one: one.microseconds)
    assert list(shown) == [rounded[place] for place in sorted(largest)]
    for name, rest in shown.omitted.items():
        left = [
            cells.get(name, Decimal(0)) for place, (_, cells) in enumerate(rounded) if place not in largest
        ]
        assert rest == sum(left, Decimal(0))


def test_all_lines_are_read_again_and_none_is_kept() -> None:
    reads: list[int] = []

    def read() -> Iterator[TimeInterval]:
        reads.append(1)
        yield from lines([(HOUR, RATES[1])] * 3)

    found = StreamedList(read, TimeSums(), time_amounts, DIGITS)
    StreamedList.settle([found], {})
    assert found.count == len(list(found.rounded())) == 3
    assert len(reads) == 2


@pytest.mark.parametrize("limit", [0, 2])
def test_a_column_without_a_number_in_the_row_is_left_out_except_costs(limit: int) -> None:
    found, _ = streamed(lines([(HOUR, RATES[2])] * 2), limit)
    StreamedList.settle([found], {"gpu_hours": None})
    assert [cells for _, cells in found.rounded()] == [
        {"cost": Decimal("2.41"), "time_cost": Decimal("2.41")}
    ] * 2

"""The exact amounts of the lines of an explanation, by column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

import pytest

from gpuledger.ledger.report.charges import MICROSECONDS_PER_HOUR, Rate
from gpuledger.ledger.report.explain_amounts import ExactAmount, spread_amounts
from gpuledger.ledger.report.explain_intervals import SpreadLine
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH

PRICED, UNPRICED = Rate("GPU-0", "all", Fraction(2)), Rate("GPU-0")
TIME, ENERGY = 3 * MICROSECONDS_PER_HOUR, MILLIJOULES_PER_KWH // 2


def by_column(amounts: Iterable[ExactAmount]) -> dict[str, Fraction]:
    return {one.column: Fraction(one.numerator, one.denominator) for one in amounts}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (SpreadLine(PRICED, True, TIME), {"cost": 6, "time_cost": 6}),
        (SpreadLine(PRICED, False, ENERGY), {"cost": 1, "energy_cost": 1}),
        (SpreadLine(UNPRICED, True, TIME), {"unpriced_gpu_hours": 3}),
        (SpreadLine(UNPRICED, False, ENERGY), {"unpriced_kwh": Fraction(1, 2)}),
    ],
)
def test_idle_that_a_row_is_charged_for_has_a_cost_or_no_price(
    line: SpreadLine, expected: Mapping[str, Fraction]
) -> None:
    assert by_column(spread_amounts(line)) == expected

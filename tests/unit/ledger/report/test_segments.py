"""Segments of a range: the sentences on full hours for spread idle time, and the rates of a node."""

from __future__ import annotations

from datetime import UTC
from zoneinfo import ZoneInfo

import pytest

from gpuledger.ledger.report.prices import PriceList
from gpuledger.ledger.report.ranges import ReportRange
from gpuledger.ledger.report.segments import SegmentPrices, full_hour_range
from gpuledger.model.errors import UsageError
from money_helpers import prices

# 2026-12-01 04:30 in Kolkata, where full hours begin 30 minutes after those of UTC.
LATE = 1_796_079_600 // 900
KOLKATA = ZoneInfo("Asia/Kolkata")
EVER = 2e12


@pytest.mark.parametrize(
    ("ends", "last", "until", "note"),
    [
        (
            LATE + 9,
            EVER,
            (LATE + 10) * 900.0,
            "price.idle: spread begins and ends at full hours: the range is from 2026-12-01 05:00 +0530 to "
            "2026-12-01 07:00 +0530.",
        ),
        (
            LATE + 9,
            (LATE + 9) * 900.0 - 60,
            (LATE + 9) * 900.0 - 60,
            "price.idle: spread begins and ends at full hours, or at the last posting: the range is from "
            "2026-12-01 05:00 +0530 to 2026-12-01 06:44 +0530, the last posting.",
        ),
    ],
)
def test_a_moved_range_is_named_with_the_times_of_its_zone(
    ends: int, last: float, until: float, note: str
) -> None:
    given = ReportRange(LATE + 1, ends, min(ends * 900.0, last), KOLKATA, ("Earlier.",))
    found = full_hour_range(given, last, KOLKATA)
    assert found.notes == ("Earlier.", note)
    assert (found.begins, found.until, found.zone) == (LATE + 2, until, KOLKATA)


def test_the_last_posting_in_whole_microseconds_is_the_last_posting() -> None:
    """As a statement has it: the clock has digits below a microsecond."""
    until = (LATE + 9) * 900.0 - 60
    given = ReportRange(LATE + 2, LATE + 9, until, KOLKATA)
    assert full_hour_range(given, until + 3e-7, KOLKATA) == given


def test_a_range_without_a_full_hour_is_refused_with_the_hours_of_its_zone() -> None:
    with pytest.raises(UsageError) as refused:
        full_hour_range(ReportRange(LATE, LATE + 1, (LATE + 1) * 900.0, KOLKATA), EVER, KOLKATA)
    assert str(refused.value) == (
        "price.idle: spread needs full hours, and this range has none: the nearest are "
        "2026-12-01 04:00 +0530 and 2026-12-01 05:00 +0530"
    )


@pytest.mark.parametrize(("node", "pue"), [("n1", 2), ("n2", 3)])
def test_the_rates_of_energy_have_the_overhead_of_their_node(node: str, pue: int) -> None:
    given = prices(kwh=5, co2=7, pue=[{"node": "n1", "value": 2}, {"value": 3}])
    rates = SegmentPrices(PriceList(given, UTC), node, 0)
    assert rates.energy_rate("GPU-0").price == 5 * pue
    assert rates.grams_per_kwh == 7 * pue

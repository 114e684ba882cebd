"""Columns of tokens: ratios of sums, their bounds, and what is not known rather than 0 or infinite."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest

from gpuledger.ledger.energy.booking import MEASURED
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.token_columns import TOKENS_ONLY, token_columns
from gpuledger.ledger.report.token_counts import CountError, TokenCounts
from gpuledger.ledger.report.usage_report import ReportLine, sum_lines

COLUMNS = {column.name: column for column in token_columns(Prices(kwh=Decimal("0.25"), gpu_hour=Decimal(2)))}
PODS = frozenset([("s", "p")])


def line(
    measured: int, apportioned: int = 0, tokens: TokenCounts | None = None, **more: object
) -> ReportLine:
    methods = {MEASURED: measured * 1000, "activity": apportioned * 1000}
    return ReportLine(("m",), methods=methods, tokens=tokens, **more)  # type: ignore[arg-type]


def value(name: str, row: ReportLine) -> float | None:
    found = COLUMNS[name].value(row)
    return None if found is None else float(found)


@pytest.mark.parametrize(
    ("measured", "apportioned", "high", "output", "expected"),
    [
        # A alone for half an hour, then with B, by activity.
        (200_000, 100_000, 600_000, 100_000, (2.0, 3.0, 6.0)),
        (0, 300_000, 400_000, 50_000, (0.0, 6.0, 8.0)),
    ],
)
def test_joules_per_token_of_a_shared_gpu_have_bounds(
    measured: int, apportioned: int, high: int, output: int, expected: tuple[float, float, float]
) -> None:
    row = line(measured, apportioned, TokenCounts(PODS, output=output), high=high * 1000)
    names = ("measured_joules_per_output_token", "joules_per_output_token", "high_joules_per_output_token")
    assert tuple(value(name, row) for name in names) == expected


def test_two_hours_are_a_ratio_of_sums_not_a_mean_of_ratios() -> None:
    rows = [
        line(720_000, 0, TokenCounts(PODS, output=1_000_000)),
        line(216_000, 0, TokenCounts(PODS, output=1000)),
    ]
    assert value("joules_per_output_token", sum_lines(rows, ("m",))) == pytest.approx(0.935065, abs=1e-6)


@pytest.mark.parametrize("tokens", [TokenCounts(PODS), TokenCounts(PODS, input=0, output=0)])
def test_without_tokens_nothing_is_known_per_token(tokens: TokenCounts) -> None:
    row = line(216_000, 0, tokens, time_charges={}, energy_charges={}, bound=5)
    for name in COLUMNS:
        if "per_" in name:
            assert value(name, row) is None, name


def test_the_bound_covers_errors_of_energy_and_of_tokens() -> None:
    def bound(energy: int, error: CountError, name: str = "output") -> Fraction | None:
        counts = TokenCounts(PODS, output=100, output_error=error)
        return COLUMNS[f"bound_joules_per_{name}_token"].value(line(1000, 0, counts, bound=energy))

    assert bound(50_000, CountError(10, 10)) == Fraction(1050, 90) - 10
    # Too few counted tokens make joules per token too high, by less than too many make them too low.
    assert bound(0, CountError(over=10)) == Fraction(1000, 90) - 10
    assert bound(0, CountError(under=10)) == 10 - Fraction(1000, 110)
    assert bound(0, CountError(over=100)) is None


def test_the_bound_of_a_count_is_its_larger_error_and_not_known_where_nothing_counts() -> None:
    counts = TokenCounts(PODS, input=7, output=5, input_error=CountError(3, 4), output_error=CountError(2, 1))
    row = line(1, 0, counts + counts)
    names = ("bound_input_tokens", "bound_output_tokens", "bound_cached_tokens", "bound_finished_requests")
    assert [value(name, row) for name in names] == [8, 4, None, None]


def test_the_idle_share_is_that_of_pods_that_serve_a_model() -> None:
    counts = TokenCounts(PODS, output=5, idle_millijoules=216_000, pod_millijoules=936_000)
    assert value("idle_share", line(2_000_000, 0, counts)) == pytest.approx(0.230769, abs=1e-6)
    assert value("idle_share", line(2_000_000, 0, TokenCounts(PODS, pod_millijoules=5))) is None


@pytest.mark.parametrize(
    ("allocated", "resident", "held", "expected"),
    [
        (3600, 3000, 900, 0.75),
        (None, 3600, 3600, 0.0),
        (None, 3600, None, None),
        (None, None, 5, None),
        (10, 10, 11, 0.0),
    ],
)
def test_utilization_is_time_with_a_busy_engine_per_time_on_the_gpu(
    allocated: int | None, resident: int | None, held: int | None, expected: float | None
) -> None:
    amounts = {
        name: None if seconds is None else Fraction(seconds)
        for name, seconds in (("allocated", allocated), ("resident", resident), ("held", held))
    }
    assert value("utilization", line(1, 0, TokenCounts(PODS), **amounts)) == expected


def test_tokens_without_energy_cost_nothing_that_is_known() -> None:
    row = ReportLine(("m",), TOKENS_ONLY, metered=False, tokens=TokenCounts(output=7, lost_output=7))
    assert [value(name, row) for name in ("joules_per_output_token", "cost_per_million_output_tokens")] == [
        None
    ] * 2


def test_sums_leave_out_what_a_row_does_not_know() -> None:
    rows = [
        line(1, 0, TokenCounts(PODS, input=5, cached=1)),
        line(1, 0, TokenCounts(PODS, output=7)),
        line(1),
    ]
    found = sum_lines(rows, ("total",)).tokens
    assert found == TokenCounts(PODS, input=5, output=7, cached=1)
    assert found is not None
    assert found.all == 12


def test_every_bound_is_whole_or_rounded_up() -> None:
    bounds = [one for name, one in COLUMNS.items() if name.startswith(("bound_", "high_"))]
    assert len(bounds) == 7
    assert all(one.upper_bound or one.digits == 0 for one in bounds)

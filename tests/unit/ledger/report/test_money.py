"""Money: the worked examples of time-and-money, unpriced parts, spread idle time, and the laws."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from datetime import UTC
from fractions import Fraction
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.report.gpu_time import GpuPart
from gpuledger.ledger.report.ranges import ReportPart, ReportRange
from gpuledger.ledger.report.report_keys import GROUPINGS
from gpuledger.ledger.report.segments import PriceSegment, cut_segments, full_hour_range
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.model.errors import UsageError
from money_helpers import A100, H100, H100_TOO, HOUR, KWH_MJ, SECOND, Entries, costs, pod, prices

# 2026-11-30 23:00 UTC.
LATE = 1_796_079_600 // 900
BY_MODEL = prices(gpu_hour=[{"gpu": "*H100*", "price": 4}, {"gpu": "*A100*", "price": 2}])


def test_equal_thirds_are_exact() -> None:
    books = Entries()
    for name in "abc":
        books.time(0, H100, pod(name), HOUR // 3)
    assert costs(books.report(prices(gpu_hour="0.10"))) == dict.fromkeys("abc", Fraction(1, 30))


@pytest.mark.parametrize("by", [*GROUPINGS, "label:team"])
def test_each_model_has_its_price_and_one_total_for_every_grouping(by: str) -> None:
    books = Entries()
    books.time(0, H100, pod("a"), HOUR)
    books.time(0, A100, pod("b", device=A100), HOUR)
    report = books.report(BY_MODEL, by)
    assert report.total.cost == 6
    if by in ("owner", "pod", "gpu"):
        assert sorted(line.cost or 0 for line in report.lines) == [2, 4]


def test_a_price_changes_at_its_date() -> None:
    books = Entries()
    for quarter in range(2, 6):
        books.time(LATE + quarter, H100, pod("a"), HOUR // 4)
    changing = prices(gpu_hour=[{"until": "2026-12-01", "price": 2}, {"from": "2026-12-01", "price": 3}])
    assert books.report(changing).total.cost == Fraction(5, 2)


def test_spread_charges_idle_time_to_the_billed_owner() -> None:
    books = Entries()
    books.time(0, H100, pod("a"), 15 * SECOND)
    books.time(0, H100, "idle", 45 * SECOND)
    report = books.report(prices(gpu_hour=3600, idle="spread"))
    assert costs(report) == {"a": 60}
    assert [line.gpu_microseconds for line in report.lines] == [15 * SECOND]
    assert report.total.cost == 60


def two_hours() -> Entries:
    """A has one H100 for the whole of hour 1, B one for half of hour 2."""
    books = Entries()
    for quarter in range(4):
        books.time(LATE + quarter, H100, pod("a"), HOUR // 4)
        books.time(LATE + quarter, H100_TOO, "idle", HOUR // 4)
        owner = pod("b", "web") if quarter < 2 else "idle"
        books.time(LATE + 4 + quarter, H100, owner, HOUR // 4)
        books.time(LATE + 4 + quarter, H100_TOO, "idle", HOUR // 4)
    return books


@pytest.mark.parametrize("cut", [None, LATE + 4])
def test_spread_is_computed_hour_by_hour_in_every_cut(cut: int | None) -> None:
    edges = [LATE, *([] if cut is None else [cut]), LATE + 8]
    sums: Counter[str] = Counter()
    for begins, ends in pairwise(edges):
        report = two_hours().report(
            prices(gpu_hour=3600, idle="spread"), parts=[ReportPart(begins, ends, "")]
        )
        sums.update(costs(report))
    assert sums == {"a": 7200, "b": 7200}


def test_spread_leaves_an_hour_of_nobody_and_other_models_idle() -> None:
    books = Entries()
    books.time(0, H100, pod("a"), HOUR)
    books.time(4, H100, "idle", HOUR)
    books.time(0, A100, "idle", HOUR)
    assert costs(books.report(prices(gpu_hour=1, idle="spread"))) == {"a": 1, "idle": 2}


def test_spread_charges_idle_energy_in_the_same_proportion() -> None:
    books = Entries()
    books.time(0, H100, pod("a"), HOUR // 4)
    books.time(0, H100, pod("b"), HOUR // 2)
    books.time(0, H100, "idle", HOUR // 4)
    books.joules(0, H100, {pod("a"): KWH_MJ}, idle=3 * KWH_MJ)
    report = books.report(prices(kwh=1, idle="spread", co2=100))
    assert costs(report) == {"a": 2, "b": 2}
    # Energy and CO2 stay on the row idle.
    assert {line.account: line.millijoules for line in report.gpu_accounts}["idle"] == 3 * KWH_MJ
    assert {line.account: line.grams for line in report.gpu_accounts}["idle"] == 300


def test_what_no_entry_matches_is_unpriced() -> None:
    books = Entries()
    books.time(0, H100, pod("a"), HOUR)
    books.time(0, A100, pod("a", device=A100), HOUR)
    report = books.report(prices(gpu_hour=[{"gpu": "*H100*", "price": 4}]))
    (line,) = report.lines
    assert (line.cost, line.unpriced_microseconds) == (4, HOUR)
    assert report.total.unpriced_microseconds == HOUR


def test_without_a_price_nothing_is_unpriced() -> None:
    books = Entries()
    books.time(0, H100, pod("a"), HOUR)
    (line,) = books.report(Prices()).lines
    assert (line.cost, line.time_cost, line.unpriced_microseconds) == (None, None, None)


def test_an_instance_has_the_price_of_its_profile_and_uncovered_multiprocessors_that_of_the_gpu() -> None:
    books = Entries()
    part = GpuPart(H100.uuid, H100.name, "1_0", "1g.10gb", Fraction(1, 4))
    books.time(0, H100, pod("a"), HOUR // 4, part=part)
    books.time(0, H100, "uncut", 3 * HOUR // 4)
    listed = prices(gpu_hour=[{"mig": "1g.*", "price": 2, "per": "instance"}, {"price": 4}])
    report = books.report(listed)
    assert costs(report) == {"a": 2, "idle": 3}
    assert {line.account: line.uncut_microseconds for line in report.gpu_accounts}["idle"] == 3 * HOUR // 4


def test_the_basis_chooses_who_pays() -> None:
    books = Entries()
    books.time(0, H100, pod("a"), 60 * SECOND, 30 * SECOND)
    books.time(0, H100, pod("b"), 0, 30 * SECOND)
    assert costs(books.report(prices(gpu_hour=3600))) == {"a": 60}
    assert costs(books.report(prices(gpu_hour=3600, basis="residence"))) == {"a": 30, "b": 30}


def test_time_without_a_price_is_below_the_total_with_what_it_would_have_cost() -> None:
    books = Entries()
    books.time(0, H100, pod("a"), HOUR // 2)
    books.time(0, H100, "down", HOUR // 8)
    books.time(0, H100, "unobserved", HOUR // 8)
    report = books.report(prices(gpu_hour=8), sights={H100.uuid: (0, HOUR)})
    assert report.total.cost == 4
    assert [(one.account, one.microseconds, one.cost) for one in report.unbilled] == [
        ("unobserved", HOUR // 8, 1),
        ("down", HOUR // 8, 1),
        ("unwatched", HOUR // 4, 2),
    ]


def test_time_before_the_first_and_after_the_last_sight_of_a_gpu_is_not_missing() -> None:
    books = Entries()
    books.time(4, H100, pod("a"), HOUR // 4)
    parts = [ReportPart(0, 40, "")]
    report = books.report(prices(gpu_hour=8), parts=parts, sights={H100.uuid: (HOUR, HOUR + HOUR // 2)})
    assert report.unbilled[-1].microseconds == HOUR // 4


def test_energy_has_the_overhead_and_the_price_of_its_time() -> None:
    books = Entries()
    books.joules(LATE, H100, {pod("a"): KWH_MJ})
    books.joules(LATE + 4, H100, {pod("a"): KWH_MJ}, unobserved=KWH_MJ)
    given = prices(
        kwh=[{"until": "2026-12-01", "price": 2}, {"price": 3}],
        pue=[{"from": "2026-12-01", "value": 2}, {"value": 1}],
    )
    report = books.report(given)
    assert report.total.cost == 2 + 6 + 6
    assert report.lines[0].cost == 8


def test_a_range_is_cut_at_price_changes_and_parts() -> None:
    parts = [ReportPart(0, 8, "x"), ReportPart(8, 12, "y")]
    assert cut_segments(parts, [0, 4, 8, 10, 12, 40]) == [
        PriceSegment(0, 0, 4),
        PriceSegment(0, 4, 8),
        PriceSegment(1, 8, 10),
        PriceSegment(1, 10, 12),
    ]


@pytest.mark.parametrize(
    ("given", "used"),
    [((LATE, LATE + 8), (0, 8)), ((LATE + 1, LATE + 9), (0, 8)), ((LATE + 2, LATE + 11), (4, 12))],
)
def test_spread_moves_both_ends_to_the_nearest_full_hour(
    given: tuple[int, int], used: tuple[int, int]
) -> None:
    within = full_hour_range(ReportRange(*given, given[1] * 900.0), 2e12, UTC)
    assert (within.begins - LATE, within.ends - LATE) == used
    assert bool(within.notes) == (given != (LATE, LATE + 8))


def test_spread_keeps_an_end_at_the_last_posting() -> None:
    last = (LATE + 5) * 900.0 - 10
    within = full_hour_range(ReportRange(LATE, LATE + 5, last), last, UTC)
    assert (within.begins, within.ends, within.until) == (LATE, LATE + 5, last)


def test_spread_without_a_full_hour_is_refused_with_the_nearest_ones() -> None:
    with pytest.raises(UsageError, match="the nearest are 2026-11-30 23:00"):
        full_hour_range(ReportRange(LATE + 2, LATE + 3, (LATE + 3) * 900.0), 2e12, UTC)


def exact(report: UsageReport) -> tuple[object, ...]:
    """What must not depend on grouping or cutting."""
    total = report.total
    return (total.gpu_microseconds, total.millijoules, total.time_cost, total.energy_cost, total.grams)


OWNERS = [pod(name, space, device) for device in (H100, A100) for name, space in (("a", "ml"), ("b", "web"))]
QUARTERS = 16
SEEDS = st.lists(
    st.tuples(
        st.integers(0, QUARTERS - 1),
        st.sampled_from([*OWNERS, "idle", "unattributed", "down", "unobserved", "uncut"]),
        st.integers(0, 900 * SECOND),
        st.integers(0, 10**7),
    ),
    max_size=30,
)
LISTED = prices(
    gpu_hour=[{"gpu": "*A100*", "price": "1.7"}, {"until": "2026-12-01T01:00", "price": "2.31"}],
    kwh=[{"from": "2026-12-01", "price": "0.33"}, {"price": "0.29"}],
    pue="1.37",
    co2="381",
)


def books_of(seeds: list[tuple[int, object, int, int]]) -> Entries:
    books = Entries()
    for place, who, microseconds, millijoules in seeds:
        quarter = LATE + place
        if isinstance(who, str):
            books.time(quarter, H100, who, microseconds)
            books.joules(quarter, H100, {}, idle=millijoules)
        else:
            device = H100 if who.device == H100.uuid else A100  # type: ignore[attr-defined]
            books.time(quarter, device, who, microseconds)  # type: ignore[arg-type]
            books.joules(quarter, device, {who: millijoules}, idle=millijoules // 3)  # type: ignore[dict-item]
    return books


WHOLE = [ReportPart(LATE, LATE + QUARTERS, "")]


@given(SEEDS)
def test_the_exact_total_is_the_same_for_every_grouping(seeds: list[tuple[int, object, int, int]]) -> None:
    books = books_of(seeds)
    found = {by: exact(books.report(LISTED, by, WHOLE)) for by in GROUPINGS}
    assert len(set(found.values())) == 1


@given(SEEDS, st.sets(st.integers(1, QUARTERS - 1), max_size=5))
def test_parts_of_a_range_add_up_wherever_it_is_cut(
    seeds: list[tuple[int, object, int, int]], cuts: set[int]
) -> None:
    books = books_of(seeds)
    edges = [LATE, *(LATE + cut for cut in sorted(cuts)), LATE + QUARTERS]
    parts = [ReportPart(*edge, str(edge)) for edge in pairwise(edges)]
    whole = books.report(LISTED, "owner", WHOLE)
    assert exact(books.report(LISTED, "owner", parts)) == exact(whole)
    sums: Counter[object] = Counter()
    for part in parts:
        for line in books.report(LISTED, "owner", [part]).lines:
            sums[line.key] += line.cost or 0  # type: ignore[assignment]
    assert {key: cost for key, cost in sums.items() if cost} == {
        line.key: line.cost for line in whole.lines if line.cost
    }


@given(SEEDS)
def test_spread_changes_no_total_and_no_time(seeds: list[tuple[int, object, int, int]]) -> None:
    books = books_of(seeds)
    row, spread = (
        books.report(Prices(**{**LISTED_FIELDS, "idle": idle}), "pod", WHOLE) for idle in ("row", "spread")
    )
    assert exact(row) == exact(spread)
    assert [line.gpu_microseconds for line in row.lines] == [line.gpu_microseconds for line in spread.lines]
    assert all((line.cost or 0) >= 0 for line in (*spread.lines, *spread.gpu_accounts))


LISTED_FIELDS = {name: getattr(LISTED, name) for name in (field.name for field in fields(Prices))}


@given(SEEDS, st.sampled_from(["UTC", "Asia/Kolkata", "Australia/Lord_Howe"]))
def test_spread_adds_up_over_full_hours_of_any_zone(
    seeds: list[tuple[int, object, int, int]], name: str
) -> None:
    books, zone = books_of(seeds), ZoneInfo(name)
    given = Prices(gpu_hour=LISTED.kwh and prices(gpu_hour=3).gpu_hour, idle="spread")
    within = full_hour_range(ReportRange(LATE, LATE + QUARTERS, (LATE + QUARTERS) * 900.0), 2e12, zone)
    middle = full_hour_range(ReportRange(LATE + 6, LATE + QUARTERS, 2e12), 2e12, zone).begins
    whole = books.report(given, "owner", [ReportPart(within.begins, within.ends, "")], zone)
    sums: Counter[object] = Counter()
    for part in (ReportPart(within.begins, middle, ""), ReportPart(middle, within.ends, "")):
        for line in books.report(given, "owner", [part], zone).lines:
            sums[line.key] += line.cost or 0  # type: ignore[assignment]
    assert sums == {line.key: line.cost or 0 for line in whole.lines}

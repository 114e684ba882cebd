"""Price lists: which entry applies, and at what time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from gpuledger.ledger.report.gpu_time import GpuPart
from gpuledger.ledger.report.prices import PriceList, PriceUse
from gpuledger.model.errors import UsageError
from unit.ledger.report.price_lists import A100, H100, L4, SMALL, UNCOVERED, WHOLE, at, price_list

BERLIN = ZoneInfo("Europe/Berlin")


NOW = at("2026-03-01")


def gpu_price(
    entries: object, part: GpuPart = WHOLE, node: str = "lab-1", quarter: int = NOW
) -> Fraction | None:
    return price_list(entries).gpu_hour(part, node, quarter)


@pytest.mark.parametrize(
    ("entry", "part", "node", "matches"),
    [
        ({}, WHOLE, "lab-1", True),
        ({}, SMALL, "lab-1", True),
        ({}, UNCOVERED, "lab-1", True),
        ({"gpu": "*H100*"}, WHOLE, "lab-1", True),
        ({"gpu": "*H100*"}, GpuPart("GPU-2", A100), "lab-1", False),
        ({"gpu": "*h100*"}, WHOLE, "lab-1", False),
        ({"gpu": "H100"}, WHOLE, "lab-1", False),
        ({"gpu": "NVIDIA [AH]100*"}, WHOLE, "lab-1", True),
        ({"gpu": H100}, WHOLE, "lab-1", True),
        ({"gpu": "*"}, GpuPart("GPU-3"), "lab-1", True),
        ({"gpu": "?*"}, GpuPart("GPU-3"), "lab-1", False),
        ({"node": "lab-*"}, WHOLE, "lab-1", True),
        ({"node": "lab-*"}, WHOLE, "office", False),
        ({"mig": "1g.*"}, SMALL, "lab-1", True),
        ({"mig": "2g.*"}, SMALL, "lab-1", False),
        ({"mig": "1g.*"}, WHOLE, "lab-1", False),
        ({"mig": "*"}, WHOLE, "lab-1", False),
        ({"mig": "*"}, UNCOVERED, "lab-1", False),
        ({"mig": "*"}, GpuPart("GPU-1", H100, "3_0", "", Fraction(1, 7)), "lab-1", True),
        ({"gpu": "*H100*", "node": "office"}, WHOLE, "lab-1", False),
    ],
)
def test_an_entry_applies_if_all_its_keys_match(
    entry: dict[str, object], part: GpuPart, node: str, matches: bool
) -> None:
    assert gpu_price([{**entry, "price": 2}], part, node) == (2 if matches else None)


def test_the_first_match_counts() -> None:
    entries = [{"mig": "1g.*", "price": 1}, {"gpu": "*H100*", "price": 2}, {"price": 3}]
    assert gpu_price(entries, SMALL) == 1
    assert gpu_price(entries, WHOLE) == 2
    # Multiprocessors that no Instance covers take the first entry without `mig`.
    assert gpu_price(entries, UNCOVERED) == 2
    assert gpu_price(entries, GpuPart("GPU-2", A100)) == 3


def test_a_price_per_instance_is_of_the_instance_s_hour() -> None:
    entries = [{"price": "0.50", "per": "instance"}]
    price = gpu_price(entries, SMALL)
    assert price is not None
    assert price * SMALL.share == Fraction("0.50")
    # Without an Instance it is of the whole GPU.
    assert gpu_price(entries, WHOLE) == Fraction("0.50")
    assert gpu_price(entries, UNCOVERED) == Fraction("0.50")
    assert gpu_price(entries, SMALL._replace(share=Fraction(0))) == Fraction("0.50")


def test_from_is_inclusive_and_until_is_exclusive() -> None:
    entries = [{"from": "2026-03-01", "until": "2026-03-02T08:00", "price": 2}]
    quarters = (at("2026-03-01") - 1, at("2026-03-01"), at("2026-03-02T08:00") - 1, at("2026-03-02T08:00"))
    assert [gpu_price(entries, quarter=quarter) for quarter in quarters] == [None, 2, 2, None]


def test_dates_are_of_the_time_zone() -> None:
    prices = price_list([{"from": "2026-07-01", "price": 2}], zone=BERLIN)
    begin = at("2026-06-30T22:00")
    assert (prices.gpu_hour(WHOLE, "", begin - 1), prices.gpu_hour(WHOLE, "", begin)) == (None, 2)


@pytest.mark.parametrize(
    ("written", "zone", "instant"),
    [
        # Midnight does not exist, or occurs twice: the first instant of the day.
        ("2026-09-06", "America/Santiago", "2026-09-06T04:00"),
        ("2026-11-01", "America/Havana", "2026-11-01T04:00"),
        ("2026-10-25T02:00+01:00", "Europe/Berlin", "2026-10-25T01:00"),
        ("2026-10-25T02:00+02:00", "Europe/Berlin", "2026-10-25T00:00"),
        ("2026-03-01T05:30Z", "Asia/Kolkata", "2026-03-01T05:30"),
        ("2026-03-01", "Asia/Kathmandu", "2026-02-28T18:15"),
        # Half an hour is skipped: the next full hour is at half past two.
        ("2026-10-04T02:30+11:00", "Australia/Lord_Howe", "2026-10-03T15:30"),
    ],
)
def test_a_date_is_the_first_instant_of_a_full_hour(written: str, zone: str, instant: str) -> None:
    prices = price_list(kwh=[{"from": written, "price": 2}], zone=ZoneInfo(zone))
    assert (prices.kwh("", at(instant) - 1), prices.kwh("", at(instant))) == (None, 2)


@pytest.mark.parametrize(
    ("written", "zone", "message"),
    [
        ("2026-03-29T02:00", "Europe/Berlin", "does not exist in the time zone Europe/Berlin"),
        ("2026-03-29T02:00", "Europe/Berlin", "the hour after it is 2026-03-29T03:00+02:00"),
        ("2026-09-06T00:00", "America/Santiago", "the hour after it is 2026-09-06T01:00-03:00"),
        ("2026-10-04T02:00", "Australia/Lord_Howe", "does not exist"),
        ("2026-10-25T02:00", "Europe/Berlin", "write 2026-10-25T02:00+02:00 or 2026-10-25T02:00+01:00"),
        (
            "2026-03-01T08:00Z",
            "Asia/Kolkata",
            "is 2026-03-01T13:30+05:30 in the time zone Asia/Kolkata, inside",
        ),
        ("2026-03-01T08:07Z", "UTC", "inside an hour"),
        ("2026-03-01T08:30Z", "UTC", "prices change at full hours"),
    ],
)
@pytest.mark.parametrize("key", ["from", "until"])
def test_a_date_that_is_no_full_hour_is_refused(key: str, written: str, zone: str, message: str) -> None:
    entries = [{"price": 1}, {key: written, "price": 2}]
    with pytest.raises(UsageError) as error:
        price_list(entries, zone=ZoneInfo(zone))
    assert message in str(error.value)
    assert str(error.value).startswith(f"price.gpu_hour: entry 2 ({key} {written[:13]}")


@pytest.mark.parametrize("until", ["2026-03-01T02:00+02:00", "2026-03-01T04:00+02:00"])
def test_an_entry_that_is_reversed_or_empty_by_its_offsets_is_refused(until: str) -> None:
    entry = {"from": "2026-03-01T02:00", "until": until, "price": 1}
    with pytest.raises(UsageError, match=r"pue: entry 1 \(.*\): from is not before until"):
        price_list(pue=[entry])


def test_boundaries_are_the_quarters_inside_the_range_at_which_an_amount_changes() -> None:
    prices = price_list(
        [{"until": "2026-01-01", "price": 1}, {"from": "2026-01-01", "until": "2026-03-01", "price": 2}],
        kwh=[{"from": "2026-02-01", "price": 1}],
        pue=[{"from": "2026-01-15", "value": 1.2}],
        co2=[{"from": "2025-06-01", "value": 400}],
    )
    days = ["2026-01-01", "2026-01-15", "2026-02-01"]
    assert prices.boundaries(at("2025-06-01"), at("2026-03-01")) == [at(day) for day in days]
    assert price_list(2, 1, 1, 1).boundaries(0, 2**40) == []


def test_rates_are_by_node_and_date() -> None:
    prices = price_list(
        kwh=[{"node": "lab-*", "price": "0.30"}, {"from": "2026-01-01", "price": "0.40"}],
        pue=[{"node": "lab-1", "value": "1.4"}],
        co2=[{"node": "lab-1", "value": 380}],
    )
    assert [prices.kwh(node, NOW) for node in ("lab-1", "office")] == [Fraction("0.3"), Fraction("0.4")]
    assert prices.kwh("office", at("2025-12-31")) is None
    assert [prices.pue(node, NOW) for node in ("lab-1", "office")] == [Fraction("1.4"), 1]
    assert [prices.co2(node, NOW) for node in ("lab-1", "office")] == [380, None]
    assert [prices.kwh_entry(node, NOW) for node in ("lab-1", "office")] == ["node=lab-*", "from=2026-01-01"]


def test_nothing_has_a_price_without_settings() -> None:
    prices = price_list()
    assert not prices.has_gpu_hour
    assert (prices.gpu_hour(WHOLE, "", 0), prices.kwh("", 0), prices.co2("", 0)) == (None,) * 3
    assert (prices.pue("", 0), prices.entry(WHOLE, "", 0), prices.describe()) == (1, "", [])
    assert prices.problems([PriceUse(WHOLE, "", 0, 100)]) == []


def test_an_entry_s_identity_has_neither_its_position_nor_its_amount() -> None:
    one = price_list([{"gpu": "*H100*", "price": 2}, {"price": 1}])
    other = price_list([{"gpu": "*A100*", "price": 9}, {"gpu": "*H100*", "price": 3}])
    assert one.entry(WHOLE, "", NOW) == other.entry(WHOLE, "", NOW) == "gpu=*H100*"
    assert one.entry(GpuPart("GPU-2", L4), "", NOW) == price_list(7).entry(WHOLE, "", NOW) == "any"


def billed(prices: PriceList, part: GpuPart, since: str, until: str) -> Fraction:
    """The cost of a whole Gpu between two times, quarter by quarter."""
    quarters = range(at(since), at(until))
    return sum((prices.gpu_hour(part, "", one) or Fraction(0) for one in quarters), Fraction(0)) / 4


def test_t23_two_models() -> None:
    prices = price_list([{"gpu": "*H100*", "price": 4}, {"gpu": "*A100*", "price": 2}])
    costs = [
        billed(prices, GpuPart(f"GPU-{model}", model), "2026-03-01T08:00", "2026-03-01T09:00")
        for model in (H100, A100)
    ]
    assert (costs, sum(costs)) == ([4, 2], 6)


def test_t24_a_price_that_changes_at_midnight() -> None:
    prices = price_list([{"until": "2026-03-01", "price": 2}, {"from": "2026-03-01", "price": 3}])
    assert billed(prices, WHOLE, "2026-02-28T23:30", "2026-03-01T00:30") == Fraction("2.5")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2.4", "2.40"),
        ("2.4", [{"price": "2.400"}]),
        ([{"price": 2}], [{"gpu": "*", "node": "**", "price": 2, "per": "gpu"}]),
        ([{"from": "2026-03-01", "price": 2}], [{"from": "2026-03-01T01:00+01:00", "price": 2}]),
        ([{"price": 2}], [{"price": 2}, {"gpu": "*H100*", "price": 3}]),
    ],
)
def test_equal_meanings_have_one_fingerprint(one: object, other: object) -> None:
    assert price_list(one).fingerprint == price_list(other).fingerprint


def test_an_overhead_of_one_is_as_if_it_were_not_set() -> None:
    assert price_list(pue="1.0").fingerprint == price_list().fingerprint


def test_different_meanings_have_different_fingerprints() -> None:
    lists = [
        price_list(),
        price_list(2),
        price_list(3),
        price_list(kwh=2),
        price_list(co2=2),
        price_list(pue=2),
        price_list(2, currency="EUR"),
        price_list([{"mig": "*", "price": 2}]),
        price_list([{"per": "instance", "price": 2}]),
        price_list([{"gpu": "*H100*", "price": 2}, {"price": 3}]),
        price_list([{"gpu": "*H100*", "price": 3}, {"price": 2}]),
        price_list([{"from": "2026-03-01", "price": 2}]),
        price_list([{"until": "2026-03-01", "price": 2}]),
        price_list([{"from": "2026-03-01", "price": 2}], zone=BERLIN),
    ]
    assert len({prices.fingerprint for prices in lists}) == len(lists)


def test_a_price_list_is_described_entry_by_entry() -> None:
    prices = price_list(
        [{"gpu": "*H100*", "until": "2026-07-01", "price": "2.40"}, {"price": 1}],
        kwh="0.32",
        pue="1.4",
        co2=380,
        currency="EUR",
    )
    assert prices.describe() == [
        "price.gpu_hour entry 1: 2.40 EUR per GPU-hour (gpu *H100*, until 2026-07-01)",
        "price.gpu_hour entry 2: 1 EUR per GPU-hour",
        "price.kwh: 0.32 EUR per kWh",
        "pue: 1.4",
        "co2.g_per_kwh: 380 g per kWh",
    ]


def test_a_list_of_hourly_prices_of_a_year_is_applied_quickly() -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    hours = [(begin + timedelta(hours=hour)).isoformat() for hour in range(8761)]
    entries = [
        {"from": since, "until": until, "price": number}
        for number, (since, until) in enumerate(pairwise(hours))
    ]
    prices = price_list(kwh=entries)
    first = at("2026-01-01")
    assert [prices.kwh("a", first + 4 * hour) for hour in range(8760)] == list(range(8760))
    assert prices.problems([PriceUse(WHOLE, "a", first, first + 8760 * 4)]) == []
    assert len(prices.boundaries(first, first + 8760 * 4)) == 8759


def test_a_zone_without_a_name_is_shown_by_its_offset() -> None:
    with pytest.raises(UsageError, match=r"in the time zone UTC\+05:30"):
        price_list(2, kwh=[{"from": "2026-01-01T00:00Z", "price": 1}], zone=timezone(timedelta(hours=5.5)))

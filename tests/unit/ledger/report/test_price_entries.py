"""Parsing of price settings: numbers and lists of entries, and one line for each error."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.report.price_entries import (
    CO2,
    GPU_HOUR,
    KWH,
    PUE,
    PriceEntry,
    RateKind,
    plain_price,
    price_parser,
)
from gpuledger.model.settings import InvalidElement


def one(entry: object, kind: RateKind = GPU_HOUR) -> PriceEntry:
    found = price_parser(kind)([entry])
    assert isinstance(found, tuple)
    return found[0]


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        ("2.40", "2.40"),
        (" 2 ", "2"),
        (2, "2"),
        (0.3, "0.3"),
        (Decimal("1.5"), "1.5"),
        ("0", "0"),
        ("-0", "0"),
        ("+1.2", "1.2"),
        (".5", "0.5"),
        ("5.", "5"),
        ("1_000.5", "1000.5"),
        ("1e3", "1000"),
        ("010", "10"),
        ("0.12345678901234567890123", "0.12345678901234567890123"),
    ],
)
def test_a_number_is_the_decimal_that_was_written(value: object, amount: str) -> None:
    assert price_parser(KWH)(value) == Decimal(amount)


@given(st.decimals(min_value=0, max_value=999_999_999, places=9))
def test_no_number_passes_through_a_binary_float(amount: Decimal) -> None:
    assert price_parser(KWH)(f"{amount:f}") == amount
    assert one({"price": f"{amount:f}"}).amount == amount


@pytest.mark.parametrize("value", ["", None, "  "])
def test_an_empty_value_is_not_set(value: object) -> None:
    assert price_parser(GPU_HOUR)(value) is None


@pytest.mark.parametrize(
    "value",
    [
        *("cheap", "-1", "nan", "inf", ".nan", "1e9", "1e99", "1e-999999", "2,40", "1:30", "0x10", "true"),
        *(True, -0.5, float("nan"), float("inf"), "1 2", "_1", "٢", "9" * 80, f"0.{'1' * 80}", {"price": 1}),
    ],
)
def test_an_invalid_number_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="expected a price of one kilowatt-hour"):
        price_parser(KWH)(value)


@pytest.mark.parametrize(
    ("kind", "lowest", "outside"),
    [(PUE, "1", ["0.99", "100", "140"]), (CO2, "0", ["-1", "1000000"]), (GPU_HOUR, "0", ["-0.01"])],
)
def test_each_setting_has_its_bounds(kind: RateKind, lowest: str, outside: list[str]) -> None:
    assert price_parser(kind)(lowest) == Decimal(lowest)
    for value in outside:
        with pytest.raises(ValueError, match="expected"):
            price_parser(kind)(value)


def test_an_entry_has_the_values_of_its_keys() -> None:
    entry = one(
        {
            "gpu": "*H100*",
            "mig": "1g.*",
            "node": "lab-*",
            "from": "2026-01-01",
            "until": "2026-07-01T08:00",
            "price": "2.40",
            "per": "instance",
        }
    )
    assert entry.patterns == ("*H100*", "1g.*", "lab-*")
    assert str(entry) == (
        "entry 1 (gpu *H100*, mig 1g.*, node lab-*, from 2026-01-01, until 2026-07-01T08:00, per instance, "
        "price 2.40)"
    )


@pytest.mark.parametrize("kind", [KWH, PUE, CO2])
@pytest.mark.parametrize("key", ["price", "value"])
def test_the_amount_of_a_rate_is_a_price_or_a_value(kind: RateKind, key: str) -> None:
    assert one({key: "2", "node": "a"}, kind).amount == 2


def test_entries_are_numbered_from_one_and_empty_keys_are_omitted() -> None:
    found = price_parser(KWH)([{"price": 1, "node": None}, {"price": 2}])
    assert isinstance(found, tuple)
    assert [(entry.number, entry.patterns.node) for entry in found] == [(1, None), (2, None)]


@pytest.mark.parametrize(
    ("text", "amount"),
    [('[{"price": 2.40}]', "2.40"), (' [{"price": "0.1000000000000000055511151231"}]', None)],
)
def test_a_flag_takes_a_list_as_json(text: str, amount: str | None) -> None:
    found = price_parser(GPU_HOUR)(text)
    assert isinstance(found, tuple)
    assert str(found[0].amount) == (amount or "0.1000000000000000055511151231")


DATES = {
    "2026-01-01": "2026-01-01",
    "2026-01-01T08:00": "2026-01-01T08:00",
    "2026-01-01 08:00:00": "2026-01-01T08:00",
    "2026-01-01T08:30+05:30": "2026-01-01T08:30+05:30",
    "2026-01-01T08:00Z": "2026-01-01T08:00+00:00",
}


@pytest.mark.parametrize(("written", "canonical"), DATES.items())
def test_a_date_is_a_day_or_an_hour(written: str, canonical: str) -> None:
    assert str(one({"price": 1, "from": written}).begins) == canonical


def test_dates_of_a_yaml_reader_are_dates() -> None:
    aware = datetime(2026, 1, 1, 8, tzinfo=timezone(timedelta(hours=2)))
    entry = one({"price": 1, "from": date(2026, 1, 1), "until": aware})
    assert (str(entry.begins), str(entry.ends)) == ("2026-01-01", "2026-01-01T08:00+02:00")


BAD_ENTRIES: list[tuple[object, str]] = [
    (7, "entry 1 (7): expected a mapping with price"),
    (None, "entry 1 (empty): expected a mapping with price"),
    ({}, "entry 1 (empty): has no price; add it"),
    ({"gpu": "*", "price": None}, "entry 1 (gpu *): has no price; add it"),
    ({"price": 1, "value": 1}, "unknown key 'value'; valid: from, gpu, mig"),
    ({"prise": 1}, "unknown key 'prise'; did you mean 'price'?"),
    ({"price": 1, "owner": "a"}, "unknown key 'owner'; valid: from, gpu, mig, node, per, price, until"),
    (
        {"gpu": "*A100*", "price": -1},
        "entry 1 (gpu *A100*, price -1): price: expected a price of one GPU-hour",
    ),
    ({"price": "nan"}, "such as 1.20, not nan"),
    ({"price": [1]}, "price: expected"),
    ({"price": 1, "gpu": ""}, "gpu: expected a pattern such as *, not ''; or omit the key"),
    ({"price": 1, "node": ["a", "b"]}, "node: expected one pattern; write one entry for each"),
    ({"price": 1, "mig": "1g\n5"}, "mig: expected a pattern"),
    ({"price": 1, "per": "gpus"}, "per: expected one of gpu, instance, not gpus"),
    ({"price": 1, "from": "soon"}, "from: expected a date (2026-01-01) or a full hour"),
    ({"price": 1, "from": "20260101"}, "from: expected a date"),
    ({"price": 1, "from": "2026-01-01T24:00"}, "from: expected a date"),
    ({"price": 1, "until": "2026-02-30"}, "until: 2026-02-30 is not in the calendar; correct the date"),
    ({"price": 1, "from": "0026-01-01"}, "from: expected a year from 1970 to 2199, not 26"),
    ({"price": 1, "from": "2026-01-01T08:30"}, "from: 2026-01-01T08:30 is inside an hour; prices change at"),
    ({"price": 1, "from": "2026-01-01T08:00:01"}, "is inside an hour"),
    (
        {"price": 1, "from": "2026-02-01", "until": "2026-01-01"},
        "from is not before until, so the entry never",
    ),
    ({"price": 1, "from": "2026-02-01", "until": "2026-02-01T00:00"}, "from is not before until"),
    (
        {"price": 1, "from": "2026-02-01T01:00+01:00", "until": "2026-02-01T00:00Z"},
        "from is not before until",
    ),
]


@pytest.mark.parametrize(("entry", "message"), BAD_ENTRIES)
def test_an_invalid_entry_is_one_line_that_names_it(entry: object, message: str) -> None:
    with pytest.raises(InvalidElement) as error:
        one(entry)
    assert message in str(error.value)
    assert str(error.value).startswith("entry 1 (")


def test_the_number_of_the_invalid_entry_is_named() -> None:
    with pytest.raises(InvalidElement, match=r"^entry 2 \(price 1, gpu x\): unknown key 'gpu'"):
        price_parser(KWH)([{"price": 1}, {"price": 1, "gpu": "x"}])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{", "or a list of entries as JSON"),
        ('{"price": 1}', "or a list of entries"),
        ('[{"price": 1, "price": 2}]', "has a key twice"),
        ('[{"price": NaN}]', "entry 1 (price NaN)"),
        ("[" * 100_000, "or a list of entries as JSON"),
    ],
)
def test_an_invalid_json_text_is_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="entr") as error:
        price_parser(GPU_HOUR)(text)
    assert message in str(error.value)


def test_a_price_setting_as_json_is_a_number_or_entries_with_exact_amounts() -> None:
    assert plain_price(price_parser(PUE)("1.40")) == 1.4
    assert plain_price(price_parser(KWH)("2")) == 2
    assert plain_price(None) is None
    entries = price_parser(GPU_HOUR)([{"gpu": "*", "from": "2026-01-01", "price": "2.40"}])
    assert plain_price(entries) == [{"gpu": "*", "from": "2026-01-01", "price": "2.40"}]


@pytest.mark.parametrize("kind", [GPU_HOUR, KWH, PUE, CO2])
@pytest.mark.parametrize("value", [[], "[]"])
def test_an_empty_list_is_refused(kind: RateKind, value: object) -> None:
    with pytest.raises(InvalidElement, match="the list is empty: add an entry, or remove the setting"):
        price_parser(kind)(value)

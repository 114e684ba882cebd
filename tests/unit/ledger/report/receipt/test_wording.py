"""Numbers of receipts as text: small is never shown as nothing, and nothing is never shown as small."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.report.receipt import wording
from gpuledger.ledger.report.receipt.wording import receipt_zone, span_text

BERLIN = ZoneInfo("Europe/Berlin")
# 2026-11-30 08:00 UTC.
BEGIN = 1_796_025_600.0


@pytest.mark.parametrize(
    ("write", "amount", "expected"),
    [
        (wording.duration_text, 0.4, "400ms"),
        (wording.duration_text, 12.3, "12s"),
        (wording.duration_text, 725, "12m5s"),
        (wording.duration_text, 16_190, "4h30m"),
        (wording.duration_text, 90_000, "1d1h"),
        (wording.ratio_text, 0.0, "0 %"),
        (wording.ratio_text, 0.0004, "<1 %"),
        (wording.ratio_text, 0.86, "86 %"),
        (wording.ratio_text, None, "-"),
        (wording.bytes_text, 80 << 30, "80.0 GiB"),
        (wording.bytes_text, 120 << 20, "120 MiB"),
        (wording.bytes_text, 2560 << 30, "2.5 TiB"),
        (wording.bytes_text, 0, "0 MiB"),
        (wording.bytes_text, None, "-"),
        (wording.hours_text, 16_200_000_000, "4.50"),
        (wording.hours_text, 3_600_000, "0.001"),
        (wording.hours_text, 0, "0.00"),
        (wording.hours_text, None, "-"),
        (wording.energy_text, 11_570_400_000, "3.214 kWh"),
        (wording.energy_text, 1500, "1.5 J"),
        (wording.energy_text, 0, "0 kWh"),
        (wording.energy_text, None, "-"),
        (wording.co2_text, 1220.0, "1.22 kg"),
        (wording.co2_text, 35.4, "35.4 g"),
    ],
)
def test_amounts_as_text(write: Callable[[Any], str], amount: Any, expected: str) -> None:
    assert write(amount) == expected


@pytest.mark.parametrize(
    ("cost", "expected"),
    [("12.5000000000", "12.50 EUR"), ("0.0012000000", "0.0012 EUR"), ("0", "0.00 EUR"), (None, "-")],
)
def test_money_as_text(cost: str | None, expected: str) -> None:
    assert wording.money_text(cost, "EUR") == expected


@given(st.integers(1, 10**13))
def test_what_is_above_zero_never_looks_like_zero(amount: int) -> None:
    for text in (
        wording.hours_text(amount),
        wording.energy_text(amount),
        wording.money_text(f"{amount}e-10", ""),
        wording.ratio_text(amount / 10**13),
    ):
        assert any(sign in text for sign in "123456789"), text


def test_times_are_of_the_nodes_zone() -> None:
    assert span_text(BEGIN, BEGIN + 16_200, BERLIN) == "2026-11-30 09:00 to 13:30 +0100"
    assert span_text(BEGIN, BEGIN + 86_400, UTC) == "2026-11-30 08:00 to 2026-12-01 08:00 +0000"


def test_a_span_across_the_end_of_summer_time_has_both_offsets() -> None:
    begin = datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()
    assert span_text(begin, begin + 2700, BERLIN) == "2026-10-25 02:30 +0200 to 02:15 +0100"


def test_a_zone_that_this_machine_does_not_know_is_utc() -> None:
    assert receipt_zone("Nowhere/Town") is UTC
    assert receipt_zone("Europe/Berlin").utcoffset(None) is None


def test_a_zone_without_a_name_that_others_know_is_that_of_the_same_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "CET-1CEST,M3.5.0,M10.5.0/3"
    assert receipt_zone(name) is UTC
    monkeypatch.setenv("TZ", name)
    time.tzset()
    try:
        assert span_text(BEGIN, BEGIN + 3600, receipt_zone(name)) == "2026-11-30 09:00 to 10:00 +0100"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("words", "expected"), [(["1"], "1"), (["1", "2"], "1 and 2"), (["1", "2", "3"], "1, 2 and 3")]
)
def test_lists_of_words(words: list[str], expected: str) -> None:
    assert wording.join_words(words) == expected

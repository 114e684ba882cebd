"""The price of GPU time that a node exports now, by model, profile, node and date."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from builders import gpu, instance
from gpuledger.app.exported_prices import exported_prices
from gpuledger.app.node_assembly import build_dialects
from gpuledger.ledger.report.price_entries import GPU_HOUR, price_parser
from gpuledger.model.errors import UsageError

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC).timestamp()
CARD = gpu(0, name="NVIDIA H100 80GB HBM3", sm_count=132)


def settings(value: object, zone: str = "UTC") -> dict[str, Any]:
    return {"price.gpu_hour": price_parser(GPU_HOUR)(value), "report.timezone": zone}


def test_without_prices_nothing_has_a_price() -> None:
    assert exported_prices({}, "a")(CARD, NOON) is None


def test_a_number_is_the_price_of_every_device() -> None:
    prices = exported_prices(settings("2.40"), "a")
    assert prices(CARD, NOON) == prices(instance(CARD, 1), NOON) == 2.4


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"gpu": "*H100*"}, 3.0),
        ({"gpu": "*A100*"}, None),
        ({"node": "lab-*"}, 3.0),
        ({"node": "other"}, None),
        ({"mig": "1g.*"}, None),
        ({"from": "2026-07-01"}, 3.0),
        ({"until": "2026-07-01"}, None),
        ({"from": "2026-07-01T13:00"}, None),
    ],
)
def test_an_entry_applies_by_model_node_and_date(entry: dict[str, str], expected: float | None) -> None:
    prices = exported_prices(settings([{**entry, "price": 3}]), "lab-1")
    assert prices(CARD, NOON) == expected


def test_an_instance_has_the_price_of_its_profile_for_an_hour_of_the_whole_gpu() -> None:
    part = instance(CARD, 1, profile="1g.10gb", sm_count=33)
    prices = exported_prices(settings([{"mig": "1g.*", "price": 1, "per": "instance"}, {"price": 2}]), "a")
    assert (prices(part, NOON), prices(CARD, NOON)) == (4.0, 2.0)


def test_a_changed_price_is_exported_from_its_full_hour_on() -> None:
    prices = exported_prices(settings([{"until": "2026-07-01T12:00", "price": 2}, {"price": 3}]), "a")
    assert [prices(CARD, NOON + seconds) for seconds in (-1, -0.001, 0, 1)] == [2, 2, 3, 3]


def test_dates_are_those_of_the_time_zone_of_the_ledger() -> None:
    prices = exported_prices(
        settings([{"until": "2026-07-01T14:00", "price": 2}, {"price": 3}], "Europe/Berlin"), "a"
    )
    assert [prices(CARD, NOON - 1), prices(CARD, NOON)] == [2, 3]


def test_the_native_dialect_exports_the_prices_of_the_settings() -> None:
    native: Any = build_dialects(settings("2.40"))["native"]
    assert native.created._price(CARD, NOON) == 2.4


def test_a_date_within_an_hour_of_the_zone_is_refused_at_the_start() -> None:
    value = settings([{"from": "2026-07-01T12:00+00:00", "price": 2}], "Asia/Kolkata")
    with pytest.raises(UsageError, match="entry 1"):
        build_dialects(value)

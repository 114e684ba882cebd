"""FOCUS: charges with the prices that applied, which sum to the report's total whatever the grouping."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.report.focus import COLUMNS, as_focus
from gpuledger.ledger.report.formats import format_time
from gpuledger.ledger.report.gpu_time import GpuPart
from gpuledger.ledger.report.money import round_decimal
from gpuledger.ledger.report.ranges import ReportPart
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.model.errors import UsageError
from gpuledger.model.workload import Workload
from money_helpers import A100, H100, HOUR, KWH_MJ, SECOND, Entries, party_of, pod, prices

# 2026-11-02 00:00 UTC, in quarters.
BEGIN = 1_793_577_600 // 900
KEYS = ("owner", "namespace", "pod", "user", "command", "gpu", "model", "gpu,namespace")
NUMBERS = prices(gpu_hour=2, kwh=0.3, pue=1.5, co2=400)


def charges(report: UsageReport) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(as_focus(report, "cluster-1"))))


def two_pods() -> Entries:
    """An hour: two pods share a GPU, a user has the other for half of it; the rest is idle or not billed."""
    entries = Entries()
    train, web = pod("train"), pod("=web", "web")
    dan = party_of(A100.uuid, Workload("user", user="dan"), "python3")
    entries.time(BEGIN, H100, train, HOUR // 2, HOUR)
    entries.time(BEGIN, H100, web, HOUR // 2, 0)
    entries.time(BEGIN, A100, dan, HOUR // 2)
    entries.time(BEGIN, A100, "idle", HOUR // 4)
    entries.time(BEGIN, A100, "unattributed", HOUR // 8)
    entries.time(BEGIN, A100, "down", HOUR // 8)
    entries.joules(BEGIN, H100, {train: KWH_MJ // 2, web: KWH_MJ // 4}, idle=KWH_MJ // 100)
    entries.joules(BEGIN, A100, {dan: KWH_MJ // 10}, unobserved=KWH_MJ // 20)
    return entries


def test_each_row_has_a_charge_for_energy_and_one_for_time() -> None:
    rows = charges(two_pods().report(NUMBERS, "namespace"))
    assert list(rows[0]) == list(COLUMNS)
    assert [(row["SubAccountId"], row["x_Account"], row["SkuId"], row["EffectiveCost"]) for row in rows] == [
        ("ml", "process", "gpu-energy", "0.2250000000"),
        ("ml", "process", "gpu-time", "1.0000000000"),
        ("web", "process", "gpu-energy", "0.1125000000"),
        ("web", "process", "gpu-time", "1.0000000000"),
        ("", "process", "gpu-energy", "0.0450000000"),
        ("", "process", "gpu-time", "1.0000000000"),
        ("", "idle", "gpu-energy", "0.0045000000"),
        ("", "idle", "gpu-time", "0.5000000000"),
        ("", "unattributed", "gpu-time", "0.2500000000"),
        ("", "unobserved", "gpu-energy", "0.0225000000"),
    ]
    for row in rows:
        assert row["EffectiveCost"] == row["BilledCost"] == row["ListCost"] == row["ContractedCost"]
        assert Decimal(row["PricingQuantity"]) * Decimal(row["ListUnitPrice"]) == Decimal(row["ListCost"])
        assert row["BillingCurrency"] == "EUR"
        assert json.loads(row["Tags"])["account"] == row["x_Account"]


def test_a_charge_has_its_exact_amount_unit_price_and_overhead() -> None:
    energy, time = charges(two_pods().report(NUMBERS, "namespace"))[:2]
    shown = ("ConsumedQuantity", "PricingQuantity", "ListUnitPrice", "x_Millijoules", "x_GpuMicroseconds")
    assert [energy[name] for name in shown] == [
        "0.5000000000",
        "0.7500000000",
        "0.3",
        str(KWH_MJ // 2),
        "",
    ]
    assert [time[name] for name in shown] == ["0.5000000000", "0.5000000000", "2", "", str(HOUR // 2)]
    assert energy["ChargeDescription"] == "Energy of the GPUs, multiplied by the PUE of 1.5: ml"
    assert (energy["x_LowKwh"], energy["x_HighKwh"], energy["x_Co2Grams"]) == ("0", "0.76", "300")
    assert (time["x_LowKwh"], time["x_Co2Grams"]) == ("", "")


def test_own_accounts_have_no_owner_and_no_invented_resource() -> None:
    names = ("ResourceId", "ResourceName", "ResourceType", "SubAccountId")
    own = [row for row in charges(two_pods().report(NUMBERS, "namespace")) if row["x_Account"] != "process"]
    assert {tuple(row[name] for name in names) for row in own} == {("", "", "", "")}
    assert {row["x_Account"] for row in own} == {"idle", "unattributed", "unobserved"}
    by_gpu = [row for row in charges(two_pods().report(NUMBERS, "gpu")) if row["x_Account"] == "unattributed"]
    assert [row["ResourceId"] for row in by_gpu] == ["GPU-2/2/NVIDIA A100"]


def test_a_formula_in_a_name_is_escaped() -> None:
    (name,) = {
        row["ResourceId"]
        for row in charges(two_pods().report(NUMBERS, "pod"))
        if row["SubAccountId"] == "web"
    }
    assert name == "web/'=web"


def test_each_price_of_a_list_is_a_charge_of_its_own() -> None:
    entries, train = Entries(), pod("train")
    part = GpuPart(H100.uuid, H100.name, "1_0", "1g.10gb", Fraction(1, 7))
    for quarter in (0, 4):
        entries.time(BEGIN + quarter, H100, train, HOUR)
        entries.time(BEGIN + quarter, H100, train, HOUR // 7, part=part)
        entries.joules(BEGIN + quarter, H100, {train: KWH_MJ})
    listed = prices(
        gpu_hour=[
            {"mig": "1g.*", "price": 0.5, "per": "instance"},
            {"until": "2026-11-02T01:00", "price": 2},
            {"price": 3},
        ],
        kwh=[{"until": "2026-11-02T01:00", "price": 0.3}, {"from": "2026-11-02T01:00", "price": 0.4}],
        pue=[{"until": "2026-11-02T01:00", "value": 1.5}],
    )
    report = entries.report(listed, "pod")
    rows = charges(report)
    shown = ("SkuPriceId", "ListUnitPrice", "PricingQuantity", "EffectiveCost")
    assert [tuple(row[name] for name in shown) for row in rows] == [
        ("gpu-energy/from=2026-11-02T01:00", "0.4", "1.0000000000", "0.4000000000"),
        ("gpu-energy/until=2026-11-02T01:00", "0.3", "1.5000000000", "0.4500000000"),
        ("gpu-time/any", "3", "1.0000000000", "3.0000000000"),
        ("gpu-time/mig=1g.*,per=instance", "3.5", "0.2857142856", "0.9999999994"),
        ("gpu-time/until=2026-11-02T01:00", "2", "1.0000000000", "2.0000000000"),
    ]
    # The bounds of the row are there once.
    assert [row["x_MeasuredKwh"] for row in rows] == ["0", "", "", "", ""]


def test_what_has_no_price_is_no_charge() -> None:
    listed = prices(gpu_hour=[{"gpu": "*H100*", "price": 4}], kwh=None)
    rows = charges(two_pods().report(listed, "gpu"))
    assert [(row["ResourceId"], row["EffectiveCost"]) for row in rows] == [
        ("GPU-0/0/NVIDIA H100", "4.0000000000")
    ]


def test_charges_are_of_the_range_that_was_used() -> None:
    report = two_pods().report(NUMBERS, "pod")
    last = report.period.last - 130
    ended = replace(report, period=replace(report.period, since=0, last=last))
    assert {(row["ChargePeriodStart"], row["ChargePeriodEnd"]) for row in charges(ended)} == {
        ("2026-11-02T00:00:00Z", format_time(last))
    }


def test_each_period_has_its_own_charges() -> None:
    entries = two_pods()
    entries.time(BEGIN + 4, H100, pod("train"), HOUR)
    parts = [ReportPart(BEGIN, BEGIN + 4, "one"), ReportPart(BEGIN + 4, BEGIN + 8, "two")]
    rows = charges(entries.report(NUMBERS, "pod", parts))
    second = [row for row in rows if row["ChargePeriodStart"] == "2026-11-02T01:00:00Z"]
    assert [(row["SkuId"], row["EffectiveCost"]) for row in second] == [("gpu-time", "2.0000000000")]
    assert len(second) < len(rows)


@pytest.mark.parametrize(
    ("given_prices", "lacking"),
    [
        (Prices(currency="EUR"), "price.kwh or price.gpu_hour"),
        (Prices(kwh=Decimal(1)), "price.currency"),
    ],
)
def test_without_a_price_in_a_currency_it_is_refused(given_prices: Prices, lacking: str) -> None:
    with pytest.raises(UsageError, match=f"requires {lacking} to be set"):
        as_focus(two_pods().report(given_prices), "cluster-1")


amounts = st.integers(0, 3 * HOUR)
entry_lists = st.lists(
    st.tuples(st.integers(0, 7), st.sampled_from((H100, A100)), st.sampled_from(("a", "b", "idle")), amounts),
    min_size=1,
    max_size=12,
)


@given(entry_lists, st.sampled_from((2, 0.1, [{"gpu": "*H100*", "price": 1.37}, {"price": 0.7}])))
def test_effective_costs_sum_to_the_total_for_every_key(given_entries: Any, gpu_hour: Any) -> None:
    entries = Entries()
    for quarter, device, who, amount in given_entries:
        party: Any = who if who == "idle" else pod(who, who, device)
        entries.time(BEGIN + quarter, device, party, amount)
        entries.joules(BEGIN + quarter, device, {} if who == "idle" else {party: amount // 3}, idle=amount)
    given_prices = prices(gpu_hour=gpu_hour, kwh=0.317, pue=1.13)
    totals = set()
    for by in KEYS:
        report = entries.report(given_prices, by)
        rows = charges(report)
        assert report.total.cost is not None
        cost = sum((Decimal(row["EffectiveCost"]) for row in rows), Decimal(0))
        assert cost == round_decimal(report.total.cost, 10)
        microseconds = sum(int(row["x_GpuMicroseconds"] or 0) for row in rows)
        millijoules = sum(int(row["x_Millijoules"] or 0) for row in rows)
        assert (microseconds, millijoules) == (report.total.gpu_microseconds, report.total.millijoules)
        totals.add((cost, microseconds, millijoules))
    assert len(totals) == 1


def test_thirds_of_a_tenth_add_up() -> None:
    entries = Entries()
    for name in "abc":
        entries.time(BEGIN, H100, pod(name), 20 * SECOND)
    rows = charges(entries.report(prices(gpu_hour=6), "pod"))
    assert [row["EffectiveCost"] for row in rows] == ["0.0333333334", "0.0333333333", "0.0333333333"]

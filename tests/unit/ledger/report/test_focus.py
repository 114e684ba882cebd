"""FOCUS: charges by Gpu, owner and UTC day with the prices that applied, which sum to the report's total."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.report.focus import as_focus, focus_keys
from gpuledger.ledger.report.formats import format_time
from gpuledger.ledger.report.gpu_time import GpuPart
from gpuledger.ledger.report.money import round_decimal
from gpuledger.ledger.report.ranges import UTC_DAY, split_range
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.ledger.zone_hours import hour_begins, hour_ends
from gpuledger.model.errors import UsageError
from gpuledger.model.workload import Workload
from money_helpers import A100, H100, HOUR, KWH_MJ, SECOND, Entries, party_of, pod, prices

# 2026-11-02 00:00 UTC, in quarters.
BEGIN = 1_793_577_600 // 900
DAY = 96
KEYS = ("owner", "pod,gpu", "command,user")
NUMBERS = prices(gpu_hour=2, kwh=0.3, pue=1.5, co2=400)


def charges(report: UsageReport, version: str = "1.3") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(as_focus(report, "cluster-1", version))))


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


def test_each_gpu_sku_and_owner_is_a_charge_and_what_has_no_owner_is_the_rest() -> None:
    rows = charges(two_pods().focus_report(NUMBERS))
    shown = ("ResourceId", "SkuId", "AllocatedResourceId", "x_Account", "EffectiveCost")
    assert [tuple(row[name] for name in shown) for row in rows] == [
        ("GPU-0", "gpu-energy", "pod/ml/train", "process", "0.2250000000"),
        ("GPU-0", "gpu-energy", "pod/web/=web", "process", "0.1125000000"),
        ("GPU-0", "gpu-energy", "", "idle", "0.0045000000"),
        ("GPU-0", "gpu-time", "pod/ml/train", "process", "1.0000000000"),
        ("GPU-0", "gpu-time", "pod/web/=web", "process", "1.0000000000"),
        ("GPU-2", "gpu-energy", "user/dan", "process", "0.0450000000"),
        ("GPU-2", "gpu-energy", "", "unobserved", "0.0225000000"),
        ("GPU-2", "gpu-time", "user/dan", "process", "1.0000000000"),
        ("GPU-2", "gpu-time", "", "idle", "0.5000000000"),
        ("GPU-2", "gpu-time", "", "unattributed", "0.2500000000"),
    ]
    for row in rows:
        assert row["EffectiveCost"] == row["BilledCost"] == row["ListCost"] == row["ContractedCost"]
        assert Decimal(row["PricingQuantity"]) * Decimal(row["ListUnitPrice"]) == Decimal(row["ListCost"])
        assert (row["BillingCurrency"], row["ResourceType"]) == ("EUR", "GPU")


def test_a_charge_has_its_exact_amount_unit_price_and_overhead() -> None:
    rows = charges(two_pods().focus_report(NUMBERS))
    energy, time = (row for row in rows if row["AllocatedResourceId"] == "pod/ml/train")
    shown = ("ConsumedQuantity", "PricingQuantity", "ListUnitPrice", "x_Millijoules", "x_GpuMicroseconds")
    assert [energy[name] for name in shown] == ["0.5000000000", "0.7500000000", "0.3", str(KWH_MJ // 2), ""]
    assert [time[name] for name in shown] == ["0.5000000000", "0.5000000000", "2", "", str(HOUR // 2)]
    assert energy["ChargeDescription"] == (
        "Energy of NVIDIA H100, multiplied by the PUE of 1.5: 0.3 EUR per kWh"
    )
    assert time["ChargeDescription"] == "GPU time of NVIDIA H100: 2 EUR per GPU-Hour"
    assert (energy["x_LowKwh"], energy["x_HighKwh"], energy["x_Co2Grams"]) == ("0", "0.76", "300")
    assert (time["x_LowKwh"], time["x_Co2Grams"]) == ("", "")
    assert (energy["x_Method"], time["x_Method"]) == ("activity", "")
    assert (energy["x_FractionKnown"], time["x_FractionKnown"]) == ("", "true")


def test_the_parts_of_a_charge_have_ratios_that_sum_to_one() -> None:
    rows = charges(two_pods().focus_report(NUMBERS))
    found = [
        (row["AllocatedResourceId"], json.loads(row["AllocatedMethodDetails"])["Elements"])
        for row in rows
        if row["ResourceId"] == "GPU-2" and row["SkuId"] == "gpu-time"
    ]
    assert found == [
        ("user/dan", [{"AllocatedRatio": 0.5714285714, "UsageUnit": "GPU-Hours", "UsageQuantity": 0.5}]),
        ("", [{"AllocatedRatio": 0.2857142857, "UsageUnit": "GPU-Hours", "UsageQuantity": 0.25}]),
        ("", [{"AllocatedRatio": 0.1428571429, "UsageUnit": "GPU-Hours", "UsageQuantity": 0.125}]),
    ]


def test_the_method_is_the_basis_and_who_pays_follows_it() -> None:
    residence = charges(two_pods().focus_report(prices(gpu_hour=2, basis="residence")))
    assert (
        {row["AllocatedMethodId"] for row in residence}
        == {"residence"}
        == {row["x_Basis"] for row in residence}
    )
    assert "pod/web/=web" not in {row["AllocatedResourceId"] for row in residence}
    assert {row["AllocatedMethodId"] for row in charges(two_pods().focus_report(NUMBERS))} == {"allocation"}


def test_an_unknown_fraction_is_said() -> None:
    entries = Entries()
    entries.time(BEGIN, H100, pod("train"), HOUR)
    quarter, time = entries.times[0]
    entries.times[0] = (quarter, time._replace(is_estimate=True))
    (row,) = charges(entries.focus_report(prices(gpu_hour=2)))
    assert row["x_FractionKnown"] == "false"


def test_tags_say_what_is_known_of_the_gpu_and_of_the_owner() -> None:
    entries = Entries()
    labels = (("app", "llm"), ("team", "vision"))
    owner = Workload("pod", "ml", "train", "main", labels=labels, controller_kind="Job", controller="nightly")
    entries.time(BEGIN, H100, party_of(H100.uuid, owner, "python3"), HOUR)
    job = Workload("slurm", job="4711", user="mira", slurm_account="nlp", partition="a100")
    entries.time(BEGIN, A100, party_of(A100.uuid, job), HOUR)
    rows = charges(entries.focus_report(prices(gpu_hour=2), "command"))
    assert [json.loads(row["Tags"]) for row in rows] == [
        {"gpuledger/gpu": "0", "gpuledger/model": "NVIDIA H100", "gpuledger/node": "node-1"},
        {"gpuledger/gpu": "2", "gpuledger/model": "NVIDIA A100", "gpuledger/node": "node-1"},
    ]
    assert [json.loads(row["AllocatedTags"]) for row in rows] == [
        {
            "app": "llm",
            "gpuledger/command": "python3",
            "gpuledger/controller": "nightly",
            "gpuledger/controller_kind": "Job",
            "gpuledger/kind": "pod",
            "gpuledger/namespace": "ml",
            "gpuledger/owner": "train",
            "team": "vision",
        },
        {
            "gpuledger/kind": "slurm",
            "gpuledger/owner": "4711",
            "gpuledger/partition": "a100",
            "gpuledger/slurm_account": "nlp",
            "gpuledger/user": "mira",
        },
    ]
    assert [row["ResourceName"] for row in rows] == ["node-1 GPU 0", "node-1 GPU 2"]


def test_a_user_of_a_process_in_a_pod_makes_no_second_row() -> None:
    entries = Entries()
    for user in ("root", "1000"):
        owner = Workload("pod", "ml", "train", "main", user=user)
        entries.time(BEGIN, H100, party_of(H100.uuid, owner), HOUR)
    (row,) = charges(entries.focus_report(prices(gpu_hour=2)))
    assert row["x_GpuMicroseconds"] == str(2 * HOUR)


def test_an_owner_without_a_name_is_still_an_owner() -> None:
    entries = Entries()
    entries.time(BEGIN, H100, party_of(H100.uuid, Workload()), HOUR)
    (row,) = charges(entries.focus_report(prices(gpu_hour=2)))
    assert (row["AllocatedResourceId"], row["AllocatedResourceName"]) == ("unknown", "unknown")


def test_version_1_2_has_the_owner_in_tags_and_in_columns_with_a_prefix() -> None:
    report = two_pods().focus_report(NUMBERS)
    rows, newest = charges(report, "1.2"), charges(report)
    assert not [name for name in rows[0] if name.startswith(("Allocated", "HostProvider", "ServiceProvider"))]
    for row, other in zip(rows, newest, strict=True):
        assert (row["BilledCost"], row["ResourceId"]) == (other["BilledCost"], other["ResourceId"])
        assert row["x_AllocatedResourceId"] == other["AllocatedResourceId"]
        assert json.loads(row["Tags"]) == {
            **json.loads(other["Tags"]),
            **json.loads(other["AllocatedTags"] or "{}"),
        }
    assert [row["SubAccountId"] for row in rows[:3]] == ["ml", "web", ""]


def test_a_formula_in_a_name_is_escaped() -> None:
    entries = Entries()
    owner = Workload("pod", "=ns", "+web", "main", labels=(("team", "=1+1"),))
    entries.time(BEGIN, H100, party_of(H100.uuid, owner), HOUR)
    row = charges(entries.focus_report(prices(gpu_hour=2)))[0]
    assert row["AllocatedResourceId"] == "pod/=ns/+web"
    assert row["AllocatedResourceName"] == "'=ns/+web"
    assert json.loads(row["AllocatedTags"])["team"] == "=1+1"
    assert charges(entries.focus_report(prices(gpu_hour=2)), "1.2")[0]["SubAccountId"] == "'=ns"


def test_each_price_of_a_list_is_a_charge_and_its_id_has_no_amount_and_no_date() -> None:
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
    rows = charges(entries.focus_report(listed))
    shown = ("SkuPriceId", "x_PriceEntry", "ListUnitPrice", "PricingQuantity", "EffectiveCost")
    assert [tuple(row[name] for name in shown) for row in rows] == [
        ("gpu-energy/any", "from=2026-11-02T01:00", "0.4", "1.0000000000", "0.4000000000"),
        ("gpu-energy/any", "until=2026-11-02T01:00", "0.3", "1.5000000000", "0.4500000000"),
        ("gpu-time/any", "any", "3", "1.0000000000", "3.0000000000"),
        ("gpu-time/mig=1g.*,per=instance", "mig=1g.*,per=instance", "3.5", "0.2857142856", "0.9999999994"),
        ("gpu-time/any", "until=2026-11-02T01:00", "2", "1.0000000000", "2.0000000000"),
    ]
    assert rows[3]["SkuPriceDetails"] == '{"GpuCount": 1, "x_PriceEntry": "mig=1g.*,per=instance"}'
    # The bounds of the row are there once.
    assert [row["x_MeasuredKwh"] for row in rows] == ["0", "", "", "", ""]


def test_what_has_no_price_is_no_charge() -> None:
    listed = prices(gpu_hour=[{"gpu": "*H100*", "price": 4}], kwh=None)
    rows = charges(two_pods().focus_report(listed))
    assert {(row["ResourceId"], row["SkuId"]) for row in rows} == {("GPU-0", "gpu-time")}
    assert sum(Decimal(row["EffectiveCost"]) for row in rows) == 4


def test_the_last_charge_period_ends_after_the_last_posting() -> None:
    report = two_pods().focus_report(NUMBERS)
    last = report.period.last - 130.25
    ended = replace(report, period=replace(report.period, since=0, last=last))
    assert {(row["ChargePeriodStart"], row["ChargePeriodEnd"]) for row in charges(ended)} == {
        ("2026-11-02T00:00:00Z", format_time(last + 0.25))
    }


def periods(begin: int, end: int, zone: tzinfo) -> list[tuple[str, str, str]]:
    """Charge periods, and the begin of the billing period, of a GPU that is used in all quarters."""
    entries = Entries()
    for quarter in range(begin, end, 4):
        entries.time(quarter, H100, pod("train"), HOUR)
    rows = charges(entries.focus_report(prices(gpu_hour=2), zone=zone))
    return [
        (row["ChargePeriodStart"][5:16], row["ChargePeriodEnd"][5:16], row["BillingPeriodStart"][:7])
        for row in rows
    ]


def test_days_are_those_of_utc_and_billing_periods_its_months() -> None:
    begin = BEGIN - 3 * DAY
    assert periods(begin + 92, BEGIN, ZoneInfo("Europe/Berlin")) == [
        ("10-30T23:00", "10-31T00:00", "2026-10"),
        ("10-31T00:00", "11-01T00:00", "2026-10"),
        ("11-01T00:00", "11-02T00:00", "2026-11"),
    ]


@pytest.mark.parametrize(
    ("zone", "starts"),
    [
        ("Asia/Kolkata", "00:30"),
        ("Asia/Kathmandu", "00:15"),
        ("America/St_Johns", "00:30"),
        ("Pacific/Chatham", "00:15"),
        ("Pacific/Marquesas", "00:30"),
    ],
)
def test_days_of_other_hours_begin_at_the_full_hour_nearest_to_midnight(zone: str, starts: str) -> None:
    assert periods(BEGIN - DAY - 48, BEGIN, ZoneInfo(zone)) == [
        ("10-31T12:00", f"11-01T{starts}", "2026-10"),
        (f"11-01T{starts}", "11-02T00:00", "2026-11"),
    ]


def test_days_begin_at_midnight_in_a_ledger_that_sums_hours_of_utc() -> None:
    kolkata = ZoneInfo("Asia/Kolkata")

    def folded(quarter: int) -> tuple[int, int]:
        return quarter - quarter % 4, quarter + -quarter % 4

    def detailed(quarter: int) -> tuple[int, int]:
        return quarter, quarter

    utc, end = ZoneInfo("UTC"), BEGIN + 2 * DAY
    expected = split_range(BEGIN, end, UTC_DAY, detailed, utc)
    for cuts, ledger_zone in ((folded, None), (folded, utc), (detailed, utc)):
        assert split_range(BEGIN, end, UTC_DAY, cuts, kolkata, ledger_zone) == expected


@given(st.integers(0, 4 * DAY), st.integers(1, 4 * DAY), st.sampled_from(("Asia/Kolkata", "UTC")))
def test_days_depend_neither_on_the_range_nor_on_folding(offset: int, length: int, name: str) -> None:
    zone = ZoneInfo(name)

    def folded(quarter: int) -> tuple[int, int]:
        return hour_begins(quarter, zone), hour_ends(quarter - 1, zone)

    def days(begin: int, end: int) -> dict[int, str]:
        parts, notes = split_range(begin, end, UTC_DAY, lambda quarter: (quarter, quarter), zone)
        assert split_range(begin, end, UTC_DAY, folded, zone) == (parts, notes)
        assert [part.begins for part in parts] == [begin, *(part.ends for part in parts[:-1])]
        assert parts[-1].ends == end
        return {quarter: part.name for part in parts for quarter in range(part.begins, part.ends)}

    whole = days(BEGIN, BEGIN + 8 * DAY)
    part = days(BEGIN + offset, BEGIN + offset + length)
    assert part == {quarter: whole[quarter] for quarter in part}


@pytest.mark.parametrize(
    ("given_prices", "lacking"),
    [
        (Prices(currency="EUR"), "requires price.kwh or price.gpu_hour to be set"),
        (Prices(kwh=Decimal(1)), "requires price.currency to be set"),
        (Prices(kwh=Decimal(1), currency="EUO"), "price.currency EUO is not a national currency"),
    ],
)
def test_without_a_price_in_a_currency_it_is_refused(given_prices: Prices, lacking: str) -> None:
    with pytest.raises(UsageError, match=lacking):
        as_focus(two_pods().focus_report(given_prices), "cluster-1")


@pytest.mark.parametrize(
    ("by", "has_teams", "keys"),
    [
        ("owner", False, "node,gpu,owner,tags"),
        ("gpu, model", False, "node,gpu,owner,tags"),
        ("team,command", False, "node,gpu,owner,tags,team,command"),
        ("owner", True, "node,gpu,owner,tags,team"),
        ("label:team", False, "node,gpu,owner,tags,label:team"),
    ],
)
def test_keys_of_by_make_tags_and_cut_rows_further(by: str, has_teams: bool, keys: str) -> None:
    assert focus_keys(by, has_teams=has_teams) == keys


amounts = st.integers(0, 3 * HOUR)
entry_lists = st.lists(
    st.tuples(
        st.integers(0, 200), st.sampled_from((H100, A100)), st.sampled_from(("a", "b", "idle")), amounts
    ),
    min_size=1,
    max_size=12,
)


@given(
    entry_lists,
    st.sampled_from((2, 0.1, [{"gpu": "*H100*", "price": 1.37}, {"price": 0.7}])),
    st.sampled_from((UTC, ZoneInfo("Asia/Kolkata"))),
)
def test_costs_sum_to_the_total_for_every_key_and_version(
    given_entries: Any, gpu_hour: Any, zone: tzinfo
) -> None:
    entries = Entries()
    for quarter, device, who, amount in given_entries:
        party: Any = who if who == "idle" else pod(who, who, device)
        entries.time(BEGIN + quarter, device, party, amount)
        entries.joules(BEGIN + quarter, device, {} if who == "idle" else {party: amount // 3}, idle=amount)
    given_prices = prices(gpu_hour=gpu_hour, kwh=0.317, pue=1.13)
    totals = set()
    for by, version in [*((by, "1.3") for by in KEYS), ("owner", "1.2")]:
        report = entries.focus_report(given_prices, by, zone)
        rows = charges(report, version)
        assert report.total.cost is not None
        assert report.total.cost == entries.report(given_prices, zone=zone).total.cost
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
    rows = charges(entries.focus_report(prices(gpu_hour=6)))
    assert [row["EffectiveCost"] for row in rows] == ["0.0333333334", "0.0333333333", "0.0333333333"]

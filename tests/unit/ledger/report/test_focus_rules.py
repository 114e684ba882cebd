"""Every row of FOCUS 1.3 follows the rules of its columns (`focus_rules`), whatever the ledger has."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest

from focus_rules import RULES, broken_rules
from gpuledger.ledger.report.focus import as_focus, focus_keys
from gpuledger.ledger.report.gpu_time import GpuPart
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.model.workload import Workload
from money_helpers import A100, H100, H100_TOO, HOUR, KWH_MJ, Entries, party_of, pod, prices
from unit.ledger.report.fleet.support import DAY as DAY_SECONDS
from unit.ledger.report.fleet.support import CounterLevels, ScrapedFleet, own_time, spent
from unit.ledger.report.fleet.test_fleet_time import one_day
from unit.ledger.report.tokens.serving import serving_reports

# 2026-10-30 00:00 UTC, in quarters.
BEGIN = 1_793_318_400 // 900
PRICED = prices(gpu_hour="2.37", kwh="0.3217", pue="1.31", co2=380)


def idle_and_shared() -> Entries:
    """Days over the end of a month: shared, idle, unattributed, unobserved, down and partly watched hours."""
    entries = Entries()
    for hour in range(0, 4 * 24, 5):
        quarter = BEGIN + 4 * hour
        names = ("train", "serve", "a;b=c")[: 1 + hour % 3]
        for number, name in enumerate(names):
            party = pod(name, ("ml", "web")[number % 2])
            entries.time(quarter, H100, party, HOUR // len(names), HOUR * number)
            entries.joules(quarter, H100, {party: KWH_MJ // (3 + number)}, idle=KWH_MJ // 97)
        entries.time(quarter, A100, ("idle", "unattributed", "unobserved", "down")[hour % 4], HOUR)
        entries.joules(quarter, A100, {}, idle=KWH_MJ // 31, unobserved=hour % 2)
    entries.time(BEGIN, H100_TOO, party_of(H100_TOO.uuid, Workload()), 1)
    return entries


def mig() -> Entries:
    """Instances with separate prices, and multiprocessors that no instance covers."""
    entries = Entries()
    for number, share in enumerate((Fraction(60, 132), Fraction(16, 132), Fraction(16, 132))):
        part = GpuPart(H100.uuid, H100.name, f"{number}_0", f"{3 - number}g.20gb", share)
        account = "idle" if number == 2 else pod(f"p-{number}")
        entries.time(BEGIN, H100, account, int(HOUR * share), part=part)
    entries.time(BEGIN, H100, "uncut", HOUR // 4)
    return entries


def fleet() -> UsageReport:
    """A day of a fleet, out of a Prometheus."""
    accounts: CounterLevels = [
        (spent("GPU-0", "train"), 0, DAY_SECONDS / 3),
        (own_time("GPU-0"), 0, DAY_SECONDS / 2),
        (own_time("GPU-0", "down"), 0, DAY_SECONDS / 6),
        (spent("GPU-1", "train", "b"), 0, DAY_SECONDS),
    ]
    found: ScrapedFleet = one_day(accounts, {"GPU-0": DAY_SECONDS, "GPU-1": DAY_SECONDS}, {"GPU-1": "b"})
    return found.report(focus_keys("owner", has_teams=False), prices=PRICED)


SERVING_KEYS = focus_keys("owner", has_teams=False, has_tokens=True)
BY_INSTANCE = [{"mig": "3g.*", "price": 1, "per": "instance"}, {"mig": "*", "price": "0.7"}, {"price": 4}]
HALF_PRICED = [{"gpu": "*H100*", "until": "2026-10-31", "price": 3}, {"gpu": "*H100*", "price": 4}]
BOOKS: dict[str, Callable[[], UsageReport]] = {
    "month ends": lambda: idle_and_shared().focus_report(PRICED),
    "half hours": lambda: idle_and_shared().focus_report(PRICED, zone=ZoneInfo("Asia/Kolkata")),
    "quarters": lambda: idle_and_shared().focus_report(PRICED, zone=ZoneInfo("Pacific/Chatham")),
    "instances by price": lambda: mig().focus_report(prices(gpu_hour=BY_INSTANCE)),
    "unpriced parts": lambda: idle_and_shared().focus_report(prices(gpu_hour=HALF_PRICED, currency="KRW")),
    "unmetered": lambda: replace(idle_and_shared(), energy=[]).focus_report(PRICED),
    "free of charge": lambda: idle_and_shared().focus_report(prices(gpu_hour=0, kwh=0)),
    "residence by command": lambda: idle_and_shared().focus_report(
        prices(gpu_hour=1, basis="residence"), "command,label:x"
    ),
    "only energy": lambda: idle_and_shared().focus_report(prices(kwh="0.1", currency="USD")),
    "fleet": fleet,
    "tokens": lambda: serving_reports(SERVING_KEYS, PRICED)[1],
}


def rows_of(report: UsageReport) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(as_focus(report, "cluster-1"))))


@pytest.mark.parametrize("given", BOOKS)
def test_every_row_follows_the_rules_of_its_columns(given: str) -> None:
    rows = rows_of(BOOKS[given]())
    assert rows
    assert broken_rules(rows) == []


VIOLATIONS: dict[str, dict[str, str]] = {
    "AllocatedMethodId": {"AllocatedMethodId": ""},
    "AllocatedResourceId": {"AllocatedResourceId": ""},
    "AllocatedResourceName": {"AllocatedResourceName": ""},
    "AllocatedTags": {"AllocatedTags": '{"gpuledger/gpu": "0"}'},
    "AllocatedMethodDetails": {"AllocatedMethodDetails": '{"Elements": [{"AllocatedRatio": 0.9}]}'},
    "BilledCost": {"BilledCost": "1,00"},
    "BillingCurrency": {"BillingCurrency": "EURO"},
    "BillingPeriodEnd": {"BillingPeriodEnd": "2026-11-02T00:00:00Z"},
    "ChargeClass": {"ChargeClass": "Correction"},
    "ChargeDescription": {"ChargeDescription": "GPU time of dan"},
    "ChargePeriodEnd": {"ChargePeriodEnd": "2026-10-01T00:00:00Z"},
    "ChargePeriodStart": {"ChargePeriodStart": "2026-10-30"},
    "EffectiveCost": {"EffectiveCost": "77"},
    "ListCost": {"ListCost": "77"},
    "ListUnitPrice": {"ListUnitPrice": "-1"},
    "PricingUnit": {"PricingUnit": "per hour"},
    "ResourceName": {"ResourceName": "GPU-0"},
    "ServiceSubcategory": {"ServiceSubcategory": ""},
    "SkuPriceId": {"SkuPriceId": "gpu-time/any", "SkuId": "gpu-energy"},
    "Tags": {"Tags": '{"a": {"b": 1}}'},
    "gpu": {"gpu": "0"},
}


@pytest.mark.parametrize("column", VIOLATIONS)
def test_the_table_of_rules_finds_a_row_that_breaks_one(column: str) -> None:
    rows = rows_of(BOOKS["month ends"]())
    first = next(row for row in rows if row["SkuId"] == "gpu-time" and row["AllocatedResourceId"])
    first |= VIOLATIONS[column]
    assert column in {line.partition(":")[0] for line in broken_rules([first, *rows])}


COUNT_VIOLATIONS: dict[str, dict[str, str]] = {
    "AllocatedMethodDetails": {"AllocatedMethodDetails": '{"Elements": [{"AllocatedRatio": 1}]}'},
    "AllocatedMethodId": {"AllocatedMethodId": "allocation"},
    "AllocatedResourceId": {"AllocatedResourceId": "pod/serving/chat"},
    "BilledCost": {"BilledCost": "1"},
    "ConsumedQuantity": {"ConsumedQuantity": "1.5"},
    "ConsumedUnit": {"ConsumedUnit": "1000 tokens"},
    "ListUnitPrice": {"ListUnitPrice": "1"},
    "PricingQuantity": {"PricingQuantity": "7"},
    "ResourceType": {"ResourceType": "GPU"},
    "ServiceSubcategory": {"ServiceSubcategory": "Other (Compute)"},
}


@pytest.mark.parametrize("column", COUNT_VIOLATIONS)
def test_the_table_of_rules_finds_a_row_of_tokens_that_breaks_one(column: str) -> None:
    rows = rows_of(BOOKS["tokens"]())
    first = next(row for row in rows if row["SkuId"] == "tokens-output")
    first |= COUNT_VIOLATIONS[column]
    assert column in {line.partition(":")[0] for line in broken_rules(rows)}


def test_the_table_of_rules_finds_tokens_that_are_counted_twice() -> None:
    rows = rows_of(BOOKS["tokens"]())
    assert broken_rules([*rows, rows[-1]])[-1].startswith("ConsumedQuantity: ")


@pytest.mark.parametrize("column", RULES)
def test_the_table_of_rules_finds_a_column_that_is_absent(column: str) -> None:
    rows = rows_of(BOOKS["instances by price"]())
    absent = [{name: cell for name, cell in row.items() if name != column} for row in rows]
    assert broken_rules(absent) == [f"{column}: a {RULES[column].level} column is absent"]

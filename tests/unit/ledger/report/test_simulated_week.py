"""A simulated week on eight GPUs costs price x time + energy price x kWh, for all keys and formats."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal
from fractions import Fraction
from functools import cache
from random import Random

import pytest

from builders import gpu
from gpuledger.ledger.report.focus import as_focus
from gpuledger.ledger.report.formats import as_csv, as_json
from gpuledger.ledger.report.money import round_decimal
from gpuledger.ledger.report.party import Party
from gpuledger.ledger.report.ranges import ReportPart
from gpuledger.ledger.report.report_keys import GROUPINGS
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.model.devices import Gpu
from money_helpers import KWH_MJ, SECOND, Entries, pod, prices

# 2026-11-30 00:00 UTC.
MONDAY = 1_795_996_800 // 900
QUARTERS = 7 * 96
WEEK = [ReportPart(MONDAY, MONDAY + QUARTERS, "")]
DAYS = [
    ReportPart(MONDAY + day * 96, MONDAY + (day + 1) * 96, f"2026-{date}")
    for day, date in enumerate(("11-30", "12-01", "12-02", "12-03", "12-04", "12-05", "12-06"))
]
GPUS = [gpu(index, name="NVIDIA H100" if index < 4 else "NVIDIA A100") for index in range(8)]
PRICED = prices(
    gpu_hour=[
        {"gpu": "*H100*", "until": "2026-12-03", "price": "2.40"},
        {"gpu": "*H100*", "price": "2.55"},
        {"gpu": "*A100*", "price": "1.13"},
    ],
    kwh="0.3217",
    pue="1.31",
)
KEYS = (*GROUPINGS, "namespace,model", "user,command,gpu", "label:team")


def owners(device: Gpu) -> list[Party]:
    return [pod(f"p-{number}", f"ns-{number % 3}", device, f"c{number % 2}") for number in range(5)]


@cache
def week() -> tuple[Entries, Fraction]:
    """The entries, and the money that they cost, computed entry by entry."""
    random, books, money = Random(27), Entries(GPUS), Fraction(0)
    for quarter in range(MONDAY, MONDAY + QUARTERS):
        is_late = quarter >= MONDAY + 3 * 96
        for device in GPUS:
            h100 = Fraction(255 if is_late else 240, 100)
            price = h100 if "H100" in device.name else Fraction(113, 100)
            present = random.sample(owners(device), random.randint(0, 4))
            left = 900 * SECOND
            for party in present:
                part = random.randint(0, left)
                left -= part
                books.time(quarter, device, party, part)
                money += price * Fraction(part, 3600 * SECOND)
            account = random.choice(["idle", "unattributed", "down", "unobserved"])
            books.time(quarter, device, account, left)
            money += price * Fraction(left, 3600 * SECOND) if account in ("idle", "unattributed") else 0
            shares = {party: random.randint(0, 10**8) for party in present}
            idle = random.randint(0, 10**7)
            books.joules(quarter, device, shares, idle=idle)
            used = sum(shares.values()) + idle
            money += Fraction(3217, 10_000) * Fraction(131, 100) * Fraction(used, KWH_MJ)
    return books, money


@cache
def report(by: str, *, daily: bool = False) -> UsageReport:
    return week()[0].report(PRICED, by, DAYS if daily else WEEK)


@pytest.mark.parametrize("by", KEYS)
def test_the_exact_total_is_the_same_for_every_key(by: str) -> None:
    found = report(by)
    assert found.total.cost == week()[1]
    assert found.total.cost == sum(line.cost or 0 for line in (*found.lines, *found.gpu_accounts))
    unbilled = sum(one.microseconds for one in found.unbilled)
    assert (found.total.gpu_microseconds or 0) + unbilled == 8 * 7 * 86_400 * SECOND == found.watched


def test_days_add_up_to_the_week_in_every_row() -> None:
    whole, daily = report("pod"), report("pod", daily=True)
    assert daily.total.cost == whole.total.cost
    sums: dict[tuple[str, ...], Fraction] = {}
    for line in daily.lines:
        sums[line.key] = sums.get(line.key, Fraction(0)) + (line.cost or 0)
    assert sums == {line.key: line.cost for line in whole.lines}


@pytest.mark.parametrize("by", ["pod", "namespace,model", "gpu"])
@pytest.mark.parametrize("daily", [False, True])
def test_csv_and_json_carry_the_same_exact_amounts(by: str, daily: bool) -> None:
    found = report(by, daily=daily)
    rows = list(csv.DictReader(io.StringIO(as_csv(found))))
    written = json.loads(json.dumps(as_json(found)))
    every = [*written["rows"], *written["own"]]
    for name in ("gpu_microseconds", "millijoules"):
        total = sum(int(row[name]) for row in rows)
        assert total == sum(row[name] for row in every) == written["total"][name]
    cost = round_decimal(week()[1], 10)
    assert sum((Decimal(row["cost"]) for row in rows), Decimal(0)) == cost
    assert sum((Decimal(row["decimals"]["cost"]) for row in every), Decimal(0)) == cost
    assert written["total"]["decimals"]["cost"] == str(cost)


@pytest.mark.parametrize("version", ["1.3", "1.2"])
def test_focus_has_the_same_exact_amounts_day_by_day(version: str) -> None:
    """Its days are those of UTC, and a day that begins with a new price has no charge at the old one."""
    found = week()[0].focus_report(PRICED)
    rows = list(csv.DictReader(io.StringIO(as_focus(found, "cluster-1", version))))
    total = found.total
    for name, amount in (("x_GpuMicroseconds", total.gpu_microseconds), ("x_Millijoules", total.millijoules)):
        assert sum(int(row[name] or 0) for row in rows) == amount
    assert sum((Decimal(row["BilledCost"]) for row in rows), Decimal(0)) == round_decimal(week()[1], 10)
    assert len({row["ChargePeriodStart"] for row in rows}) == 7
    assert {row["BillingPeriodStart"][:7] for row in rows} == {"2026-11", "2026-12"}


def test_spreading_idle_time_changes_no_total() -> None:
    spread = prices(
        gpu_hour=[{"gpu": "*H100*", "price": "2.40"}, {"price": "1.13"}], kwh="0.3217", idle="spread"
    )
    row = prices(gpu_hour=[{"gpu": "*H100*", "price": "2.40"}, {"price": "1.13"}], kwh="0.3217")
    one, other = (week()[0].report(given, "pod", WEEK) for given in (spread, row))
    assert one.total.cost == other.total.cost
    assert sum(line.cost or 0 for line in one.lines) > sum(line.cost or 0 for line in other.lines)

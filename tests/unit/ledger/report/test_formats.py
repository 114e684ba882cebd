"""Report formats: their columns, escaping, and rounded numbers that still sum."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import gpu
from gpuledger.cli.report import report_table
from gpuledger.ledger.report.focus import COLUMNS, as_focus
from gpuledger.ledger.report.formats import as_csv, as_json, escape_cell, report_columns, round_column
from gpuledger.ledger.report.grouping import find_grouping, party_of
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.tally import EnergyEntry, Tally, TimeEntry
from gpuledger.ledger.report.usage_report import Period, ReportLine, UsageReport, report_from_tally
from gpuledger.ledger.watched_time import HOUR
from gpuledger.model.errors import UsageError
from gpuledger.model.workload import Workload

A = gpu(0, name="NVIDIA H100", sm_count=132)
KWH = 3_600_000_000
WHOLE_HOUR = (1 << HOUR) - 1
PRICED = Prices(
    kwh=Decimal("0.30"), gpu_hour=Decimal(2), currency="EUR", pue=Decimal("1.5"), co2=Decimal(400)
)
PERIOD = Period(0, 7200, 0, 7200.0)


def books(prices: Prices = PRICED, by: str = "namespace", model: str = A.name) -> UsageReport:
    """A report of one hour with one pod alone and one hour with two pods, with the Gpu's own accounts."""
    devices = {A.uuid: replace(A, name=model)}
    group_by = find_grouping(by, devices)
    tally = Tally(group_by, lambda _: Fraction(1))
    one, other = (party_of(A.uuid, Workload("pod", namespace, "p", "main")) for namespace in ("ml", "=web"))
    hour = 3600 * 1_000_000
    tally.add_energy(EnergyEntry(A.uuid, "measured", hour, 0, 0, 0, [(one, KWH // 2)]))
    shares = [(one, KWH // 10), (other, KWH // 5)]
    tally.add_energy(EnergyEntry(A.uuid, "activity", hour, KWH // 100, KWH // 50, 0, shares))
    tally.add_energy(EnergyEntry(A.uuid, "unobserved", hour, 0, 0, KWH // 20, ()))
    tally.add_times(TimeEntry(0, one, WHOLE_HOUR, 0, WHOLE_HOUR, WHOLE_HOUR, 1))
    tally.add_times(TimeEntry(1, one, WHOLE_HOUR, WHOLE_HOUR, 0, WHOLE_HOUR, 0))
    tally.add_times(TimeEntry(1, other, WHOLE_HOUR, 0, WHOLE_HOUR, 0, 2))
    tally.finish()
    return report_from_tally(tally, group_by, prices, devices, PERIOD)


def test_cost_includes_the_buildings_energy_and_the_time() -> None:
    ml, web = books().lines
    assert ml.cost == Fraction(6, 10) * Fraction(15, 10) * Fraction(30, 100) + 2 * 2
    assert web.grams == Fraction(2, 10) * Fraction(15, 10) * 400


def test_unowned_energy_has_the_energy_price() -> None:
    idle, unattributed, unobserved = books().gpu_accounts
    assert [line.cost for line in (idle, unattributed, unobserved)] == [
        Fraction(share, 100) * Fraction(15, 10) * Fraction(30, 100) for share in (1, 2, 5)
    ]
    assert idle.resident is None


def test_the_total_is_the_sum_of_all_rows() -> None:
    found = books()
    every = (*found.lines, *found.gpu_accounts)
    assert found.total.millijoules == sum(line.millijoules for line in every) == found.gpus[0].millijoules
    assert found.total.cost == sum(line.cost or 0 for line in every)
    assert found.total.resident == 3 * 3600
    assert found.occupied == 2 * 3600


@pytest.mark.parametrize(
    ("prices", "names"),
    [
        (Prices(), set()),
        (Prices(kwh=Decimal(1)), {"cost"}),
        (Prices(gpu_hour=Decimal(1)), {"cost"}),
        (Prices(co2=Decimal(1)), {"co2_kg"}),
        (PRICED, {"cost", "co2_kg"}),
    ],
)
def test_prices_that_are_not_set_have_no_column(prices: Prices, names: set[str]) -> None:
    assert {column.name for column in report_columns(prices)} & {"cost", "co2_kg"} == names
    assert ("cost" in as_csv(books(prices))) == ("cost" in names)
    assert ("CO2" in report_table(books(prices), 0)) == ("co2_kg" in names)


amounts = st.lists(st.fractions(0, 10**6, max_denominator=10**6), min_size=1, max_size=30)


@given(amounts, st.integers(0, 9))
def test_rounded_numbers_sum_to_the_rounded_sum(costs: list[Fraction], digits: int) -> None:
    (column,) = (column for column in report_columns(PRICED) if column.name == "cost")
    numbers = round_column([ReportLine((), cost=cost) for cost in costs], column, digits)
    unit = Decimal(1).scaleb(-digits)
    printed = [number for number in numbers if number is not None]
    assert sum(map(Fraction, printed)) == Fraction(round(sum(costs) * 10**digits), 10**digits)
    for number, cost in zip(printed, costs, strict=True):
        # The largest one absorbs the half unit by which the sum is rounded.
        assert abs(Fraction(number) - cost) < 2 * Fraction(unit)
        assert number >= 0


def test_csv_has_all_rows_and_exact_millijoules() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(books()))))
    assert [(row["namespace"], row["account"], int(row["millijoules"])) for row in rows] == [
        ("ml", "process", KWH * 6 // 10),
        ("'=web", "process", KWH // 5),
        ("", "idle", KWH // 100),
        ("", "unattributed", KWH // 50),
        ("", "unobserved", KWH // 20),
    ]
    assert rows[0]["low_kwh"] == "0.500000000"
    assert rows[0]["high_kwh"] == "0.830000000"
    assert rows[2]["high_kwh"] == ""
    assert rows[0]["held_gpu_hours"] == "1.000000"


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x", "@x", " =x", "\uff1d1"])
def test_a_formula_in_a_name_is_escaped(name: str) -> None:
    assert escape_cell(name) == f"'{name}"
    assert escape_cell(f"x;{name}") == f"x;'{name}"


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("train-0", "train-0"),
        ("a\tb\nc", r"a\tb\nc"),
        ("\x1b]0;x\a", r"\x1b]0;x\x07"),
        ("\x9b1mx\u202e", r"\x9b1mx\u202e"),
    ],
    ids=["a usual name", "lines and tabs", "escape sequence", "C1 and direction"],
)
def test_control_characters_in_a_name_are_escaped(name: str, printed: str) -> None:
    assert escape_cell(name) == printed


def test_control_characters_in_a_model_are_escaped_in_the_table() -> None:
    """The name comes from another machine's nvidia-smi, a recording or a Prometheus."""
    printed = report_table(books(by="gpu", model="NVIDIA \x1b]0;x\a"), 0)
    assert r"NVIDIA \x1b]0;x\x07" in printed


def test_json_matches_csv() -> None:
    printed = json.loads(json.dumps(as_json(books())))
    assert printed["total"]["millijoules"] == books().total.millijoules
    assert printed["rows"][0]["millijoules_by_method"] == {"activity": KWH // 10, "measured": KWH // 2}
    assert (printed["since"], printed["until"]) == ("1970-01-01T00:00:00Z", "1970-01-01T02:00:00Z")
    assert printed["settings"]["price.currency"] == "EUR"
    assert printed["own"][0]["high_kwh"] is None
    assert printed["occupied_gpu_hours"] == 2


FOLDER = Path(__file__).parents[3] / "golden"
SHAPES: dict[str, Callable[[UsageReport], str]] = {
    "report.json": lambda found: json.dumps(as_json(found), indent=1) + "\n",
    "report.csv": as_csv,
    "report-focus.csv": lambda found: as_focus(found, "cluster-1"),
    # Without its first line, which has local times.
    "report-table.txt": lambda found: report_table(found, 20, plain=True).partition("\n")[2],
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_report_format_matches_its_golden_file(name: str) -> None:
    """Programs read these formats: every key, word and digit counts."""
    golden, found = FOLDER / name, SHAPES[name](books())
    if os.environ.get("UPDATE_GOLDENS"):
        golden.write_text(found, "utf-8")
    assert found == golden.read_text("utf-8")


def test_the_largest_row_absorbs_the_rounding_difference() -> None:
    lines = [
        ReportLine(("a",), methods={"measured": KWH + 1700}),
        ReportLine(("b",), methods={"measured": 1700}),
    ]
    column = next(one for one in report_columns(Prices()) if one.name == "kwh")
    assert round_column(lines, column, 6) == [Decimal("1.000001"), Decimal("0.000000")]


@pytest.mark.parametrize(
    ("prices", "lacking"),
    [(Prices(), "price.kwh or price.gpu_hour"), (Prices(kwh=Decimal(1)), "price.currency")],
)
def test_a_charge_without_a_price_names_the_setting(prices: Prices, lacking: str) -> None:
    with pytest.raises(UsageError) as caught:
        as_focus(books(prices), "cluster-1")
    assert f"requires {lacking} to be set" in str(caught.value)


def test_the_table_shows_the_largest_rows_and_sums_the_rest() -> None:
    text = report_table(books(by="pod"), 0)
    assert "ml/p" in text
    assert "=web/p" in text
    assert "█" in text
    short = report_table(books(), 1, plain=True)
    assert short.isascii()


def test_rows_beyond_the_limit_are_summed_to_one_row() -> None:
    devices = {A.uuid: A}
    group_by = find_grouping("pod", devices)
    tally = Tally(group_by, lambda _: Fraction(1))
    for number in range(30):
        party = party_of(A.uuid, Workload("pod", "ml", f"p-{number}"))
        tally.add_energy(EnergyEntry(A.uuid, "activity", 1, 0, 0, 0, [(party, KWH * (number + 1))]))
    lines = report_table(report_from_tally(tally, group_by, Prices(), devices, PERIOD), 5).splitlines()
    (others,) = (line for line in lines if "25 others" in line)
    assert f"{sum(range(1, 26)):.3f}" in others


def test_focus_has_one_charge_for_energy_and_one_for_time() -> None:
    rows = list(csv.DictReader(io.StringIO(as_focus(books(), "cluster-1"))))
    assert list(rows[0]) == list(COLUMNS)
    charges = [(row["SubAccountId"], row["SkuId"], row["x_Account"], row["BilledCost"]) for row in rows]
    assert charges == [
        ("ml", "gpu-energy", "process", "0.27"),
        ("ml", "gpu-time", "process", "4"),
        ("'=web", "gpu-energy", "process", "0.09"),
        ("'=web", "gpu-time", "process", "2"),
        ("", "gpu-energy", "idle", "0.0045"),
        ("", "gpu-energy", "unattributed", "0.009"),
        ("", "gpu-energy", "unobserved", "0.0225"),
    ]
    for row in rows:
        quantity, price = Decimal(row["PricingQuantity"]), Decimal(row["ListUnitPrice"])
        assert quantity * price == Decimal(row["ListCost"]) == Decimal(row["EffectiveCost"])
        assert (row["ChargePeriodStart"], row["ChargePeriodEnd"]) == (
            "1970-01-01T00:00:00Z",
            "1970-01-01T02:00:00Z",
        )
        assert row["BillingCurrency"] == "EUR"
        json.loads(row["Tags"])


@pytest.mark.parametrize(
    ("prices", "lacking"),
    [
        (Prices(currency="EUR"), "price.kwh or price.gpu_hour"),
        (Prices(kwh=Decimal(1)), "price.currency"),
    ],
)
def test_focus_without_a_price_in_a_currency_is_refused(prices: Prices, lacking: str) -> None:
    with pytest.raises(UsageError, match=lacking):
        as_focus(books(prices), "cluster-1")

"""Report formats: their columns, escaping, and rounded numbers that still sum."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC
from decimal import Decimal
from fractions import Fraction
from math import floor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import gpu
from gpuledger.ledger.report.charges import Rate
from gpuledger.ledger.report.focus import as_focus
from gpuledger.ledger.report.formats import as_csv, as_json, escape_cell
from gpuledger.ledger.report.gpu_time import GpuPart, GpuTime
from gpuledger.ledger.report.grouping import Grouping, find_grouping
from gpuledger.ledger.report.money import round_decimal
from gpuledger.ledger.report.party import party_of
from gpuledger.ledger.report.prices import PriceList
from gpuledger.ledger.report.ranges import ReportPart
from gpuledger.ledger.report.report_builder import ReportScope, build_usage_report
from gpuledger.ledger.report.report_columns import report_columns, round_column
from gpuledger.ledger.report.report_table import report_table, total_cell
from gpuledger.ledger.report.segments import PriceSegment, SegmentPrices
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.tally import EnergyEntry, Tally, TimeEntry
from gpuledger.ledger.report.usage_report import Period, ReportLine, UsageReport
from gpuledger.ledger.watched_time import HOUR
from gpuledger.model.devices import Device
from gpuledger.model.errors import UsageError
from gpuledger.model.workload import Workload

A = gpu(0, name="NVIDIA H100", sm_count=132)
KWH = 3_600_000_000
WHOLE_HOUR = (1 << HOUR) - 1
PRICED = Prices(
    kwh=Decimal("0.30"), gpu_hour=Decimal(2), currency="EUR", pue=Decimal("1.5"), co2=Decimal(400)
)
PERIOD = Period(0, 7200, 0, 7200.0)


def books(
    prices: Prices = PRICED, by: str = "namespace", model: str = A.name, uuid: str = A.uuid
) -> UsageReport:
    """Two hours of one pod, shared with another in the second; half an hour each of idle and down time."""
    devices = {uuid: replace(A, name=model, uuid=uuid)}
    group_by = find_grouping(by, devices)
    tally = Tally(group_by, lambda _: Fraction(1))
    one, other = (party_of(uuid, Workload("pod", namespace, "p", "main")) for namespace in ("ml", "=web"))
    price_list, hour = PriceList(prices, UTC), 3600 * 1_000_000
    tally.begin_segment(PriceSegment(0, 0, 8), SegmentPrices(price_list))
    tally.add_energy(EnergyEntry(uuid, "measured", hour, 0, 0, 0, [(one, KWH // 2)]))
    shares = [(one, KWH // 10), (other, KWH // 5)]
    tally.add_energy(EnergyEntry(uuid, "activity", hour, KWH // 100, KWH // 50, 0, shares))
    tally.add_energy(EnergyEntry(uuid, "unobserved", hour, 0, 0, KWH // 20, ()))
    part = GpuPart(uuid, model)
    for account, party, microseconds in (
        ("owner", one, 3 * hour // 2),
        ("owner", other, hour // 2),
        ("idle", None, hour // 2),
        ("down", None, hour // 2),
    ):
        tally.add_gpu_time(GpuTime(part, account, party, party is other, microseconds, microseconds))
    tally.begin_period(0)
    tally.add_times(TimeEntry(0, one, WHOLE_HOUR, 0, WHOLE_HOUR, WHOLE_HOUR, 1))
    tally.add_times(TimeEntry(4, one, WHOLE_HOUR, WHOLE_HOUR, 0, WHOLE_HOUR, 0))
    tally.add_times(TimeEntry(4, other, WHOLE_HOUR, 0, WHOLE_HOUR, 0, 2))
    tally.finish()
    return report(tally, group_by, prices, devices)


def report(tally: Tally, group_by: Grouping, prices: Prices, devices: Mapping[str, Device]) -> UsageReport:
    scope = ReportScope(
        group_by,
        prices,
        devices,
        PERIOD,
        [ReportPart(0, 8, "")],
        fingerprint=PriceList(prices, UTC).fingerprint,
        zone=UTC,
    )
    price_list = PriceList(prices, UTC)
    return build_usage_report(tally, scope, lambda segment: SegmentPrices(price_list, "", segment.since))


def test_cost_includes_the_buildings_energy_and_the_time() -> None:
    ml, web = books().lines
    assert ml.energy_cost == Fraction(6, 10) * Fraction(15, 10) * Fraction(30, 100)
    assert ml.time_cost == Fraction(3, 2) * 2
    assert ml.cost == ml.energy_cost + ml.time_cost
    assert web.grams == Fraction(2, 10) * Fraction(15, 10) * 400


def test_unowned_energy_and_idle_time_have_a_price() -> None:
    idle, unattributed, unobserved = books().gpu_accounts
    assert [line.energy_cost for line in (idle, unattributed, unobserved)] == [
        Fraction(share, 100) * Fraction(15, 10) * Fraction(30, 100) for share in (1, 2, 5)
    ]
    assert [line.time_cost for line in (idle, unattributed, unobserved)] == [1, 0, 0]
    assert idle.resident is None


def test_the_total_is_the_sum_of_all_rows() -> None:
    found = books()
    every = (*found.lines, *found.gpu_accounts)
    assert found.total.millijoules == sum(line.millijoules for line in every) == found.gpus[0].millijoules
    assert found.total.cost == sum(line.cost or 0 for line in every)
    assert found.total.gpu_microseconds == 5 * 3600 * 1_000_000 // 2
    assert found.watched == found.total.gpu_microseconds + 3600 * 1_000_000 // 2
    assert found.occupied == 2 * 3600


@pytest.mark.parametrize(
    ("prices", "names"),
    [
        (Prices(), set()),
        (Prices(kwh=Decimal(1)), {"energy_cost", "cost"}),
        (Prices(gpu_hour=Decimal(1)), {"time_cost", "cost"}),
        (Prices(co2=Decimal(1)), {"co2_kg"}),
        (PRICED, {"time_cost", "energy_cost", "cost", "co2_kg"}),
    ],
)
def test_prices_that_are_not_set_have_no_column(prices: Prices, names: set[str]) -> None:
    optional = {"time_cost", "energy_cost", "cost", "co2_kg"}
    assert {column.name for column in report_columns(prices)} & optional == names
    assert ("cost" in as_csv(books(prices)).partition("unbilled")[0]) == ("cost" in names)
    assert ("CO2" in report_table(books(prices), 0)) == ("co2_kg" in names)


amounts = st.lists(st.fractions(0, 10**6, max_denominator=10**6), min_size=1, max_size=30)


@given(amounts, st.integers(0, 10))
def test_rounded_numbers_sum_to_the_rounded_sum(costs: list[Fraction], digits: int) -> None:
    (column,) = (column for column in report_columns(PRICED) if column.name == "time_cost")
    lines = [ReportLine((), time_charges={Rate("", "", cost * 3_600_000_000): 1}) for cost in costs]
    numbers = round_column(lines, column, digits)
    unit = Decimal(1).scaleb(-digits)
    printed = [number for number in numbers if number is not None]
    assert sum(map(Fraction, printed)) == Fraction(
        floor(sum(costs) * 10**digits + Fraction(1, 2)), 10**digits
    )
    for number, cost in zip(printed, costs, strict=True):
        assert abs(Fraction(number) - cost) < Fraction(unit)
        assert number >= 0


@pytest.mark.parametrize(
    ("digits", "numbers"),
    [(10, ["0.0333333334", "0.0333333333", "0.0333333333"]), (2, ["0.04", "0.03", "0.03"])],
)
def test_thirds_of_a_tenth_add_up(digits: int, numbers: list[str]) -> None:
    (column,) = (column for column in report_columns(PRICED) if column.name == "time_cost")
    line = ReportLine((), time_charges={Rate("", "", Fraction(1, 10)): 1_200_000_000})
    assert round_column([line] * 3, column, digits) == list(map(Decimal, numbers))


@pytest.mark.parametrize("digits", [3, 9])
def test_no_row_has_more_energy_than_its_upper_bound(digits: int) -> None:
    """Energy is rounded so that rows sum to the total: of equal rows, some are rounded up."""
    columns = {column.name: column for column in report_columns(PRICED)}
    line = ReportLine((), methods={"measured": 1_981_350_001}, high=1_981_350_001)
    energy, most = (round_column([line] * 3, columns[name], digits) for name in ("kwh", "high_kwh"))
    assert len(set(energy)) == 2
    assert max(filter(None, energy)) == max(filter(None, most)) == min(filter(None, most))


def test_the_total_is_not_below_the_upper_bound_of_a_row() -> None:
    (column,) = (one for one in report_columns(PRICED) if one.name == "high_kwh")
    line = ReportLine((), methods={"measured": 1_981_000_001}, high=1_981_000_001)
    assert [f"{number:f}" for number in round_column([line], column, 3) if number] == ["0.551"]
    assert total_cell(column, line) == "0.551"


def test_csv_has_all_rows_and_exact_millijoules() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(books()))))
    hour = 3_600_000_000
    assert [
        (row["namespace"], row["account"], row["millijoules"], row["gpu_microseconds"]) for row in rows[:5]
    ] == [
        ("ml", "process", str(KWH * 6 // 10), str(3 * hour // 2)),
        ("'=web", "process", str(KWH // 5), str(hour // 2)),
        ("", "idle", str(KWH // 100), str(hour // 2)),
        ("", "unattributed", str(KWH // 50), "0"),
        ("", "unobserved", str(KWH // 20), "0"),
    ]
    assert [(row["account"], row["unbilled_microseconds"], row["unbilled_cost"]) for row in rows[4:]] == [
        ("unobserved", "0", "0"),
        ("down", str(hour // 2), "1.0000000000"),
        ("unwatched", "0", "0"),
    ]
    assert all(row["unbilled_microseconds"] == "" for row in rows[:4])
    assert {row["schema"] for row in rows} == {"2"}
    assert rows[0]["time_cost"] == "3.0000000000"
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


@pytest.mark.parametrize(
    ("uuid", "shown"),
    [
        ("GPU-7759eb10-1acd-45ef-93bf-f7ba7d51ce41", "GPU-7759eb10"),
        # All of the address, without the ids.
        ("PCI-0000:30:00.0-8086:e20b-7a1f0c93b2de", "PCI-0000:30:00.0"),
    ],
)
def test_a_gpu_is_shown_with_the_start_of_its_id(uuid: str, shown: str) -> None:
    printed = report_table(books(by="gpu", uuid=uuid), 0)
    assert f"{A.name} {shown} " in printed


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
    assert found == golden.read_text("utf-8"), "is the new one right? run `make goldens`"


def test_a_total_that_is_rounded_up_adds_to_the_largest_remainder() -> None:
    lines = [
        ReportLine(("a",), methods={"measured": KWH + 1900}),
        ReportLine(("b",), methods={"measured": 1700}),
    ]
    column = next(one for one in report_columns(Prices()) if one.name == "kwh")
    assert round_column(lines, column, 6) == [Decimal("1.000001"), Decimal("0.000000")]


def test_the_table_marks_what_does_not_add_up_and_what_rests_on_an_unknown_part() -> None:
    text = report_table(books(), 0, plain=True)
    assert "resident*" in text
    assert "held idle*" in text
    web = next(line for line in text.splitlines() if line.startswith("=web"))
    assert " 0.50~ " in web


def activity_row(active: int, held: int, unknown: int, old: int = 0) -> tuple[list[str], dict[str, str]]:
    """The table's row of this many seconds, and that of CSV."""
    devices = {A.uuid: A}
    group_by = find_grouping("namespace", devices)
    tally = Tally(group_by, lambda _: Fraction(1))
    party = party_of(A.uuid, Workload("pod", "ml", "p", "main"))
    place = 0
    for quarter, (length, kind) in enumerate(((active, ""), (held, "held"), (unknown, ""), (old, ""))):
        place = (1 << length) - 1
        known = {"held": place if kind else 0, "busy": place if quarter == 0 else 0}
        unclear = {"unknown": place if quarter > 1 else 0, "old": place if quarter == 3 else 0}
        tally.add_times(TimeEntry(quarter, party, place, allocated=0, sessions=0, **known, **unclear))
    tally.finish()
    found = report(tally, group_by, Prices(), devices)
    table = report_table(found, 0, plain=True).splitlines()
    row = next(line for line in table if line.startswith("ml")).split()
    return row, next(csv.DictReader(io.StringIO(as_csv(found))))


@pytest.mark.parametrize(
    ("seconds", "shown", "active", "held"),
    [
        # Seconds active, held, unknown, and unknown in hours of an earlier version.
        ((720, 360, 0, 0), "0.10", "0.200000", "0.100000"),
        ((720, 0, 0, 0), "0", "0.200000", "0"),
        ((720, 360, 36, 0), "0.10+", "0.200000", "0.100000"),
        ((720, 0, 36, 0), "0+", "0.200000", "0"),
        ((0, 360, 36, 0), "0.10+", "0", "0.100000"),
        ((0, 0, 36, 0), "-", "", ""),
        ((0, 0, 0, 36), "-", "", ""),
        ((0, 360, 0, 36), "0.10+", "", "0.100000"),
        ((720, 360, 0, 36), "0.10+", "0.200000", "0.100000"),
    ],
)
def test_held_and_active_time_is_at_least_this_or_not_known(
    seconds: tuple[int, int, int, int], shown: str, active: str, held: str
) -> None:
    table, cells = activity_row(*seconds)
    unknown = sum(seconds[2:])
    place = -2 if unknown else -1
    assert table[place] == shown
    assert (cells["active_gpu_hours"], cells["held_gpu_hours"]) == (active, held)
    assert cells["unknown_gpu_hours"] == ("0.010000" if unknown else "0")


def test_the_table_has_the_time_that_is_not_billed_below_the_total() -> None:
    lines = report_table(books(), 0, plain=True).splitlines()
    total = next(number for number, line in enumerate(lines) if line.startswith("total"))
    # Nothing was unobserved or not watched.
    assert lines[total + 1].startswith("not billed: down ")
    assert lines[total + 1].split()[-3:] == ["0.50", "1.00", "1.00"]
    assert lines[total + 2] == ""


def test_rows_of_unobserved_energy_and_unobserved_time_have_different_names() -> None:
    found = books()
    unbilled = [one._replace(microseconds=60_000_000) for one in found.unbilled]
    lines = report_table(replace(found, unbilled=unbilled), 0, plain=True).splitlines()
    names = [line.split("  ")[0] for line in lines if "unobserved" in line]
    assert names == ["unobserved energy: gpuledger not reading", "not billed: unobserved time"]


def test_the_heading_names_range_keys_and_basis() -> None:
    assert report_table(books(), 0).startswith(
        "1970-01-01 00:00 +0000 to 1970-01-01 02:00 +0000, 1 GPU, by namespace, GPU time by allocation\n"
    )


def test_every_column_that_adds_up_adds_up_in_csv() -> None:
    found = books()
    rows = list(csv.DictReader(io.StringIO(as_csv(found))))
    for column in report_columns(PRICED):
        total = column.value(found.total)
        if column.additive and total is not None:
            printed = sum((Decimal(row[column.name] or 0) for row in rows), Decimal(0))
            assert printed == round_decimal(total, column.digits), column.name


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


@pytest.mark.parametrize("by", ["owner", "pod", "gpu", "namespace", "job", "namespace,gpu"])
def test_rows_beyond_the_limit_are_summed_to_one_row(by: str) -> None:
    cards = [gpu(number) for number in range(30)]
    devices = {card.uuid: card for card in cards}
    group_by = find_grouping(by, devices)
    tally = Tally(group_by, lambda _: Fraction(1))
    for number, card in enumerate(cards):
        job = Workload("pod", f"ml-{number}", f"p-{number}", controller_kind="Job", controller=f"j-{number}")
        shares = [(party_of(card.uuid, job), KWH * (number + 1))]
        tally.add_energy(EnergyEntry(card.uuid, "activity", 1, 0, 0, 0, shares))
    lines = report_table(report(tally, group_by, Prices(), devices), 5).splitlines()
    (others,) = (line for line in lines if line.startswith("25 others "))
    assert f"{sum(range(1, 26)):.3f}" in others


def test_a_team_may_be_called_unknown() -> None:
    devices = {A.uuid: A}
    group_by = find_grouping("label:team", devices)
    tally = Tally(group_by, lambda _: Fraction(1))
    for name in ("unknown", ""):
        party = party_of(A.uuid, Workload("pod", "ml", f"p-{name}", labels=(("team", name),)))
        tally.add_energy(EnergyEntry(A.uuid, "activity", 1, 0, 0, 0, [(party, KWH)]))
    text = report_table(report(tally, group_by, Prices(), devices), 0)
    assert "\nunknown " in text
    assert "\n(no team known) " in text

"""The report of a Tally: which Gpus it counts as not measured, and what these are charged for."""

from __future__ import annotations

from datetime import UTC
from fractions import Fraction

import pytest

from builders import gpu
from gpuledger.ledger.report.charges import MICROSECONDS_PER_HOUR
from gpuledger.ledger.report.gpu_time import GpuPart, GpuTime
from gpuledger.ledger.report.grouping import find_grouping
from gpuledger.ledger.report.party import Party
from gpuledger.ledger.report.price_entries import GPU_HOUR, KWH, price_parser
from gpuledger.ledger.report.prices import PriceList
from gpuledger.ledger.report.ranges import ReportPart
from gpuledger.ledger.report.report_builder import ListUses, ReportScope, build_usage_report
from gpuledger.ledger.report.segments import PriceSegment, SegmentPrices
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH, ROW, SPREAD, Prices
from gpuledger.ledger.report.tally import EnergyEntry, Tally
from gpuledger.ledger.report.teams import parse_teams
from gpuledger.ledger.report.usage_report import GpuLine, Period, UsageReport, meter_notes
from gpuledger.ledger.time.account import OWNER
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.model.devices import Gpu
from gpuledger.model.session import IDLE
from gpuledger.model.workload import Workload

CARD, OTHER = gpu(0), gpu(1)
BEGINS, ENDS = 100, 200


@pytest.mark.parametrize(
    ("sight", "counts"),
    [
        ((BEGINS, ENDS), True),
        ((0, 1000), True),
        ((ENDS - 1, 1000), True),
        ((0, BEGINS + 1), True),
        ((ENDS, 1000), False),
        ((ENDS + 50, 1000), False),
        ((0, BEGINS), False),
        ((0, BEGINS - 50), False),
        (None, True),
    ],
)
def test_an_unmetered_gpu_counts_if_it_was_there_in_the_range(
    sight: tuple[int, int] | None, counts: bool
) -> None:
    devices = {CARD.uuid: CARD}
    grouping = find_grouping("user", devices)
    tally = Tally(grouping, lambda _: Fraction(1), {CARD.uuid: CARD.uuid}.get)
    tally.finish()
    sights = {} if sight is None else {CARD.uuid: (sight[0] * QUARTER * 10**6, sight[1] * QUARTER * 10**6)}
    period = Period(BEGINS * QUARTER, ENDS * QUARTER, 0, 1000 * QUARTER)
    parts = [ReportPart(BEGINS, 150, "a"), ReportPart(150, ENDS, "b")]
    scope = ReportScope(grouping, Prices(), devices, period, parts, {CARD.uuid}, sights)
    report = build_usage_report(tally, scope, lambda _: pytest.fail("no time has a price"))
    assert (CARD.uuid in report.total.unmetered) is counts
    assert [line.millijoules for line in report.gpus] == [None] * counts


def _report(by: str, idle: str) -> UsageReport:
    """An hour of a GPU without a meter that has an owner, and of an idle one that used a kilowatt-hour."""
    other = gpu(1)
    devices, hour = {CARD.uuid: CARD, other.uuid: other}, MICROSECONDS_PER_HOUR
    grouping = find_grouping(by, devices)
    ann = Party(CARD.uuid, Workload(kind="user", user="ann"))
    prices = Prices(gpu_hour=price_parser(GPU_HOUR)("2"), kwh=price_parser(KWH)("1"), idle=idle)
    rates = SegmentPrices(PriceList(prices, UTC))
    tally = Tally(grouping, lambda _: Fraction(1), spread=idle == SPREAD)
    tally.begin_segment(PriceSegment(0, 0, 4), rates)
    tally.add_gpu_time(GpuTime(GpuPart(CARD.uuid), OWNER, ann, False, hour, hour))
    tally.add_gpu_time(GpuTime(GpuPart(other.uuid), IDLE, None, False, hour, hour))
    tally.add_energy(EnergyEntry(other.uuid, IDLE, hour, MILLIJOULES_PER_KWH, 0, 0, ()))
    tally.amounts[0, grouping.key(ann)].gpus.add(CARD.uuid)
    tally.finish()
    period, parts = Period(0, 3600, 0, 3600), [ReportPart(0, 4, "")]
    scope = ReportScope(grouping, prices, devices, period, parts, {CARD.uuid})
    return build_usage_report(tally, scope, lambda _: rates)


@pytest.mark.parametrize("by", ["user", "gpu", "model"])
def test_idle_energy_that_is_spread_over_an_unmetered_gpu_is_in_the_total(by: str) -> None:
    row, spread = (_report(by, idle) for idle in (ROW, SPREAD))
    assert [one.total.cost for one in (row, spread)] == [5, 5]
    assert [one.lines[0].cost for one in (row, spread)] == [2, 5]


@pytest.mark.parametrize(
    ("model", "millijoules", "noted"),
    [("NVIDIA GH200 480GB", 5, True), ("NVIDIA GH200 480GB", None, False), ("NVIDIA H200", 5, False)],
)
def test_energy_of_a_whole_module_is_noted(model: str, millijoules: int | None, noted: bool) -> None:
    notes = meter_notes([GpuLine("GPU-0", "0", model, millijoules, None)])
    assert any("covers the whole module" in note and "GPU-0" in note for note in notes) is noted


def test_gpus_without_a_known_index_come_first() -> None:
    devices = {card.uuid: card for card in (gpu(1), gpu(0))}
    tally = Tally(find_grouping("user", devices), lambda _: Fraction(1))
    tally.begin_segment(PriceSegment(0, 0, 4), SegmentPrices())
    for uuid in (*devices, "GPU-gone"):
        tally.add_gpu_time(GpuTime(GpuPart(uuid), IDLE, None, False, 1, 1))
    tally.finish()
    parts, grouping = [ReportPart(0, 4, "")], find_grouping("user", devices)
    scope = ReportScope(grouping, Prices(), devices, Period(0, 3600, 0, 3600), parts)
    report = build_usage_report(tally, scope, lambda _: SegmentPrices())
    assert [line.uuid for line in report.gpus] == ["GPU-gone", "GPU-0", "GPU-1"]


@pytest.mark.parametrize(("namespace", "notes"), [("ml", 0), ("web", 1)])
def test_a_team_is_noted_if_no_owner_of_several_reports_is_in_it(namespace: str, notes: int) -> None:
    owners = {(Workload(kind="pod", namespace=name, pod="a"), "n1") for name in ("ml", "db")}
    teams = parse_teams([{"team": "x", "namespace": namespace}])
    found = list(ListUses([], owners).notes(PriceList(Prices(), UTC), teams))
    assert len(found) == notes
    assert all(
        note.startswith("teams: entry 1") and note.endswith("it has namespace db, ml.") for note in found
    )


@pytest.mark.parametrize(
    ("hours", "millijoules", "lacks_meter"),
    [
        # Without a meter; then one that is measured, too; then both; then an interval that is still open.
        ({CARD: 1}, None, {CARD.uuid}),
        ({CARD: 1, OTHER: 1}, 5, {CARD.uuid}),
        ({OTHER: 1}, 5, set()),
        ({CARD: Fraction(1, 60)}, 0, set()),
    ],
)
@pytest.mark.parametrize("is_known", [True, False], ids=["never measured", "not measured in the range"])
def test_idle_energy_of_a_gpu_without_a_meter_is_not_zero(
    hours: dict[Gpu, Fraction], millijoules: int | None, lacks_meter: set[str], *, is_known: bool
) -> None:
    devices, hour = {one.uuid: one for one in hours}, MICROSECONDS_PER_HOUR
    grouping, prices = find_grouping("user", devices), Prices(kwh=price_parser(KWH)("1"), co2=Fraction(400))
    rates = SegmentPrices(PriceList(prices, UTC))
    tally = Tally(grouping, lambda _: Fraction(1))
    tally.begin_segment(PriceSegment(0, 0, 4), rates)
    for device, number in hours.items():
        length = round(number * hour)
        tally.add_gpu_time(GpuTime(GpuPart(device.uuid), IDLE, None, False, length, length))
        if device is OTHER:
            tally.add_energy(EnergyEntry(OTHER.uuid, IDLE, hour, 5, 0, 0, ()))
    tally.finish()
    never = lacks_meter if is_known else ()
    parts, period = [ReportPart(0, 4, "")], Period(0, 3600, 0, 3600)
    scope = ReportScope(grouping, prices, devices, period, parts, never)
    report = build_usage_report(tally, scope, lambda _: rates)
    idle = next(line for line in report.gpu_accounts if line.account == IDLE)
    assert (idle.energy, idle.unmetered, report.total.unmetered) == (millijoules, lacks_meter, lacks_meter)
    assert [amount is None for amount in (idle.energy_cost, idle.grams)] == [millijoules is None] * 2
    assert report.total.energy == millijoules


@pytest.mark.parametrize(("metered", "lacks_meter"), [(1.0, False), (0.99, False), (0.5, True), (0, False)])
def test_idle_energy_of_a_gpu_that_was_measured_for_half_of_the_time_is_marked(
    metered: float, *, lacks_meter: bool
) -> None:
    """Of scraped energy it is not known for how long it was measured."""
    devices, hour = {OTHER.uuid: OTHER}, MICROSECONDS_PER_HOUR
    grouping, rates = find_grouping("user", devices), SegmentPrices()
    tally = Tally(grouping, lambda _: Fraction(1))
    tally.begin_segment(PriceSegment(0, 0, 4), rates)
    tally.add_gpu_time(GpuTime(GpuPart(OTHER.uuid), IDLE, None, False, 10 * hour, 10 * hour))
    tally.add_energy(EnergyEntry(OTHER.uuid, IDLE, round(10 * metered * hour), 5, 0, 0, ()))
    tally.finish()
    scope = ReportScope(grouping, Prices(), devices, Period(0, 36000, 0, 36000), [ReportPart(0, 40, "")])
    report = build_usage_report(tally, scope, lambda _: rates)
    idle = next(line for line in report.gpu_accounts if line.account == IDLE)
    expected = {OTHER.uuid} if lacks_meter else set()
    assert (idle.energy, idle.unmetered, report.total.unmetered) == (5, expected, expected)
    assert any("not measured for a part of the time" in note for note in report.notes) is lacks_meter

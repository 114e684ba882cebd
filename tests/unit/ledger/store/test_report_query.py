"""Reports of a ledger file: exact totals do not depend on keys, cuts or folding."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from builders import gpu, instance, process, reading
from gpuledger.ledger.report.grouping import find_grouping
from gpuledger.ledger.report.prices import PriceList
from gpuledger.ledger.report.ranges import CutsAround, ReportPart, ReportRange, split_range
from gpuledger.ledger.report.report_keys import EVERY, GROUPINGS
from gpuledger.ledger.report.report_table import report_table
from gpuledger.ledger.report.segments import full_hour_range
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.report_query import build_report, build_reports, report_segments
from gpuledger.ledger.zone_hours import hour_begins, hour_ends
from gpuledger.model import quantities as q
from gpuledger.model.snapshot import Snapshot, SourceInfo
from gpuledger.model.workload import Allocation, Workload
from ledger_helpers import UNIX, Run
from money_helpers import prices
from report_helpers import EVER, folded, quarters, report_of
from unit.ledger.report.zones import ZONES

A, B = gpu(0, name="NVIDIA H100", sm_count=132), gpu(1, name="NVIDIA A100", sm_count=108)
CUT = gpu(2, name="NVIDIA H100", sm_count=132)
PART = instance(CUT, 1, 0, profile="3g.40gb", sm_count=60)
TRAIN, CHAT, NOTEBOOK = (
    Workload("pod", namespace, name, "main")
    for namespace, name in (("ml", "train"), ("web", "chat"), ("ml", "n"))
)
FIRST = int(UNIX) // 3600 * 3600
PRICED = prices(
    gpu_hour=[
        {"mig": "3g.*", "price": "1.50", "per": "instance"},
        {"gpu": "*H100*", "price": "4"},
        {"price": "2"},
    ],
    kwh="0.31",
    pue="1.2",
)
KEYS = (*GROUPINGS, "namespace,model")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hours on two GPUs and a MIG instance, with a pause; the ledger's last hour is incomplete."""
    run = Run(tmp_path_factory.mktemp("ledger"))
    held = (Allocation(A, TRAIN, Fraction(1, 4)), Allocation(PART, NOTEBOOK, Fraction(1)))
    for minute in range(150):
        residents = [process(A, 11, workload=TRAIN), process(A, 12, workload=CHAT)][: 1 + minute // 50]
        if minute % 7 < 4:
            residents.append(process(B, 13, workload=CHAT))
        if minute >= 90:
            residents.append(process(PART, 14, workload=NOTEBOOK, sm=None))
        counters = {A: minute * 900_000, B: minute * 300_000, CUT: minute * 100_000, PART: 0}
        seconds = 1500.0 if minute == 75 else 37.0
        run.tick(counters, residents, seconds=seconds, allocations=held if minute < 120 else ())
    run.store.close()
    return run.store.file


def exact(report: UsageReport) -> tuple[object, ...]:
    total = report.total
    unbilled = Counter[str]()
    for one in report.unbilled:
        unbilled[one.account] += one.microseconds
    return (
        total.gpu_microseconds,
        total.millijoules,
        total.time_cost,
        total.energy_cost,
        sorted(unbilled.items()),
    )


@pytest.mark.parametrize("basis", ["allocation", "residence"])
def test_the_exact_total_is_the_same_for_every_key(file: Path, basis: str) -> None:
    given = prices(gpu_hour="3", kwh="0.31", basis=basis)
    assert len({str(exact(report_of(file, by, prices=given))) for by in KEYS}) == 1


@pytest.mark.parametrize("idle", ["row", "spread"])
def test_reports_that_are_built_together_equal_those_built_alone(file: Path, idle: str) -> None:
    given = prices(gpu_hour="3", kwh="0.31", idle=idle)
    with closing(History(file)) as history:
        within = quarters(*EVER)
        groupings = [find_grouping(by, history.devices) for by in ("owner", "gpu", "pod")]
        together = build_reports(history, groupings, given, within, every="hour")
        alone = [build_report(history, one, given, within, every="hour") for one in groupings]
    assert together == alone


def test_all_hours_between_first_and_last_sight_are_in_the_report(file: Path) -> None:
    report = report_of(file, prices=PRICED)
    unbilled = sum(one.microseconds for one in report.unbilled)
    assert report.watched == 3 * 148 * 37_000_000
    assert (report.total.gpu_microseconds or 0) + unbilled == 3 * (148 * 37 + 1500) * 1_000_000
    assert {gpu.uuid: gpu.unwatched for gpu in report.gpus} == dict.fromkeys(
        (A.uuid, B.uuid, CUT.uuid), 1_500_000_000
    )


@pytest.mark.parametrize("minutes", [(15,), (45, 60, 75), (30, 105)])
def test_a_range_cut_anywhere_adds_up(file: Path, minutes: tuple[int, ...]) -> None:
    edges = [0, *(FIRST + 3600 + minute * 60 for minute in minutes), EVER[1]]
    parts = [report_of(file, "pod", edge, PRICED) for edge in pairwise(edges)]
    whole = report_of(file, "pod", prices=PRICED)
    assert sum((part.total.cost or 0 for part in parts), Fraction(0)) == whole.total.cost
    sums: Counter[tuple[str, ...]] = Counter()
    for part in parts:
        for line in part.lines:
            sums[line.key] += line.gpu_microseconds or 0
    assert sums == {line.key: line.gpu_microseconds for line in whole.lines}


@pytest.mark.parametrize("idle", ["row", "spread"])
def test_folding_changes_no_exact_amount(file: Path, tmp_path: Path, idle: str) -> None:
    given = prices(gpu_hour="3", kwh="0.31", idle=idle)
    old = folded(file, UNIX + 86_400, tmp_path / "folded.db")
    for by in ("owner", "command", "gpu"):
        before, after = (report_of(one, by, prices=given) for one in (file, old))
        assert exact(before) == exact(after)
        costs = [{line.key: line.cost for line in found.lines} for found in (before, after)]
        assert costs[0] == costs[1]


def test_periods_add_up_to_the_range(file: Path) -> None:
    whole, hourly = (report_of(file, "pod", prices=PRICED, every=every) for every in ("", "hour"))
    assert len(hourly.periods) > 2
    assert hourly.total.cost == whole.total.cost
    assert exact(hourly) == exact(whole)


def without_time_books(file: Path, target: Path) -> Path:
    """The ledger as an earlier version would have left it: only seconds of presence, and energy."""
    with closing(sqlite3.connect(file)) as books, closing(sqlite3.connect(target)) as copy:
        books.backup(copy)
        for table in ("time_spans", "time_splits", "hour_gpu_time", "gpu_times"):
            copy.execute(f"DELETE FROM {table}")
        copy.execute("DELETE FROM meta WHERE key = 'time_from'")
        copy.commit()
    return target


def test_hours_of_an_earlier_version_obey_the_law(file: Path, tmp_path: Path) -> None:
    old = without_time_books(file, tmp_path / "old.db")
    reports = [report_of(old, by, prices=PRICED) for by in KEYS]
    assert len({str(exact(report)) for report in reports}) == 1
    for report in reports:
        assert (report.total.gpu_microseconds or 0) == sum(sum(gpu.accounts.values()) for gpu in report.gpus)
        assert any("was recorded by an earlier version" in note for note in report.notes)
    # A second of an interval that was not measured, such as the first, was not watched.
    assert reports[0].watched == pytest.approx(report_of(file).watched, rel=0.02)


@pytest.mark.parametrize("is_folded", [False, True])
def test_energy_that_is_power_summed_over_time_is_reported_of_each_gpu(
    is_folded: bool, tmp_path: Path
) -> None:
    """Also where owners share the GPU: the method of their rows is then how the energy was split."""
    run = Run(tmp_path)
    for minute in range(240):
        run.clock.advance(30.0)
        readings = (
            reading(A, process(A, 11, workload=TRAIN), values={q.ENERGY: minute * 900_000}),
            reading(
                B, process(B, 12, workload=CHAT), process(B, 13, workload=TRAIN), values={q.POWER: 200.0}
            ),
        )
        at = run.clock.now_elapsed
        run.ledger.post(Snapshot(run.clock.now_unix, at, SourceInfo("test"), readings, boot_id=run.boot))
    run.store.close()
    file = folded(run.store.file, run.clock.unix(), tmp_path / "folded.db") if is_folded else run.store.file
    one, other = report_of(file).gpus
    assert (one.uuid, one.integrated) == (A.uuid, 0)
    assert (other.uuid, other.integrated) == (B.uuid, other.millijoules)
    assert other.millijoules == pytest.approx(239 * 30 * 200_000)
    assert "or integrated from power readings" in report_table(report_of(file), 0)
    integrated = {line.key: line.integrated for line in report_of(file, by="pod").lines}
    assert integrated == {("ml", "train"): other.millijoules / 2, ("web", "chat"): other.millijoules / 2}


def test_a_gpu_that_was_absent_throughout_is_listed_with_its_unwatched_time(tmp_path: Path) -> None:
    """A statement's time below the total follows from its GPUs."""
    run = Run(tmp_path)
    for tick in range(240):
        counters = {A: tick * 1000, B: tick * 1000}
        run.tick(counters if tick in (0, 239) else {A: counters[A]}, seconds=50.0)
    run.store.close()
    hour = int(UNIX // 3600 + 1) * 3600
    found = report_of(run.store.file, between=(hour, hour + 3600))
    unwatched = sum(one.microseconds for one in found.unbilled if one.account == "unwatched")
    assert sum(gpu.unwatched for gpu in found.gpus) == unwatched == 3_600_000_000


def folded_cuts(first: ZoneInfo, later: ZoneInfo, change: int, detail: int) -> CutsAround:
    """The cuts of a ledger with a change of its time zone, and no folded history from `detail` on."""

    def cuts_around(quarter: int) -> tuple[int, int]:
        zone, lowest, highest = (first, 0, change) if quarter < change else (later, change, detail)
        begins, ends = max(hour_begins(quarter, zone), lowest), min(hour_ends(quarter, zone), highest)
        return (quarter, quarter) if quarter == begins or quarter >= detail else (begins, ends)

    return cuts_around


zones = st.sampled_from([*ZONES, ZoneInfo("Pacific/Chatham")])


@given(st.integers(1_500_000, 4_000_000), st.tuples(*[st.integers(5, 40)] * 3), zones, zones, zones)
@example(1_979_000, (10, 10, 10), ZoneInfo("America/St_Johns"), ZoneInfo("UTC"), ZoneInfo("Asia/Kathmandu"))
def test_idle_time_is_spread_over_the_same_hours_however_the_range_is_split(
    begins: int, lengths: tuple[int, int, int], zone: ZoneInfo, first: ZoneInfo, later: ZoneInfo
) -> None:
    """Also where history was folded by the hours of other time zones."""
    middle, change = begins + sum(lengths) // 3, begins + lengths[0]
    detail = hour_ends(change + lengths[1], later)
    cuts_around, listed = folded_cuts(first, later, change, detail), PriceList(Prices(), zone)

    def full(since: int, until: int) -> ReportRange:
        return full_hour_range(ReportRange(since, until, until * 900.0), 2e12, zone, cuts_around)

    def hours(*parts: ReportPart) -> list[tuple[int, int]]:
        return [segment[1:] for segment in report_segments(parts, listed, cuts_around, spread=True)]

    within = full(cuts_around(begins)[0], detail + lengths[2])
    whole = hours(ReportPart(within.begins, within.ends, ""))
    for every in EVERY:
        assert hours(*split_range(within.begins, within.ends, every, cuts_around, zone)[0]) == whole
    cut = full(cuts_around(middle)[1], detail + lengths[2]).begins
    if within.begins < cut < within.ends:
        assert hours(ReportPart(within.begins, cut, "")) + hours(ReportPart(cut, within.ends, "")) == whole

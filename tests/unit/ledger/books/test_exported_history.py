"""A report of exports equals that of the ledger to the last digit, in every range and by every key."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, tzinfo
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import FakeClock, process
from exported_ledgers import SINCE, UNTIL, write_export, write_metered_node, write_node
from gpuledger.ledger.books.exported_history import open_exports
from gpuledger.ledger.books.library import find_exports, volumes
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.report_query import build_report
from gpuledger.ledger.store.retention import RetentionLimits
from gpuledger.model.workload import Allocation
from report_helpers import folded, quarters, report_of
from time_books import KOLKATA, LORD_HOWE, PARTS, PODS, A, B, Node

PRICES = Prices(kwh=Fraction(3, 10), gpu_hour=Fraction(3600), currency="EUR")
HOUR = 3600
RANGES = [(SINCE - HOUR, UNTIL + HOUR), (SINCE + 900, UNTIL - 1800), (SINCE + 2700, SINCE + HOUR)]


def amounts(found: UsageReport) -> tuple[object, ...]:
    return (
        found.lines,
        found.gpu_accounts,
        found.total,
        found.gpus,
        found.occupied,
        found.unbilled,
        found.periods,
    )


def report_of_exports(
    into: Path, by: str, between: tuple[int, int], every: str = "", prices: Prices = PRICES
) -> UsageReport:
    (volume,) = volumes(find_exports([into]))
    with open_exports(volume) as history:
        return build_report(history, by, prices, quarters(*between), every=every)


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("write", [write_node, write_metered_node])
def test_reports_are_equal(tmp_path: Path, write: Callable[[Path], Path], form: str) -> None:
    file = write(tmp_path)
    write_export(file, tmp_path / "out", form=form)
    with open_exports(find_exports([tmp_path / "out"])) as history:
        for by in ("owner", "pod", "gpu", "command,namespace"):
            for between in RANGES:
                found = build_report(history, by, PRICES, quarters(*between), every="hour")
                assert amounts(found) == amounts(report_of(file, by, between, PRICES, "hour")), (by, between)


def test_history_that_is_folded_in_a_zone_with_half_hours_is_equal(tmp_path: Path) -> None:
    file = folded(write_node(tmp_path), SINCE + 2 * HOUR, tmp_path / "folded.db", KOLKATA)
    with closing(sqlite3.connect(file)) as books, books:
        books.execute("REPLACE INTO meta VALUES ('zone', 'Asia/Kolkata')")
    write_export(file, tmp_path / "out", between=(SINCE - 1800, UNTIL))
    for between in [(SINCE - 1800, UNTIL), (SINCE + 1800, SINCE + 1800 + HOUR)]:
        found = report_of_exports(tmp_path / "out", "pod", between)
        assert amounts(found) == amounts(report_of(file, "pod", between, PRICES))
    (volume,) = volumes(find_exports([tmp_path / "out"]))
    with open_exports(volume) as exported, closing(History(file)) as history:
        places = range(SINCE // 900, UNTIL // 900)
        assert [exported.cuts_around(one) for one in places] == [history.cuts_around(one) for one in places]


def test_two_exports_that_continue_each_other_are_one_history(tmp_path: Path) -> None:
    file = write_node(tmp_path)
    middle = SINCE + 4500
    write_export(file, tmp_path / "out", between=(SINCE, middle))
    write_export(file, tmp_path / "out", between=(middle, UNTIL), form="parquet")
    found = report_of_exports(tmp_path / "out", "pod", (SINCE, UNTIL))
    assert amounts(found) == amounts(report_of(file, "pod", (SINCE, UNTIL), PRICES))


def test_parts_of_gpus_and_both_bases_are_kept(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for _ in range(90):
        node.look(A, B, seconds=50, parts=PARTS)
    node.store.close()
    write_export(node.file, tmp_path / "out", between=(SINCE - HOUR, UNTIL))
    for basis in ("allocation", "residence"):
        prices = replace(PRICES, basis=basis)
        found = report_of_exports(tmp_path / "out", "gpu", (SINCE - HOUR, UNTIL), prices=prices)
        expected = report_of(node.file, "gpu", (SINCE - HOUR, UNTIL), prices)
        assert amounts(found) == amounts(expected)
        assert found.total.uncut_microseconds


@pytest.mark.parametrize("is_folded", [False, True])
def test_hours_of_an_earlier_version_are_equal(tmp_path: Path, is_folded: bool) -> None:
    file = write_metered_node(tmp_path, ticks=120)
    if is_folded:
        file = folded(file, SINCE + HOUR, tmp_path / "folded.db")
    with closing(sqlite3.connect(file)) as books, books:
        for table in ("time_spans", "time_splits", "hour_gpu_time", "gpu_times"):
            books.execute(f"DELETE FROM {table}")
        books.execute("DELETE FROM meta WHERE key = 'time_from'")
        books.execute("UPDATE spans SET quarter = quarter / 4 * 4")
    write_export(file, tmp_path / "out")
    for between in [(SINCE, UNTIL), (SINCE, SINCE + HOUR)]:
        found = report_of_exports(tmp_path / "out", "pod", between)
        expected = report_of(file, "pod", between, PRICES)
        assert amounts(found) == amounts(expected)
        assert found.total.gpu_microseconds


STEPS = st.lists(
    st.tuples(st.integers(0, 7), st.sampled_from([20, 59, 120]), st.integers(1, 40), st.booleans()),
    min_size=2,
    max_size=6,
)


@given(STEPS, st.sampled_from([UTC, KOLKATA, LORD_HOWE]), st.integers(0, 12), st.data())
@settings(max_examples=8)
def test_any_two_exports_are_the_ledger(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, int, int, bool]],
    zone: tzinfo,
    fold: int,
    data: st.DataObject,
) -> None:
    """For any history, folded or not, cut anywhere into two exports, any range and both bases."""
    place = tmp_path_factory.mktemp("any")
    node = Node(place, clock=FakeClock(SINCE + 1000), limits=RetentionLimits(zone=zone))
    pods = [process(card, pid, workload=PODS[pid % 3]) for pid, card in ((7, A), (8, A), (9, B))]
    for bits, seconds, ticks, is_allocated in steps:
        runs = [one for number, one in enumerate(pods) if bits >> number & 1]
        for _ in range(ticks):
            node.look(A, B, seconds=seconds, runs=runs, has=[Allocation(B, PODS[2])] if is_allocated else [])
    node.store.close()
    file = folded(node.file, SINCE + 900 * fold, place / "folded.db", zone)
    with closing(History(file)) as history:
        quarters_of = range((history.first_quarter or 0) - 1, history.end_quarter + 2)
        cuts = sorted({cut for quarter in quarters_of for cut in history.cuts_around(quarter)})
    middle = data.draw(st.sampled_from(cuts[1:-1]), "middle")
    write_export(file, place / "out", between=(cuts[0] * 900, middle * 900))
    write_export(file, place / "out", between=(middle * 900, cuts[-1] * 900))
    (volume,) = volumes(find_exports([place / "out"]))
    with open_exports(volume) as exported:
        for basis in ("allocation", "residence"):
            prices = replace(PRICES, basis=basis)
            ends = data.draw(st.lists(st.sampled_from(cuts), min_size=2, max_size=2, unique=True))
            first, second = (900 * quarter for quarter in sorted(ends))
            found = build_report(exported, "owner,gpu", prices, quarters(first, second), every="hour")
            expected = report_of(file, "owner,gpu", (first, second), prices, "hour")
            assert amounts(found) == amounts(expected)

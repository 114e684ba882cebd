"""A report of exports equals that of the ledger to the last digit, in every range and by every key."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from exported_ledgers import SINCE, UNTIL, write_export, write_metered_node, write_node
from gpuledger.ledger.books.exported_history import open_exports
from gpuledger.ledger.books.library import find_exports, volumes
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.report_query import build_report
from report_helpers import folded, quarters, report_of
from time_books import KOLKATA, PARTS, A, B, Node

PRICES = Prices(kwh=Fraction(3, 10), gpu_hour=Fraction(3600), currency="EUR")
HOUR = 3600
RANGES = [(SINCE, UNTIL), (SINCE + 900, UNTIL - 1800), (SINCE + 2700, SINCE + HOUR)]


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

"""Rows of what owners used: several owners under one key, and the picture of any length."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import GIB, process
from gpuledger.ledger.report.usage_rows import StoredCell, UsageSums
from gpuledger.ledger.sessions import RATIO
from gpuledger.ledger.usage.usage_bars import HOUR_BARS, UsageBars, no_hour_bars
from gpuledger.ledger.usage.usage_cell import UsageCell
from gpuledger.model.workload import Workload
from usage_helpers import SECOND, A, UsageNode, only_row, usage_node

JOBS = [Workload("slurm", job=str(number), user="ann", found_by="cgroup") for number in range(3)]
QUARTER = 1_888_892
BEGINS = QUARTER * 900.0


def see(node: UsageNode, *jobs: int, memory: int = GIB) -> None:
    runs = [process(A, 10 + job, workload=JOBS[job], sm=0.25, memory=(job + 1) * memory) for job in jobs]
    node.see(*runs)


def test_jobs_of_a_user_at_the_same_time_use_the_gpu_together(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    for _ in range(101):
        see(node, 0, 1)
    row = only_row(node.file, "user")
    assert row.is_merged
    # 100 s, not 200 s, with two times 25 %.
    assert row.seen == pytest.approx(100 * SECOND, abs=SECOND)
    assert row.sm_mean == pytest.approx(0.5, rel=0.02)
    assert row.memory_mean == pytest.approx(3 * GIB, rel=0.02)
    # Peaks of single jobs are 1 and 2 GiB; the mean of both together is a better lower bound.
    assert row.memory_peak == pytest.approx(3 * GIB, rel=0.02)
    assert row.memory_peak <= 3 * GIB


def test_jobs_of_a_user_one_after_the_other_are_exact(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    for job in (0, 1, 2):
        for _ in range(51):
            see(node, job)
    row = only_row(node.file, "user")
    assert (row.is_merged, row.seen, row.sm_known) == (False, 150 * SECOND, 150 * SECOND)
    assert (row.sm_mean, row.memory_mean) == (pytest.approx(0.25), pytest.approx(2 * GIB))
    assert row.memory_peak == 3 * GIB
    assert sum(bar.seen for bar in row.bars) == 150 * SECOND
    assert [bar.ratio for bar in row.bars] == [pytest.approx(0.25)] * len(row.bars)


def cell(quarter: int, ratio: float, minutes: range, **values: int) -> StoredCell:
    bars = UsageBars()
    for minute in minutes:
        bars.add(minute, round(ratio * RATIO) * 60 * SECOND, 60 * SECOND)
    found = UsageCell(quarter, quarter * 900.0, quarter * 900.0 + 900, bars=bars, **values)
    return StoredCell(found, is_folded=False)


def test_the_picture_has_equal_bars_without_gaps() -> None:
    sums = UsageSums()
    sums.add([cell(QUARTER, 0.5, range(10, 15), seen=300 * SECOND)])
    sums.add([cell(QUARTER + 2, 1.0, range(5), seen=300 * SECOND)])
    row = sums.row((), A.uuid, None, bars=60)
    assert [(bar.begins - BEGINS, bar.seconds) for bar in row.bars] == [(600 + 60 * n, 60) for n in range(25)]
    assert [bar.ratio for bar in row.bars] == [0.5] * 5 + [None] * 15 + [1.0] * 5
    few = sums.row((), A.uuid, None, bars=5)
    assert [bar.ratio for bar in few.bars] == [0.5, None, None, None, 1.0]
    assert {bar.seconds for bar in few.bars} == {300}


def test_bars_of_folded_hours_are_five_minutes_or_more() -> None:
    hour = UsageCell(QUARTER, BEGINS, BEGINS + 3600, seen=3600 * SECOND)
    hour.bars = UsageBars(bytearray(b"\x30\x75\x30\x75" * HOUR_BARS))
    sums = UsageSums()
    sums.add([StoredCell(hour, is_folded=True)])
    sums.add([cell(QUARTER + 4, 0.0, range(15), seen=900 * SECOND)])
    row = sums.row((), A.uuid, None)
    assert {bar.seconds for bar in row.bars} == {300}
    assert [bar.ratio for bar in row.bars] == [1.0] * 12 + [0.0] * 3


def test_a_presence_that_was_seen_at_one_moment_has_no_means() -> None:
    moment = UsageCell(QUARTER, BEGINS, BEGINS, memory_peak=GIB, sm_peak=5000)
    moment.bars = UsageBars(bytearray(no_hour_bars()[:60]))
    sums = UsageSums()
    sums.add([StoredCell(moment, is_folded=False)])
    row = sums.row((), A.uuid, None)
    assert (row.seen, row.sm_mean, row.memory_mean, row.bars) == (0, None, None, ())
    assert (row.memory_peak, row.sm_peak) == (GIB, 0.5)

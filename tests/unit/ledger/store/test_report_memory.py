"""The peak memory of a report by GPU: a node that answers users keeps the highest peak of all reports."""

from __future__ import annotations

import gc
import tracemalloc
from contextlib import closing
from datetime import UTC
from functools import lru_cache
from pathlib import Path

import pytest

from builders import FakeClock, process
from gpuledger.ledger.report import tally
from gpuledger.ledger.report.ranges import RequestedRange
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.store import history, presence, present_keys, time_history, time_sums
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.present_keys import PresentKey
from gpuledger.ledger.store.report_query import build_report
from gpuledger.ledger.store.watched_range import resolve_watched_range
from gpuledger.model.workload import Workload
from ledger_helpers import Run
from time_books import HOUR, A

TICKS, SECONDS = 240, 50.0
# Bytes for one more pod: its name, which is counted. A pod that is remembered needs 600 more.
MOST_PER_POD = 300


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node on which each tick has two pods that did not exist before."""
    node = Run(tmp_path_factory.mktemp("report-memory"), clock=FakeClock(HOUR))
    for tick in range(TICKS):
        pods = [Workload("pod", "ci", f"smoke-test-{tick}-{seat}", "test", f"uid-{seat}") for seat in (0, 1)]
        runs = [process(A, 1000 + 2 * tick + seat, workload=pod) for seat, pod in enumerate(pods)]
        node.tick({A: 1_000_000 + 50_000 * tick}, runs, seconds=SECONDS)
    node.store.close()
    return node.store.file


def report_by_gpu(file: Path, hours: int) -> list[PresentKey]:
    """What the API reads for a report of the first hours by GPU; returns the keys of the range."""
    with closing(History(file)) as opened:
        within = resolve_watched_range(opened, RequestedRange(HOUR, HOUR + 3600 * hours, "", "", UTC))
        keys = present_keys.present_keys(opened, within.begins, within.ends)
        build_report(opened, "gpu", Prices(), within)
        return keys


def peak_bytes(file: Path, hours: int) -> int:
    gc.collect()
    tracemalloc.start(1)
    try:
        report_by_gpu(file, hours)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_many_pods_need_as_much_memory_as_few_but_for_their_names(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is remembered for speed is small here, as it is for a range with far more pods."""
    for module in (history, time_history, present_keys, tally):
        monkeypatch.setattr(module, "_CACHED", 16)
    monkeypatch.setattr(history, "_TIME_CHUNK", 4)
    monkeypatch.setattr(time_sums, "_MOST_SUMMED", 16)
    monkeypatch.setattr(presence, "_party", lru_cache(16)(presence._party.__wrapped__))
    # The first one imports modules, and fills what all reports share.
    pods = {hours: dict(report_by_gpu(file, hours))["pod"] for hours in (1, 3)}
    few = peak_bytes(file, 1)
    many = peak_bytes(file, 3)
    assert pods[3] - pods[1] > 200
    assert many - few < MOST_PER_POD * (pods[3] - pods[1])

"""Time that was not watched is below the total of a report, up to the latest data."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from builders import FakeClock, process
from gpuledger.ledger.store.history import History
from report_helpers import folded, report_of
from time_books import HOUR, PODS, A, B, Node, again


def hours_below_the_total(node: Node) -> dict[str, int]:
    report = report_of(node.file)
    return {one.account: one.microseconds for one in report.unbilled if one.microseconds}


def test_a_node_that_is_never_watched_has_all_its_hours_below_the_total(tmp_path: Path) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR))
    for number in range(41):
        node.look(A, B, seconds=100.0, runs=[process(A, 1, workload=PODS[0])])
        with closing(History(node.file)) as history:
            assert len(history.gpu_sights) == (2 if number else 0)
    assert hours_below_the_total(node) == {"unwatched": 2 * 4000 * 1_000_000}


@pytest.mark.parametrize("restarts", [False, True])
def test_the_time_after_the_last_watched_reading_is_not_watched(tmp_path: Path, restarts: bool) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR))
    for _ in range(3):
        node.look(A, B)
    node.look(A, B, seconds=100.0)
    if restarts:
        node = again(node, tmp_path, seconds=0.0)
    node.look(A, seconds=100.0)
    # Gpu B is gone: it was last read 100 seconds ago.
    assert hours_below_the_total(node) == {"unwatched": 300_000_000}
    with closing(History(node.file)) as history:
        last = {uuid: sight[1] / 1e6 - node.clock.now_unix for uuid, sight in history.gpu_sights.items()}
    assert last == {A.uuid: 0.0, B.uuid: -100.0}


def test_time_that_is_pending_is_not_below_the_total(tmp_path: Path) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR))
    node.look(A, seconds=100.0)
    node.look(A, seconds=100.0)
    node.look(A, seconds=20.0, unlisted=True)
    assert hours_below_the_total(node) == {"unwatched": 100_000_000}
    node.look(A, seconds=20.0)
    assert hours_below_the_total(node) == {"unwatched": 100_000_000}


def test_a_report_ends_with_its_latest_data_if_the_clock_was_set_back(tmp_path: Path) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR))
    for _ in range(60):
        node.look(A, seconds=30.0)
    latest = node.clock.now_unix
    assert report_of(node.file).period.last == latest
    node.clock.now_unix -= 1500.0
    node = again(node, tmp_path)
    for _ in range(3):
        node.look(A, seconds=30.0)
    with closing(History(node.file)) as history:
        assert history.last < latest - 1000
    report = report_of(node.file)
    assert report.period.last == latest
    assert report.total.gpu_microseconds == (59 + 2) * 30_000_000
    copy = folded(node.file, latest + 1e6, tmp_path / "folded.db")
    assert report_of(copy).period.last >= latest - 1800

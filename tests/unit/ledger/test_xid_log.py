"""The last Xids: which process was there, what is one row, how many are kept, and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from builders import gpu, instance, process, reading, snapshot
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.ledger.xid_log import KEPT_ROWS
from gpuledger.model.process import GpuProcess
from gpuledger.model.session import LedgerState, XidRow
from gpuledger.model.snapshot import Snapshot, XidEvent
from ledger_helpers import UNIX, Run, rows

A, B = gpu(0), gpu(1)
PYTHON = process(A, 7)


def log_of(*snapshots: Snapshot) -> tuple[XidRow, ...]:
    ledger = Ledger(LedgerSettings())
    for one in snapshots:
        state = ledger.post(one)
    return state.xid_log


def tick(unix: float, *xids: int, processes: Sequence[GpuProcess] = (), on: object = A) -> Snapshot:
    events = tuple(XidEvent(A, xid, unix) for xid in xids)
    return snapshot(reading(on, *processes), unix=unix, xids=events)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("processes", "pid"),
    [([], None), ([PYTHON], 7), ([PYTHON, process(A, 8)], None)],
    ids=["none", "one", "several"],
)
def test_a_process_is_named_only_if_it_was_alone(processes: list[GpuProcess], pid: int | None) -> None:
    (row,) = log_of(tick(100, 31, processes=processes))
    assert (row.uuid, row.xid, row.first, row.last, row.times) == (A.uuid, 31, 100, 100, 1)
    assert (row.pid, row.command) == (pid, PYTHON.command if pid else "")


def test_a_process_that_the_xid_killed_is_named() -> None:
    (row,) = log_of(tick(100, processes=[PYTHON]), tick(101, 31))
    assert row.pid == 7


def test_a_process_that_ended_before_is_not_named() -> None:
    (row,) = log_of(tick(100, processes=[PYTHON]), tick(101), tick(102, 31))
    assert row.pid is None


def test_an_xid_of_an_instance_names_the_process_there() -> None:
    first, second = instance(A, 1), instance(A, 2)
    seen = snapshot(
        reading(A), reading(first, process(first, 7)), reading(second, process(second, 8)),
        unix=100, xids=(XidEvent(A, 94, 100, 2, 0), XidEvent(A, 95, 100)),
    )  # fmt: skip
    assert [(row.xid, row.instance, row.pid) for row in log_of(seen)] == [(94, "2_0", 8), (95, "", None)]


def test_equal_xids_in_quick_succession_are_one_row() -> None:
    found = log_of(tick(100, 31, 31), tick(101, 31), tick(150, 31, 79), tick(300, 31))
    assert [(row.xid, row.first, row.last, row.times) for row in found] == [
        (31, 100, 150, 4),
        (79, 150, 150, 1),
        (31, 300, 300, 1),
    ]


def test_a_flood_of_one_xid_does_not_displace_the_others() -> None:
    found = log_of(tick(100, 79), *(tick(1000 + 100.0 * n, 31) for n in range(2 * KEPT_ROWS)))
    assert [row.xid for row in found] == [79] + [31] * KEPT_ROWS
    assert found[-1].last == 1000 + 100 * (2 * KEPT_ROWS - 1)


def post(run: Run, xid: int | None = None, *processes: GpuProcess) -> LedgerState:
    run.clock.advance(1)
    unix, elapsed = run.clock.now_unix, run.clock.now_elapsed
    events = () if xid is None else (XidEvent(A, xid, unix),)
    seen = snapshot(reading(A, *processes), unix=unix, xids=events)
    return run.ledger.post(Snapshot(unix, elapsed, seen.source, seen.readings, xids=events, boot_id=run.boot))


@pytest.mark.parametrize("end", [Run.kill, lambda run: run.store.close()], ids=["kill -9", "stop"])
def test_xids_survive_a_restart_and_grow_on(tmp_path: Path, end: object) -> None:
    first = Run(tmp_path)
    post(first, 79)
    before = post(first, 31, PYTHON).xid_log
    end(first)  # type: ignore[operator]  # one of the two above
    second = Run(tmp_path, clock=first.clock)
    assert post(second, None, PYTHON).xid_log == before
    found = post(second, 31, PYTHON).xid_log
    assert [(row.number, row.xid, row.times, row.pid) for row in found] == [(1, 79, 1, None), (2, 31, 2, 7)]
    assert rows(second.store.file, "SELECT xid, times, session FROM xids") == [(79, 1, None), (31, 2, 1)]


def test_the_file_keeps_as_many_rows_as_memory(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for _ in range(KEPT_ROWS + 5):
        run.clock.advance(100)
        kept = post(run, 31).xid_log
    numbers = rows(run.store.file, "SELECT number FROM xids ORDER BY number")
    assert [number for (number,) in numbers] == [row.number for row in kept]
    assert len(kept) == KEPT_ROWS


def test_xids_after_the_clock_was_set_back_are_kept_instead_of_older_ones(tmp_path: Path) -> None:
    first = Run(tmp_path)
    for _ in range(KEPT_ROWS):
        first.clock.advance(100)
        post(first, 31)
    first.clock.now_unix -= 86_400
    post(first, 31)
    first.kill()
    second = Run(tmp_path, clock=first.clock)
    second.clock.advance(100)
    kept = sorted(row.number for row in post(second, 31).xid_log)
    assert kept == list(range(3, KEPT_ROWS + 3))
    assert rows(second.store.file, "SELECT number FROM xids ORDER BY number") == [(one,) for one in kept]


def test_xids_of_a_tick_that_could_not_be_stored_are_stored_later(tmp_path: Path) -> None:
    run = Run(tmp_path)
    post(run)
    assert run.store._connection is not None
    run.store._connection.execute("PRAGMA query_only = 1")
    post(run, 79)
    run.store._connection.execute("PRAGMA query_only = 0")
    for _ in range(5):
        post(run)
    assert rows(run.store.file, "SELECT xid FROM xids") == [(79,)]


def test_xids_are_written_again_if_the_file_is_replaced(tmp_path: Path) -> None:
    run = Run(tmp_path)
    post(run, 79)
    run.store.file.unlink()
    for _ in range(3):
        post(run)
    assert rows(run.store.file, "SELECT xid, last FROM xids") == [(79, UNIX + 1)]

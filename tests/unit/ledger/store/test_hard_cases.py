"""Persistence cases in which a review found wrong results, and random sequences of runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import FakeClock, gpu, process, reading
from gpuledger.ledger.books.consistency import check_ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.ledger.store.retention import RetentionLimits
from gpuledger.model import quantities as q
from gpuledger.model.snapshot import Snapshot, SourceInfo
from gpuledger.model.workload import Workload
from ledger_helpers import UNIX, Run, assert_books_balance, assert_exports_everything, exported_values, rows
from time_books import assert_time_is_conserved

A, B = gpu(0), gpu(1)
J = 1000
NAMED = Workload("pod", namespace="ml", pod="train-0", container="main", pod_uid="u")
NAMELESS = Workload("pod", pod_uid="u", container_id="c", missing="pod_name")


def test_a_gpu_missing_at_the_start_gets_its_series_back_once(tmp_path: Path) -> None:
    first = Run(tmp_path)
    p = process(B, 2, workload=NAMED)
    for second in range(10):
        state = first.tick({A: second * 100 * J, B: second * 50 * J}, [p])
    before = {key: joules for key, joules in exported_values(state).items() if B.uuid in key}
    first.kill()
    second_run = Run(tmp_path, clock=first.clock)
    first.clock.advance(1)
    alone = reading(A, values={q.ENERGY: 1000 * J})
    at = (first.clock.now_unix, first.clock.now_elapsed, SourceInfo("test"))
    second_run.ledger.post(Snapshot(*at, (alone,), boot_id="boot-1", devices_failed=True))
    state = second_run.tick({A: 1100 * J, B: 450 * J}, [p])
    after = {key: joules for key, joules in exported_values(state).items() if B.uuid in key}
    assert after == before
    labels = [row[0] for row in rows(second_run.store.file, "SELECT labels FROM series")]
    assert len(labels) == len(set(labels))


@pytest.mark.parametrize("removed", [1, 2])
def test_a_new_file_has_the_accounts_of_a_gpu_that_is_missing_since_the_start(
    tmp_path: Path, removed: int
) -> None:
    run = Run(tmp_path)
    p = process(B, 2, workload=NAMED)
    for second in range(10):
        run.tick({A: second * 100 * J, B: second * 50 * J}, [p])
    run.store.close()
    run = Run(tmp_path, clock=run.clock)
    for second in range(10, 13):
        run.tick({A: second * 100 * J})
    for _ in range(removed):
        run.store.file.unlink()
        run.tick({A: 1300 * J})
        run.tick({A: 1400 * J})
    for second in range(15, 20):
        run.tick({A: second * 100 * J, B: second * 50 * J}, [p])
    for _ in range(2):
        run.store.close()
        run = Run(tmp_path, clock=run.clock)
        state = run.tick({A: 2000 * J, B: 1000 * J}, [p])
    # Exported counters of the missing GPU begin at 0 again, its accounts go on.
    assert 0 < state.energy.totals[B.uuid] < 1000 * J
    run.store.close()
    assert_books_balance(run.store.file)
    assert_time_is_conserved(run.store.file)
    assert [one for one in check_ledger(run.store.file) if not one.is_note] == []


def test_floors_of_another_driver_version_are_ignored(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for second in range(100):
        run.tick({A: second * 70 * J})
    assert run.ledger.energy.gpu_ledgers[A.uuid].floors.floors.empty == 70_050
    run.clock.advance(1)
    newer = SourceInfo("test", driver_version="999.1")
    snapshot = Snapshot(run.clock.now_unix, run.clock.now_elapsed, newer, (reading(A),), boot_id="boot-1")
    run.ledger.post(snapshot)
    assert run.ledger.energy.gpu_ledgers[A.uuid].floors.floors.empty is None


def test_short_lived_rows_during_a_full_disk_need_no_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    run.tick({A: 0})
    monkeypatch.setattr(type(run.store), "_write", _full)
    for second in range(1, 60):
        run.tick({A: second * 100 * J}, [process(A, second, ticks=second, workload=NAMELESS)])
    assert run.ledger._persistence is not None
    journal = run.ledger._persistence.journal
    assert len(journal.dropped) + len(journal.ended_owners) < 5


def _full(*_: object) -> None:
    import sqlite3

    raise sqlite3.OperationalError("database or disk is full")


@pytest.mark.parametrize("years", [73, -50])
def test_a_wrong_year_at_the_start_deletes_no_history(tmp_path: Path, years: int) -> None:
    clock = FakeClock(UNIX)
    first = Run(tmp_path, clock=clock, limits=RetentionLimits(7200.0, 86_400.0))
    for second in range(5):
        first.tick({A: second * 100 * J}, [process(A, 1)])
    first.tick({A: 500 * J})
    first.store.close()
    clock.now_unix += years * 365 * 86_400
    second_run = Run(tmp_path, clock=clock, limits=RetentionLimits(7200.0, 86_400.0))
    for second in range(10):
        second_run.tick({A: 500 * J + second * 100 * J}, seconds=60.0)
    clock.now_unix = UNIX + clock.now_elapsed
    for second in range(10, 80):
        second_run.tick({A: 500 * J + second * 100 * J}, seconds=60.0)
    assert rows(second_run.store.file, "SELECT count(*) FROM sessions") == [(1,)]
    assert_books_balance(second_run.store.file)


def test_a_wall_clock_set_back_makes_no_negative_session(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for second in range(5):
        run.tick({A: second * 100 * J}, [process(A, 1)])
    run.clock.now_unix -= 3600
    run.tick({A: 500 * J}, [process(A, 1)])
    state = run.tick({A: 600 * J})
    assert state.session_durations[A.uuid].sum == 0


def test_a_suspend_is_unobserved(tmp_path: Path) -> None:
    run = Run(tmp_path)
    idle = process(A, 1, sm=0.0)
    run.tick({A: 0}, [idle])
    run.tick({A: 100 * J}, [idle])
    run.tick({A: 200 * J}, [idle], seconds=8 * 3600.0)
    (session,) = run.ledger.sessions.open()
    assert session.held_seconds == 1


step = st.tuples(
    st.sampled_from(["tick"] * 12 + ["kill", "close", "set back", "reset", "lose a gpu"]),
    # The processes: pid and start of each.
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 2)), max_size=3, unique_by=lambda one: one[0]),
    st.sampled_from([NAMED, NAMELESS, Workload("user", user="bob")]),
)


@given(st.lists(step, min_size=5, max_size=40), st.sampled_from([0.0, 5.0]), st.sampled_from([0.0, 2.0]))
def test_over_any_runs_books_balance_and_counters_only_reset_to_zero(
    steps: list[tuple[str, list[tuple[int, int]], Workload]], retention: float, hold: float
) -> None:
    wanted = LedgerSettings(zero_hold=hold, retention=retention)
    with TemporaryDirectory() as folder:
        clock = FakeClock(UNIX)
        run = Run(Path(folder), clock=clock, settings=wanted)
        before: dict[tuple[str, ...], int] = {}
        value = 0
        for number, (what, people, owner) in enumerate(steps):
            value = 10 * J if what == "reset" else value + 70 * J + number
            if what in ("kill", "close"):
                run.kill() if what == "kill" else run.store.close()
                run = Run(Path(folder), clock=clock, settings=wanted)
            if what == "set back":
                clock.now_unix -= 5000
            mine = [process(A, pid, ticks=ticks, workload=owner) for pid, ticks in people]
            counters = {A: value} if what == "lose a gpu" else {A: value, B: value}
            state = run.tick(counters, mine)
            assert_exports_everything(state.energy)
            now = exported_values(state)
            assert all(joules >= before.get(key, 0) or not joules for key, joules in now.items())
            before = now
        run.store.close()
        assert_books_balance(run.store.file)


def test_a_process_on_two_gpus_has_a_session_and_an_account_on_each(tmp_path: Path) -> None:
    """E17, with the whole ledger and its file."""
    run = Run(tmp_path)
    on_a, on_b = process(A, 7, workload=NAMED), process(B, 7, workload=NAMED)
    for second in range(6):
        state = run.tick({A: second * 100 * J, B: second * 40 * J}, [on_a, on_b])
    state = run.tick({A: 600 * J, B: 240 * J})
    run.store.close()
    used = rows(
        run.store.file, "SELECT device, measured + apportioned FROM sessions JOIN usage USING (number)"
    )
    assert dict(used) == {A.uuid: 500 * J, B.uuid: 200 * J}
    exported_rows = {row.process.device.uuid: row.process.pid for row in state.energy.rows}
    assert exported_rows == {A.uuid: 7, B.uuid: 7}
    assert replace(on_a, device=B).key == on_b.key

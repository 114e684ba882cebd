"""The ledger over restarts: what continues, ends, begins at 0, and is unobserved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builders import FakeClock, gpu, instance, process
from gpuledger.model.process import GpuProcess, HostFacts, ProcessStart
from gpuledger.model.session import LedgerState
from gpuledger.model.workload import Workload
from ledger_helpers import UNIX, Run, assert_books_balance, exported_values, rows

A, B = gpu(0, sm_count=132), gpu(1)
NAMED = Workload("pod", namespace="ml", pod="train-0", container="main", pod_uid="u", found_by="cgroup")
NAMELESS = Workload("pod", pod_uid="u")
J = 1000


def ticks(run: Run, count: int, *processes: GpuProcess, start: int) -> LedgerState:
    for number in range(count):
        state = run.tick({A: start + number * 100 * J}, processes)
    return state


@pytest.mark.parametrize("end", [Run.kill, lambda run: run.store.close()], ids=["kill -9", "stop"])
def test_exported_counters_and_open_sessions_continue(tmp_path: Path, end: object) -> None:
    p = process(A, 1, workload=NAMED)
    first = Run(tmp_path)
    before = exported_values(ticks(first, 10, p, start=0))
    end(first)  # type: ignore[operator]  # one of the two above
    second = Run(tmp_path, clock=first.clock)
    after = exported_values(second.tick({A: 1000 * J}, [p]))
    assert before == after
    later = exported_values(ticks(second, 10, p, start=1100 * J))
    assert later.keys() >= before.keys()
    assert all(later[key] >= joules for key, joules in before.items())
    assert len(rows(second.store.file, "SELECT * FROM sessions")) == 1
    assert_books_balance(second.store.file)


def test_energy_between_runs_is_unobserved(tmp_path: Path) -> None:
    p = process(A, 1, workload=NAMED)
    first = Run(tmp_path)
    ticks(first, 5, p, start=0)
    first.kill()
    first.clock.advance(600)
    second = Run(tmp_path, clock=first.clock)
    second.tick({A: 60_000 * J}, [p])
    second.tick({A: 60_100 * J}, [p])
    # Cut at 22:15.
    query = "SELECT count(*), sum(unobserved) FROM spans WHERE method = 'unobserved'"
    assert rows(second.store.file, query) == [(2, 59_700 * J)]
    assert_books_balance(second.store.file)


def test_a_process_that_ended_between_runs_has_an_inferred_end_at_its_last_sight(tmp_path: Path) -> None:
    stays, goes = process(A, 1, workload=NAMED), process(A, 2, workload=NAMED)
    first = Run(tmp_path)
    ticks(first, 5, stays, goes, start=0)
    seen = first.clock.now_unix
    first.kill()
    first.clock.advance(100)
    second = Run(tmp_path, clock=first.clock)
    ticks(second, 3, stays, start=5000 * J)
    ended = "SELECT pid, ended, exit_seen FROM sessions JOIN usage USING (number) WHERE ended IS NOT NULL"
    assert rows(second.store.file, ended) == [(2, seen, 0)]
    second.tick({A: 6000 * J}, [])
    assert rows(second.store.file, ended + " AND pid = 1")[0][2] == 1


def test_a_failed_list_after_the_start_ends_nothing(tmp_path: Path) -> None:
    p = process(A, 1, workload=NAMED)
    first = Run(tmp_path)
    ticks(first, 5, p, start=0)
    first.kill()
    second = Run(tmp_path, clock=first.clock)
    from builders import reading, snapshot

    second.ledger.post(snapshot(reading(A, failed=True)))
    assert [one.number for one in second.ledger.sessions.open()] == [1]


@pytest.mark.parametrize("kill", [False, True])
def test_a_session_continues_with_its_full_usage(tmp_path: Path, kill: bool) -> None:
    p = process(A, 1, workload=NAMED, memory=7 * 4096, sm=0.25)
    first = Run(tmp_path)
    ticks(first, 9, p, start=0)
    (before,) = first.ledger.sessions.open()
    expected = before.row()._replace(watts=None)
    if kill:
        first.kill()
        # Not stored at each tick.
        expected = expected._replace(memory_mean=None, active_seconds=0.0)
    else:
        first.store.close()
    (kept,) = Run(tmp_path, clock=first.clock).store.stored_ledger.sessions
    assert kept.row() == expected._replace(process=kept.process)
    assert kept.process.key == before.process.key
    assert kept.process.workload == NAMED
    assert (kept.sm_seconds, kept.sm_known) == (before.sm_seconds, before.sm_known)


def test_after_a_machine_crash_exported_counters_begin_at_zero_and_the_ledger_continues(
    tmp_path: Path,
) -> None:
    p = process(A, 1, workload=NAMED)
    first = Run(tmp_path)
    ticks(first, 10, p, start=0)
    total = rows(first.store.file, "SELECT total FROM gpus")
    first.kill()
    second = Run(tmp_path, boot="boot-2", clock=FakeClock(UNIX + 100, 5.0))
    state = second.tick({A: 50 * J})
    assert set(exported_values(state).values()) == {0}
    assert state.energy.totals == {A.uuid: 0}
    assert rows(second.store.file, "SELECT total, base FROM gpus") == [(*total[0], *total[0])]
    second.tick({A: 60 * J})
    assert rows(second.store.file, "SELECT total - base FROM gpus") == [(60 * J,)]
    assert_books_balance(second.store.file)
    second.kill()
    third = Run(tmp_path, boot="boot-2", clock=second.clock)
    assert third.tick({A: 60 * J}).energy.totals == {A.uuid: 60 * J}


def test_a_clean_stop_before_a_reboot_keeps_exported_counters(tmp_path: Path) -> None:
    """The source's clock starts again with the boot: energy that was held back is not held back twice."""
    p = process(A, 1, workload=NAMED)
    first = Run(tmp_path)
    before = exported_values(ticks(first, 10, p, start=0))
    first.store.close()
    second = Run(tmp_path, boot="boot-2", clock=FakeClock(UNIX + 300, 3.0))
    after = exported_values(second.tick({A: 50 * J}))
    assert after == before
    second.kill()
    third = Run(tmp_path, boot="boot-2", clock=second.clock)
    assert exported_values(third.tick({A: 50 * J})) == before


def test_a_gpu_missing_for_a_run_returns_with_its_counters(tmp_path: Path) -> None:
    p, other = process(A, 1, workload=NAMED), process(B, 2, workload=NAMED)
    first = Run(tmp_path)
    for second in range(10):
        state = first.tick({A: second * 100 * J, B: second * 50 * J}, [p, other])
    before = {key: joules for key, joules in exported_values(state).items() if B.uuid in key}
    first.store.close()
    without = Run(tmp_path, boot="boot-2", clock=FakeClock(UNIX + 300, 3.0))
    state = without.tick({A: 10 * J})
    assert B.uuid not in state.energy.totals
    without.store.close()
    again = Run(tmp_path, boot="boot-2", clock=without.clock)
    state = again.tick({A: 20 * J, B: 900 * J})
    assert {key: joules for key, joules in exported_values(state).items() if B.uuid in key} == before


def test_energy_waiting_for_a_name_still_waits_after_a_restart(tmp_path: Path) -> None:
    nameless, named = (
        process(A, 1, workload=NAMELESS, missing="pod_name"),
        process(A, 1, workload=NAMED),
    )
    first = Run(tmp_path)
    state = ticks(first, 10, nameless, start=0)
    assert state.energy.owners == ()
    first.kill()
    second = Run(tmp_path, clock=first.clock)
    state = ticks(second, 10, named, start=1000 * J)
    shares = {row.labels[5]: row.millijoules for row in state.energy.owners if row.labels[1] == "process"}
    assert shares == {"train-0": 800 * J + 800 * J}


def test_frozen_labels_remain_frozen_over_a_restart(tmp_path: Path) -> None:
    first = Run(tmp_path)
    ticks(first, 10, process(A, 1, workload=NAMED), start=0)
    first.kill()
    second = Run(tmp_path, clock=first.clock)
    renamed = process(A, 1, workload=replace(NAMED, pod="other"))
    state = ticks(second, 10, renamed, start=1000 * J)
    assert {row.labels[5] for row in state.energy.owners if row.labels[1] == "process"} == {"train-0"}
    assert [row.process.workload.pod for row in state.energy.rows] == ["train-0"]


def test_the_series_of_a_process_that_ended_between_runs_is_exported_for_the_retention(
    tmp_path: Path,
) -> None:
    p = process(A, 1, workload=NAMED)
    first = Run(tmp_path)
    ticks(first, 10, p, start=0)
    first.kill()
    second = Run(tmp_path, clock=first.clock)
    state = second.tick({A: 1000 * J})
    assert [(row.millijoules, row.active) for row in state.energy.rows] == [(800 * J, False)]
    for _ in range(6):
        state = second.tick({A: 1000 * J})
    assert state.energy.rows == ()
    assert state.energy.closed == {A.uuid: 800 * J}
    second.kill()
    third = Run(tmp_path, clock=second.clock)
    assert third.tick({A: 1000 * J}).energy.closed == {A.uuid: 800 * J}


def test_learned_floors_persist_over_a_restart(tmp_path: Path) -> None:
    first = Run(tmp_path)
    for second in range(100):
        first.tick({A: second * 70 * J})
    learned = first.ledger.energy.gpu_ledgers[A.uuid].floors.floors
    assert learned.empty == 70_050
    first.kill()
    second = Run(tmp_path, clock=first.clock)
    second.tick({A: 7000 * J})
    assert second.ledger.energy.gpu_ledgers[A.uuid].floors.floors == learned


def test_a_session_on_an_instance_is_restored_on_it(tmp_path: Path) -> None:
    part = instance(A, 2, index=1, profile="1g.10gb", sm_count=16)
    p = process(part, 7, workload=NAMED)
    from builders import reading
    from gpuledger.model.snapshot import Snapshot, SourceInfo

    first = Run(tmp_path)
    first.ledger.post(
        Snapshot(UNIX, 1.0, SourceInfo("test"), (reading(A), reading(part, p)), boot_id="boot-1")
    )
    first.kill()
    (kept,) = Run(tmp_path).store.stored_ledger.sessions
    assert kept.process.device == part
    assert kept.process.device.profile == "1g.10gb"  # type: ignore[union-attr]  # an Instance
    assert kept.process.key == p.key


def test_arguments_in_a_process_title_are_not_stored(tmp_path: Path) -> None:
    facts = HostFacts(ProcessStart("boot", 5, UNIX), executable="/opt/my app/run me", comm="run me")
    p = replace(process(A, 1), name="run --password=hunter2 now", host=facts)
    run = Run(tmp_path)
    run.tick({A: 0}, [p])
    run.store.close()
    assert b"hunter2" not in run.store.file.read_bytes()
    (kept,) = Run(tmp_path).store.stored_ledger.sessions
    assert kept.process.command == p.command == "run me"

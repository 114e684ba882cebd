"""A full disk: the ledger is kept in memory, reported, and stored when there is space."""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from builders import FakeClock, gpu, process
from gpuledger.ledger import journal
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.ledger.store.retention import RetentionLimits
from gpuledger.ledger.store.store import Store
from gpuledger.model.process import GpuProcess
from ledger_helpers import (
    TRAINED,
    UNIX,
    Run,
    assert_books_balance,
    exported_values,
    post_training,
    rows,
)

J = 1000


def fill(run: Run) -> None:
    """Allow no more pages: a full disk for SQLite."""
    assert run.store._connection is not None
    (pages,) = run.store._connection.execute("PRAGMA page_count").fetchone()
    run.store._connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()


def free(run: Run) -> None:
    """Allow many pages again."""
    assert run.store._connection is not None
    run.store._connection.execute("PRAGMA max_page_count = 100000").fetchall()


def crowd(generation: int, number: int = 60) -> list[GpuProcess]:
    return [process(TRAINED, 100 + one, ticks=generation * number + one) for one in range(number)]


def test_a_full_disk_keeps_the_ledger_in_memory_and_stores_it_later(tmp_path: Path) -> None:
    run = Run(tmp_path)
    post_training(run, 20)
    fill(run)
    failed = 0
    for generation in range(10):
        (part,) = run.tick({TRAINED: (20 + generation) * 100 * J}, crowd(generation)).parts
        failed += not part.success
        if not part.success:
            assert "full" in part.error
    assert failed
    assert run.ledger.state.energy.totals[TRAINED.uuid] == 28 * 100 * J
    free(run)
    run.clock.advance(60)
    assert run.tick({TRAINED: 30 * 100 * J}).parts[0].success
    assert_books_balance(run.store.file)
    assert rows(run.store.file, "SELECT count(*) FROM sessions") == [(601,)]


@contextmanager
def no_space() -> Iterator[None]:
    """Let no file of this process grow: as on a full disk, SQLite then fails to open a ledger."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("end", [lambda run: run.store.close(), Run.kill], ids=["stopped", "killed"])
def test_a_start_on_a_full_disk_continues_the_ledger_and_stores_it_later(
    end: Callable[[Run], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Run(tmp_path)
    post_training(first, 20)
    before = exported_values(first.ledger.state)
    end(first)
    (tmp_path / "gpuledger.db-shm").unlink(missing_ok=True)
    with no_space():
        second = Run(tmp_path, clock=first.clock)
        part = post_training(second, 5, start=20)
        assert "disk I/O error (check the space: `df`)" in part.error
        during = exported_values(second.ledger.state)
    assert caplog.text.count("continues in memory and is stored when the file is writable") == 1
    second.clock.advance(60)
    assert post_training(second, 5, start=25).success
    after = exported_values(second.ledger.state)
    assert all(during[name] >= amount for name, amount in before.items())
    assert all(after[name] >= amount for name, amount in during.items())
    second.store.close()
    assert len(rows(second.store.file, "SELECT * FROM sessions")) == 1
    assert_books_balance(second.store.file)


def test_a_new_ledger_on_a_full_disk_is_stored_later(tmp_path: Path) -> None:
    clock = FakeClock(UNIX)
    with no_space():
        store = Store(tmp_path, "gpuledger", "boot-1", clock, RetentionLimits())
        run = Run.__new__(Run)
        run.boot, run.clock, run.store, run.ledger = "boot-1", clock, store, Ledger(LedgerSettings(), store)
        assert not post_training(run, 5).success
    clock.advance(60)
    assert post_training(run, 5, start=5).success
    store.close()
    assert len(rows(store.file, "SELECT * FROM sessions")) == 1
    assert assert_books_balance(store.file) > 0


def test_a_ledger_that_was_removed_while_the_disk_was_full_is_created_with_all_data(tmp_path: Path) -> None:
    first = Run(tmp_path)
    post_training(first, 20)
    first.store.close()
    with no_space():
        second = Run(tmp_path, clock=first.clock)
        post_training(second, 5, start=20)
    second.store.file.unlink()
    second.clock.advance(60)
    post_training(second, 5, start=25)
    assert post_training(second, 5, start=30).success
    second.store.close()
    assert len(rows(second.store.file, "SELECT * FROM sessions")) == 1
    assert_books_balance(second.store.file)


def test_a_stop_while_the_disk_is_still_full_leaves_the_stored_ledger(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Run(tmp_path)
    post_training(first, 20)
    first.store.close()
    content = first.store.file.read_bytes()
    with no_space():
        second = Run(tmp_path, clock=first.clock)
        post_training(second, 5, start=20)
        second.store.close()
    assert "what this run has read could not be stored" in caplog.text
    assert second.store.file.read_bytes() == content


def test_a_long_full_disk_loses_detail_and_some_sessions_but_no_memory_or_energy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal, "_MAX_SPANS", 20)
    monkeypatch.setattr(journal, "_MAX_SESSIONS", 200)
    run = Run(tmp_path)
    post_training(run, 20)
    fill(run)
    for generation in range(100):
        run.tick({TRAINED: (20 + generation) * 100 * J}, crowd(generation))
        kept = run.ledger._persistence.journal  # type: ignore[union-attr]  # it has a store
        assert len(kept.spans) <= 20
        assert len(kept.sessions) <= 200
    free(run)
    run.clock.advance(60)
    with caplog.at_level(logging.ERROR):
        assert run.tick({TRAINED: 120 * 100 * J}).parts[0].success
    assert "sessions that ended while the file could not be written" in caplog.text
    assert_books_balance(run.store.file)


def test_a_quiet_gpu_is_booked_once_while_others_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its span is old and still open when the spans are folded."""
    monkeypatch.setattr(journal, "_MAX_SPANS", 20)
    run, quiet = Run(tmp_path), gpu(1)
    guest = process(quiet, 7)
    post_training(run, 20)
    fill(run)
    for number in range(60):
        here = [*crowd(number), *([guest] if number in (8, 9) else [])]
        run.tick({TRAINED: (20 + number) * 100 * J, quiet: number * 100 * J}, here)
    free(run)
    run.clock.advance(60)
    assert run.tick({TRAINED: 90 * 100 * J, quiet: 60 * 100 * J}).parts[0].success
    assert_books_balance(run.store.file)


def test_counters_exported_during_a_full_disk_begin_at_zero_after_a_crash(tmp_path: Path) -> None:
    """Otherwise they would step back to the stored value."""
    run = Run(tmp_path)
    post_training(run, 20)
    fill(run)
    for generation in range(10):
        run.tick({TRAINED: (20 + generation) * 100 * J}, crowd(generation))
    assert not run.ledger.state.parts[0].success
    run.kill()
    again = Run(tmp_path, clock=run.clock)
    assert set(exported_values(again.tick({TRAINED: 5000 * J})).values()) == {0}
    assert again.tick({TRAINED: 5100 * J}).energy.totals == {
        TRAINED.uuid: 5100 * J - stored_up_to(run.store.file)
    }


def stored_up_to(file: Path) -> int:
    (opening, unobserved) = rows(file, "SELECT min(opening), 0 FROM gpus")[0]
    (base,) = rows(file, "SELECT base FROM gpus")[0]
    return int(opening) + int(base) + int(unobserved)  # type: ignore[call-overload]  # integers


def test_a_stop_stores_data_that_a_full_disk_had_refused(tmp_path: Path) -> None:
    run = Run(tmp_path)
    post_training(run, 20)
    fill(run)
    for generation in range(5):
        run.tick({TRAINED: (20 + generation) * 100 * J}, crowd(generation))
    before = exported_values(run.ledger.state)
    free(run)
    run.store.close()
    assert_books_balance(run.store.file)
    state = Run(tmp_path, clock=run.clock).tick({TRAINED: 2400 * J}, crowd(4))
    after = exported_values(state)
    assert all(after[name] >= joules for name, joules in before.items())

"""Unreadable and unwritable files: never a crash or a wrong number, always reported."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from math import inf
from pathlib import Path

import pytest

from builders import FakeClock, gpu, process
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings, StoreSettings
from gpuledger.ledger.store import schema
from gpuledger.ledger.store.retention import RetentionLimits
from gpuledger.ledger.store.store import Store
from gpuledger.ledger.store.store_factory import open_store
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.snapshot import CollectorRun, SourceInfo
from gpuledger.model.workload import Workload
from ledger_helpers import (
    TRAINED,
    TRAINING,
    UNIX,
    Run,
    assert_books_balance,
    exported_values,
    post_training,
    rows,
)
from report_helpers import report_of

J = 1000


def test_a_second_writer_is_refused_with_a_one_line_error(tmp_path: Path) -> None:
    first = Run(tmp_path)
    with pytest.raises(GpuledgerError, match=r"in use by another gpuledger.*--state-dir") as refused:
        Run(tmp_path)
    assert refused.value.exit_code == 1
    assert "\n" not in str(refused.value)
    first.store.close()
    Run(tmp_path).store.close()


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    Run(tmp_path).store.close()
    file = tmp_path / "gpuledger.db"
    with closing(sqlite3.connect(file)) as books:
        books.execute("PRAGMA user_version = 99")
    before = file.read_bytes()
    with pytest.raises(GpuledgerError, match=r"newer gpuledger \(schema 99\)"):
        Run(tmp_path)
    assert file.read_bytes() == before


def test_an_older_schema_is_migrated_with_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Run(tmp_path)
    post_training(first, 5)
    first.store.close()
    more = "ALTER TABLE epochs ADD COLUMN note TEXT; CREATE TABLE extra (a)"
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, more))
    second = Run(tmp_path, clock=first.clock)
    assert rows(second.store.file, "PRAGMA user_version") == [(len(schema.MIGRATIONS),)]
    assert len(second.store.stored_ledger.sessions) == 1
    assert rows(second.store.file, "SELECT * FROM extra") == []


def test_a_migration_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Run(tmp_path)
    post_training(first, 5)
    first.store.close()
    before = len(schema.MIGRATIONS)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "CREATE TABLE extra (a); SELECT nonsense"))
    Run(tmp_path).store.close()
    (aside,) = tmp_path.glob("*.corrupt-*[0-9]")
    assert rows(aside, "PRAGMA user_version") == [(before,)]
    assert rows(aside, "SELECT name FROM sqlite_master WHERE name = 'extra'") == []


def garbage(file: Path) -> None:
    file.write_bytes(b"not a database at all" * 1000)


def truncated(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def scribbled(file: Path) -> None:
    # All pages but the first, which holds the schema.
    size = file.stat().st_size
    with file.open("r+b") as books:
        books.seek(4096)
        books.write(b"\xaa" * (size - 4096))


def foreign(file: Path) -> None:
    file.unlink()
    with closing(sqlite3.connect(file)) as books:
        books.execute("CREATE TABLE somebody_elses (a)")


def half_of_it(file: Path) -> None:
    with closing(sqlite3.connect(file)) as books:
        books.execute("DROP TABLE series")


def nonsense_in_it(file: Path) -> None:
    with closing(sqlite3.connect(file)) as books:
        books.execute("UPDATE series SET labels = '{'")
        books.commit()


DAMAGES = [garbage, truncated, scribbled, foreign, half_of_it, nonsense_in_it]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_file_is_set_aside_and_a_new_ledger_begins(
    damage: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Run(tmp_path)
    post_training(first, 20)
    first.store.close()
    damage(first.store.file)  # type: ignore[operator]  # one of the list
    content = first.store.file.read_bytes()
    with caplog.at_level(logging.ERROR):
        second = Run(tmp_path, clock=first.clock)
    assert "a new ledger begins" in caplog.text
    (aside,) = tmp_path.glob("gpuledger.db.corrupt-*[0-9]")
    assert aside.read_bytes() == content
    assert post_training(second, 20, start=100).success
    assert assert_books_balance(second.store.file) > 0
    assert second.ledger.state.energy.totals == {TRAINED.uuid: 18 * 100 * J}


def damage_while_open(run: Run) -> None:
    """Damage an open file of which nothing is cached in memory."""
    assert run.store._connection is not None
    run.store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    run.store._connection.execute("PRAGMA cache_size=0")
    run.store._connection.execute("PRAGMA shrink_memory")
    with run.store.file.open("r+b") as books:
        books.write(b"\xaa" * 4096 * 3)


def test_activity_that_only_the_damaged_file_had_is_unknown(tmp_path: Path) -> None:
    run = Run(tmp_path)
    here = [process(TRAINED, 1, sm=0.0)]
    for second in range(121):
        if second == 110:
            damage_while_open(run)
        run.tick({TRAINED: second * 1000 * J}, here, busy=False)
    run.store.close()
    (line,) = report_of(run.store.file).lines
    # Memory has the current minute, from second 100 on.
    assert (line.resident, line.held, line.unknown, line.active) == (120, 21, 99, None)


def test_a_file_damaged_while_open_is_replaced_and_gets_everything_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path)
    post_training(run, 20)
    before = exported_values(run.ledger.state)
    damage_while_open(run)
    part = post_training(run, 1, start=20)
    assert "replaced" in part.error
    assert list(tmp_path.glob("*.corrupt-*[0-9]"))
    assert post_training(run, 5, start=21).success
    # The exported counters are not affected.
    after = exported_values(run.ledger.state)
    assert all(after[name] >= joules for name, joules in before.items())
    assert_books_balance(run.store.file)
    assert len(rows(run.store.file, "SELECT * FROM sessions")) == 1
    run.kill()
    again = Run(tmp_path, clock=run.clock)
    assert exported_values(again.tick({TRAINED: 2500 * J}, [TRAINING])) == after


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE time_splits SET split = '{'",
        "DELETE FROM time_splits WHERE number = 3",
        "UPDATE sessions SET labels = '{'",
        "UPDATE spans SET begins = 'x'",
        "UPDATE time_spans SET microseconds = 'x'",
        "UPDATE usage_quarters SET throttled = '{'",
    ],
)
def test_history_that_cannot_be_read_is_left_and_everything_else_goes_on(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path, limits=RetentionLimits(detail=7200.0))
    counter = iter(range(1000))

    def minutes(count: int) -> CollectorRun:
        for _ in range(count):
            number = next(counter)
            (part,) = run.tick(
                {TRAINED: number * 300 * J}, [TRAINING] if number % 3 else [], seconds=60.0
            ).parts
        return part

    minutes(50)
    with closing(sqlite3.connect(run.store.file)) as books:
        books.execute(damage)
        books.commit()
    part = minutes(250)
    assert "neither summed to hours nor deleted" in part.error
    assert "`gpuledger books check`" in part.error
    assert caplog.text.count("neither summed") == 1
    assert not list(tmp_path.glob("*.corrupt-*"))
    assert run.ledger.state.energy.totals[TRAINED.uuid] == 298 * 300 * J
    assert rows(run.store.file, "SELECT value FROM meta WHERE key = 'unix'") == [(run.clock.unix(),)]


def emptied(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


@pytest.mark.parametrize(
    "take_away",
    [
        lambda folder: (folder / "gpuledger.db").unlink(),
        shutil.rmtree,
        emptied,
        lambda folder: folder.rename(folder.with_name("elsewhere")),
    ],
    ids=["file", "directory", "directory replaced", "directory moved"],
)
def test_a_removed_ledger_is_created_again_with_everything_in_memory(
    tmp_path: Path, take_away: Callable[[Path], object]
) -> None:
    (tmp_path / "books").mkdir()
    run = Run(tmp_path / "books")
    post_training(run, 20)
    before = exported_values(run.ledger.state)
    take_away(tmp_path / "books")
    assert "created again" in post_training(run, 1, start=20).error
    assert post_training(run, 5, start=21).success
    after = exported_values(run.ledger.state)
    assert all(after[name] >= joules for name, joules in before.items())
    with pytest.raises(GpuledgerError, match="another gpuledger"):
        Run(tmp_path / "books")
    assert_books_balance(run.store.file)
    assert len(rows(run.store.file, "SELECT * FROM sessions")) == 1
    run.kill()
    again = Run(tmp_path / "books", clock=run.clock)
    assert exported_values(again.tick({TRAINED: 2500 * J}, [TRAINING])) == after


def test_a_foreign_file_in_place_of_the_ledger_is_not_touched_but_reported(tmp_path: Path) -> None:
    run = Run(tmp_path)
    post_training(run, 5)
    other = tmp_path / "backup"
    other.write_bytes(b"of yesterday")
    other.replace(run.store.file)
    assert "another file has replaced it" in post_training(run, 1, start=5).error
    assert run.store.file.read_bytes() == b"of yesterday"
    run.store.file.unlink()
    run.clock.advance(60)
    post_training(run, 1, start=6)
    assert post_training(run, 2, start=7).success
    assert_books_balance(run.store.file)


def test_a_stop_after_the_file_was_removed_says_what_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path)
    post_training(run, 5)
    run.store._retry_at = inf
    post_training(run, 5, start=5)
    run.store.file.unlink()
    run.store.close()
    assert "the file was removed; the last changes of the ledger could not be stored" in caplog.text


def test_a_directory_moved_behind_a_link_is_still_the_same(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    run = Run(tmp_path / "books")
    post_training(run, 5)
    (tmp_path / "books").rename(tmp_path / "disk")
    (tmp_path / "books").symlink_to(tmp_path / "disk")
    assert post_training(run, 5, start=5).success


def test_a_stop_right_after_the_damage_leaves_a_complete_new_ledger(tmp_path: Path) -> None:
    run = Run(tmp_path)
    post_training(run, 20)
    damage_while_open(run)
    assert "replaced" in post_training(run, 1, start=20).error
    before = exported_values(run.ledger.state)
    run.store.close()
    assert_books_balance(run.store.file)
    again = Run(tmp_path, clock=run.clock)
    assert post_training(again, 5, start=21).success
    assert_books_balance(again.store.file)
    after = exported_values(again.ledger.state)
    assert all(after[name] >= joules for name, joules in before.items())


def test_a_replaced_ledger_knows_a_gpu_that_was_lost_earlier(tmp_path: Path) -> None:
    """Its counters are still exported and reference it."""
    patient = LedgerSettings(zero_hold=2.0, retention=60.0)
    lost = gpu(1)
    theirs = process(lost, 2, workload=Workload("pod", "ml", "train-1"))
    run = Run(tmp_path, settings=patient)
    for number in range(20):
        run.tick({TRAINED: number * 100 * J, lost: number * 100 * J}, [TRAINING, theirs])
    damage_while_open(run)
    for number in range(20, 23):
        before = exported_values(run.tick({TRAINED: number * 100 * J}, [TRAINING]))
    run.store.close()
    again = Run(tmp_path, clock=run.clock, settings=patient)
    assert len(list(tmp_path.glob("*.corrupt-*[0-9]"))) == 1, "the new ledger is read"
    after = exported_values(again.tick({TRAINED: 2300 * J, lost: 1900 * J}, [TRAINING]))
    theirs_before = {name: joules for name, joules in before.items() if lost.uuid in name}
    assert {name: after[name] for name in theirs_before} == theirs_before


def test_a_locked_file_is_retried_with_growing_delays(tmp_path: Path) -> None:
    run = Run(tmp_path)
    post_training(run, 5)
    with closing(sqlite3.connect(run.store.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        outcomes = [post_training(run, 1, start=5 + second).error for second in range(4)]
        assert all("locked" in error for error in outcomes)
        other.execute("ROLLBACK")
    run.clock.advance(60)
    assert post_training(run, 1, start=9).success
    assert_books_balance(run.store.file)


def test_an_unusable_directory_keeps_the_ledger_in_memory_and_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    clock = FakeClock(UNIX)
    with caplog.at_level(logging.WARNING):
        store = open_store(StoreSettings(str(blocked / "books")), SourceInfo("nvml"), "boot", clock, {})
    assert store is not None
    assert (
        f"no writable directory for the ledger: {blocked / 'books'}: Not a directory; set --state-dir"
        in caplog.text
    )
    run = Run.__new__(Run)
    run.boot, run.clock, run.store, run.ledger = "boot", clock, store, Ledger(LedgerSettings(), store)
    part = post_training(run, 10)
    assert "is kept in memory" in part.error
    assert run.ledger.state.energy.totals == {TRAINED.uuid: 8 * 100 * J}
    store.close()


@pytest.mark.parametrize("suffix", [".lock", ".db"])
def test_files_of_another_user_keep_the_ledger_in_memory_with_a_remedy(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = os.open

    def refuse(path: os.PathLike[str] | str, *rest: int) -> int:
        if str(path).endswith(suffix):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *rest)

    monkeypatch.setattr(os, "open", refuse)
    store = Store(tmp_path, "gpuledger", "boot", FakeClock(UNIX), RetentionLimits())
    assert not store.on_disk
    assert f"as root, `chown -h {os.geteuid()} {tmp_path}/gpuledger.*`" in caplog.text
    store.close()


def test_a_read_only_file_keeps_the_ledger_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Run(tmp_path)
    post_training(first, 5)
    first.store.close()
    # Root can write regardless of the mode, so SQLite opens the file read-only.
    connect = Store._connect

    def read_only(self: Store) -> sqlite3.Connection:
        made = connect(self)
        made.execute("PRAGMA query_only = 1")
        return made

    monkeypatch.setattr(Store, "_connect", read_only)
    second = Run(tmp_path, clock=first.clock)
    part = post_training(second, 5, start=10)
    assert "readonly" in part.error
    assert second.ledger.state.energy.totals[TRAINED.uuid] > 0
    second.store.close()


def history(run: Run, hours: int) -> None:
    """A Session and one or two Spans each hour."""
    for hour in range(hours):
        mine = [process(TRAINED, 1, ticks=hour + 1)]
        for part in range(3):
            run.tick({TRAINED: (hour * 3 + part) * 100 * J}, mine, seconds=20.0)
        run.tick({TRAINED: (hour * 3 + 2) * 100 * J}, [], seconds=3540.0)


def test_history_beyond_the_retention_is_deleted_and_the_books_balance(tmp_path: Path) -> None:
    run = Run(tmp_path, limits=RetentionLimits(7200.0, 100 * 3600.0))
    history(run, 150)
    hours = rows(run.store.file, "SELECT count(*), min(quarter) * 900 FROM hours")[0]
    times = rows(run.store.file, "SELECT count(*), min(quarter) * 900 FROM hour_times")[0]
    sessions = rows(run.store.file, "SELECT count(*), min(ended) FROM usage")[0]
    for count, oldest in (hours, times, sessions):
        assert 90 <= count <= 450  # type: ignore[operator]  # integers
        assert run.clock.unix() - oldest <= 102 * 3600  # type: ignore[operator]
    assert rows(run.store.file, "SELECT count(*) FROM spans")[0][0] <= 15  # type: ignore[operator]
    assert rows(run.store.file, "SELECT sum(millijoules) FROM forgotten")[0][0] > 0  # type: ignore[operator]
    assert rows(
        run.store.file, "SELECT count(*) FROM shares WHERE span NOT IN (SELECT number FROM spans)"
    ) == [(0,)]
    assert_books_balance(run.store.file)


def test_a_ledger_beyond_its_size_loses_its_oldest_history(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    most = 250_000
    run = Run(tmp_path, limits=RetentionLimits(max_size=most))
    with caplog.at_level(logging.WARNING):
        history(run, 300)
    assert "store.max_size" in caplog.text
    run.store.close()
    assert run.store.file.stat().st_size < most * 1.3
    assert rows(run.store.file, "SELECT count(*) FROM sessions")[0][0] > 20  # type: ignore[operator]
    assert_books_balance(run.store.file)

"""Files that cannot be read or written: never a crash, never a wrong number, always said."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from books_helpers import UNIX, Run, assert_books_balance, rows, told
from builders import FakeClock, gpu, process
from gpuledger.ledger import journal
from gpuledger.ledger.settings import LedgerSettings, StoreSettings
from gpuledger.ledger.store import schema
from gpuledger.ledger.store.open import open_store
from gpuledger.ledger.store.place import book_name, state_dir
from gpuledger.ledger.store.retention import Limits
from gpuledger.ledger.store.store import Store
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.snapshot import Collected, SourceInfo
from gpuledger.model.workload import Workload

A = gpu(0, sm_count=132)
P = process(A, 1, workload=Workload("pod", "ml", "train-0"))
J = 1000


def post(run: Run, count: int, start: int = 0) -> Collected:
    for number in range(count):
        (part,) = run.tick({A: (start + number) * 100 * J}, [P]).parts
    return part


def test_a_second_writer_is_refused_with_one_line(tmp_path: Path) -> None:
    first = Run(tmp_path)
    with pytest.raises(GpuledgerError, match=r"being written by another gpuledger.*--state-dir") as refused:
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
    post(first, 5)
    first.store.close()
    more = "ALTER TABLE epochs ADD COLUMN note TEXT; CREATE TABLE extra (a)"
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, more))
    second = Run(tmp_path, clock=first.clock)
    assert rows(second.store.file, "PRAGMA user_version") == [(len(schema.MIGRATIONS),)]
    assert len(second.store.kept.sessions) == 1
    assert rows(second.store.file, "SELECT * FROM extra") == []


def test_a_migration_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Run(tmp_path)
    post(first, 5)
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
def test_a_damaged_file_is_kept_aside_and_new_books_begin(
    damage: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Run(tmp_path)
    post(first, 20)
    first.store.close()
    damage(first.store.file)  # type: ignore[operator]  # one of the list
    content = first.store.file.read_bytes()
    with caplog.at_level(logging.ERROR):
        second = Run(tmp_path, clock=first.clock)
    assert "new books begin" in caplog.text
    (aside,) = tmp_path.glob("gpuledger.db.corrupt-*[0-9]")
    assert aside.read_bytes() == content
    assert post(second, 20, start=100).success
    assert assert_books_balance(second.store.file) > 0
    assert second.ledger.state.energy.totals == {A.uuid: 18 * 100 * J}


def damage_while_open(run: Run) -> None:
    """Over a file that is open, of which nothing is remembered in memory."""
    assert run.store._connection is not None
    run.store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    run.store._connection.execute("PRAGMA cache_size=0")
    run.store._connection.execute("PRAGMA shrink_memory")
    with run.store.file.open("r+b") as books:
        books.write(b"\xaa" * 4096 * 3)


def test_a_file_damaged_while_it_is_written_is_replaced_and_gets_all_that_memory_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path)
    post(run, 20)
    before = told(run.ledger.state)
    damage_while_open(run)
    part = post(run, 1, start=20)
    assert "replaced" in part.error
    assert list(tmp_path.glob("*.corrupt-*[0-9]"))
    assert post(run, 5, start=21).success
    # The exported counters never saw it.
    after = told(run.ledger.state)
    assert all(after[name] >= joules for name, joules in before.items())
    assert_books_balance(run.store.file)
    assert len(rows(run.store.file, "SELECT * FROM sessions")) == 1
    run.kill()
    again = Run(tmp_path, clock=run.clock)
    assert told(again.tick({A: 2500 * J}, [P])) == after


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
def test_books_that_are_taken_away_are_begun_anew_with_all_that_memory_has(
    tmp_path: Path, take_away: Callable[[Path], object]
) -> None:
    (tmp_path / "books").mkdir()
    run = Run(tmp_path / "books")
    post(run, 20)
    before = told(run.ledger.state)
    take_away(tmp_path / "books")
    assert "begun anew" in post(run, 1, start=20).error
    assert post(run, 5, start=21).success
    after = told(run.ledger.state)
    assert all(after[name] >= joules for name, joules in before.items())
    with pytest.raises(GpuledgerError, match="another gpuledger"):
        Run(tmp_path / "books")
    assert_books_balance(run.store.file)
    assert len(rows(run.store.file, "SELECT * FROM sessions")) == 1
    run.kill()
    again = Run(tmp_path / "books", clock=run.clock)
    assert told(again.tick({A: 2500 * J}, [P])) == after


def test_a_file_that_somebody_put_in_place_of_the_books_is_left_alone_and_said(tmp_path: Path) -> None:
    run = Run(tmp_path)
    post(run, 5)
    other = tmp_path / "backup"
    other.write_bytes(b"of yesterday")
    other.replace(run.store.file)
    assert "another file stands in its place" in post(run, 1, start=5).error
    assert run.store.file.read_bytes() == b"of yesterday"
    run.store.file.unlink()
    run.clock.advance(60)
    post(run, 1, start=6)
    assert post(run, 2, start=7).success
    assert_books_balance(run.store.file)


def test_a_directory_that_moved_behind_a_link_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    run = Run(tmp_path / "books")
    post(run, 5)
    (tmp_path / "books").rename(tmp_path / "disk")
    (tmp_path / "books").symlink_to(tmp_path / "disk")
    assert post(run, 5, start=5).success


def test_a_stop_right_after_the_damage_leaves_new_books_that_are_whole(tmp_path: Path) -> None:
    run = Run(tmp_path)
    post(run, 20)
    damage_while_open(run)
    assert "replaced" in post(run, 1, start=20).error
    before = told(run.ledger.state)
    run.store.close()
    assert_books_balance(run.store.file)
    again = Run(tmp_path, clock=run.clock)
    assert post(again, 5, start=21).success
    assert_books_balance(again.store.file)
    after = told(again.ledger.state)
    assert all(after[name] >= joules for name, joules in before.items())


def test_books_that_replace_damaged_ones_know_a_gpu_that_was_lost_before(tmp_path: Path) -> None:
    """Its counters are still told, and name it."""
    patient = LedgerSettings(zero_hold=2.0, retention=60.0)
    lost = gpu(1)
    theirs = process(lost, 2, workload=Workload("pod", "ml", "train-1"))
    run = Run(tmp_path, settings=patient)
    for number in range(20):
        run.tick({A: number * 100 * J, lost: number * 100 * J}, [P, theirs])
    damage_while_open(run)
    for number in range(20, 23):
        before = told(run.tick({A: number * 100 * J}, [P]))
    run.store.close()
    again = Run(tmp_path, clock=run.clock, settings=patient)
    assert len(list(tmp_path.glob("*.corrupt-*[0-9]"))) == 1, "the new books are read"
    after = told(again.tick({A: 2300 * J, lost: 1900 * J}, [P]))
    theirs_before = {name: joules for name, joules in before.items() if lost.uuid in name}
    assert {name: after[name] for name in theirs_before} == theirs_before


def fill(run: Run) -> None:
    """No page more than it has: SQLite's way of a full disk."""
    assert run.store._connection is not None
    (pages,) = run.store._connection.execute("PRAGMA page_count").fetchone()
    run.store._connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()


def crowd(generation: int, number: int = 60) -> list[object]:
    return [process(A, 100 + one, ticks=generation * number + one) for one in range(number)]


def test_a_full_disk_keeps_the_books_in_memory_and_stores_all_of_it_later(tmp_path: Path) -> None:
    run = Run(tmp_path)
    post(run, 20)
    fill(run)
    failed = 0
    for generation in range(10):
        (part,) = run.tick({A: (20 + generation) * 100 * J}, crowd(generation)).parts  # type: ignore[arg-type]
        failed += not part.success
        if not part.success:
            assert "full" in part.error
    assert failed
    assert run.ledger.state.energy.totals[A.uuid] == 28 * 100 * J
    assert run.store._connection is not None
    run.store._connection.execute("PRAGMA max_page_count = 100000").fetchall()
    run.clock.advance(60)
    assert run.tick({A: 30 * 100 * J}).parts[0].success
    assert_books_balance(run.store.file)
    assert rows(run.store.file, "SELECT count(*) FROM sessions") == [(601,)]


def test_a_disk_that_is_full_for_long_costs_detail_and_some_sessions_but_no_memory_and_no_joule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal, "_MOST_SPANS", 20)
    monkeypatch.setattr(journal, "_MOST_SESSIONS", 200)
    run = Run(tmp_path)
    post(run, 20)
    fill(run)
    for generation in range(100):
        run.tick({A: (20 + generation) * 100 * J}, crowd(generation))  # type: ignore[arg-type]
        kept = run.ledger._keeper.journal  # type: ignore[union-attr]  # there are books
        assert len(kept.spans) <= 20
        assert len(kept.sessions) <= 200
    assert run.store._connection is not None
    run.store._connection.execute("PRAGMA max_page_count = 100000").fetchall()
    run.clock.advance(60)
    with caplog.at_level(logging.ERROR):
        assert run.tick({A: 120 * 100 * J}).parts[0].success
    assert "sessions ended while it could not be written" in caplog.text
    assert_books_balance(run.store.file)


def test_a_gpu_that_is_quiet_while_others_fill_the_memory_is_booked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its span is old and still open when the spans are folded."""
    monkeypatch.setattr(journal, "_MOST_SPANS", 20)
    run, quiet = Run(tmp_path), gpu(1)
    guest = process(quiet, 7)
    post(run, 20)
    fill(run)
    for number in range(60):
        here = [*crowd(number), *([guest] if number in (8, 9) else [])]
        run.tick({A: (20 + number) * 100 * J, quiet: number * 100 * J}, here)  # type: ignore[arg-type]
    assert run.store._connection is not None
    run.store._connection.execute("PRAGMA max_page_count = 100000").fetchall()
    run.clock.advance(60)
    assert run.tick({A: 90 * 100 * J, quiet: 60 * 100 * J}).parts[0].success
    assert_books_balance(run.store.file)


def test_what_was_exported_beyond_a_full_disk_begins_at_zero_after_a_crash(tmp_path: Path) -> None:
    """It would else step back to what had been stored."""
    run = Run(tmp_path)
    post(run, 20)
    fill(run)
    for generation in range(10):
        run.tick({A: (20 + generation) * 100 * J}, crowd(generation))  # type: ignore[arg-type]
    assert not run.ledger.state.parts[0].success
    run.kill()
    again = Run(tmp_path, clock=run.clock)
    assert set(told(again.tick({A: 5000 * J})).values()) == {0}
    assert again.tick({A: 5100 * J}).energy.totals == {A.uuid: 5100 * J - stored_up_to(run.store.file)}


def stored_up_to(file: Path) -> int:
    (opening, unobserved) = rows(file, "SELECT min(opening), 0 FROM gpus")[0]
    (base,) = rows(file, "SELECT base FROM gpus")[0]
    return int(opening) + int(base) + int(unobserved)  # type: ignore[call-overload]  # integers


def test_a_stop_stores_what_a_full_disk_had_refused(tmp_path: Path) -> None:
    run = Run(tmp_path)
    post(run, 20)
    fill(run)
    for generation in range(5):
        run.tick({A: (20 + generation) * 100 * J}, crowd(generation))  # type: ignore[arg-type]
    before = told(run.ledger.state)
    assert run.store._connection is not None
    run.store._connection.execute("PRAGMA max_page_count = 100000").fetchall()
    run.store.close()
    assert_books_balance(run.store.file)
    state = Run(tmp_path, clock=run.clock).tick({A: 2400 * J}, crowd(4))  # type: ignore[arg-type]
    after = told(state)
    assert all(after[name] >= joules for name, joules in before.items())


def test_a_locked_file_is_waited_for_with_growing_pauses(tmp_path: Path) -> None:
    run = Run(tmp_path)
    post(run, 5)
    with closing(sqlite3.connect(run.store.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        outcomes = [post(run, 1, start=5 + second).error for second in range(4)]
        assert all("locked" in error for error in outcomes)
        other.execute("ROLLBACK")
    run.clock.advance(60)
    assert post(run, 1, start=9).success
    assert_books_balance(run.store.file)


def test_an_unusable_directory_leaves_the_books_in_memory_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    clock = FakeClock(UNIX)
    with caplog.at_level(logging.WARNING):
        store = open_store(StoreSettings(str(blocked / "books")), SourceInfo("nvml"), "boot", clock, {})
    assert store is not None
    assert f"no directory for the books: {blocked / 'books'}: Not a directory; see --state-dir" in caplog.text
    run = Run.__new__(Run)
    from gpuledger.ledger.ledger import Ledger

    run.boot, run.clock, run.store, run.ledger = "boot", clock, store, Ledger(LedgerSettings(), store)
    part = post(run, 10)
    assert "in memory alone" in part.error
    assert run.ledger.state.energy.totals == {A.uuid: 8 * 100 * J}
    store.close()


def test_a_read_only_file_leaves_the_books_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Run(tmp_path)
    post(first, 5)
    first.store.close()
    # Root may write whatever the mode says, so SQLite is told that it may not.
    connect = Store._connect

    def read_only(self: Store) -> sqlite3.Connection:
        made = connect(self)
        made.execute("PRAGMA query_only = 1")
        return made

    monkeypatch.setattr(Store, "_connect", read_only)
    second = Run(tmp_path, clock=first.clock)
    part = post(second, 5, start=10)
    assert "readonly" in part.error
    assert second.ledger.state.energy.totals[A.uuid] > 0
    second.store.close()


def test_made_up_numbers_are_kept_only_where_asked_and_in_a_file_of_their_own(tmp_path: Path) -> None:
    simulated = SourceInfo("simulator", simulated=True, detail="k8s node/1")
    clock = FakeClock(UNIX)
    assert open_store(StoreSettings(), simulated, "boot", clock, {}, tmp_path) is None
    asked = open_store(StoreSettings(str(tmp_path / "a")), simulated, "boot", clock, {})
    assert asked is not None
    assert asked.file == tmp_path / "a" / "simulator-k8s_node_1.db"
    assert book_name(SourceInfo("nvml")) == "gpuledger"
    asked.close()


def test_none_keeps_the_books_in_memory(tmp_path: Path) -> None:
    assert open_store(StoreSettings("none"), SourceInfo("nvml"), "b", FakeClock(), {}, tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_books_are_for_nobody_else_to_read(tmp_path: Path) -> None:
    folder = state_dir(str(tmp_path / "new" / "books"), {})
    run = Run(folder)
    post(run, 2)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
    run.store.close()


def test_without_the_systems_directory_the_users_own_is_taken(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    home = {"HOME": str(tmp_path / "home")}
    assert state_dir("", home, blocked / "x") == tmp_path / "home" / ".local" / "state" / "gpuledger"
    home["XDG_STATE_HOME"] = str(tmp_path / "state")
    assert state_dir("", home, blocked / "x") == tmp_path / "state" / "gpuledger"
    assert state_dir("", home, tmp_path / "system") == tmp_path / "system"


def history(run: Run, hours: int) -> None:
    """A Session and a Span or two each hour."""
    for hour in range(hours):
        mine = [process(A, 1, ticks=hour + 1)]
        for part in range(3):
            run.tick({A: (hour * 3 + part) * 100 * J}, mine, seconds=20.0)
        run.tick({A: (hour * 3 + 2) * 100 * J}, [], seconds=3540.0)


def test_history_beyond_the_retention_is_deleted_and_the_books_still_balance(tmp_path: Path) -> None:
    run = Run(tmp_path, limits=Limits(7200.0, 100 * 3600.0))
    history(run, 300)
    hours = rows(run.store.file, "SELECT count(*), min(hour) * 3600 FROM hours")[0]
    times = rows(run.store.file, "SELECT count(*), min(hour) * 3600 FROM hour_times")[0]
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


def test_books_beyond_the_size_lose_their_oldest_history(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    most = 250_000
    run = Run(tmp_path, limits=Limits(max_size=most))
    with caplog.at_level(logging.WARNING):
        history(run, 600)
    assert "store.max_size" in caplog.text
    run.store.close()
    assert run.store.file.stat().st_size < most * 1.3
    assert rows(run.store.file, "SELECT count(*) FROM sessions")[0][0] > 20  # type: ignore[operator]
    assert_books_balance(run.store.file)

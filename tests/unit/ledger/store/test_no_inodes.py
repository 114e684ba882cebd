"""A start on a disk without inodes: the ledger is kept in memory, and stored when a file can be created."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from builders import FakeClock
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings, StoreSettings
from gpuledger.ledger.store.retention import RetentionLimits
from gpuledger.ledger.store.state_directory import create_state_dir
from gpuledger.ledger.store.store import Store
from gpuledger.ledger.store.store_factory import open_store
from gpuledger.model.snapshot import SourceInfo
from ledger_helpers import UNIX, Run, assert_books_balance, exported_values, post_training, rows

LOCK, FILE, WAL = "gpuledger.lock", "gpuledger.db", "gpuledger.db-wal"


@contextmanager
def no_inodes(monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOSPC) -> Iterator[None]:
    """Let no file and no directory be created."""
    real_open, real_mkdir = os.open, os.mkdir

    def open_(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & os.O_CREAT and not Path(path).exists():
            raise OSError(number, os.strerror(number), str(path))
        return real_open(path, flags, *more, **options)

    def mkdir(path: Any, *more: Any, **options: Any) -> None:
        if Path(path).exists() or not Path(path).parent.exists():
            real_mkdir(path, *more, **options)
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_)
        patch.setattr(os, "mkdir", mkdir)
        yield


def started(folder: Path, clock: FakeClock, boot: str = "boot-1") -> Run:
    run = Run.__new__(Run)
    store = Store(folder, "gpuledger", boot, clock, RetentionLimits())
    run.boot, run.clock, run.store, run.ledger = boot, clock, store, Ledger(LedgerSettings(), store)
    return run


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("existing", ["", "the directory", "the lock"])
def test_a_new_ledger_without_inodes_is_stored_later(
    existing: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, clock = tmp_path / "a" / "b", FakeClock(UNIX)
    if existing:
        folder.mkdir(parents=True)
    if existing == "the lock":
        (folder / LOCK).touch()
    with no_inodes(monkeypatch, number):
        run = started(folder, clock)
        part = post_training(run, 5)
        assert (part.success, run.store.on_disk) == (False, True)
        during = exported_values(run.ledger.state)
    clock.advance(60)
    assert post_training(run, 5, start=5).success
    after = exported_values(run.ledger.state)
    assert during
    assert all(after[name] >= amount for name, amount in during.items())
    run.store.close()
    assert len(rows(run.store.file, "SELECT * FROM sessions")) == 1
    assert assert_books_balance(run.store.file) > 0


def remove_lock(folder: Path) -> None:
    (folder / LOCK).unlink()


def block_wal(folder: Path) -> None:
    """SQLite cannot create its own file, either."""
    (folder / WAL).unlink(missing_ok=True)
    (folder / WAL).symlink_to(folder / "missing" / "wal")


@pytest.mark.parametrize("prepare", [remove_lock, block_wal])
def test_a_start_without_inodes_continues_the_ledger_and_stores_it_later(
    prepare: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Run(tmp_path)
    post_training(first, 20)
    before = exported_values(first.ledger.state)
    first.store.close()
    prepare(tmp_path)
    with no_inodes(monkeypatch):
        second = started(tmp_path, first.clock)
        assert not post_training(second, 5, start=20).success
        during = exported_values(second.ledger.state)
    if prepare is block_wal:
        (tmp_path / WAL).unlink()
    second.clock.advance(60)
    assert post_training(second, 5, start=25).success
    after = exported_values(second.ledger.state)
    assert all(after[name] >= amount for name, amount in (*before.items(), *during.items()))
    second.store.close()
    assert len(rows(second.store.file, "SELECT * FROM sessions")) == 1
    assert_books_balance(second.store.file)


def test_a_stop_stores_what_was_read_without_inodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with no_inodes(monkeypatch):
        run = started(tmp_path, FakeClock(UNIX))
        post_training(run, 5)
    run.store.close()
    assert assert_books_balance(run.store.file) > 0


def test_a_ledger_that_another_program_wrote_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Run(tmp_path)
    post_training(first, 5)
    first.store.close()
    (tmp_path / LOCK).unlink()
    with no_inodes(monkeypatch):
        second = started(tmp_path, first.clock)
    other = Run(tmp_path, clock=first.clock)
    post_training(other, 5, start=5)
    second.clock.advance(60)
    assert "in use by another gpuledger" in post_training(second, 1, start=10).error
    other.store.close()
    kept = rows(other.store.file, "SELECT * FROM spans")
    second.clock.advance(120)
    assert "another file has replaced it" in post_training(second, 1, start=11).error
    second.store.close()
    assert rows(other.store.file, "SELECT * FROM spans") == kept


def test_a_damaged_ledger_on_a_disk_without_inodes_is_replaced_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / LOCK).touch()
    (tmp_path / FILE).write_bytes(b"not a ledger" * 1000)
    with no_inodes(monkeypatch):
        run = started(tmp_path, FakeClock(UNIX))
        assert not post_training(run, 5).success
    run.clock.advance(60)
    assert post_training(run, 5, start=5).success
    run.store.close()
    assert assert_books_balance(run.store.file) > 0


def test_a_user_without_inodes_keeps_to_the_own_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory of the system may not be written, which changes nothing."""
    own, system = tmp_path / "state" / "gpuledger", tmp_path / "lib" / "gpuledger"
    system.mkdir(parents=True)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != system and access(path, mode))
    with no_inodes(monkeypatch):
        store = open_store(
            StoreSettings(),
            SourceInfo("nvml", simulated=False),
            "boot-1",
            FakeClock(UNIX),
            {"XDG_STATE_HOME": str(own.parent)},
            system,
        )
    assert store is not None
    assert store.file.parent == own
    store.close()


def test_the_directory_of_the_system_is_not_left_for_want_of_inodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = {"HOME": str(tmp_path / "home")}
    system = tmp_path / "lib" / "gpuledger"
    with no_inodes(monkeypatch):
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            create_state_dir("", home, system)
        store = open_store(
            StoreSettings(), SourceInfo("nvml", simulated=False), "boot-1", FakeClock(UNIX), home, system
        )
    assert store is not None
    assert store.file.parent == system
    store.close()

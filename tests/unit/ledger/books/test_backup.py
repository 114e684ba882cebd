"""Backups: whole or not at all, also while a program writes; what may be replaced."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from builders import FakeClock
from exported_ledgers import write_node
from gpuledger.ledger.books.backup import back_up_ledger
from gpuledger.ledger.books.consistency import check_ledger
from gpuledger.ledger.store.schema import MIGRATIONS
from gpuledger.model.errors import GpuledgerError
from ledger_helpers import rows
from report_helpers import report_of
from time_books import HOUR, A, Node, again


def test_a_backup_of_a_ledger_that_is_written_can_be_restored(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    node = Node(tmp_path / "node", clock=FakeClock(HOUR))
    for _ in range(10):
        node.look(A, seconds=50)
    target = tmp_path / "backup.db"
    back_up_ledger(node.file, target)
    expected = report_of(node.file)
    assert list(check_ledger(node.file)) == []
    for _ in range(10):
        node.look(A, seconds=50)
    assert report_of(target).total == expected.total
    assert sorted(one.name for one in tmp_path.iterdir()) == ["backup.db", "node"]
    assert target.stat().st_mode & 0o777 == 0o600
    # Restored within the same boot: exported counters were ahead of the backup, and begin at 0.
    restored = tmp_path / "restored"
    restored.mkdir()
    shutil.copy(target, restored / "gpuledger.db")
    state = again(node, restored).look(A)
    assert list(state.time.watched.values()) == [0]
    assert list(check_ledger(restored / "gpuledger.db")) == []


def test_only_an_older_backup_of_the_same_ledger_is_replaced(tmp_path: Path) -> None:
    file, other = write_node(tmp_path / "a", ticks=20), write_node(tmp_path / "b", ticks=20)
    back_up_ledger(file, tmp_path / "own.db")
    back_up_ledger(file, tmp_path / "own.db")
    back_up_ledger(other, tmp_path / "others.db")
    (tmp_path / "text").write_text("no ledger")
    with closing(sqlite3.connect(tmp_path / "newer.db")) as newer, closing(sqlite3.connect(file)) as books:
        books.backup(newer)
        newer.execute("UPDATE meta SET value = value + 1 WHERE key = 'unix'")
        newer.commit()
    refused = {
        file: "is the ledger",
        tmp_path / "others.db": "is a backup of another ledger",
        tmp_path / "text": "is no backup of a ledger",
        tmp_path / "newer.db": "is newer than the ledger",
        tmp_path / "missing" / "x.db": "is not a directory",
    }
    for target, text in refused.items():
        before = target.read_bytes() if target.exists() else None
        with pytest.raises(GpuledgerError, match=text):
            back_up_ledger(file, target)
        assert (target.read_bytes() if target.exists() else None) == before


def test_a_ledger_of_an_earlier_version_is_backed_up_and_one_of_a_later_version_is_not(
    tmp_path: Path,
) -> None:
    """Before an upgrade, users make a copy."""
    file, target = write_node(tmp_path / "a", ticks=20), tmp_path / "own.db"
    for version in (len(MIGRATIONS) - 1, len(MIGRATIONS) + 1):
        with closing(sqlite3.connect(file)) as books:
            books.execute(f"PRAGMA user_version = {version}")
        if version > len(MIGRATIONS):
            with pytest.raises(
                GpuledgerError, match=r"another version .*use the gpuledger version that wrote"
            ):
                back_up_ledger(file, target)
        else:
            back_up_ledger(file, target)
        assert rows(target, "PRAGMA user_version") == [(len(MIGRATIONS) - 1,)]


def test_a_file_that_a_program_uses_is_not_replaced(tmp_path: Path) -> None:
    file = write_node(tmp_path / "a", ticks=20)
    back_up_ledger(file, tmp_path / "gpuledger.db")
    running = Node(tmp_path)
    with closing(sqlite3.connect(file)) as books, books:
        books.execute("UPDATE meta SET value = value + 100 WHERE key = 'unix'")
    with pytest.raises(GpuledgerError, match="is in use"):
        back_up_ledger(file, tmp_path / "gpuledger.db")
    running.store.close()


def test_a_damaged_ledger_leaves_the_earlier_backup(tmp_path: Path) -> None:
    file, target = write_node(tmp_path / "a", ticks=60), tmp_path / "backup.db"
    back_up_ledger(file, target)
    before = target.read_bytes()
    raw = bytearray(file.read_bytes())
    raw[4096 * 12 : 4096 * 20] = b"\xa5" * (4096 * 8)
    file.write_bytes(raw)
    with pytest.raises((GpuledgerError, sqlite3.DatabaseError)):
        back_up_ledger(file, target)
    assert target.read_bytes() == before
    assert rows(target, "PRAGMA integrity_check") == [("ok",)]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "backup.db"]

"""Hidden directories of exports and backups: leftovers, and errors that name the target."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gpuledger.ledger.books.work_folder import abandoned_folders, work_folder
from gpuledger.model.errors import GpuledgerError


def abandon(into: Path) -> Path:
    """What a killed command leaves."""
    left = into / ".gpuledger-dead"
    left.mkdir(parents=True)
    (left / "copy.db").write_text("ann")
    left.with_name(f"{left.name}.lock").touch()
    return left


def test_leftovers_are_removed_and_a_running_command_keeps_its_own(tmp_path: Path) -> None:
    left = abandon(tmp_path)
    (tmp_path / ".gpuledger-older").mkdir()
    assert abandoned_folders(tmp_path) == [left, tmp_path / ".gpuledger-older"]
    with work_folder(tmp_path) as mine, work_folder(tmp_path) as other:
        assert mine.is_dir()
        assert other.is_dir()
        assert abandoned_folders(tmp_path) == []
        assert mine.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stop"), work_folder(tmp_path / "a" / "b"):
        raise ValueError("stop")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free some space there"),
        (errno.EDQUOT, "free some space there"),
        (errno.EFBIG, "ulimit -f"),
        (errno.EROFS, "mounted for writing"),
        (errno.EACCES, "run this as a user that may write there"),
        (errno.EIO, "check the space, the quota"),
    ],
)
def test_a_failed_write_names_the_target_and_the_remedy(tmp_path: Path, number: int, remedy: str) -> None:
    with pytest.raises(GpuledgerError) as error, work_folder(tmp_path / "out") as folder:
        raise OSError(number, os.strerror(number), str(folder / "copy.db"))
    text = str(error.value)
    assert text.startswith(f"cannot write to {tmp_path / 'out'} ({os.strerror(number)})")
    assert remedy in text
    assert ".gpuledger-" not in text


def test_a_full_disk_in_sqlite_names_the_target_and_other_errors_do_not(tmp_path: Path) -> None:
    with (
        pytest.raises(GpuledgerError, match=r"No space left on device.*free some space"),
        work_folder(tmp_path / "out") as folder,
        closing(sqlite3.connect(folder / "copy.db")) as copy,
    ):
        copy.execute("PRAGMA max_page_count = 2")
        copy.executescript("CREATE TABLE a (x); CREATE TABLE b (x); CREATE TABLE c (x)")
    with (
        pytest.raises(sqlite3.OperationalError),
        work_folder(tmp_path) as folder,
        closing(sqlite3.connect(folder / "copy.db")) as copy,
    ):
        copy.execute("SELECT * FROM missing")


def test_a_file_in_place_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(GpuledgerError, match=r"file \(File exists\).*name a directory"),
        work_folder(tmp_path / "file"),
    ):
        pass

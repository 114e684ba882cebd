"""Backs up a ledger file, also while `gpuledger serve` writes it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from gpuledger.ledger.books.exporting import books_id
from gpuledger.ledger.books.work_folder import work_folder
from gpuledger.ledger.store.read_only_file import open_read_only, require_ledger
from gpuledger.ledger.store.schema import APPLICATION_ID, BOOKS_ID, LEDGER_NAME, meta_value
from gpuledger.ledger.store.state_directory import LedgerLock
from gpuledger.model.errors import GpuledgerError

_PAGES = 1000


class BackupFacts(NamedTuple):
    """A written backup: its size, and the unix seconds of the last posting in it."""

    bytes: int
    last: float


def back_up_ledger(file: Path, target: Path) -> BackupFacts:
    """Write a verified copy of the ledger to `target`, whole or not at all.

    An existing file is replaced only if it is an older backup of the same ledger. Raises GpuledgerError and
    OSError.
    """
    target = target.resolve()
    if not target.parent.is_dir():
        raise GpuledgerError(f"{target.parent} is not a directory: create it, or name another file")
    with closing(open_read_only(file)) as source:
        require_ledger(source, file, may_be_older=True)
        books = books_id(source, file)
        last = _last_posting(source)
        if target.exists():
            _require_older_backup(file, target, books, last)
        with work_folder(target.parent) as folder:
            written = folder / "copy.db"
            # Before SQLite creates it: as readable as the ledger, for its owner only.
            written.touch(mode=0o600)
            _copy(source, written, file.stem)
            _verify(written, books, last)
            with written.open("rb") as opened:
                os.fsync(opened.fileno())
            written.replace(target)
    return BackupFacts(target.stat().st_size, last)


def _last_posting(connection: sqlite3.Connection) -> float:
    found = meta_value(connection, "unix")
    return 0.0 if found is None else float(found)


def _copy(source: sqlite3.Connection, written: Path, name: str) -> None:
    with _writable(written) as copy:
        source.backup(copy, pages=_PAGES)
        # One file, without a write-ahead log beside it.
        copy.execute("PRAGMA journal_mode=DELETE").fetchall()
        # Exported counters may be ahead of a backup: where it is restored, they begin at 0 again.
        copy.execute("REPLACE INTO meta VALUES ('clean', 0)")
        copy.execute("REPLACE INTO meta VALUES ('boot_id', '')")
        # A ledger that an earlier version wrote has only the name of its file.
        copy.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (LEDGER_NAME, name))


@contextmanager
def _writable(file: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        yield connection


def _verify(written: Path, books: str, last: float) -> None:
    with _writable(written) as copy:
        (found,) = copy.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise GpuledgerError(
                f"the ledger is damaged ({' '.join(str(found).split())}): run `gpuledger books check`; "
                "no backup was written"
            )
        if (books_id(copy, written), _last_posting(copy)) != (books, last):
            raise GpuledgerError(
                "the copy differs from the ledger: no backup was written; repeat the command"
            )


def _require_older_backup(file: Path, target: Path, books: str, last: float) -> None:
    """Raise GpuledgerError unless the target is an older backup of this ledger that no program uses."""
    if target.samefile(file):
        raise GpuledgerError(f"{target} is the ledger: name another file for the backup")
    found = _facts_of(target)
    if found is None:
        raise GpuledgerError(f"{target} exists and is no backup of a ledger: name another file, or remove it")
    if found[0] != books:
        raise GpuledgerError(
            f"{target} is a backup of another ledger ({str(found[0])[:8] or 'without an id'}, not "
            f"{books[:8]}): name another file"
        )
    if found[1] > last:
        raise GpuledgerError(f"{target} is newer than the ledger {file}: name another file")
    if target.with_name(f"{target.name}-wal").exists() or _is_in_use(target):
        raise GpuledgerError(f"{target} is in use by another program, or was not closed: name another file")


def _facts_of(target: Path) -> tuple[Any, float] | None:
    """The ledger's id and last posting; None if the file is no ledger."""
    try:
        uri = f"{target.as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            if connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
                return None
            found = meta_value(connection, BOOKS_ID)
            return ("" if found is None else found), _last_posting(connection)
    except sqlite3.Error:
        return None


def _is_in_use(target: Path) -> bool:
    """Whether a program holds the lock of a ledger of this name."""
    lock = target.with_suffix(".lock")
    if not lock.exists():
        return False
    try:
        LedgerLock(lock).release()
    except (GpuledgerError, OSError):
        return True
    return False

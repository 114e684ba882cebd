"""Opens a ledger file for reading, also while another program writes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger.ledger.store.schema import APPLICATION_ID, MIGRATIONS
from gpuledger.model.errors import GpuledgerError

if TYPE_CHECKING:
    from sqlite3 import Connection

_BUSY_SECONDS = 5.0


class LedgerNotFound(GpuledgerError):
    """There is no ledger file at the place."""


def _remedy(error: Exception, file: Path) -> str:
    text = str(error)
    if file.with_name(f"{file.name}-journal").exists():
        return (
            "a command that wrote it was killed: repeat that command (`gpuledger books forget`), or start "
            "`gpuledger serve`; either restores the state before, as the user of `gpuledger serve`"
        )
    if "locked" in text:
        return "another program has locked it; try again when that program is done"
    if "disk I/O" in text or "full" in text:
        return (
            "to read it, SQLite writes a small file beside it: check the space, the quota and the limit of "
            "file sizes there (`df`, `quota`, `ulimit -f`), and the disk"
        )
    if "unable to open" in text or "readonly" in text:
        return "run this as the user that writes the ledger"
    return "check that the file is complete"


def open_read_only(file: Path) -> Connection:
    """A connection that sees one snapshot of a ledger file. Raises GpuledgerError if it cannot be read."""
    import os
    import sqlite3

    if file.exists() and not file.is_file():
        raise GpuledgerError(f"{file} is not a file: set --state-dir to the directory of the ledger")
    if not file.exists():
        raise LedgerNotFound(
            f"there is no ledger at {file}: set --state-dir to its directory, or run `gpuledger serve` first "
            "to create one"
        )
    try:
        # Immutable: cleanly closed, in a directory that is not writable (an archive).
        pending = any(file.with_name(file.name + suffix).exists() for suffix in ("-wal", "-journal"))
        still = not os.access(file.parent, os.W_OK) and not pending
        how = "mode=ro&immutable=1" if still else "mode=ro"
        connection = sqlite3.connect(f"{file.absolute().as_uri()}?{how}", uri=True, timeout=_BUSY_SECONDS)
        try:
            # All later reads see one snapshot.
            connection.execute("BEGIN")
            connection.execute("PRAGMA application_id").fetchone()
            connection.execute("PRAGMA user_version").fetchone()
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise GpuledgerError(f"cannot read the ledger {file}: {error}; {_remedy(error, file)}") from None
    return connection


def open_ledger(file: Path) -> Connection:
    """As `open_read_only`; raises GpuledgerError as well for a file that is no ledger of this version."""
    connection = open_read_only(file)
    try:
        require_ledger(connection, file)
    except GpuledgerError:
        connection.close()
        raise
    return connection


def require_ledger(connection: Connection, file: Path, *, may_be_older: bool = False) -> None:
    """Raise GpuledgerError for a file that is no ledger of this version (or of an earlier one)."""
    (identity,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if identity != APPLICATION_ID:
        raise GpuledgerError(f"{file} is not a gpuledger ledger")
    if version > len(MIGRATIONS) or (version < len(MIGRATIONS) and not may_be_older):
        older = "start `gpuledger serve` of this version once to upgrade it"
        newer = "use the gpuledger version that wrote it"
        raise GpuledgerError(
            f"{file} was written by another version of gpuledger (schema {version}, this one has "
            f"{len(MIGRATIONS)}): {older if version < len(MIGRATIONS) else newer}"
        )

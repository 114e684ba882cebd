"""Hidden directories in which exports and backups are written before they get their names.

A killed command cannot remove its own, and it can have names of people: the next command there does.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkstemp
from typing import Final

from gpuledger.ledger.store.state_directory import is_same_file
from gpuledger.model.errors import GpuledgerError

PREFIX: Final = ".gpuledger-"
_LOCK: Final = ".lock"
_REMEDIES: Final = {
    errno.ENOSPC: "free some space there, or name another place",
    errno.EDQUOT: "free some space there, or name another place",
    errno.EFBIG: "raise the limit of file sizes (`ulimit -f`, LimitFSIZE), or name another place",
    errno.EROFS: "name a place on a file system that is mounted for writing",
    errno.EACCES: "run this as a user that may write there, or name another place",
    errno.EPERM: "run this as a user that may write there, or name another place",
    errno.ENOENT: "name a directory that can be created",
    errno.ENOTDIR: "name a directory",
    errno.EEXIST: "name a directory",
}
_OTHER_REMEDY: Final = (
    "check the space, the quota and the limit of file sizes there (`df`, `quota`, `ulimit -f`), or name "
    "another place"
)
# Errors of SQLite that only writes have; the ledger that is copied is only read.
_WRITE_ERRORS: Final = (
    "SQLITE_FULL",
    "SQLITE_IOERR_WRITE",
    "SQLITE_IOERR_FSYNC",
    "SQLITE_IOERR_DIR_FSYNC",
    "SQLITE_IOERR_TRUNCATE",
    "SQLITE_IOERR_DELETE",
    "SQLITE_IOERR_CLOSE",
    "SQLITE_READONLY",
    "SQLITE_CANTOPEN",
)


@contextmanager
def work_folder(into: Path) -> Iterator[Path]:
    """A new hidden directory in `into`, which is created if necessary; leftovers there are removed first.

    Raises GpuledgerError, which names `into` and the remedy, if anything in it cannot be written.
    """
    created = [place for place in (into, *into.parents) if not place.exists()]
    with _named_write_errors(into):
        try:
            into.mkdir(parents=True, exist_ok=True)
            for folder in abandoned_folders(into):
                shutil.rmtree(folder, ignore_errors=True)
                _lock_of(folder).unlink(missing_ok=True)
            folder, handle = _locked_folder(into)
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
                _lock_of(folder).unlink(missing_ok=True)
                os.close(handle)
        finally:
            # An attempt that failed leaves no empty directory.
            with suppress(OSError):
                for place in created:
                    place.rmdir()


def abandoned_folders(into: Path) -> list[Path]:
    """Hidden directories of commands that were killed. Raises OSError."""
    found = {*into.glob(f"{PREFIX}*")}
    folders = {one.with_name(one.name.removesuffix(_LOCK)) for one in found}
    return sorted(one for one in folders if not _is_in_use(one))


def _lock_of(folder: Path) -> Path:
    return folder.with_name(folder.name + _LOCK)


def _locked_folder(into: Path) -> tuple[Path, int]:
    """A new directory, and the open file beside it that is locked while its command runs."""
    while True:
        handle, name = mkstemp(prefix=PREFIX, suffix=_LOCK, dir=into)
        with suppress(OSError):
            # A file system without locks keeps leftovers.
            _lock(handle)
        if is_same_file(Path(name), os.fstat(handle)):
            break
        # Another command took it for a leftover before it was locked.
        os.close(handle)
    folder = Path(name.removesuffix(_LOCK))
    try:
        folder.mkdir(mode=0o700)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        os.close(handle)
        raise
    return folder, handle


def _lock(handle: int) -> None:
    import fcntl

    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_in_use(folder: Path) -> bool:
    try:
        handle = os.open(_lock_of(folder), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        _lock(handle)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


@contextmanager
def _named_write_errors(place: Path) -> Iterator[None]:
    """Raise errors of writing as a GpuledgerError that names the place, not a temporary file in it."""
    try:
        yield
    except OSError as error:
        raise write_error(place, error) from None
    except sqlite3.Error as error:
        if not is_write_error(error):
            raise
        raise write_error(place, error) from None


def is_write_error(error: sqlite3.Error) -> bool:
    """Whether SQLite failed to write a file, not to read one."""
    return getattr(error, "sqlite_errorname", "").startswith(_WRITE_ERRORS)


def write_error(place: Path, error: Exception) -> GpuledgerError:
    """What to do about a failed write below a place."""
    number = error.errno if isinstance(error, OSError) else None
    if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL":
        number = errno.ENOSPC
    remedy = _OTHER_REMEDY if number is None else _REMEDIES.get(number, _OTHER_REMEDY)
    what = os.strerror(number) if number is not None else " ".join(str(error).split())
    return GpuledgerError(f"cannot write to {place} ({what}); nothing there has changed: {remedy}")

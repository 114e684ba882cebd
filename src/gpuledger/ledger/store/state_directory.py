"""The state directory with the ledger file, and the lock that allows one writing program."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from gpuledger.model.errors import GpuledgerError
from gpuledger.model.snapshot import SourceInfo

SYSTEM_DIR = Path("/var/lib/gpuledger")
_AHEAD, _LEVEL = b"ahead\n", b"level\n"
# A disk without space or inodes, or an exhausted quota.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_TAKEN = frozenset({errno.EAGAIN, errno.EACCES})


def create_state_dir(given: str, environment: Mapping[str, str], system: Path = SYSTEM_DIR) -> Path:
    """The directory `given`; else the system's, or the user's own if that one is not writable.

    Creates it with mode 0700. Raises OSError if that fails.
    """
    if given:
        return _create_dir(Path(given))
    try:
        return _create_dir(system)
    except OSError as error:
        if is_full(error):
            # Later it has space, and a ledger elsewhere would be forgotten.
            raise
        return _create_dir(_user_dir(environment))


def is_full(error: Exception) -> bool:
    """Whether a file could not be created or grow because the disk or a quota is full."""
    return isinstance(error, OSError) and error.errno in _FULL


def candidate_dirs(given: str, environment: Mapping[str, str], system: Path = SYSTEM_DIR) -> list[Path]:
    """Every directory that `create_state_dir` can have returned. Creates nothing."""
    return [Path(given)] if given else [system, _user_dir(environment)]


def find_state_dir(environment: Mapping[str, str], system: Path = SYSTEM_DIR) -> Path:
    """The directory that `create_state_dir` chose if none was given. Creates nothing."""
    own = _user_dir(environment)
    # os.access, not exists(): HOME can be another user's, as with `sudo -u`, and not accessible.
    return own if os.access(own, os.F_OK) and not os.access(system, os.W_OK | os.X_OK) else system


def _user_dir(environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_STATE_HOME") or Path(environment.get("HOME") or "/", ".local", "state")
    return Path(home, "gpuledger")


def _create_dir(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        code = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
        raise OSError(code, os.strerror(code), str(folder))
    return folder


def ledger_name(source: SourceInfo) -> str:
    """The file's name without suffix. Simulated data never shares a file with measured data."""
    if not source.simulated:
        return "gpuledger"
    words = "-".join(word for word in (source.name, source.detail) if word)
    return "".join(char if char.isalnum() or char in "-." else "_" for char in words)[:100]


class LedgerLock:
    """A lock on a small file next to the ledger, held while it is open and until the process ends.

    The file also records whether exported values are ahead of the ledger ("ahead"). It is written in place,
    so that this works on a full disk. Only a crash of the machine can lose it.
    """

    def __init__(self, file: Path) -> None:
        """Raises GpuledgerError if another program holds the lock, OSError if the file cannot be created."""
        import fcntl

        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = file
        self._handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._handle)
            if error.errno in _TAKEN:
                raise GpuledgerError(
                    f"the ledger in {file.parent} is in use by another gpuledger: stop it, or set another "
                    "--state-dir (or none) for this one"
                ) from None
            raise
        self.was_ahead = os.pread(self._handle, len(_AHEAD), 0) == _AHEAD
        self._ahead = self.was_ahead

    def set_ahead(self, *, ahead: bool) -> bool:
        """Record whether exported values are ahead of the ledger; return False if the write fails."""
        if ahead != self._ahead:
            try:
                os.pwrite(self._handle, _AHEAD if ahead else _LEVEL, 0)
            except OSError:
                return False
            self._ahead = ahead
        return True

    @property
    def is_in_place(self) -> bool:
        """Whether the path still has the locked file: a lock that was moved keeps no other program out."""
        return is_same_file(self._file, os.fstat(self._handle))

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def is_same_file(file: Path, found: os.stat_result) -> bool:
    """Return whether the path, links followed, has this file."""
    try:
        return os.path.samestat(file.stat(), found)
    except OSError:
        return False


def file_version(file: Path) -> tuple[int, ...] | None:
    """What changes when a file is written or replaced; None if there is no ledger. Raises OSError."""
    try:
        found = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns) if found.st_size else None


def set_aside(file: Path, unix: float) -> Path:
    """Rename a damaged ledger and its WAL files to `.corrupt-<unix>`; return the new name."""
    aside = file.with_name(f"{file.name}.corrupt-{int(unix)}")
    number = 1
    while aside.exists():
        number += 1
        aside = file.with_name(f"{file.name}.corrupt-{int(unix)}-{number}")
    for suffix in ("", "-wal", "-shm"):
        part = file.with_name(file.name + suffix)
        if part.exists():
            part.rename(aside.with_name(aside.name + suffix))
    return aside


def _primary_code(error: Exception) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def is_failed_write(error: Exception) -> bool:
    """Whether SQLite could not write to a file that it has open."""
    # Imported lazily: not every command needs SQLite.
    import sqlite3

    return _primary_code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def is_damage(error: Exception) -> bool:
    """Whether a ledger is damaged, or the file of another program."""
    import sqlite3

    if not isinstance(error, sqlite3.DatabaseError):
        return False
    # A missing table or column: another program's file, or an incomplete one.
    lacking = isinstance(error, sqlite3.OperationalError) and str(error).startswith(("no such", "table "))
    return _primary_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or lacking


def lacks_space(error: Exception, file: Path) -> bool:
    """Whether this can be a full disk or an exhausted quota: SQLite does not say it of all its files."""
    import sqlite3

    if _primary_code(error) != sqlite3.SQLITE_CANTOPEN:
        return is_full(error) or is_failed_write(error)
    probe = file.with_suffix(".probe")
    try:
        os.close(os.open(probe, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        probe.unlink()
    except OSError as refused:
        return is_full(refused)
    return False


def describe_failure(error: Exception, file: Path) -> str:
    """The file that could not be opened or written, and why, without the number of an OSError."""
    why = f"{file}: {error}"
    if isinstance(error, OSError) and error.filename:
        why = f"{error.filename}: {error.strerror}"
    remedy = f" (check the space: `df{'' if is_failed_write(error) else ' -i'}`)"
    return f"{why}{remedy if lacks_space(error, file) else ''}"

"""Writes a file for node_exporter's textfile collector: atomically, with one writer at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

from gpuledger.host.files import file_signature, sync_directory
from gpuledger.model.errors import GpuledgerError

_MODE = 0o644
_WRONG_DIRECTORY = (
    "create it, mount it, or set --textfile-dir to the directory of node_exporter's"
    " --collector.textfile.directory"
)
_FULL = "free some space on it; writing needs space for a second copy of the file"
_REMEDIES = {
    errno.ENOENT: _WRONG_DIRECTORY,
    errno.ENOTDIR: _WRONG_DIRECTORY,
    errno.EACCES: f"allow user {os.geteuid()} to write to it (chown, chmod) or choose another --textfile-dir",
    errno.EPERM: f"allow user {os.geteuid()} to write to it (chown, chattr) or choose another --textfile-dir",
    errno.EROFS: "mount it writable (hostPath: readOnly false) or choose another --textfile-dir",
    errno.ENOSPC: _FULL,
    errno.EDQUOT: f"{_FULL}, or raise the quota of user {os.geteuid()}",
    errno.EISDIR: "remove the directory of that name, or choose another --file",
}


class Textfile:
    """The file `name` in `directory`, locked between `__enter__` and `__exit__`.

    Writes are atomic: a reader sees the old or the new file, never a part of one, even if this process or the
    machine crashes. Every method raises GpuledgerError, with one line that names the directory and the
    remedy; the file is then unchanged.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.path = directory / name
        self._lock_path = directory / f".{name}.lock"
        # Neither name ends in .prom, because node_exporter would read an incomplete file.
        self._temporary = re.compile(re.escape(f".{name}.") + r"[0-9a-f]{12}\.tmp")
        self._lock = -1

    def __enter__(self) -> Self:
        try:
            self._lock = self._acquire_lock()
            self._remove_old_temporaries()
        except OSError as error:
            self._release()
            raise self._write_error(error) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def write(self, body: bytes) -> None:
        """Replaces the content of the file with `body`; removes the file if `body` is empty."""
        if not body:
            self.remove()
            return
        try:
            self._renew_lock()
            self._replace(body)
        except OSError as error:
            raise self._write_error(error) from None

    def remove(self) -> bool:
        """Removes the file, so that its content is not read as current; returns whether it existed."""
        try:
            self.path.unlink()
            sync_directory(self.directory)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._write_error(error) from None
        return True

    def _replace(self, body: bytes) -> None:
        # A new name each time, so that two writers never share it, even if the lock file was removed.
        temporary = self.directory / f".{self.path.name}.{os.urandom(6).hex()}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(temporary, flags, _MODE)
        try:
            try:
                # Independent of the umask: node_exporter runs as another user.
                os.fchmod(handle, _MODE)
                write_all(handle, body)
                # Must come before the rename: otherwise a power failure could leave an empty file.
                os.fsync(handle)
            finally:
                os.close(handle)
            temporary.replace(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(self.directory)

    def _renew_lock(self) -> None:
        """Locks again if the directory was replaced: the lock in the old one protects nothing."""
        if not self._is_lock_file(self._lock):
            before, self._lock = self._lock, self._acquire_lock()
            os.close(before)

    def _acquire_lock(self) -> int:
        # The kernel releases the lock when the process ends for any reason. A lock file left by a kill is
        # only an empty file.
        while True:
            handle = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_lock_file(handle):
                    return handle
            except BlockingIOError:
                os.close(handle)
                raise GpuledgerError(
                    f"{self.path} is in use by another gpuledger collect; stop it, or give one of the two"
                    " another --file (and another --dialect)"
                ) from None
            except OSError:
                os.close(handle)
                raise
            # The previous holder removed the file between open and flock: try again.
            os.close(handle)

    def _is_lock_file(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), self._lock_path.stat())
        except FileNotFoundError:
            return False

    def _release(self) -> None:
        if self._lock < 0:
            return
        try:
            # Safe while the lock is held: no other process can have locked this file.
            self._lock_path.unlink(missing_ok=True)
        except OSError:
            # The directory may have become read-only. The remaining file is empty and unlocked.
            pass
        finally:
            os.close(self._lock)
            self._lock = -1

    def _remove_old_temporaries(self) -> None:
        """Removes temporary files of killed writers; while the lock is held, no other writer has one."""
        for path in self.directory.iterdir():
            if self._temporary.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def _write_error(self, error: OSError) -> GpuledgerError:
        reason = error.strerror or str(error)
        remedy = _REMEDIES.get(error.errno or 0, "check that the directory is writable and its disk works")
        return GpuledgerError(f"cannot write {self.path.name} in {self.directory}: {reason}; {remedy}")


def write_all(handle: int, body: bytes) -> None:
    """Writes all bytes: a single `os.write` can write fewer. Raises OSError."""
    rest = memoryview(body)
    while rest:
        rest = rest[os.write(handle, rest) :]


# Enough for any textfile directory. Files beyond these limits are only not checked for conflicts.
_MAX_FILES = 256
_MAX_BYTES = 1 << 20

# The family or sample name at the start of a line of text 0.0.4.
_NAME = re.compile(rb"^[ \t]*(?:#[ \t]+(?:HELP|TYPE)[ \t]+)?([a-zA-Z_:][a-zA-Z0-9_:]*)", re.MULTILINE)


class NeighbourFiles:
    """Finds families of this program in other `.prom` files of a directory; reads only changed files."""

    def __init__(self, own: Path, families: Iterable[str]) -> None:
        self._own = own
        self._families = frozenset(name.encode() for name in families)
        self._signatures: dict[Path, tuple[int, ...] | None] = {}

    def find_clashes(self) -> list[tuple[Path, tuple[str, ...]]]:
        """Returns new or changed files that contain families of this program, with their names.

        A file that cannot be read is skipped: node_exporter most likely cannot read it either, and reports
        it.
        """
        before, self._signatures = self._signatures, {path: file_signature(path) for path in self._files()}
        clashes = []
        for path, signature in self._signatures.items():
            shared = self._families & _family_names(path) if before.get(path) != signature else None
            if shared:
                clashes.append((path, tuple(sorted(name.decode() for name in shared))))
        return clashes

    def _files(self) -> list[Path]:
        try:
            with os.scandir(self._own.parent) as entries:
                prom_files = (entry for entry in entries if entry.name.endswith(".prom"))
                # Regular files only: opening a pipe would block.
                others = (entry for entry in prom_files if entry.name != self._own.name and entry.is_file())
                return [Path(entry.path) for entry in islice(others, _MAX_FILES)]
        except OSError:
            return []


def _family_names(path: Path) -> set[bytes]:
    try:
        with path.open("rb") as file:
            return set(_NAME.findall(file.read(_MAX_BYTES)))
    except OSError:
        return set()

"""Writes a file for node_exporter's textfile collector: atomically, with one writer at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from pathlib import Path
from types import TracebackType
from typing import Self

from gpuledger.host.files import sync_directory
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
        reason, code = error.strerror or str(error), error.errno or 0
        remedy = _REMEDIES.get(code, "check that the directory is writable and its disk works")
        if code == errno.EACCES:
            remedy = f"{access_remedy(self.directory)}, or choose another --textfile-dir"
        return GpuledgerError(f"cannot write {self.path.name} in {self.directory}: {reason}; {remedy}")


def access_remedy(directory: Path) -> str:
    """What allows this user to write to a directory: its mode or, if that allows it, another cause."""
    user = os.geteuid()
    try:
        found = directory.stat()
        if os.statvfs(directory).f_flag & os.ST_RDONLY:
            return f"mount {directory} writable (hostPath: readOnly false)"
    except OSError:
        return f"allow user {user} to enter the folders above {directory} (chmod)"
    groups = {os.getegid(), *os.getgroups()}
    bits = 0o300 if found.st_uid == user else 0o030 if found.st_gid in groups else 0o003
    if found.st_mode & bits == bits:
        return (
            "its mode allows writing, so a security module forbids it: look for SELinux's denial with "
            f"`ausearch -m avc -ts recent`, and for the label with `ls -dZ {directory}` "
            "(in a container, mount it with :z)"
        )
    return f"allow user {user} to write to it (`chown {user} {directory}`, or chmod)"


def write_all(handle: int, body: bytes) -> None:
    """Writes all bytes: a single `os.write` can write fewer. Raises OSError."""
    rest = memoryview(body)
    while rest:
        rest = rest[os.write(handle, rest) :]

"""One file of node_exporter's textfile collector: put in place whole, by one writer at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from gpuledger.host.files import sync_directory
from gpuledger.model.errors import GpuledgerError

_MODE = 0o644
_WRONG_DIRECTORY = (
    "create it, mount it, or name the directory of node_exporter's --collector.textfile.directory"
    " with --textfile-dir"
)
_FULL = "free space there; a write needs room for a second copy of the file"
_REMEDIES = {
    errno.ENOENT: _WRONG_DIRECTORY,
    errno.ENOTDIR: _WRONG_DIRECTORY,
    errno.EACCES: f"let user {os.geteuid()} write there (chown, chmod), or name another with --textfile-dir",
    errno.EPERM: f"let user {os.geteuid()} write there (chown, chattr), or name another with --textfile-dir",
    errno.EROFS: "mount it writable (hostPath: readOnly false), or name another with --textfile-dir",
    errno.ENOSPC: _FULL,
    errno.EDQUOT: f"{_FULL}, or raise the quota of user {os.geteuid()}",
    errno.EISDIR: "remove what stands at its place, or give --file another name",
}


class Textfile:
    """The file `name` in `directory`, ours between `__enter__` and `__exit__`.

    A reader sees the file before or the file after a `put`, never a part, whatever happens to this process
    or the machine in between. Every method raises GpuledgerError with one line that names the directory and
    the remedy; the file is then as it was before the call.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.path = directory / name
        self._lock_path = directory / f".{name}.lock"
        # Neither ends in .prom, or node_exporter would read half a file.
        self._temporary = re.compile(re.escape(f".{name}.") + r"[0-9a-f]{12}\.tmp")
        self._lock = -1

    def __enter__(self) -> Self:
        try:
            self._lock = self._take_lock()
            self._remove_old_temporaries()
        except OSError as error:
            self._release()
            raise self._trouble(error) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def put(self, body: bytes) -> None:
        """Put `body` in place of what is there; nothing to tell, an empty body, is no file."""
        if not body:
            self.remove()
            return
        try:
            self._keep_lock()
            self._replace(body)
        except OSError as error:
            raise self._trouble(error) from None

    def remove(self) -> bool:
        """Take the file away, so that nobody reads it as the present; answers whether there was one."""
        try:
            self.path.unlink()
            sync_directory(self.directory)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._trouble(error) from None
        return True

    def _replace(self, body: bytes) -> None:
        # A name of its own each time: even a lock that somebody took away makes no two writers of one file.
        temporary = self.directory / f".{self.path.name}.{os.urandom(6).hex()}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(temporary, flags, _MODE)
        try:
            try:
                # Whatever the umask: node_exporter runs as another user.
                os.fchmod(handle, _MODE)
                write_all(handle, body)
                # Before the rename, or a power cut could leave the new name on a file without its data.
                os.fsync(handle)
            finally:
                os.close(handle)
            temporary.replace(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(self.directory)

    def _keep_lock(self) -> None:
        """Where the directory was replaced, nobody is kept from writing by the lock in the old one."""
        if not self._is_lock_file(self._lock):
            before, self._lock = self._lock, self._take_lock()
            os.close(before)

    def _take_lock(self) -> int:
        # The kernel lets go of it when the process ends, however it ends: a lock file left by a kill is
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
                    f"{self.path} already has a writer: another gpuledger collect is running; stop it, or"
                    " give one of the two another --file (and another --dialect)"
                ) from None
            except OSError:
                os.close(handle)
                raise
            # Its last holder took the file away between our open and our lock.
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
            # While the lock is held: nobody else can have made it theirs.
            self._lock_path.unlink(missing_ok=True)
        except OSError:
            # The directory may have become read-only; the file left behind is empty and holds nobody up.
            pass
        finally:
            os.close(self._lock)
            self._lock = -1

    def _remove_old_temporaries(self) -> None:
        """What a killed writer left; with the lock held nobody else is writing one."""
        for path in self.directory.iterdir():
            if self._temporary.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def _trouble(self, error: OSError) -> GpuledgerError:
        reason = error.strerror or str(error)
        remedy = _REMEDIES.get(error.errno or 0, "see that the directory is whole and writable")
        return GpuledgerError(f"cannot write {self.path.name} in {self.directory}: {reason}; {remedy}")


def write_all(handle: int, body: bytes) -> None:
    """Write every byte: one call may take fewer. Raises OSError."""
    rest = memoryview(body)
    while rest:
        rest = rest[os.write(handle, rest) :]


# Enough for any textfile directory; what lies beyond costs a warning, not a sample.
_MOST_FILES = 256
_MOST_BYTES = 1 << 20

# The family or sample name that begins a line of text 0.0.4.
_NAME = re.compile(rb"^[ \t]*(?:#[ \t]+(?:HELP|TYPE)[ \t]+)?([a-zA-Z_:][a-zA-Z0-9_:]*)", re.MULTILINE)


class Neighbours:
    """Looks through the other `.prom` files of a directory, each once per change."""

    def __init__(self, own: Path, families: Iterable[str]) -> None:
        self._own = own
        self._families = frozenset(name.encode() for name in families)
        self._looked_at: dict[str, tuple[int, int, int]] = {}

    def clashes(self) -> list[tuple[Path, tuple[str, ...]]]:
        """Files new or changed since the last call that tell our families, and which.

        A file that cannot be read is passed over: node_exporter most likely cannot read it either, and
        says so itself.
        """
        before, self._looked_at = self._looked_at, {}
        found = []
        for path, signature in self._files():
            self._looked_at[path.name] = signature
            shared = self._families & _names(path) if before.get(path.name) != signature else None
            if shared:
                found.append((path, tuple(sorted(name.decode() for name in shared))))
        return found

    def _files(self) -> Iterator[tuple[Path, tuple[int, int, int]]]:
        looked = 0
        try:
            with os.scandir(self._own.parent) as entries:
                for entry in entries:
                    # A pipe among them would keep us waiting.
                    if (
                        not entry.name.endswith(".prom")
                        or entry.name == self._own.name
                        or not entry.is_file()
                    ):
                        continue
                    looked += 1
                    if looked > _MOST_FILES:
                        return
                    status = entry.stat()
                    yield Path(entry.path), (status.st_ino, status.st_size, status.st_mtime_ns)
        except OSError:
            return


def _names(path: Path) -> set[bytes]:
    try:
        with path.open("rb") as file:
            return set(_NAME.findall(file.read(_MOST_BYTES)))
    except OSError:
        return set()

"""Reading small files whole: those of procfs without the cost of file objects, others whatever they are."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

Read = Callable[[str], bytes]

_CHUNK = 16 * 1024


def read_whole(path: str) -> bytes:
    """The bytes of a file; raises OSError (ESRCH too: a process can end while its file is open)."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        first = os.read(handle, _CHUNK)
        # procfs hands out whole records, so a short read is not yet the end; /proc/PID/stat is one record.
        if len(first) < _CHUNK and first.find(b"\n") == len(first) - 1:
            return first
        parts = [first]
        while part := os.read(handle, _CHUNK):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(handle)


def read_at_most(file: Path, longest: int) -> bytes:
    """The bytes of a file that somebody has named, which may be changed into anything at any time.

    Raises OSError: EFBIG for more than `longest` bytes, EPIPE for a pipe into which nobody writes. That one
    is not waited for: whoever reads has others to serve.
    """
    with open(file, "rb", opener=_at_once) as opened:
        # From here on waiting is right: for who writes into a pipe (`--config <(...)`).
        os.set_blocking(opened.fileno(), True)
        content = opened.read(longest + 1)
        if not content and stat.S_ISFIFO(os.fstat(opened.fileno()).st_mode):
            raise OSError(errno.EPIPE, "it is a pipe into which nobody writes", str(file))
    if len(content) > longest:
        raise OSError(errno.EFBIG, f"it is larger than {longest >> 20} MiB", str(file))
    return content


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def signature(file: Path) -> tuple[int, ...] | None:
    """Another one whenever the file is another or has changed; None for one that cannot be looked at.

    Links are followed, so that a Secret that the kubelet swaps is a change.
    """
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def sync_directory(directory: Path) -> None:
    """Bring the names of its files to the disk. Raises OSError."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems know no such thing; what was done there stands.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(handle)


# What tells one state of a file from another: device, inode, size, modification time, and what symbolic
# links lead to. None for one that cannot be looked at.
_State = tuple[int, int, int, int, str] | None
FileStates = dict[Path, _State]


class FileWatch:
    """Compares files with how they stood when they were last `taken`.

    A ConfigMap's file is a link into a directory that is itself behind a link, `..data`, which the kubelet
    swaps; an editor writes another file and renames it; others write in place. All three are seen.
    """

    def __init__(self, files: Iterable[Path] = ()) -> None:
        self._known = self._seen = {file: _state(file) for file in files}

    def take(self, states: FileStates) -> None:
        """From here on compare these files with these states."""
        self._known = self._seen = states

    def states(self, files: Iterable[Path]) -> FileStates:
        """How files stand now: to be asked before they are read, and taken after."""
        return {file: _state(file) for file in files}

    def look(self) -> bool:
        """Whether any has changed, and all have stood still since the look before: what is being written is
        not to be read by halves.
        """
        now = {file: _state(file) for file in self._known}
        still, self._seen = now == self._seen, now
        return still and now != self._known


def _state(file: Path) -> _State:
    try:
        found = file.stat()
        return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, os.path.realpath(file))
    except OSError:
        return None

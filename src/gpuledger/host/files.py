"""Read small files: those of procfs fast, those named by users safely; detect changed files."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from gpuledger.model.text import decode_utf8

ReadFile = Callable[[str], bytes]

_CHUNK = 16 * 1024


def read_whole(path: str) -> bytes:
    """The bytes of a file. Raises OSError (also ESRCH: a process can exit while its file is open)."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        first = os.read(handle, _CHUNK)
        # procfs returns whole records, so a short read need not be the end; /proc/PID/stat is one record.
        if len(first) < _CHUNK and first.find(b"\n") == len(first) - 1:
            return first
        parts = [first]
        while part := os.read(handle, _CHUNK):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(handle)


def read_or_none(path: str, read: ReadFile = read_whole) -> bytes | None:
    """The bytes of a file; None if it cannot be read."""
    try:
        return read(path)
    except OSError:
        return None


def read_text(path: str) -> str:
    """The text of a file; empty if it cannot be read."""
    return decode_utf8(read_or_none(path) or b"")


def folder_names(parent: str) -> list[str]:
    """The names of the directories in a directory, without links; none if it cannot be read."""
    try:
        with os.scandir(parent) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def read_at_most(file: Path | str, longest: int) -> bytes:
    """The bytes of a file named by a user, which may become any kind of file at any time.

    Raises OSError: EFBIG for more than `longest` bytes, EPIPE for a pipe without a writer, instead of
    blocking.
    """
    with open(file, "rb", opener=_open_nonblocking) as opened:
        # From here on blocking is right: for the writer of a pipe (`--config <(...)`).
        os.set_blocking(opened.fileno(), True)
        content = opened.read(longest + 1)
        if not content and stat.S_ISFIFO(os.fstat(opened.fileno()).st_mode):
            raise OSError(errno.EPIPE, "it is a pipe without a writer", str(file))
    if len(content) > longest:
        raise OSError(errno.EFBIG, f"it is larger than {longest >> 20} MiB", str(file))
    return content


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def replace_file(file: Path, content: bytes) -> None:
    """Replace a small file: readers see the old content or the new one. Raises OSError.

    Callers take turns: the content is first written to a file that always has the same name.
    """
    new = file.with_name(f".{file.name}.tmp")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as opened:
        opened.write(content)
        opened.flush()
        # Must come before the rename: otherwise a power failure could leave an empty file.
        os.fsync(opened.fileno())
    new.replace(file)


def file_signature(file: Path) -> tuple[int, ...] | None:
    """A value that changes whenever the file is replaced or modified; None if it cannot be read by stat.

    Links are followed, so that it changes when the kubelet updates a Secret.
    """
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def sync_directory(directory: Path) -> None:
    """Flush the directory's entries to disk (fsync). Raises OSError."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems do not support fsync of a directory.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(handle)


# The state of a file: device, inode, size, modification time, and the target of symbolic links. None if it
# cannot be read by stat.
_State = tuple[int, int, int, int, str] | None
FileStates = dict[Path, _State]


class FileWatch:
    """Detects changes of files since the last baseline.

    It detects an updated ConfigMap (the kubelet swaps the link `..data` of the directory), a file that an
    editor replaces by rename, and one that is written in place.
    """

    def __init__(self, files: Iterable[Path] = ()) -> None:
        self._known = self._seen = file_states(files)

    def set_baseline(self, states: FileStates) -> None:
        """Compare with these files and states from now on."""
        self._known = self._seen = states

    def has_changed(self) -> bool:
        """Whether a file has changed, and none since the previous call: a file that is being written must not
        be read halfway.
        """
        now = file_states(self._known)
        still, self._seen = now == self._seen, now
        return still and now != self._known


def file_states(files: Iterable[Path]) -> FileStates:
    """The current states of files. Call it before reading them, and `FileWatch.set_baseline` after."""
    states: FileStates = {}
    for file in files:
        try:
            found = file.stat()
            target = os.path.realpath(file)
            states[file] = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, target)
        except OSError:
            states[file] = None
    return states

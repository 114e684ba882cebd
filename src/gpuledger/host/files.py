"""Reading small files whole: those of procfs without the cost of file objects, others whatever they are."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
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

"""Reading the small files of procfs whole, without the cost of file objects."""

from __future__ import annotations

import os
from collections.abc import Callable

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

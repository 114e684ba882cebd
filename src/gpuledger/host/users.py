"""User names from a passwd file."""

from __future__ import annotations

import os
import re
from functools import partial

from gpuledger.host.files import ReadFile, read_at_most
from gpuledger.model.text import clean_name, decode_utf8

_MOST_NAMES = 1024
# Bytes: some hundred thousand users of a directory server.
_LONGEST = 64 * 1024 * 1024


_read_file = partial(read_at_most, longest=_LONGEST)


class PasswdUsers:
    """User names from a file in passwd(5) format.

    It reads a file instead of the system's name service: in a container that has other users than the host,
    and a directory server that hangs would block the tick. The file is searched once per uid, and again after
    a change; only names of requested uids are cached.
    """

    def __init__(self, path: str = "/etc/passwd", read: ReadFile = _read_file) -> None:
        self._path = path
        self._read = read
        self._version: tuple[int, int] | None = None
        self._names: dict[int, str] = {}

    def name(self, uid: int) -> str:
        """The user's name, or the number as text where the file has none or cannot be read."""
        version = self._stamp()
        if version != self._version or len(self._names) >= _MOST_NAMES:
            self._names.clear()
            self._version = version
        if uid not in self._names:
            self._names[uid] = self._search(uid)
        return self._names[uid]

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)  # noqa: PTH116  (avoids a Path object per lookup)
        except OSError:
            return None
        return (found.st_mtime_ns, found.st_ino)

    def _search(self, uid: int) -> str:
        try:
            text = self._read(self._path)
        except OSError:
            return str(uid)
        found = re.search(rb"^([^:\n]+):[^:\n]*:%d:" % uid, text, re.MULTILINE)
        return clean_name(decode_utf8(found[1])) if found else str(uid)

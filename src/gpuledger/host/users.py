"""User names from a passwd file."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gpuledger.host.files import Read, read_at_most
from gpuledger.model.text import clean_name, from_bytes

_MOST_NAMES = 1024
# Some hundred thousand users of a directory server.
_LONGEST = 64 * 1024 * 1024


def _read_file(path: str) -> bytes:
    return read_at_most(Path(path), _LONGEST)


class PasswdUsers:
    """Names of uids by a file in the form of passwd(5).

    The file is a path, not the system's name service: in a container the host's users are not ours, and
    a directory server that hangs would stop the tick. It is searched once per uid and searched anew after
    it changed; only names that were asked for are kept.
    """

    def __init__(self, path: str = "/etc/passwd", read: Read = _read_file) -> None:
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
            found = os.stat(self._path)  # noqa: PTH116  (a Path object per look-up is waste)
        except OSError:
            return None
        return (found.st_mtime_ns, found.st_ino)

    def _search(self, uid: int) -> str:
        try:
            text = self._read(self._path)
        except OSError:
            return str(uid)
        found = re.search(rb"^([^:\n]+):[^:\n]*:%d:" % uid, text, re.MULTILINE)
        return clean_name(from_bytes(found[1])) if found else str(uid)

"""Whether files have changed: by looking at them, which works on every file system and in every container."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

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

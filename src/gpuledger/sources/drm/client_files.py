"""Finds the open files of GPUs in procfs: which process has which DRM client."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpuledger.host.files import ReadFile, read_or_none, read_whole

_DRI: Final = "/dev/dri/"
_KFD: Final = "/dev/kfd"
# Seconds. A process older than `_YOUNG` is looked at again each `_PERIOD`: it rarely opens a GPU then.
_YOUNG: Final = 60.0
_PERIOD: Final = 10.0


@dataclass(frozen=True, slots=True)
class OpenFile:
    """One open file of a GPU: descriptor `fd` of process `pid`; `node` is `card0` or `renderD128`."""

    pid: int
    fd: str
    node: str


@dataclass(slots=True)
class _Seen:
    since: float
    looked_at: float
    files: tuple[OpenFile, ...] = ()
    is_hidden: bool = False
    has_kfd: bool = False


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """All open files of GPUs. `hidden` is how many processes may not be looked at (PTRACE_MODE_READ).

    `rocm` are the pids that have KFD open. `unlisted`: procfs does not even list the processes of others.
    """

    files: tuple[OpenFile, ...] = ()
    hidden: int = 0
    processes: int = 0
    rocm: frozenset[int] = frozenset()
    unlisted: bool = False


class ClientFiles:
    """Looks through the descriptors of processes below `procfs`.

    This needs a link read for each descriptor of the machine, so processes without a GPU are looked at in
    turn: young ones at each call, others within ten seconds. Processes with a GPU are looked at each time.
    """

    def __init__(
        self,
        procfs: str,
        read: ReadFile = read_whole,
        link: Callable[[str], str] = os.readlink,
        list_folder: Callable[[str], list[str]] = os.listdir,
    ) -> None:
        self._root = procfs.rstrip("/")
        self._read = read
        self._link = link
        self._list = list_folder
        self._seen: dict[int, _Seen] = {}
        self._hidepid: bool | None = None

    def find(self, now: float) -> FoundFiles:
        """All open files of GPUs at `now`, seconds of the boot clock. Never raises."""
        try:
            pids = [int(name) for name in self._list(self._root) if name.isdigit()]
        except OSError:
            pids = []
        before = self._seen
        # What runs when this program starts is as old as it can be.
        first_seen = now if before else now - _YOUNG
        self._seen = {pid: self._look(pid, before.get(pid), now, first_seen) for pid in pids}
        return FoundFiles(
            tuple(file for seen in self._seen.values() for file in seen.files),
            sum(seen.is_hidden for seen in self._seen.values()),
            len(pids),
            frozenset(pid for pid, seen in self._seen.items() if seen.has_kfd),
            1 not in self._seen and self._is_mounted_with_hidepid(),
        )

    def _is_mounted_with_hidepid(self) -> bool:
        if self._hidepid is None:
            self._hidepid = b"hidepid=" in (read_or_none(f"{self._root}/mounts", self._read) or b"")
        return self._hidepid

    def _look(self, pid: int, seen: _Seen | None, now: float, first_seen: float) -> _Seen:
        if seen is not None and not seen.files and not _is_due(pid, seen, now):
            return seen
        found = _Seen(first_seen if seen is None else seen.since, now)
        folder = f"{self._root}/{pid}/fd"
        try:
            names = self._list(folder)
        except PermissionError:
            # A kernel thread has no command line, and no files.
            found.is_hidden = bool(read_or_none(f"{self._root}/{pid}/cmdline", self._read))
            return found
        except OSError:
            return found
        targets = {name: self._target(f"{folder}/{name}") for name in names}
        found.has_kfd = _KFD in targets.values()
        found.files = tuple(
            OpenFile(pid, name, target.removeprefix(_DRI))
            for name, target in targets.items()
            if target.startswith(_DRI)
        )
        return found

    def _target(self, path: str) -> str:
        try:
            return self._link(path)
        except OSError:
            return ""

    def text(self, file: OpenFile) -> bytes | None:
        """The fdinfo of an open file; None if it was closed or may not be read."""
        return read_or_none(f"{self._root}/{file.pid}/fdinfo/{file.fd}", self._read)


def _is_due(pid: int, seen: _Seen, now: float) -> bool:
    if now - seen.since < _YOUNG or now - seen.looked_at >= _PERIOD:
        return True
    # Spread over the period: not all processes at once.
    return now - seen.looked_at >= 1 and pid % _PERIOD == int(now) % _PERIOD

"""Reads single processes of the local machine on request: parent, user, start and command line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpuledger.host.files import read_or_none
from gpuledger.host.procfs import parent_pid, stat_fields, stat_name
from gpuledger.model.text import decode_utf8

# Bytes: a command line can have two MiB.
_LONGEST_COMMAND_LINE: Final = 16 * 1024
_MOST_ANCESTORS: Final = 64
# The parent of everything says nothing about a process.
_INIT: Final = frozenset({"init", "systemd"})
_PARENT_OF_KERNEL_THREADS: Final = 2
# All ids of a user namespace that is not nested.
_EVERY_ID: Final = ["0", "0", "4294967295"]


@dataclass(frozen=True, slots=True)
class OsProcess:
    """A process of this machine. `pid` and `ticks`, its start in clock ticks since boot, identify it.

    `name` is the kernel's 15-byte name. `uids` are its real and effective user, empty if unknown. `running`
    is False for one that has ended but still has a pid (a zombie).
    """

    pid: int
    ticks: int
    parent: int
    name: str
    uids: frozenset[int] = frozenset()
    running: bool = True

    @property
    def uid(self) -> int | None:
        """The only user of the process; None if it is unknown, or a setuid program that has two."""
        return next(iter(self.uids)) if len(self.uids) == 1 else None


class ProcessTree:
    """The processes that the procfs at `root` shows to this user. Nothing is cached."""

    def __init__(self, root: str = "/proc") -> None:
        self._root = root.rstrip("/")

    def read(self, pid: int) -> OsProcess | None:
        """The process with this pid; None if there is none, or `hidepid` hides it."""
        stat = read_or_none(f"{self._root}/{pid}/stat") or b""
        fields = stat_fields(stat)
        if len(fields) < 20 or not (fields[1].isdigit() and fields[19].isdigit()):
            return None
        status = read_or_none(f"{self._root}/{pid}/status") or b""
        return OsProcess(
            pid=pid,
            ticks=int(fields[19]),
            parent=parent_pid(status) or int(fields[1]),
            name=stat_name(stat),
            uids=_uids(status),
            running=fields[0] not in (b"Z", b"X", b"x"),
        )

    def running_since(self, pid: int) -> int | None:
        """The start of a running process, in clock ticks since boot; None if there is none to be seen."""
        found = self.read(pid)
        return found.ticks if found is not None and found.running else None

    def ancestors(self, process: OsProcess) -> Iterator[OsProcess]:
        """The parent, its parent and so on, as far as they are visible; without init and kernel threads."""
        child = process
        for _ in range(_MOST_ANCESTORS):
            parent = self.read(child.parent) if child.parent not in (0, _PARENT_OF_KERNEL_THREADS) else None
            # A parent that is younger than its child is another process, which has got the pid since.
            if parent is None or parent.ticks > child.ticks or (parent.pid == 1 and parent.name in _INIT):
                return
            yield parent
            child = parent

    def cgroup(self, pid: int) -> str:
        """The text of /proc/PID/cgroup; empty if it cannot be read."""
        return decode_utf8(read_or_none(f"{self._root}/{pid}/cgroup") or b"")

    def arguments(self, pid: int) -> list[str]:
        """The command line; empty if there is none, as of a kernel thread, or if it cannot be read.

        Blocks while the process holds the lock of its memory map, as one does that hangs in a driver.
        """
        raw = read_or_none(f"{self._root}/{pid}/cmdline", _read_beginning) or b""
        # A program that writes its own title pads it with zero bytes.
        return [decode_utf8(part) for part in raw.rstrip(b"\0").split(b"\0")] if raw.strip(b"\0") else []

    def pid_of(self, pidfd: int) -> int | None:
        """The pid, in this procfs, of the process that a descriptor refers to; None once it is gone.

        Another procfs than this program's, mounted into a container, has other pids.
        """
        info = decode_utf8(read_or_none(f"{self._root}/self/fdinfo/{pidfd}") or b"")
        words = info.partition("\nPid:")[2].split(None, 1)
        return int(words[0]) if words and words[0].isdigit() else None

    def is_root(self, uid: int) -> bool:
        """Whether this uid is the machine's root, not that of a user namespace (a rootless container)."""
        ids = (read_or_none(f"{self._root}/self/uid_map") or b"").decode("ascii", "replace").split()
        return uid == 0 and ids == _EVERY_ID


def _read_beginning(path: str) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts, size = [], 0
        while size < _LONGEST_COMMAND_LINE and (part := os.read(handle, _LONGEST_COMMAND_LINE - size)):
            parts.append(part)
            size += len(part)
        return b"".join(parts)
    finally:
        os.close(handle)


def _uids(status: bytes) -> frozenset[int]:
    """The real and the effective user in a /proc/PID/status."""
    start = status.find(b"\nUid:")
    words = status[start + 1 :].split(None, 3)[1:3] if start >= 0 else []
    return frozenset(int(word) for word in words if word.isdigit())

"""The Host of a local machine: what its procfs says of a pid."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpuledger.host.files import Read, read_whole
from gpuledger.host.users import PasswdUsers
from gpuledger.model.process import HostFacts, Start
from gpuledger.model.text import clean_name, from_bytes


def first_sight(unix: float, missing: str) -> HostFacts:
    """Facts of a pid that is not known: its start is the tick (unix seconds) that saw it first."""
    return HostFacts(start=Start(boot_id="", ticks=None, unix=unix, seen=unix), missing=missing)


class NoHost:
    """The Host of sources whose pids belong to another machine (ssh, replay): nothing is looked up here.

    A pid that comes back after a tick without it counts as a new process; one that is reused between two
    ticks cannot be told from the old one.
    """

    def __init__(self, missing: str = "remote") -> None:
        self._missing = missing
        self._known: dict[int, HostFacts] = {}

    def identify(self, pids: Collection[int], unix: float) -> Mapping[int, HostFacts]:
        """First sight of each pid, the same for as long as the pid is asked for without a break."""
        known = self._known
        self._known = {pid: known.get(pid) or first_sight(unix, self._missing) for pid in pids}
        return self._known

    def epoch(self) -> tuple[str, str]:
        """Nothing is known of another machine's boots and drivers."""
        return "", ""


_GONE = frozenset({errno.ENOENT, errno.ESRCH})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
_LONGEST_PATH = 4096

# The kernel gives the first pid namespace this fixed inode number (PROC_PID_INIT_INO).
_FIRST_PID_NAMESPACE = "pid:[4026531836]"

# Reads of btime are this far apart at least: /proc/stat costs the kernel a walk over every CPU and
# interrupt, but a machine that got its time from the network after boot has another btime than before.
_BOOT_TIME_GOOD_FOR = 60.0

# nvidia.ko starts two threads of this name as it is loaded and ends them as it goes (nv_module_state_init in
# NVIDIA's open kernel modules); the earliest is the load. More of the name may come with each GPU that is
# opened. Its other threads tell nothing: `nvidia` and `irq/N-nvidia` come and go with the use of a GPU, those
# of nvidia-modeset and nvidia-uvm with their own modules, and a new epoch for a counter that goes on is dear.
_DRIVER_THREAD = b"nv_queue"
_PARENT_OF_KERNEL_THREADS = b"2"

# A process is put in its container's or session's cgroup at its start, and is seen here only once it uses
# a GPU; what stands in the root cgroup of every hierarchy even so was caught in between, or stays there.
# Four more looks, the last about a minute later at one tick a second, find the first and cost the second
# nothing to speak of. Processes that already are in a cgroup of their own are not looked at again.
_LOOK_AGAIN_AT = (2, 4, 16, 64)


@dataclass(slots=True)
class _Known:
    """A pid under watch.

    `ticks` is its start as in stat, None where only first sight is known. `gone` are its facts once it has
    exited. While it stands `in_root` alone its cgroup is to be read again, and `sights` counts the ticks.
    """

    ticks: bytes | None
    facts: HostFacts
    gone: HostFacts | None = None
    sights: int = 1
    in_root: bool = False


class ProcFs:
    """`model.source.Host` over a procfs mounted at `root`.

    Per tick and known process /proc/PID/stat alone is read (field 22, `starttime`); executable, uid, user
    and cgroup once per process. `pids` is `auto` (look up only where host pids are visible) or `trust`.
    `HostFacts.missing` is empty, `pid_namespace`, `not_found`, `permission`, `unreadable`, or `exited` for
    a process that the driver still lists: it keeps its start and the facts known so far.
    """

    def __init__(
        self,
        root: Path | str = "/proc",
        *,
        pids: str = "auto",
        users: PasswdUsers | None = None,
        read: Read = read_whole,
        link: Callable[[str], str] = os.readlink,
        ticks_per_second: int | None = None,
    ) -> None:
        self._root = str(root).rstrip("/")
        self._trusted = pids == "trust"
        self._users = users or PasswdUsers()
        self._read = read
        self._link = link
        self._hertz = ticks_per_second or os.sysconf("SC_CLK_TCK")
        self._known: dict[int, _Known] = {}
        self._visible: bool | None = None
        self._boot_id: str | None = None
        self._boot_time: tuple[float, float] | None = None

    @property
    def boot_id(self) -> str:
        """This boot of the machine; empty where it cannot be read. Read once."""
        if self._boot_id is None:
            raw = self._try(f"{self._root}/sys/kernel/random/boot_id")
            self._boot_id = clean_name(from_bytes(raw or b"").strip())
        return self._boot_id

    @property
    def host_pids(self) -> bool:
        """Whether this procfs shows the host's own pids; found out once.

        Kernel threads exist only in the first pid namespace, where pid 2 is kthreadd. With `hidepid` they
        are hidden from plain users; then our own namespace link answers.
        """
        if self._visible is None:
            self._visible = self._shows_kernel_threads() or self._in_first_namespace()
        return self._visible

    def identify(self, pids: Collection[int], unix: float) -> Mapping[int, HostFacts]:
        """Facts for every asked pid at the tick `unix`; pids not asked for are forgotten. Never raises."""
        before = self._known
        look_up = self._trusted or self.host_pids
        after: dict[int, _Known] = {}
        facts: dict[int, HostFacts] = {}
        for pid in pids:
            if look_up:
                known, facts[pid] = self._look_up(pid, before.get(pid), unix)
            else:
                known = before.get(pid) or _Known(None, first_sight(unix, "pid_namespace"))
                facts[pid] = known.facts
            after[pid] = known
        self._known = after
        return facts

    def epoch(self) -> tuple[str, str]:
        """Boot id, and when the driver was loaded in clock ticks since boot; see `Host`. Never raises.

        The second is empty without a driver and where its kernel threads cannot be seen: outside the host's
        pid namespace, and for a plain user under `hidepid`.
        """
        if not (self._trusted or self.host_pids):
            return self.boot_id, ""
        starts = [self._driver_thread(pid) for pid in self._processes()]
        return self.boot_id, str(min((ticks for ticks in starts if ticks is not None), default=""))

    def _look_up(self, pid: int, known: _Known | None, unix: float) -> tuple[_Known, HostFacts]:
        try:
            stat = self._read(f"{self._root}/{pid}/stat")
        except OSError as error:
            return _without_stat(known, error, unix)
        # comm may hold spaces and parentheses; the last one closes it. starttime is 20th of what follows.
        fields = stat[stat.rfind(b")") + 1 :].split(None, 20)
        if len(fields) < 20 or not fields[19].isdigit():
            return _without_stat(known, OSError(errno.EIO, "malformed stat"), unix)
        if known is None or known.ticks != fields[19]:
            known = self._meet(pid, stat, fields[19], unix)
        elif known.in_root:
            self._look_again(pid, known)
        return known, known.facts

    def _meet(self, pid: int, stat: bytes, ticks: bytes, unix: float) -> _Known:
        cgroup, missing = self._cgroup(pid)
        uid = self._uid(pid)
        facts = HostFacts(
            start=self._start(int(ticks), unix),
            executable=self._executable(pid),
            comm=clean_name(from_bytes(stat[stat.find(b"(") + 1 : stat.rfind(b")")])),
            uid=uid,
            user="" if uid is None else self._users.name(uid),
            cgroup=cgroup,
            missing=missing,
        )
        return _Known(ticks, facts, in_root=_only_roots(cgroup))

    def _look_again(self, pid: int, known: _Known) -> None:
        known.sights += 1
        if known.sights in _LOOK_AGAIN_AT:
            cgroup, missing = self._cgroup(pid)
            if not _only_roots(cgroup) or not known.facts.cgroup:
                known.facts = replace(known.facts, cgroup=cgroup, missing=missing)
                known.gone = None
        known.in_root = _only_roots(known.facts.cgroup) and known.sights < _LOOK_AGAIN_AT[-1]

    def _start(self, ticks: int, unix: float) -> Start:
        # Without btime the moment is not known; the tick stands in, the identity stays exact.
        boot = self._boot_at(unix)
        began = unix if boot is None else boot + ticks / self._hertz
        return Start(boot_id=self.boot_id, ticks=ticks, unix=began)

    def _boot_at(self, unix: float) -> float | None:
        if self._boot_time is None or abs(unix - self._boot_time[0]) >= _BOOT_TIME_GOOD_FOR:
            raw = self._try(f"{self._root}/stat") or b""
            words = raw[raw.find(b"\nbtime ") + 1 :].split(None, 2)
            if len(words) < 2 or words[0] != b"btime" or not words[1].isdigit():
                return None
            self._boot_time = (unix, float(words[1]))
        return self._boot_time[1]

    def _processes(self) -> list[str]:
        try:
            with os.scandir(self._root) as entries:
                return [entry.name for entry in entries if entry.name.isdigit()]
        except OSError:
            return []

    def _driver_thread(self, pid: str) -> int | None:
        """When the thread was started, if it is one of the driver's own."""
        stat = self._try(f"{self._root}/{pid}/stat") or b""
        comm, _, rest = stat[stat.find(b"(") + 1 :].rpartition(b")")
        fields = rest.split(None, 20)
        mine = comm == _DRIVER_THREAD and len(fields) >= 20 and fields[1] == _PARENT_OF_KERNEL_THREADS
        return int(fields[19]) if mine and fields[19].isdigit() else None

    def _cgroup(self, pid: int) -> tuple[str, str]:
        try:
            return from_bytes(self._read(f"{self._root}/{pid}/cgroup")), ""
        except OSError as error:
            return "", "exited" if error.errno in _GONE else ""

    def _executable(self, pid: int) -> str:
        try:
            path = self._link(f"{self._root}/{pid}/exe")
        except OSError:
            return ""
        return clean_name(path.removesuffix(" (deleted)"), _LONGEST_PATH)

    def _uid(self, pid: int) -> int | None:
        # Not the owner of /proc/PID: that is the effective user, and root where core dumps are off.
        return real_uid(self._try(f"{self._root}/{pid}/status") or b"")

    def _shows_kernel_threads(self) -> bool:
        return (self._try(f"{self._root}/2/comm") or b"").strip() == b"kthreadd"

    def _in_first_namespace(self) -> bool:
        try:
            return self._link(f"{self._root}/self/ns/pid") == _FIRST_PID_NAMESPACE
        except OSError:
            return False

    def _try(self, path: str) -> bytes | None:
        try:
            return self._read(path)
        except OSError:
            return None


def real_uid(status: bytes) -> int | None:
    """The real uid that a /proc/PID/status tells, None if it tells none."""
    words = status[status.find(b"\nUid:") + 1 :].split(None, 2)
    return int(words[1]) if len(words) > 1 and words[0] == b"Uid:" and words[1].isdigit() else None


def _without_stat(known: _Known | None, error: OSError, unix: float) -> tuple[_Known, HostFacts]:
    """A pid whose stat cannot be read now: as known before, else by first sight."""
    if known is None:
        known = _Known(None, first_sight(unix, _reason(error)))
    if known.ticks is None or error.errno not in _GONE:
        return known, known.facts
    # A start by first sight would make a new process of it; it is the old one, in the driver's list still.
    known.gone = known.gone or replace(known.facts, missing="exited")
    return known, known.gone


def _reason(error: OSError) -> str:
    if error.errno in _GONE:
        return "not_found"
    return "permission" if error.errno in _FORBIDDEN else "unreadable"


def _only_roots(cgroup: str) -> bool:
    """Whether the process stands in the root of every hierarchy, or its cgroup could not be read."""
    return all(line.endswith(":/") for line in cgroup.splitlines())

"""Identify processes: from the procfs of the local machine, or by first sight for other machines."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpuledger.host.files import ReadFile, read_or_none, read_whole
from gpuledger.host.users import PasswdUsers
from gpuledger.model.process import HostFacts, ProcessStart
from gpuledger.model.text import clean_name, decode_utf8


def first_seen_facts(unix: float, missing: str) -> HostFacts:
    """Facts of a pid that cannot be looked up: its start is the tick (unix seconds) that first saw it."""
    return HostFacts(start=ProcessStart(boot_id="", ticks=None, unix=unix, seen=unix), missing=missing)


class RemoteHost:
    """The Host of sources with pids of another machine (ssh, replay): nothing is looked up here.

    A pid that returns after a tick without it counts as a new process. A pid that is reused between two ticks
    cannot be distinguished from the old process.
    """

    def __init__(self) -> None:
        self._known: dict[int, HostFacts] = {}

    def identify(self, pids: Collection[int], unix: float) -> Mapping[int, HostFacts]:
        """First-sight facts of each pid; the same while the pid is in consecutive calls."""
        known = self._known
        self._known = {pid: known.get(pid) or first_seen_facts(unix, "remote") for pid in pids}
        return self._known

    def epoch(self) -> tuple[str, str]:
        """Empty: boot and driver load of another machine are not known."""
        return "", ""


_GONE = (FileNotFoundError, ProcessLookupError)
_LONGEST_PATH = 4096

# The fixed inode number of the first pid namespace (PROC_PID_INIT_INO).
_FIRST_PID_NAMESPACE = "pid:[4026531836]"

# Seconds between two reads of btime: /proc/stat makes the kernel walk all CPUs and interrupts, but btime
# changes when the clock is set from the network after boot.
_BOOT_TIME_GOOD_FOR = 60.0

# nvidia.ko starts two threads of this name when it is loaded and ends them when it is unloaded
# (nv_module_state_init in NVIDIA's open kernel modules); the earliest start is the load. Each opened GPU may
# add more. Other threads do not identify the load: `nvidia` and `irq/N-nvidia` depend on the use of a GPU,
# those of nvidia-modeset and nvidia-uvm on their modules. A wrong new epoch would split a running counter.
_DRIVER_THREAD = b"nv_queue"
_PARENT_OF_KERNEL_THREADS = b"2"

# Ticks at which a cgroup is read again. A process usually moves into the cgroup of its container or session
# at its start, before it uses a GPU. A process in the root cgroup of every hierarchy either has not moved
# yet or never will. Four more reads, the last after about a minute at one tick per second, detect a move at
# little cost. A process in any other cgroup is not read again.
_REREAD_CGROUP_AT = (2, 4, 16, 64)

# Seconds between two looks for the names of users that have none.
_NAMES_GOOD_FOR = 10.0


@dataclass(slots=True)
class _Known:
    """A known pid.

    `ticks` is its start time as in stat, None if only first sight is known. `gone` are its facts after its
    exit. While `in_root` (only in root cgroups), its cgroup is read again; `sights` counts the ticks.
    """

    ticks: bytes | None
    facts: HostFacts
    gone: HostFacts | None = None
    sights: int = 1
    in_root: bool = False


class ProcFs:
    """The `model.source.Host` of a procfs mounted at `root`.

    Per tick and known process, only /proc/PID/stat is read (field 22, `starttime`); executable, uid, user and
    cgroup are read once per process. `pids` is `auto` (look up only where host pids are visible) or `trust`.
    `HostFacts.missing` is empty, `pid_namespace`, `not_found`, `permission`, `unreadable`, or `exited` for a
    process that the driver still lists after its exit: it keeps its start and the known facts.
    """

    def __init__(
        self,
        root: Path | str = "/proc",
        *,
        pids: str = "auto",
        users: PasswdUsers | None = None,
        read: ReadFile = read_whole,
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
        # Pids of users without a name, and what was known of names when they were last looked up.
        self._unnamed: set[int] = set()
        self._name_changes = 0
        self._named_at = 0.0
        self._visible: bool | None = None
        self._boot_id: str | None = None
        self._boot_time: tuple[float, float] | None = None

    def separate(self) -> ProcFs:
        """A second reader of the same procfs, which knows no process yet."""
        pids = "trust" if self._trusted else "auto"
        return ProcFs(
            self._root,
            pids=pids,
            users=self._users,
            read=self._read,
            link=self._link,
            ticks_per_second=self._hertz,
        )

    @property
    def root(self) -> str:
        """The path of the procfs."""
        return self._root

    @property
    def boot_id(self) -> str:
        """The boot id of the machine; empty where it cannot be read. Read once."""
        if self._boot_id is None:
            raw = self._try(f"{self._root}/sys/kernel/random/boot_id")
            self._boot_id = clean_name(decode_utf8(raw or b"").strip())
        return self._boot_id

    @property
    def host_pids(self) -> bool:
        """Whether this procfs shows the host's pids; determined once.

        Kernel threads exist only in the first pid namespace, where pid 2 is kthreadd. `hidepid` hides them
        from unprivileged users; then the link /proc/self/ns/pid decides.
        """
        if self._visible is None:
            self._visible = self._shows_kernel_threads() or self._in_first_namespace()
        return self._visible

    @property
    def looks_up_pids(self) -> bool:
        """Whether host pids are looked up here: they are visible, or trusted to be."""
        return self._trusted or self.host_pids

    def identify(self, pids: Collection[int], unix: float) -> Mapping[int, HostFacts]:
        """Facts of each pid at the tick `unix`; other pids are forgotten. Never raises."""
        before = self._known
        look_up = self.looks_up_pids
        if self._unnamed:
            self._name_users(unix)
        after: dict[int, _Known] = {}
        facts: dict[int, HostFacts] = {}
        for pid in pids:
            if look_up:
                known, facts[pid] = self._look_up(pid, before.get(pid), unix)
            else:
                known = before.get(pid) or _Known(None, first_seen_facts(unix, "pid_namespace"))
                facts[pid] = known.facts
            after[pid] = known
        self._known = after
        return facts

    def epoch(self) -> tuple[str, str]:
        """Boot id, and load time of the driver in clock ticks since boot; see `Host`. Never raises.

        The load time is empty without a driver and where its kernel threads are hidden: outside the host's
        pid namespace, and for an unprivileged user with `hidepid`.
        """
        if not self.looks_up_pids:
            return self.boot_id, ""
        starts = [self._driver_thread(pid) for pid in self._processes()]
        return self.boot_id, str(min((ticks for ticks in starts if ticks is not None), default=""))

    def _look_up(self, pid: int, known: _Known | None, unix: float) -> tuple[_Known, HostFacts]:
        try:
            stat = self._read(f"{self._root}/{pid}/stat")
        except OSError as error:
            return _without_stat(known, error, unix)
        fields = stat_fields(stat)
        if len(fields) < 20 or not _is_count(fields[19]):
            return _without_stat(known, OSError(errno.EIO, "malformed stat"), unix)
        if known is None or known.ticks != fields[19]:
            known = self._read_process(pid, stat, fields[19], unix)
        elif known.in_root:
            self._reread_cgroup(pid, known)
        return known, known.facts

    def _read_process(self, pid: int, stat: bytes, ticks: bytes, unix: float) -> _Known:
        cgroup, missing = self._cgroup(pid)
        uid = self._uid(pid)
        user = "" if uid is None else self._users.name(uid)
        if uid is not None and user == str(uid):
            if not self._unnamed:
                self._named_at = unix
            self._unnamed.add(pid)
        facts = HostFacts(
            start=self._start(int(ticks), unix),
            executable=self._executable(pid),
            comm=stat_name(stat),
            uid=uid,
            user=user,
            cgroup=cgroup,
            missing=missing,
        )
        return _Known(ticks, facts, in_root=_only_roots(cgroup))

    def _name_users(self, unix: float) -> None:
        """Give processes the names of their users that have become known since."""
        if self._users.changes == self._name_changes and abs(unix - self._named_at) < _NAMES_GOOD_FOR:
            return
        self._named_at = unix
        self._unnamed &= self._known.keys()
        for pid in list(self._unnamed):
            known = self._known[pid]
            uid = known.facts.uid
            if uid is None or known.facts.user != str(uid):
                self._unnamed.remove(pid)
            elif (name := self._users.name(uid)) != str(uid):
                known.facts, known.gone = replace(known.facts, user=name), None
                self._unnamed.remove(pid)
        self._name_changes = self._users.changes

    def _reread_cgroup(self, pid: int, known: _Known) -> None:
        known.sights += 1
        if known.sights in _REREAD_CGROUP_AT:
            cgroup, missing = self._cgroup(pid)
            if not _only_roots(cgroup) or not known.facts.cgroup:
                known.facts = replace(known.facts, cgroup=cgroup, missing=missing)
                known.gone = None
        known.in_root = _only_roots(known.facts.cgroup) and known.sights < _REREAD_CGROUP_AT[-1]

    def _start(self, ticks: int, unix: float) -> ProcessStart:
        # Without btime the start time is not known and the tick replaces it; the identity is still exact.
        boot = self._boot_at(unix)
        began = unix if boot is None else boot + ticks / self._hertz
        return ProcessStart(boot_id=self.boot_id, ticks=ticks, unix=began)

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
        """The start of a kernel thread of the driver, in clock ticks; None for other processes."""
        stat = self._try(f"{self._root}/{pid}/stat") or b""
        comm, _, rest = stat[stat.find(b"(") + 1 :].rpartition(b")")
        fields = rest.split(None, 20)
        mine = comm == _DRIVER_THREAD and len(fields) >= 20 and fields[1] == _PARENT_OF_KERNEL_THREADS
        return int(fields[19]) if mine and _is_count(fields[19]) else None

    def _cgroup(self, pid: int) -> tuple[str, str]:
        try:
            return decode_utf8(self._read(f"{self._root}/{pid}/cgroup")), ""
        except OSError as error:
            return "", "exited" if isinstance(error, _GONE) else ""

    def _executable(self, pid: int) -> str:
        try:
            path = self._link(f"{self._root}/{pid}/exe")
        except OSError:
            return ""
        return clean_name(path.removesuffix(" (deleted)"), _LONGEST_PATH)

    def _uid(self, pid: int) -> int | None:
        # Not the owner of /proc/PID, which is the effective user, or root if the process is not dumpable.
        return real_uid(self._try(f"{self._root}/{pid}/status") or b"")

    def _shows_kernel_threads(self) -> bool:
        return (self._try(f"{self._root}/2/comm") or b"").strip() == b"kthreadd"

    def _in_first_namespace(self) -> bool:
        try:
            return self._link(f"{self._root}/self/ns/pid") == _FIRST_PID_NAMESPACE
        except OSError:
            return False

    def _try(self, path: str) -> bytes | None:
        return read_or_none(path, self._read)


def _is_count(digits: bytes) -> bool:
    """Whether it can be a number of 64 bits, as the kernel writes."""
    return digits.isdigit() and len(digits) <= 20


def stat_fields(stat: bytes) -> list[bytes]:
    """The fields of a /proc/PID/stat after the name: state, parent and so on; the 20th is the start.

    The name may contain spaces and parentheses; the last ")" closes it.
    """
    return stat[stat.rfind(b")") + 1 :].split(None, 20)


def stat_name(stat: bytes) -> str:
    """The kernel's 15-byte name in a /proc/PID/stat."""
    return clean_name(decode_utf8(stat[stat.find(b"(") + 1 : stat.rfind(b")")]))


def real_uid(status: bytes) -> int | None:
    """The real uid in a /proc/PID/status, None without one."""
    return _number_in_status(status, b"Uid:")


def parent_pid(status: bytes) -> int | None:
    """The parent's pid in a /proc/PID/status, None without one."""
    return _number_in_status(status, b"PPid:")


def _number_in_status(status: bytes, name: bytes) -> int | None:
    words = status[status.find(b"\n" + name) + 1 :].split(None, 2)
    return int(words[1]) if len(words) > 1 and words[0] == name and words[1].isdigit() else None


def _without_stat(known: _Known | None, error: OSError, unix: float) -> tuple[_Known, HostFacts]:
    """Facts of a pid without a readable stat: the known ones, else by first sight."""
    if known is None:
        known = _Known(None, first_seen_facts(unix, _reason(error)))
    if known.ticks is None or not isinstance(error, _GONE):
        return known, known.facts
    # The driver still lists the old process: first-sight facts would make it a new one.
    known.gone = known.gone or replace(known.facts, missing="exited")
    return known, known.gone


def _reason(error: OSError) -> str:
    if isinstance(error, _GONE):
        return "not_found"
    return "permission" if isinstance(error, PermissionError) else "unreadable"


def _only_roots(cgroup: str) -> bool:
    """Whether the process is in the root cgroup of every hierarchy, or its cgroup could not be read."""
    return all(line.endswith(":/") for line in cgroup.splitlines())

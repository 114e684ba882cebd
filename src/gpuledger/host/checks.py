"""Doctor checks of this machine: pid namespace, /proc, cgroups, user, user names, clock, locale."""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gpuledger.host.clock import SystemClock
from gpuledger.host.procfs import ProcFs
from gpuledger.host.settings import HostSettings
from gpuledger.model.checks import Check, Finding, fails, unknown, warning, works
from gpuledger.model.source import Clock
from gpuledger.model.text import decode_utf8

# Bits of CapEff (linux/capability.h) that allow reading other users' processes.
CAPABILITIES: Final = {"CAP_DAC_READ_SEARCH": 2, "CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21}
_IN_CGROUP: Final = (
    ("Kubernetes", "kubepods"),
    ("Docker", "docker"),
    ("Podman", "libpod"),
    ("LXC", "lxc"),
    ("systemd-nspawn", "machine.slice"),
)


class HostInspection:
    """Inspects the machine through a procfs and the root of the filesystem. Methods never raise."""

    def __init__(self, procfs: Path, root: Path, environment: Mapping[str, str]) -> None:
        self._procfs = procfs
        self._root = root
        self._environment = environment

    def container(self) -> str:
        """The kind of container, and the evidence for it; empty outside containers."""
        if "KUBERNETES_SERVICE_HOST" in self._environment:
            return "Kubernetes, by KUBERNETES_SERVICE_HOST"
        for name, kind in ((".dockerenv", "Docker"), ("run/.containerenv", "Podman")):
            if (self._root / name).exists():
                return f"{kind}, by /{name}"
        manager = self._environment.get("container")
        if manager:
            return f"{manager}, by the variable container"
        kind = self._read(self._root / "run/systemd/container").strip()
        if kind:
            return f"{kind}, by /run/systemd/container"
        own = self._read(self._procfs / "self/cgroup")
        for kind, word in _IN_CGROUP:
            if re.search(rf"/{re.escape(word)}[-./]", own):
                return f"{kind}, by /proc/self/cgroup"
        return ""

    def uid(self) -> int | None:
        """The real uid of this process."""
        match = re.search(r"^Uid:\s+(\d+)", self._read(self._procfs / "self/status"), re.MULTILINE)
        return int(match[1]) if match else None

    def capabilities(self) -> frozenset[str] | None:
        """The effective ones of CAPABILITIES; None if unknown."""
        match = re.search(r"^CapEff:\s+([0-9a-f]+)", self._read(self._procfs / "self/status"), re.MULTILINE)
        if match is None:
            return None
        bits = int(match[1], 16)
        return frozenset(name for name, bit in CAPABILITIES.items() if bits >> bit & 1)

    def readable(self, name: str) -> bool:
        """Whether a file of the procfs can be read."""
        try:
            with (self._procfs / name).open("rb") as file:
                file.read(1)
        except OSError:
            return False
        return True

    def follows(self, name: str) -> bool:
        """Whether a link of the procfs is readable; its target need not exist."""
        try:
            (self._procfs / name).readlink()
        except OSError as error:
            return error.errno not in (errno.EACCES, errno.EPERM)
        return True

    def hidepid(self) -> str:
        """The value of the mount option if it hides processes (`2`, `invisible`, ...), else empty."""
        for line in self._read(self._procfs / "self/mounts").splitlines():
            words = line.split()
            if len(words) > 3 and words[2] == "proc":
                match = re.search(r"(?:^|,)hidepid=([^,]+)", words[3])
                if match and match[1] not in ("0", "off"):
                    return match[1]
        return ""

    def cgroup_version(self) -> str:
        """`v1`, `v2` or `hybrid (v1 with v2)` from /proc/self/cgroup; empty if unknown."""
        lines = self._read(self._procfs / "self/cgroup").splitlines()
        unified = any(line.startswith("0::") for line in lines)
        controllers = any(re.match(r"[1-9]\d*:", line) for line in lines)
        if unified and controllers:
            return "hybrid (v1 with v2)"
        return "v2" if unified else "v1" if controllers else ""

    def hides_cgroups(self) -> bool:
        """Whether a cgroup namespace hides paths above our own cgroup: pid 1 is then in `/..`."""
        lines = self._read(self._procfs / "1/cgroup").splitlines()
        return any(line.split(":", 2)[-1].startswith("/..") for line in lines)

    @staticmethod
    def _read(path: Path) -> str:
        try:
            return decode_utf8(path.read_bytes())
        except OSError:
            return ""


CONTAINER: Final = "host.container"
USER: Final = "host.user"
PIDS: Final = "host.pids"
PROC: Final = "host.proc"
CGROUP: Final = "host.cgroup"
CGROUP_NAMESPACE: Final = "host.cgroup_namespace"
USERS: Final = "host.users"
CLOCK: Final = "host.clock"
SYNCHRONIZED: Final = "host.clock_synchronized"
LOCALE: Final = "host.locale"

_HOST_PIDS: Final = "Kubernetes: `hostPID: true`; Docker: `--pid=host`; LXC: run gpuledger on the host itself"
_CLOCK_REMEDY: Final = "set it: `timedatectl set-ntp true`, or run chrony"
_EARLIEST_YEAR: Final = 2020
_TIME_ERROR: Final = 5


def host_checks(
    settings: HostSettings,
    environment: Mapping[str, str],
    *,
    local: bool = True,
    root: Path = Path("/"),
    clock: Clock | None = None,
    synchronized: Callable[[], int | None] | None = None,
    encoding: str = "utf-8",
) -> tuple[Check, ...]:
    """Checks of the machine through the configured procfs.

    `local` is false for a source with pids of another machine: the checks of pids are omitted. `root` is the
    directory of /.dockerenv and similar files; `synchronized` returns the state of adjtimex(2), None where it
    cannot be called; `encoding` is that of standard output.
    """
    seen = HostInspection(Path(settings.procfs), root, environment)
    machine = (
        Check(CONTAINER, "container", lambda: _container(seen)),
        Check(USER, "user", lambda: _user(seen)),
        Check(CLOCK, "clock", lambda: _clock(clock or SystemClock())),
        Check(SYNCHRONIZED, "clock synchronization", lambda: _synchronized(synchronized or read_clock_state)),
        Check(LOCALE, "locale", lambda: _locale(encoding)),
    )
    pids = (
        Check(PROC, "/proc", lambda: _proc(seen, settings)),
        Check(PIDS, "host pids", lambda: _pids(settings, seen), needs=(PROC,)),
        Check(CGROUP, "cgroup version", lambda: _cgroup(seen), needs=(PROC,)),
        Check(CGROUP_NAMESPACE, "cgroup namespace", lambda: _cgroup_namespace(seen), needs=(PROC, PIDS)),
        Check(USERS, "user names", lambda: _users(settings)),
    )
    return (*pids, *machine) if local else machine


def _container(seen: HostInspection) -> Iterator[Finding]:
    kind = seen.container()
    yield works(CONTAINER, "container", f"in a container ({kind})" if kind else "not in a container")


def _user(seen: HostInspection) -> Iterator[Finding]:
    uid, capabilities = seen.uid(), seen.capabilities()
    if uid is None or capabilities is None:
        yield unknown(USER, "user", "/proc/self/status cannot be read")
        return
    held = [name for name in CAPABILITIES if name in capabilities]
    capability_text = f"with {', '.join(held)}" if held else f"without {', '.join(CAPABILITIES)}"
    yield works(USER, "user", f"uid {uid}, {capability_text}")


def _pids(settings: HostSettings, seen: HostInspection) -> Iterator[Finding]:
    what = "host pids"
    if ProcFs(settings.procfs).host_pids:
        yield works(PIDS, what, "the host's own process ids are visible")
    elif settings.pids == "trust":
        yield warning(
            PIDS,
            what,
            "not visible, but trusted (--host-pids trust): names are wrong if this is another pid namespace",
            _HOST_PIDS,
        )
    else:
        where = "this container's own" if seen.container() else "another pid namespace's"
        yield fails(
            PIDS,
            what,
            f"{settings.procfs} shows {where} processes, but the driver reports pids of the host: processes "
            "are counted, but their owners are not known",
            _HOST_PIDS,
        )


def _proc(seen: HostInspection, settings: HostSettings) -> Iterator[Finding]:
    what = "/proc"
    if not seen.readable("self/stat"):
        yield fails(
            PROC,
            what,
            f"{settings.procfs} is not a proc filesystem that shows this process",
            f"mount one (`mount -t proc proc {settings.procfs}`), or name it with --procfs",
        )
        return
    hidden = seen.hidepid()
    if not seen.readable("1/stat") or not seen.readable("1/cgroup"):
        why = f"mounted with hidepid={hidden}" if hidden else "/proc/1 cannot be read"
        yield fails(
            PROC,
            what,
            f"other users' processes are hidden ({why})",
            "run as root, or `mount -o remount,hidepid=0 /proc`; in a systemd unit: `ProtectProc=default`",
        )
    # A sandbox may hide pid 1 only: with the capability all other processes are readable.
    elif not seen.follows("1/exe") and "CAP_SYS_PTRACE" not in (seen.capabilities() or ()):
        yield warning(
            PROC,
            what,
            "other users' processes are readable, except for their executables: commands have the names of "
            "the driver or the kernel",
            "run as root, or with CAP_SYS_PTRACE (`--cap-add SYS_PTRACE`, "
            "`AmbientCapabilities=CAP_SYS_PTRACE`)",
        )
    else:
        yield works(PROC, what, f"{settings.procfs}: other users' processes are readable")


def _cgroup(seen: HostInspection) -> Iterator[Finding]:
    version = seen.cgroup_version()
    if version:
        yield works(CGROUP, "cgroup version", version)
    else:
        yield unknown(
            CGROUP,
            "cgroup version",
            "/proc/self/cgroup is empty or cannot be read: owners are users only",
            "mount the machine's /proc and name it with --procfs",
        )


def _cgroup_namespace(seen: HostInspection) -> Iterator[Finding]:
    what = "cgroup namespace"
    if seen.hides_cgroups():
        yield warning(
            CGROUP_NAMESPACE,
            what,
            "a cgroup namespace hides the upper part of other processes' paths: some owners are not found",
            "Docker: `--cgroupns=host`; Kubernetes: `privileged: true` uses the host's namespace",
        )
    else:
        yield works(CGROUP_NAMESPACE, what, "cgroup paths of other processes are complete")


def _users(settings: HostSettings) -> Iterator[Finding]:
    path = Path(settings.passwd)
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        yield warning(
            USERS,
            "user names",
            f"{path} cannot be read ({error.strerror}): users are shown as numbers",
            "run `getent passwd > FILE` on the machine, and use --passwd-file FILE",
        )
    else:
        yield works(USERS, "user names", f"from {path}")


def _clock(clock: Clock) -> Iterator[Finding]:
    what = "clock"
    try:
        running = clock.elapsed()
    except OSError as error:
        yield fails(CLOCK, what, f"CLOCK_BOOTTIME: {error.strerror}", "use Linux 2.6.39 or newer")
        return
    year = datetime.fromtimestamp(clock.unix(), UTC).year
    if year < _EARLIEST_YEAR:
        yield fails(CLOCK, what, f"the clock is wrong: it shows the year {year}", _CLOCK_REMEDY)
    elif not hasattr(time, "CLOCK_BOOTTIME"):
        yield warning(CLOCK, what, "no CLOCK_BOOTTIME: time in suspend is not counted", "run it on Linux")
    else:
        yield works(
            CLOCK, what, f"CLOCK_BOOTTIME works ({running:.0f} s since boot), wall clock is plausible"
        )


def _synchronized(read_state: Callable[[], int | None]) -> Iterator[Finding]:
    what = "clock synchronization"
    state = read_state()
    if state is None or state < 0:
        yield unknown(SYNCHRONIZED, what, "adjtimex(2) cannot be called")
    elif state == _TIME_ERROR:
        yield warning(
            SYNCHRONIZED,
            what,
            "the clock is not synchronized (adjtimex: TIME_ERROR): times of nodes may differ",
            _CLOCK_REMEDY,
        )
    else:
        yield works(SYNCHRONIZED, what, "the clock is synchronized (adjtimex)")


def read_clock_state() -> int | None:
    """The clock's state from adjtimex(2), read-only; None where the call does not exist."""
    import ctypes

    # struct timex has 208 bytes on 64-bit Linux; all zeros means read-only.
    room = ctypes.create_string_buffer(512)
    try:
        return int(ctypes.CDLL(None).adjtimex(room))
    except (OSError, AttributeError):
        return None


def _locale(encoding: str) -> Iterator[Finding]:
    if encoding.lower().replace("-", "") == "utf8":
        yield works(LOCALE, "locale", "output is UTF-8")
    else:
        yield warning(
            LOCALE,
            "locale",
            f"output is {encoding}: other characters of names are escaped (metrics are always UTF-8)",
            "`export LC_ALL=C.UTF-8`",
        )

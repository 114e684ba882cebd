"""What `doctor` says of this machine: whose pids are visible, what /proc shows, cgroups, user, clock."""

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
from gpuledger.model.text import from_bytes

# Bits of CapEff (linux/capability.h) that matter for reading what belongs to others.
CAPABILITIES: Final = {"CAP_DAC_READ_SEARCH": 2, "CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21}
_IN_CGROUP: Final = (
    ("Kubernetes", "kubepods"),
    ("Docker", "docker"),
    ("Podman", "libpod"),
    ("LXC", "lxc"),
    ("systemd-nspawn", "machine.slice"),
)


class Isolation:
    """Looks through a procfs and at the root of the filesystem. Methods never raise."""

    def __init__(self, procfs: Path, root: Path, environment: Mapping[str, str]) -> None:
        self._procfs = procfs
        self._root = root
        self._environment = environment

    def container(self) -> str:
        """Which kind of container and how that is known; empty outside of any."""
        if "KUBERNETES_SERVICE_HOST" in self._environment:
            return "Kubernetes, by KUBERNETES_SERVICE_HOST"
        for name, kind in ((".dockerenv", "Docker"), ("run/.containerenv", "Podman")):
            if (self._root / name).exists():
                return f"{kind}, by /{name}"
        manager = self._environment.get("container")
        if manager:
            return f"{manager}, by the variable container"
        told = self._read(self._root / "run/systemd/container").strip()
        if told:
            return f"{told}, by /run/systemd/container"
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
        """Those of CAPABILITIES that are in effect; None if that is not told."""
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
        """Whether a link of the procfs may be read; what it leads to need not be there."""
        try:
            (self._procfs / name).readlink()
        except OSError as error:
            return error.errno not in (errno.EACCES, errno.EPERM)
        return True

    def hidepid(self) -> str:
        """The mount option's value where it hides something (`2`, `invisible`, ...), else empty."""
        for line in self._read(self._procfs / "self/mounts").splitlines():
            words = line.split()
            if len(words) > 3 and words[2] == "proc":
                match = re.search(r"(?:^|,)hidepid=([^,]+)", words[3])
                if match and match[1] not in ("0", "off"):
                    return match[1]
        return ""

    def cgroup_version(self) -> str:
        """`v1`, `v2` or `hybrid (v1 with v2)`, by /proc/self/cgroup; empty if it says nothing."""
        lines = self._read(self._procfs / "self/cgroup").splitlines()
        unified = any(line.startswith("0::") for line in lines)
        controllers = any(re.match(r"[1-9]\d*:", line) for line in lines)
        if unified and controllers:
            return "hybrid (v1 with v2)"
        return "v2" if unified else "v1" if controllers else ""

    def hides_cgroups(self) -> bool:
        """Whether paths above our own cgroup are cut off: pid 1 then stands in `/..`."""
        lines = self._read(self._procfs / "1/cgroup").splitlines()
        return any(line.split(":", 2)[-1].startswith("/..") for line in lines)

    @staticmethod
    def _read(path: Path) -> str:
        try:
            return from_bytes(path.read_bytes())
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
    """Checks of the machine through the procfs of the settings.

    `local` is false for a source whose pids are not this machine's: then nothing of pids is checked. `root`
    is where /.dockerenv and the like are looked for; `synchronized` answers as adjtimex(2) does, None where
    it cannot be asked; `encoding` is that of the standard output.
    """
    seen = Isolation(Path(settings.procfs), root, environment)
    machine = (
        Check(CONTAINER, "container", lambda: _container(seen)),
        Check(USER, "user", lambda: _user(seen)),
        Check(CLOCK, "clock", lambda: _clock(clock or SystemClock())),
        Check(SYNCHRONIZED, "clock synchronization", lambda: _synchronized(synchronized or adjtimex)),
        Check(LOCALE, "locale", lambda: _locale(encoding)),
    )
    pids = (
        Check(PROC, "/proc", lambda: _proc(seen, settings)),
        Check(PIDS, "host pids", lambda: _pids(settings, seen), needs=(PROC,)),
        Check(CGROUP, "cgroup version", lambda: _cgroup(seen), needs=(PROC,)),
        Check(CGROUP_NAMESPACE, "cgroup namespace", lambda: _cgroup_namespace(seen), needs=(PROC, PIDS)),
        Check(USERS, "names of users", lambda: _users(settings)),
    )
    return (*pids, *machine) if local else machine


def _container(seen: Isolation) -> Iterator[Finding]:
    kind = seen.container()
    yield works(CONTAINER, "container", f"in a container ({kind})" if kind else "not in a container")


def _user(seen: Isolation) -> Iterator[Finding]:
    uid, capabilities = seen.uid(), seen.capabilities()
    if uid is None or capabilities is None:
        yield unknown(USER, "user", "/proc/self/status cannot be read")
        return
    held = [name for name in CAPABILITIES if name in capabilities]
    told = f"with {', '.join(held)}" if held else f"without {', '.join(CAPABILITIES)}"
    yield works(USER, "user", f"uid {uid}, {told}")


def _pids(settings: HostSettings, seen: Isolation) -> Iterator[Finding]:
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
            f"{settings.procfs} shows {where} processes, and the driver tells the host's: processes are "
            "counted, but whose they are is not told",
            _HOST_PIDS,
        )


def _proc(seen: Isolation, settings: HostSettings) -> Iterator[Finding]:
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
    # A sandbox may close pid 1 alone to everybody: who has the capability can read the rest.
    elif not seen.follows("1/exe") and "CAP_SYS_PTRACE" not in (seen.capabilities() or ()):
        yield warning(
            PROC,
            what,
            "other users' processes are readable but for their executables: commands are named as the "
            "driver or the kernel names them",
            "run as root, or with CAP_SYS_PTRACE (`--cap-add SYS_PTRACE`, "
            "`AmbientCapabilities=CAP_SYS_PTRACE`)",
        )
    else:
        yield works(PROC, what, f"{settings.procfs}: other users' processes are readable")


def _cgroup(seen: Isolation) -> Iterator[Finding]:
    version = seen.cgroup_version()
    if version:
        yield works(CGROUP, "cgroup version", version)
    else:
        yield unknown(
            CGROUP,
            "cgroup version",
            "/proc/self/cgroup is empty or cannot be read: owners are told by user only",
            "mount the machine's /proc and name it with --procfs",
        )


def _cgroup_namespace(seen: Isolation) -> Iterator[Finding]:
    what = "cgroup namespace"
    if seen.hides_cgroups():
        yield warning(
            CGROUP_NAMESPACE,
            what,
            "a cgroup namespace hides the upper part of other processes' paths: some owners stay unknown",
            "Docker: `--cgroupns=host`; Kubernetes: `privileged: true` gives the host's",
        )
    else:
        yield works(CGROUP_NAMESPACE, what, "cgroup paths of other processes are told whole")


def _users(settings: HostSettings) -> Iterator[Finding]:
    path = Path(settings.passwd)
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        yield warning(
            USERS,
            "names of users",
            f"{path} cannot be read ({error.strerror}): users are told by number",
            "`getent passwd > FILE` on the machine, and --passwd-file FILE",
        )
    else:
        yield works(USERS, "names of users", f"from {path}")


def _clock(clock: Clock) -> Iterator[Finding]:
    what = "clock"
    try:
        running = clock.elapsed()
    except OSError as error:
        yield fails(CLOCK, what, f"CLOCK_BOOTTIME: {error.strerror}", "use Linux 2.6.39 or newer")
        return
    year = datetime.fromtimestamp(clock.unix(), UTC).year
    if year < _EARLIEST_YEAR:
        yield fails(CLOCK, what, f"says that it is the year {year}", _CLOCK_REMEDY)
    elif not hasattr(time, "CLOCK_BOOTTIME"):
        yield warning(CLOCK, what, "no CLOCK_BOOTTIME here: time asleep is not counted", "run it on Linux")
    else:
        yield works(
            CLOCK, what, f"CLOCK_BOOTTIME works ({running:.0f} s since boot), wall clock is plausible"
        )


def _synchronized(ask: Callable[[], int | None]) -> Iterator[Finding]:
    what = "clock synchronization"
    state = ask()
    if state is None or state < 0:
        yield unknown(SYNCHRONIZED, what, "adjtimex(2) cannot be asked")
    elif state == _TIME_ERROR:
        yield warning(
            SYNCHRONIZED,
            what,
            "the kernel says that nobody keeps the clock right (adjtimex: TIME_ERROR): times of nodes may "
            "differ",
            _CLOCK_REMEDY,
        )
    else:
        yield works(SYNCHRONIZED, what, "the clock is kept right (adjtimex)")


def adjtimex() -> int | None:
    """The clock's state by adjtimex(2), asked without changing anything; None where there is no such call."""
    import ctypes

    # struct timex is 208 bytes on 64-bit Linux; all zero asks only.
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
            f"output is {encoding}: names outside it cannot be shown (metrics are UTF-8 all the same)",
            "`export LC_ALL=C.UTF-8`",
        )

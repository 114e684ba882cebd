"""Doctor checks of this machine: pid namespace, /proc, cgroups, user, user names, clock, locale."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gpuledger.host.clock import SystemClock
from gpuledger.host.container import find_container
from gpuledger.host.files import read_or_none, read_text
from gpuledger.host.procfs import ProcFs, real_uid
from gpuledger.host.settings import HostSettings
from gpuledger.model.checks import Check, Finding, Subject, fails, unknown, warning, works
from gpuledger.model.source import Clock
from gpuledger.model.text import is_utf8

# Bits of CapEff (linux/capability.h) that allow reading other users' processes.
CAPABILITIES: Final = {"CAP_DAC_READ_SEARCH": 2, "CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21}


class HostInspection:
    """Inspects the machine through a procfs and the root of the filesystem. Methods never raise."""

    def __init__(self, procfs: Path, root: Path, environment: Mapping[str, str]) -> None:
        self._procfs = procfs
        self._root = root
        self._environment = environment

    def container(self) -> str:
        """The kind of container, and the evidence for it; empty outside containers."""
        return find_container(self._root, self._procfs, self._environment)

    def capabilities(self) -> frozenset[str] | None:
        """The effective ones of CAPABILITIES; None if unknown."""
        match = re.search(r"^CapEff:\s+([0-9a-f]+)", read_text(f"{self._procfs}/self/status"), re.MULTILINE)
        if match is None:
            return None
        bits = int(match[1], 16)
        return frozenset(name for name, bit in CAPABILITIES.items() if bits >> bit & 1)

    def readable(self, name: str) -> bool:
        """Whether a file of the procfs can be read."""
        return read_or_none(f"{self._procfs}/{name}") is not None

    def follows(self, name: str) -> bool:
        """Whether a link of the procfs is readable; its target need not exist."""
        try:
            (self._procfs / name).readlink()
        except PermissionError:
            return False
        except OSError:
            pass
        return True

    def hidepid(self) -> str:
        """The value of the mount option if it hides processes (`2`, `invisible`, ...), else empty."""
        for line in read_text(f"{self._procfs}/self/mounts").splitlines():
            words = line.split()
            if len(words) > 3 and words[2] == "proc":
                match = re.search(r"(?:^|,)hidepid=([^,]+)", words[3])
                if match and match[1] not in ("0", "off"):
                    return match[1]
        return ""

    def cgroup_version(self) -> str:
        """`v1`, `v2` or `hybrid (v1 with v2)` from /proc/self/cgroup; empty if unknown."""
        lines = read_text(f"{self._procfs}/self/cgroup").splitlines()
        unified = any(line.startswith("0::") for line in lines)
        controllers = any(re.match(r"[1-9]\d*:", line) for line in lines)
        if unified and controllers:
            return "hybrid (v1 with v2)"
        return "v2" if unified else "v1" if controllers else ""

    def hides_cgroups(self) -> bool:
        """Whether a cgroup namespace hides paths above our own cgroup: pid 1 is then in `/..`."""
        lines = read_text(f"{self._procfs}/1/cgroup").splitlines()
        return any(line.split(":", 2)[-1].startswith("/..") for line in lines)


_CONTAINER: Final = Subject("host.container", "container")
_USER: Final = Subject("host.user", "user")
_PIDS: Final = Subject("host.pids", "host pids")
_PROC: Final = Subject("host.proc", "/proc")
_CGROUP: Final = Subject("host.cgroup", "cgroup version")
_CGROUP_NAMESPACE: Final = Subject("host.cgroup_namespace", "cgroup namespace")
_USERS: Final = Subject("host.users", "user names")
_CLOCK: Final = Subject("host.clock", "clock")
_SYNCHRONIZED: Final = Subject("host.clock_synchronized", "clock synchronization")
_LOCALE: Final = Subject("host.locale", "locale")

_HOST_PIDS: Final = "Kubernetes: `hostPID: true`; Docker: `--pid=host`; LXC: run gpuledger on the host itself"
_MAP_USERS: Final = (
    "run `getent passwd > FILE` on the machine (in a container: mount FILE), and use --passwd-file FILE"
)
_CLOCK_REMEDY: Final = "set it: `timedatectl set-ntp true`, or run chrony"
_EARLIEST_YEAR: Final = 2020
_TIME_ERROR: Final = 5


def host_checks(
    settings: HostSettings,
    environment: Mapping[str, str],
    *,
    local: bool = True,
    has_passwd_file: bool = True,
    root: Path = Path("/"),
    clock: Clock | None = None,
    synchronized: Callable[[], int | None] | None = None,
    encoding: str = "utf-8",
) -> tuple[Check, ...]:
    """Checks of the machine through the configured procfs.

    `local` is false for a source with pids of another machine: the checks of pids are omitted.
    `has_passwd_file` is false if the file is the default, and not one that the user named. `root` is the
    directory of /.dockerenv and similar files; `synchronized` returns the state of adjtimex(2), None where it
    cannot be called; `encoding` is that of standard output.
    """
    seen = HostInspection(Path(settings.procfs), root, environment)
    machine = (
        Check(*_CONTAINER, lambda: _container(seen)),
        Check(*_USER, lambda: _user(seen, settings)),
        Check(*_CLOCK, lambda: _clock(clock or SystemClock())),
        Check(*_SYNCHRONIZED, lambda: _synchronized(synchronized or read_clock_state)),
        Check(*_LOCALE, lambda: _locale(encoding)),
    )
    pids = (
        Check(*_PROC, lambda: _proc(seen, settings)),
        Check(*_PIDS, lambda: _pids(settings, seen), needs=(_PROC.check,)),
        Check(*_CGROUP, lambda: _cgroup(seen), needs=(_PROC.check,)),
        Check(*_CGROUP_NAMESPACE, lambda: _cgroup_namespace(seen), needs=(_PROC.check, _PIDS.check)),
        Check(*_USERS, lambda: _users(settings, seen, is_named=has_passwd_file)),
    )
    return (*pids, *machine) if local else machine


def _container(seen: HostInspection) -> Iterator[Finding]:
    kind = seen.container()
    yield works(*_CONTAINER, f"in a container ({kind})" if kind else "not in a container")


def _user(seen: HostInspection, settings: HostSettings) -> Iterator[Finding]:
    uid = real_uid(read_or_none(f"{settings.procfs}/self/status") or b"")
    capabilities = seen.capabilities()
    if uid is None or capabilities is None:
        yield unknown(*_USER, "/proc/self/status cannot be read")
        return
    held = [name for name in CAPABILITIES if name in capabilities]
    capability_text = f"with {', '.join(held)}" if held else f"without {', '.join(CAPABILITIES)}"
    yield works(*_USER, f"uid {uid}, {capability_text}")


def _pids(settings: HostSettings, seen: HostInspection) -> Iterator[Finding]:
    if ProcFs(settings.procfs).host_pids:
        yield works(*_PIDS, "the host's own process ids are visible")
    elif settings.pids == "trust":
        yield warning(
            *_PIDS,
            "not visible, but trusted (--host-pids trust): names are wrong if this is another pid namespace",
            _HOST_PIDS,
        )
    else:
        where = "this container's own" if seen.container() else "another pid namespace's"
        yield fails(
            *_PIDS,
            f"{settings.procfs} shows {where} processes, but the driver reports pids of the host: processes "
            "are counted, but their owners are not known",
            _HOST_PIDS,
        )


def _proc(seen: HostInspection, settings: HostSettings) -> Iterator[Finding]:
    if not seen.readable("self/stat"):
        yield fails(
            *_PROC,
            f"{settings.procfs} is not a proc filesystem that shows this process",
            f"mount one (`mount -t proc proc {settings.procfs}`), or name it with --procfs",
        )
        return
    hidden = seen.hidepid()
    if not seen.readable("1/stat") or not seen.readable("1/cgroup"):
        why = f"mounted with hidepid={hidden}" if hidden else "/proc/1 cannot be read"
        yield fails(
            *_PROC,
            f"other users' processes are hidden ({why})",
            "run as root, or `mount -o remount,hidepid=0 /proc`; in a systemd unit: `ProtectProc=default`",
        )
    # A sandbox may hide pid 1 only: with the capability all other processes are readable.
    elif not seen.follows("1/exe") and "CAP_SYS_PTRACE" not in (seen.capabilities() or ()):
        yield warning(
            *_PROC,
            "other users' processes are readable, except for their executables: commands have the names of "
            "the driver or the kernel",
            "run as root, or with CAP_SYS_PTRACE (`--cap-add SYS_PTRACE`, "
            "`AmbientCapabilities=CAP_SYS_PTRACE`)",
        )
    else:
        yield works(*_PROC, f"{settings.procfs}: other users' processes are readable")


def _cgroup(seen: HostInspection) -> Iterator[Finding]:
    version = seen.cgroup_version()
    if version:
        yield works(*_CGROUP, version)
    else:
        yield unknown(
            *_CGROUP,
            "/proc/self/cgroup is empty or cannot be read: owners are users only",
            "mount the machine's /proc and name it with --procfs",
        )


def _cgroup_namespace(seen: HostInspection) -> Iterator[Finding]:
    if seen.hides_cgroups():
        yield warning(
            *_CGROUP_NAMESPACE,
            "a cgroup namespace hides the upper part of other processes' paths: some owners are not found",
            "Docker: `--cgroupns=host`; Kubernetes: `privileged: true` uses the host's namespace",
        )
    else:
        yield works(*_CGROUP_NAMESPACE, "cgroup paths of other processes are complete")


def _users(settings: HostSettings, seen: HostInspection, *, is_named: bool) -> Iterator[Finding]:
    path = Path(settings.passwd)
    container = seen.container()
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        yield warning(
            *_USERS,
            f"{path} cannot be read ({error.strerror}): users are shown as numbers",
            _MAP_USERS,
        )
        return
    if container and not is_named:
        why = f"from {path} of this container ({container}), which can have other users than the machine"
        yield warning(*_USERS, why, _MAP_USERS)
    elif settings.uses_name_service(is_named=is_named, in_container=bool(container)):
        yield works(*_USERS, f"from {path}, then from the machine's name service")
    else:
        yield works(*_USERS, f"from {path}")


def _clock(clock: Clock) -> Iterator[Finding]:
    try:
        running = clock.elapsed()
    except OSError as error:
        yield fails(*_CLOCK, f"CLOCK_BOOTTIME: {error.strerror}", "use Linux 2.6.39 or newer")
        return
    year = datetime.fromtimestamp(clock.unix(), UTC).year
    if year < _EARLIEST_YEAR:
        yield fails(*_CLOCK, f"the clock is wrong: it shows the year {year}", _CLOCK_REMEDY)
    elif not hasattr(time, "CLOCK_BOOTTIME"):
        yield warning(*_CLOCK, "no CLOCK_BOOTTIME: time in suspend is not counted", "run it on Linux")
    else:
        yield works(*_CLOCK, f"CLOCK_BOOTTIME works ({running:.0f} s since boot), wall clock is plausible")


def _synchronized(read_state: Callable[[], int | None]) -> Iterator[Finding]:
    state = read_state()
    if state is None or state < 0:
        yield unknown(*_SYNCHRONIZED, "adjtimex(2) cannot be called")
    elif state == _TIME_ERROR:
        yield warning(
            *_SYNCHRONIZED,
            "the clock is not synchronized (adjtimex: TIME_ERROR): times of nodes may differ",
            _CLOCK_REMEDY,
        )
    else:
        yield works(*_SYNCHRONIZED, "the clock is synchronized (adjtimex)")


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
    if is_utf8(encoding):
        yield works(*_LOCALE, "output is UTF-8")
    else:
        yield warning(
            *_LOCALE,
            f"output is {encoding}: other characters of names are escaped (metrics are always UTF-8)",
            "`export LC_ALL=C.UTF-8`",
        )

"""GpuProcess (one OS process on one Device) and the facts that the host has about its pid."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from re import DOTALL, IGNORECASE
from re import compile as pattern

from gpuledger.model.devices import Device
from gpuledger.model.text import clean_name
from gpuledger.model.workload import UNKNOWN, Workload


class ProcessType(Enum):
    """The driver's process list that contains a process. Values are those that nvidia-smi prints."""

    COMPUTE = "C"
    GRAPHICS = "G"
    MPS = "M"


COMPUTE_TYPES = frozenset({ProcessType.COMPUTE, ProcessType.MPS})


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """The start of a process, as an identity and as a time.

    The identity is `(boot_id, ticks)`, where `ticks` is `starttime` of /proc/PID/stat in clock ticks since
    boot. If the Host does not know it, `boot_id` is empty, `ticks` is None, and `seen`, the unix time at
    which the process was first seen, replaces it. `unix` (seconds) is computed once and not compared, so a
    clock step does not turn a known process into a new one.
    """

    boot_id: str
    ticks: int | None
    unix: float = field(compare=False)
    seen: float | None = None
    # Cached: part of ProcessKey, and thus hashed several times per process and tick.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.boot_id, self.ticks, self.seen)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def exact(self) -> bool:
        """False if only the time of first sight is known: the process may be older."""
        return self.ticks is not None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the host knows about one pid.

    `executable` is the target of /proc/PID/exe, `comm` the kernel's 15-byte name, `cgroup` the text of
    /proc/PID/cgroup; each is empty if it could not be read. `workload` is set only by hosts that know owners
    themselves (simulator, replay). `missing` is the reason why the pid is unknown, empty if it is known.
    """

    start: ProcessStart
    executable: str = ""
    comm: str = ""
    uid: int | None = None
    user: str = ""
    cgroup: str = ""
    workload: Workload | None = None
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Fraction of time (0 to 1) for which a process used each engine since the last tick; None if unknown.

    The mean of the samples since the last tick from `nvmlDeviceGetProcessesUtilizationInfo` or
    `nvmlDeviceGetProcessUtilization`. `memory` is time with memory transfers, not capacity.
    """

    sm: float | None = None
    memory: float | None = None
    encoder: float | None = None
    decoder: float | None = None
    jpeg: float | None = None
    ofa: float | None = None


NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class UtilizationSample:
    """One driver sample of one pid: `at` in microseconds of the driver's clock, engines as ratios 0 to 1."""

    pid: int
    at: int
    sm: float
    memory: float
    encoder: float
    decoder: float
    jpeg: float | None = None
    ofa: float | None = None


@dataclass(frozen=True, slots=True)
class AccountingRecord:
    """The record of one process in the driver's accounting mode (`nvmlDeviceGetAccountingStats`).

    `began` and `ended` are seconds of the source's clock; `ended` is None while the process runs.
    """

    pid: int
    began: float
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One OS process on one Device. Identity is `(device, pid, start)`.

    `name` is the process name as the driver reports it. `memory` is the bytes allocated on the Device, None
    if the driver does not report it (WDDM, some MIG and vGPU setups).
    """

    device: Device
    pid: int
    host: HostFacts
    name: str = ""
    types: frozenset[ProcessType] = frozenset({ProcessType.COMPUTE})
    memory: int | None = None
    usage: Usage = NO_USAGE
    workload: Workload = UNKNOWN
    # Identity over time: pids are reused, `(device, pid, start)` are not. A start is flattened into it: it is
    # looked up thousands of times a tick, and tuples of plain values are hashed without Python code.
    key: ProcessKey = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        start = self.host.start
        object.__setattr__(self, "key", (self.device.uuid, self.pid, start.boot_id, start.ticks, start.seen))

    @property
    def computes(self) -> bool:
        """True for what `nvidia-smi --query-compute-apps` lists: types C, C+G and MPS clients."""
        return not COMPUTE_TYPES.isdisjoint(self.types)

    @property
    def type_text(self) -> str:
        """Types as nvidia-smi prints them: `C`, `G`, `C+G`, `M+C`."""
        order = (ProcessType.MPS, ProcessType.COMPUTE, ProcessType.GRAPHICS)
        return "+".join(kind.value for kind in order if kind in self.types)

    @property
    def command(self) -> str:
        """Base name of the driver's name, else of the executable, else the comm; made safe for labels."""
        return _command(self.name, self.host.executable, self.host.comm)


# Device uuid, pid, then boot id, ticks and first sight of the ProcessStart.
ProcessKey = tuple[str, int, str, int | None, float | None]


# Cached: every dialect calls it at every tick with few different arguments.
@lru_cache(maxsize=4096)
def _command(name: str, executable: str, comm: str) -> str:
    # A process that rewrites its title shows its arguments, which can hold secrets, in the driver's name.
    # Prefer the executable if the name may hold some.
    may_have_arguments = any(char.isspace() for char in name)
    known = _base_name(executable) or comm
    command = known if may_have_arguments and known else program_name(name)
    return clean_name(command or known)


_QUOTED = pattern(r"\"([^\"]+)\"|'([^']+)'")
_WINDOWS_PATH = pattern(r"[A-Za-z]:[\\/]|\\\\")
# Up to the first ending of a Windows program: what follows are arguments.
_WINDOWS_PROGRAM = pattern(r".*?\.(?:exe|com|bat|cmd|scr)(?=\s|$)", IGNORECASE | DOTALL)
# A blank and an argument: an option, a path, a URL, an assignment, or text in quotes.
_ARGUMENT = pattern(r"\s+(?:-\S|[/\"']|[A-Za-z]:[\\/]|[A-Za-z_][\w.-]*=|\S*(?:://|@)).*", DOTALL)


def program_name(name: str) -> str:
    """The program in a name that a driver reports: a path, here or on Windows, or a title of any text.

    A path may contain blanks, begin with three dots where nvidia-smi cut it, and end with arguments. It ends
    at the first word that looks like an argument; of its last part and of a title only the first word is
    safe, unless it ends like a program of Windows.
    """
    name = name.strip()
    if quoted := _QUOTED.match(name):
        name = quoted[1] or quoted[2]
    is_windows = _WINDOWS_PATH.match(name) is not None
    is_path = is_windows or name.startswith(("/", "./", "../", "...", "~/"))
    path = name if is_windows else _ARGUMENT.sub("", name, count=1)
    if (program := _WINDOWS_PROGRAM.match(path)) and (is_path or "/" not in program[0]):
        return _ARGUMENT.sub("", _base_name(program[0].replace("\\", "/")), count=1)
    if is_path:
        path = _ARGUMENT.sub("", path, count=1)
        last = _base_name(path.replace("\\", "/") if is_windows else path)
        return last.split(maxsplit=1)[0] if last.strip() else ""
    first = name.split(maxsplit=1)[0] if name else ""
    # `job=a/b` is no path.
    return first if "=" in first.partition("/")[0] else _base_name(first)


def _base_name(path: str) -> str:
    return path.rsplit("/", 1)[-1]

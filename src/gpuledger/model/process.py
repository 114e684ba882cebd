"""One OS process on one Device, and what the Host says of its pid."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

from gpuledger.model.devices import Device
from gpuledger.model.text import clean_name
from gpuledger.model.workload import UNKNOWN, Workload


class ProcessType(Enum):
    """In which of the driver's lists a process stands. Values are what nvidia-smi prints."""

    COMPUTE = "C"
    GRAPHICS = "G"
    MPS = "M"


COMPUTE_TYPES = frozenset({ProcessType.COMPUTE, ProcessType.MPS})


@dataclass(frozen=True, slots=True)
class Start:
    """When a process began, as identity and as time.

    Identity is `(boot_id, ticks)`: the field `starttime` of /proc/PID/stat, clock ticks since boot. Where
    the Host knows none, `boot_id` is empty, `ticks` is None, and the unix time of first sight stands in:
    `seen`. `unix` (seconds) is worked out once, so that a step of the clock never makes a new process of an
    old one.
    """

    boot_id: str
    ticks: int | None
    unix: float = field(compare=False)
    seen: float | None = None
    # A part of what processes are remembered by, and so hashed several times for each in a tick.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.boot_id, self.ticks, self.seen)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def exact(self) -> bool:
        """False when only the first sight is known: the process may be older."""
        return self.ticks is not None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a machine says of one pid.

    `executable` is the path behind /proc/PID/exe, `comm` the kernel's 15-byte name, `cgroup` the text of
    /proc/PID/cgroup; each is empty when it could not be read. `workload` is filled only by hosts that
    know owners themselves (simulator, replay). `missing` says why the pid is not known, empty when it is.
    """

    start: Start
    executable: str = ""
    comm: str = ""
    uid: int | None = None
    user: str = ""
    cgroup: str = ""
    workload: Workload | None = None
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Share of time that a process kept each engine busy since the last tick, 0 to 1; None is not told.

    From `nvmlDeviceGetProcessesUtilizationInfo` or `nvmlDeviceGetProcessUtilization`: the mean over the
    samples newer than the last tick. `memory` is memory bandwidth time, not capacity.
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
    """One driver sample of one pid, as told: `at` in the driver's microseconds, engines in ratios 0 to 1."""

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
    """What the driver's accounting mode says of one process (`nvmlDeviceGetAccountingStats`).

    `began` and `ended` are in the source's own seconds; `ended` is None while it runs.
    """

    pid: int
    began: float
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One OS process on one Device. Identity is `(device, pid, start)`.

    `name` is the driver's process name as told; `memory` is bytes held on the Device, None where the
    driver cannot say (WDDM, some MIG and vGPU setups).
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
        """Base name of the driver's name, else of the executable, else the kernel's comm; cut and cleaned."""
        return _command(self.name, self.host.executable, self.host.comm)


# Device uuid, pid, and of the start: boot id, ticks, first sight.
ProcessKey = tuple[str, int, str, int | None, float | None]


# Asked for by every dialect at every tick, always with the same few answers.
@lru_cache(maxsize=4096)
def _command(name: str, executable: str, comm: str) -> str:
    told = _base_name(name)
    if any(char.isspace() for char in name):
        # A process that rewrites its title shows its arguments in the driver's name, and arguments hold
        # secrets: the executable knows better, and without it only the first word is sure to be a program.
        told = _base_name(executable) or comm or _base_name(name.split(maxsplit=1)[0] if name.split() else "")
    return clean_name(told or _base_name(executable) or comm)


def _base_name(path: str) -> str:
    return path.rsplit("/", 1)[-1]

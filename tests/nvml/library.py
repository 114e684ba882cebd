"""Builds the test libnvidia-ml.so.1 and writes its state file.

    state = NvmlState(tmp_path / "state", [NvmlGpu(power=250_000), NvmlGpu()])
    state.gpus[1].errors["*"] = 15          # this GPU is lost
    state.write()                           # the library's next call reads the new state

Another process finds the library with `LD_LIBRARY_PATH=build().parent` and the file with TEST_NVML_STATE.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE / "libnvidia_ml.c"
VARIANTS = {"": [], "old": ["-DOLD"], "r535": ["-DR535"], "newer": ["-DNEWER"]}
FLAGS = [
    "-std=gnu11",
    "-O2",
    "-fvisibility=hidden",
    "-shared",
    "-fPIC",
    "-pthread",
    "-Wl,-soname,libnvidia-ml.so.1",
]
NOT_AVAILABLE = 2**64 - 1


def build(variant: str = "") -> Path:
    """Return the library's path; compile it if the source is newer. Safe to call from several processes."""
    target = HERE / "build" / variant / "libnvidia-ml.so.1"
    if not target.exists() or target.stat().st_mtime < SOURCE.stat().st_mtime:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_suffix(f".{os.getpid()}")
        subprocess.run(["cc", *FLAGS, *VARIANTS[variant], str(SOURCE), "-o", str(aside)], check=True)
        aside.replace(target)
    return target


def load(variant: str = "") -> ctypes.CDLL:
    """Load the library into this process with fresh state: not initialized, all call counts 0."""
    library = ctypes.CDLL(str(build(variant)))
    library.test_nvml_calls.restype = library.test_nvml_count.restype = ctypes.c_ulonglong
    library.test_nvml_reset()
    return library


def count(library: ctypes.CDLL, call: str) -> int:
    """Return how often `call` was made since `load`."""
    return int(library.test_nvml_count(call.encode()))


@dataclass
class NvmlProcess:
    """One entry of a GPU's lists; `types` is any of C, G and M, engines are percent, memory is bytes."""

    pid: int
    memory: int = 1 << 30
    types: str = "C"
    gi: int = 0xFFFFFFFF
    ci: int = 0xFFFFFFFF
    sm: int = 0
    mem: int = 0
    enc: int = 0
    dec: int = 0
    jpg: int = 0
    ofa: int = 0

    def __str__(self) -> str:
        engines = (self.sm, self.mem, self.enc, self.dec, self.jpg, self.ofa)
        return ",".join(map(str, (self.pid, self.memory, self.types, self.gi, self.ci, *engines)))


@dataclass
class NvmlSample:
    """One utilization sample, `at` in the driver's microseconds. A GPU with given samples has no others."""

    pid: int
    at: int
    sm: int = 0
    mem: int = 0
    enc: int = 0
    dec: int = 0
    jpg: int = 0
    ofa: int = 0

    def __str__(self) -> str:
        return f"{self.pid},{self.at},{self.sm},{self.mem},{self.enc},{self.dec},{self.jpg},{self.ofa}"


@dataclass
class NvmlAccount:
    """One accounting record: `start` in microseconds, `time` in milliseconds, 0 while running."""

    pid: int
    start: int
    time: int = 0
    running: bool = False

    def __str__(self) -> str:
        return f"{self.pid},{self.start},{self.time},{int(self.running)}"


@dataclass
class NvmlInstance:
    """One MIG device; `slot` is its index in the driver's order, memory is bytes, activity percent."""

    slot: int
    gi: int
    ci: int = 0
    profile: str = "3g.40gb"
    sms: int = 60
    total: int = 40 << 30
    used: int = 1 << 30
    uuid: str = ""
    activity: float = 0.0


class NvmlGpu:
    """One GPU. Numbers are in NVML's units and named as at the top of the C file: power=250_000 is 250 W.

    `activity` is the percentage of time in which the engine was busy; it may be NaN. `answers` overrides the
    number that a call, field id or GPM metric returns, and `errors` its return code. Keys are the call's
    name, `CALL.ARGUMENT`, `field.83` or `gpm.1`. In answers, `CALL.INDEX` is one of several numbers that a
    call writes, and `type.83` the value type of a field.
    """

    def __init__(
        self, *processes: NvmlProcess, uuid: str = "", name: str = "", activity: float = 0.0, **numbers: int
    ) -> None:
        self.uuid = uuid
        self.name = name
        self.activity = activity
        self.numbers = numbers
        self.processes = list(processes)
        self.samples: list[NvmlSample] = []
        self.accounts: list[NvmlAccount] = []
        self.instances: list[NvmlInstance] = []
        self.errors: dict[str, int] = {}
        self.answers: dict[str, float] = {}

    def lines(self, index: int) -> list[str]:
        facts = {"uuid": self.uuid, "name": self.name, "activity": self.activity, **self.numbers}
        lines = [f"{key}={value}" for key, value in facts.items() if value != ""]
        lines += [f"process.{n}={process}" for n, process in enumerate(self.processes)]
        lines += [f"sample.{n}={sample}" for n, sample in enumerate(self.samples)]
        lines += [f"account.{n}={account}" for n, account in enumerate(self.accounts)]
        lines += [f"error.{call}={code}" for call, code in self.errors.items()]
        lines += [f"answer.{key}={value}" for key, value in self.answers.items()]
        for instance in self.instances:
            uuid = instance.uuid or f"MIG-00000000-0000-0000-{index:04d}-{instance.gi:06d}{instance.ci:06d}"
            lines.append(
                f"instance.{instance.slot}={uuid},{instance.gi},{instance.ci},{instance.profile},{instance.sms},{instance.total},{instance.used},"
                f"{instance.activity}"
            )
        return [f"gpu.{index}.{line}" for line in lines]


@dataclass
class NvmlState:
    """State of the test library.

    `errors` maps a call's name (or `*`, `field.83`, `mig.CALL`, `mig.*`) to its return code for every GPU.
    `events` are `(gpu, xid)` or `(gpu, xid, gi, ci)`, delivered once and in order. `time` is the driver's
    clock in seconds, None for the machine's clock; energy counters follow power over it, from `energy_since`
    of that clock on, or from the library's start. Another `reload`
    number is another load of the driver: the library must be initialized again. `r535` forces the longer
    process structure on or off.
    """

    path: Path
    gpus: list[NvmlGpu] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    names: dict[int, bytes] = field(default_factory=dict)
    events: list[tuple[int, ...]] = field(default_factory=list)
    hang: tuple[str, ...] = ()
    no_samples: str = "not_found"
    time: float | None = None
    energy_since: float | None = None
    reload: int = 0
    r535: bool | None = None
    sample_period: int = 166_667
    generation: int = 0

    def write(self) -> NvmlState:
        """Replace the file atomically."""
        lines = [f"time={'real' if self.time is None else self.time}", f"no_samples={self.no_samples}"]
        lines += [
            f"reload={self.reload}",
            f"sample_period={self.sample_period}",
            f"hang={','.join(self.hang)}",
        ]
        lines += [] if self.energy_since is None else [f"energy_since={self.energy_since}"]
        lines += [] if self.r535 is None else [f"r535={int(self.r535)}"]
        lines += [f"error.{call}={code}" for call, code in self.errors.items()]
        lines += [f"event.{n}={','.join(map(str, event))}" for n, event in enumerate(self.events, start=1)]
        lines += [f"pid.{pid}={_escaped(name)}" for pid, name in self.names.items()]
        for index, gpu in enumerate(self.gpus):
            lines += gpu.lines(index)
        # Two writes within one tick of the file system's clock may share inode and time: vary the size.
        self.generation += 1
        lines += [""] * (self.generation % 97)
        aside = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        aside.write_text("\n".join(lines) + "\n", "ascii")
        aside.replace(self.path)
        return self


def _escaped(name: bytes) -> str:
    return "".join(chr(byte) if 0x20 <= byte < 0x7F and byte != 0x5C else f"\\x{byte:02x}" for byte in name)

"""The driver asked once about everything, in a process of its own: a call that hangs or crashes is survived.

A driver in trouble can hold its caller in the kernel, where no signal reaches it and no thread can be ended.
So the asking is done by another process (COMMAND), which writes a line of JSON before each call and after
each GPU; who reads them knows which call did not come back.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import CDLL, byref, c_uint
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.quantities import (
    RETIRED_PAGES_PENDING,
    ROW_REMAP_FAILURE,
    ROW_REMAP_PENDING,
    Quantity,
)
from gpuledger.sources.nvml.codes import SUCCESS, name_of
from gpuledger.sources.nvml.devices import Devices
from gpuledger.sources.nvml.findings import Findings
from gpuledger.sources.nvml.gpm import has_gpm
from gpuledger.sources.nvml.library import LIBRARY, GpuGone, Library, load_library
from gpuledger.sources.nvml.processes import ProcessLists
from gpuledger.sources.nvml.readings import Readings
from gpuledger.sources.nvml.state import GpuState
from gpuledger.sources.nvml.utilization import NOT_READABLE, UtilizationSamples

# Imports what this process imports: the same code, and nothing more of the working directory than it does.
COMMAND: Final = (
    *(sys.executable, "-P", "-c"),
    "import sys; sys.path[:] = sys.argv[1:]; from gpuledger.sources.nvml.probe import main; main()",
    *(str(Path(folder).absolute()) for folder in sys.path if folder),
)
# Before the first line there is only the start of an interpreter, on a machine that may be busy.
_START_LIMIT: Final = 30.0
# Without persistence mode these set cards up from nothing, which takes seconds and is no fault.
_SLOW_CALLS: Final = ("nvmlInit", "nvmlDeviceGetHandleBy")
_SLOW_FACTOR: Final = 4
_WORN: Final = frozenset({ROW_REMAP_PENDING, ROW_REMAP_FAILURE, RETIRED_PAGES_PENDING})


@dataclass(frozen=True, slots=True)
class InstanceAnswer:
    """A MIG device as the driver tells it."""

    uuid: str
    gi: int
    ci: int
    profile: str


@dataclass(frozen=True, slots=True)
class GpuAnswer:
    """What one GPU said. Modes are 1 on, 0 off, None with the driver's reason in the field beside.

    `error` is the driver's reason when the GPU as a whole does not answer; `processes` counts its list, None
    with `processes_error`; `utilization_error` is empty when per-process samples are readable. `profiling`
    says whether there are GPM metrics, `repair_pending` and `repair_failed` how memory with errors stands;
    None is not known, for profiling with the reason unless it was not asked.
    """

    index: int
    uuid: str = ""
    name: str = ""
    address: str = ""
    minor: int | None = None
    error: str = ""
    persistence: int | None = None
    persistence_error: str = ""
    accounting: int | None = None
    accounting_error: str = ""
    mig: bool = False
    mig_error: str = ""
    instances: tuple[InstanceAnswer, ...] = ()
    processes: int | None = None
    processes_error: str = ""
    utilization_error: str = ""
    profiling: bool | None = None
    profiling_error: str = ""
    repair_pending: bool | None = None
    repair_failed: bool | None = None


@dataclass(slots=True)
class Answer:
    """What the driver said, as far as it came.

    `missing` says why the library could not be loaded, `refused` why it did not start (an NVML name) and
    `call` which call said so. `hung` names the call that did not come back within `limit` seconds, `crashed`
    how the asking process ended before its time. `done` is true when the driver was asked everything.
    """

    library: str = ""
    missing: str = ""
    refused: str = ""
    call: str = ""
    driver_version: str = ""
    library_version: str = ""
    gpus: list[GpuAnswer] = field(default_factory=list)
    hung: str = ""
    limit: float = 5.0
    crashed: str = ""
    done: bool = False


def ask(limit: float = 5.0, command: Sequence[str] = COMMAND) -> Answer:
    """Ask in another process; one call may take `limit` seconds, one that sets cards up four times that.

    Never raises for what the driver does.
    """
    answer = Answer()
    asking = ""

    def patience() -> float:
        if not asking:
            return _START_LIMIT
        return limit * (_SLOW_FACTOR if asking.startswith(_SLOW_CALLS) else 1)

    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        answer.crashed = f"{command[0]}: {error.strerror}"
        return answer
    assert child.stdout is not None
    with child.stdout as pipe:
        for line in _lines(pipe, patience):
            if line is None:
                answer.hung, answer.limit = asking or "its start", patience()
                break
            told = _object(line)
            asking = told.pop("asking", asking)
            _take(answer, told)
    if answer.hung:
        child.kill()
    code = _end(child)
    if not answer.hung and not answer.done:
        answer.crashed = f"signal {-code}" if code and code < 0 else f"exit code {code}"
        answer.call = asking
    return answer


def _object(line: bytes) -> dict[str, Any]:
    """The object of one line; empty for what the library itself writes to stdout."""
    try:
        told = json.loads(line)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _lines(pipe: IO[bytes], patience: Callable[[], float]) -> Iterator[bytes | None]:
    """Lines as they come; None when none came for as long as the `patience` of that moment, in seconds."""
    kept = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        until = time.monotonic() + patience()
        while True:
            if not selector.select(max(0.0, until - time.monotonic())):
                yield None
                return
            part = os.read(pipe.fileno(), 65536)
            if not part:
                return
            *lines, kept = (kept + part).split(b"\n")
            yield from lines
            until = time.monotonic() + patience()


def _end(child: subprocess.Popen[bytes]) -> int | None:
    try:
        return child.wait(1.0)
    except subprocess.TimeoutExpired:
        # Held in the kernel: it ends when the driver lets it go, and nobody can wait for that.
        return None


def _take(answer: Answer, told: dict[str, Any]) -> None:
    gpu = told.pop("gpu", None)
    if gpu is not None:
        gpu["instances"] = tuple(InstanceAnswer(**each) for each in gpu["instances"])
        answer.gpus.append(GpuAnswer(**gpu))
    for name, value in told.items():
        setattr(answer, name, value)


class _Telling(Library):
    """Says which call comes next."""

    def __init__(self, load: Callable[[], CDLL], tell: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(load)
        self._tell = tell
        self.asked = ""
        self.about = ""

    def call(self, call: str, *arguments: object) -> int:
        self._say(call)
        return super().call(call, *arguments)

    def ask(self, call: str, *arguments: object) -> int:
        self._say(call)
        return super().ask(call, *arguments)

    def _say(self, call: str) -> None:
        self.asked = call
        self._tell({"asking": call + self.about})


def examine(tell: Callable[[dict[str, Any]], None], load: Callable[[], CDLL] = load_library) -> None:
    """Ask the driver in this process, and `tell` the fields of an Answer and each GpuAnswer as `gpu`."""
    tell({"asking": f"loading {LIBRARY}"})
    try:
        loaded = load()
    except OSError as error:
        tell({"missing": str(error), "done": True})
        return
    tell({"library": _where_loaded()})
    library = _Telling(lambda: loaded, tell)
    try:
        library.start()
        tell({"driver_version": library.text("nvmlSystemGetDriverVersion")[1]})
        tell({"library_version": library.text("nvmlSystemGetNVMLVersion")[1]})
        for gpu in _gpus(library):
            tell({"gpu": asdict(gpu)})
    except SourceUnavailable as error:
        tell({"refused": error.reason, "call": library.asked})
    library.stop()
    tell({"done": True})


def _gpus(library: _Telling) -> Iterator[GpuAnswer]:
    devices = Devices(library, (), slow_interval=0.0)
    devices.find_all()
    findings = Findings()
    devices.check(0.0, findings)
    lists = ProcessLists(library)
    lists.prepare()
    samples = UtilizationSamples(library)
    yield from (GpuAnswer(index, error=name_of(code)) for index, (code, _) in devices.missing.items())
    faults = {failure.device: failure.reason for failure in findings.failures}
    for state in devices.states:
        library.about = f" of GPU {state.gpu.index}"
        yield _gpu(state, library, lists, samples, faults.get(state.gpu, ""))
    library.about = ""


def _gpu(
    state: GpuState, library: Library, lists: ProcessLists, samples: UtilizationSamples, fault: str
) -> GpuAnswer:
    gpu = state.gpu
    findings = Findings()
    if not state.up:
        return _named(gpu, error=name_of(state.code))
    try:
        persistence, persistence_error = _mode(library, "nvmlDeviceGetPersistenceMode", state)
        accounting, accounting_error = _mode(library, "nvmlDeviceGetAccountingMode", state)
        if state.cut_known:
            lists.read(state, findings)
        lists_error = findings.error_of("processes")
        used = samples.read(state, 0.0, findings)
        profiling, profiling_error = _profiling(library, state)
        worn = Readings(library, slow_interval=0.0).read(state, _WORN, 0.0, Findings())
    except GpuGone as gone:
        return _named(gpu, error=name_of(gone.code))
    cut_error = "" if state.cut_read else fault
    parts = [part.device for part in state.instances]
    pids = {(part.device.uuid, pid) for part in state.parts for pid in part.pids}
    unreadable = (
        "" if used is not NOT_READABLE else findings.error_of("utilization") or cut_error or "NOT_SUPPORTED"
    )
    return _named(
        gpu,
        persistence=persistence,
        persistence_error=persistence_error,
        accounting=accounting,
        accounting_error=accounting_error,
        mig=state.mig_enabled,
        mig_error=cut_error,
        instances=tuple(
            InstanceAnswer(part.uuid, part.gi, part.ci, part.profile)
            for part in parts
            if isinstance(part, Instance)
        ),
        processes=None if any(part.held is None for part in state.parts) else len(pids),
        processes_error=lists_error,
        utilization_error=unreadable,
        profiling=profiling,
        profiling_error=profiling_error,
        repair_pending=_any(worn, ROW_REMAP_PENDING, RETIRED_PAGES_PENDING),
        repair_failed=_any(worn, ROW_REMAP_FAILURE),
    )


def _named(gpu: Gpu, **rest: Any) -> GpuAnswer:
    return GpuAnswer(gpu.index, gpu.uuid, gpu.name, gpu.pci_bus_id, gpu.minor, **rest)


def _mode(library: Library, call: str, state: GpuState) -> tuple[int | None, str]:
    mode = c_uint()
    code = library.ask(call, state.handle, byref(mode))
    return (mode.value, "") if code == SUCCESS else (None, name_of(code))


def _profiling(library: Library, state: GpuState) -> tuple[bool | None, str]:
    code, has = has_gpm(library, state.handle)
    return (has, "") if code == SUCCESS else (None, name_of(code))


def _any(values: Mapping[Quantity, float], *flags: Quantity) -> bool | None:
    """Whether one of the flags is up; None if none was told."""
    told = [values[flag] for flag in flags if flag in values]
    return any(told) if told else None


def _where_loaded(maps: Path = Path("/proc/self/maps")) -> str:
    """The real path of the library in this process; its bare name where that is not told."""
    try:
        for line in maps.read_text("utf-8", "backslashreplace").splitlines():
            path = line.split(None, 5)[-1]
            if path.rsplit("/", 1)[-1].startswith("libnvidia-ml.so"):
                return path
    except OSError:
        pass
    return LIBRARY


def _write(told: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Ask, and write what is told to stdout."""
    examine(_write)

"""Read the driver once with NvmlSource, in a separate process that may hang or crash.

A faulty driver can block its caller in the kernel, where neither signals nor threads help. So another process
(COMMAND) makes the calls. It sends the name of each call before making it, which shows the call that did not
return.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from ctypes import CDLL
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Final, cast

from gpuledger.host.clock import SystemClock
from gpuledger.host.pci import PciBus
from gpuledger.host.procfs import RemoteHost
from gpuledger.model.devices import Instance
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.gpu_problems import GpuProblem, judge_gpu
from gpuledger.model.quantities import (
    PERSISTENCE_MODE,
    QUANTITIES,
)
from gpuledger.model.snapshot import Failure, Reading, Snapshot
from gpuledger.model.throttle_reasons import throttling_now
from gpuledger.sources.nvml import accounting, devices, gpm, processes, quantity_values, utilization
from gpuledger.sources.nvml.codes import name_of
from gpuledger.sources.nvml.device_state import GpuState
from gpuledger.sources.nvml.devices import GpuDiscovery
from gpuledger.sources.nvml.findings import NvmlFindings
from gpuledger.sources.nvml.library import LIBRARY_NAME, load_library
from gpuledger.sources.nvml.source import NvmlSource
from gpuledger.sources.settings import SourceSettings

# The last argument is the pipe's number. Uses the import path of this process, without the working directory.
# An executable without an interpreter calls itself: cli/probe_driver.py.
COMMAND: Final = (
    (sys.executable, "probe_driver")
    if getattr(sys, "frozen", False)
    else (
        *(sys.executable, "-P", "-c"),
        "import sys; sys.path[:] = sys.argv[1:-1]; from gpuledger.sources.nvml.probe import main; main()",
        *(str(Path(folder).absolute()) for folder in sys.path if folder),
    )
)
# Limit for the start of the interpreter, before the first message; the machine may be busy.
_START_LIMIT: Final = 30.0
# Without persistence mode these calls initialize GPUs, which normally takes seconds.
_SLOW_CALLS: Final = ("nvmlInit", "nvmlDeviceGetHandleBy")
_SLOW_FACTOR: Final = 4


@dataclass(frozen=True, slots=True)
class GpuProbeResult:
    """Result for one GPU. Modes are 1 on, 0 off, None if not supported or, with an `_error`, if unknown.

    `error` is the reason if the whole GPU does not answer. `processes` is the number of entries in its lists,
    None with `processes_error`. `utilization_error` is empty if per-process samples are readable. `profiling`
    says whether GPM is supported, None if unknown; `profiling_error` is then the reason, or empty if GPM was
    not queried. `judged` are the kinds of problems that are known, `problems` those that the GPU has.
    """

    index: int
    uuid: str = ""
    name: str = ""
    address: str = ""
    minor: int | None = None
    error: str = ""
    persistence: float | None = None
    persistence_error: str = ""
    accounting: int | None = None
    accounting_error: str = ""
    mig: bool = False
    mig_error: str = ""
    instances: tuple[Instance, ...] = ()
    processes: int | None = None
    processes_error: str = ""
    utilization_error: str = ""
    profiling: bool | None = None
    profiling_error: str = ""
    judged: tuple[str, ...] = ()
    problems: tuple[GpuProblem, ...] = ()


@dataclass(slots=True)
class ProbeResult:
    """Result for the driver, as far as the probe got.

    `missing` is why the library could not be loaded. `refused` is the NVML name of the error that prevented
    the reading. `call` is the last call made. `hung` is the call that did not return within `limit` seconds;
    `crashed` says how the probing process ended early. `done` is True if everything was queried.
    """

    library: str = ""
    missing: str = ""
    refused: str = ""
    call: str = ""
    driver_version: str = ""
    library_version: str = ""
    gpus: list[GpuProbeResult] = field(default_factory=list)
    hung: str = ""
    limit: float = 5.0
    crashed: str = ""
    done: bool = False


def probe_driver(limit: float = 5.0, command: Sequence[str] = COMMAND) -> ProbeResult:
    """Probe the driver in another process. A call may take `limit` seconds, four times that to start GPUs.

    Never raises for what the driver does.
    """
    result = ProbeResult()
    receiver, sender = Pipe(duplex=False)
    with receiver:
        with sender:
            pipe = sender.fileno()
            try:
                child = subprocess.Popen(
                    (*command, str(pipe)),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(pipe,),
                )
            except OSError as error:
                result.crashed = f"{command[0]}: {error.strerror}"
                return result
        _receive(receiver, result, limit)
    if result.hung:
        child.kill()
    code = _reap(child)
    if not result.hung and not result.done:
        result.crashed = f"signal {-code}" if code and code < 0 else f"exit code {code}"
    return result


def _receive(receiver: Connection, result: ProbeResult, limit: float) -> None:
    """Set the fields that the child sends, until it closes the pipe or one of its calls hangs."""
    while receiver.poll(seconds := _time_limit(result.call, limit)):
        try:
            message = receiver.recv()
        except (EOFError, OSError):
            return
        for name, value in message.items():
            setattr(result, name, value)
    result.hung, result.limit = result.call or "its start", seconds


def _time_limit(call: str, limit: float) -> float:
    if not call:
        return _START_LIMIT
    return limit * (_SLOW_FACTOR if call.startswith(_SLOW_CALLS) else 1)


def _reap(child: subprocess.Popen[bytes]) -> int | None:
    try:
        return child.wait(1.0)
    except subprocess.TimeoutExpired:
        # The process is blocked in the kernel and cannot be waited for.
        return None


class _TracedLibrary:
    """The loaded library; `report` gets the name and the arguments of each call before it is made."""

    def __init__(self, library: CDLL, report: Callable[..., None]) -> None:
        self._library = library
        self._report = report

    def __getattr__(self, call: str) -> Callable[..., int]:
        function: Callable[..., int] = getattr(self._library, call)

        def report_and_call(*arguments: object) -> int:
            self._report(call, *arguments)
            return function(*arguments)

        return report_and_call


def query_driver(
    send: Callable[[dict[str, Any]], None],
    load: Callable[[], CDLL] = load_library,
    pci: PciBus | None = None,
) -> None:
    """Read one Snapshot of all Gpus and quantities in this process; `send` fields of ProbeResult."""
    send({"call": f"loading {LIBRARY_NAME}"})
    try:
        loaded = load()
    except OSError as error:
        send({"missing": str(error), "done": True})
        return
    send({"library": _find_loaded_library()})

    def report(call: str, handle: object = None, *_: object) -> None:
        send({"call": call + _describe_handle(handle, source.discovery.states)})

    traced = cast(CDLL, _TracedLibrary(loaded, report))
    source = NvmlSource(SourceSettings(), RemoteHost(), SystemClock(), pci=pci, load=lambda: traced)
    try:
        snapshot = source.read(frozenset(QUANTITIES.values()))
        send({"gpus": list(_gpu_results(source.discovery, snapshot))})
    except SourceUnavailable as error:
        send({"refused": error.reason})
    info = source.info
    send({"driver_version": info.driver_version, "library_version": info.library_version})
    source.close()
    send({"done": True})


def _describe_handle(handle: object, states: Sequence[GpuState]) -> str:
    """Return ` of GPU 0` for the handle of this Gpu or one of its Instances; empty for others."""
    for state in states:
        if any(handle is part.handle for part in (state, *state.instances)):
            return f" of GPU {state.gpu.index}"
    return ""


def _gpu_results(found: GpuDiscovery, snapshot: Snapshot) -> Iterator[GpuProbeResult]:
    for index, (code, _) in found.unreachable.items():
        yield GpuProbeResult(index, error=name_of(code))
    readings = {reading.device: reading for reading in snapshot.readings}
    for state in found.states:
        gpu = state.gpu
        result = GpuProbeResult(gpu.index, gpu.uuid, gpu.name, gpu.pci_bus_id, gpu.minor)
        failures = [each for each in snapshot.failures if each.device and each.device.gpu == gpu]
        if state.up:
            yield _with_facts(result, state, readings[gpu], failures, snapshot.unix)
        else:
            yield replace(result, error=name_of(state.code))


def _with_facts(
    result: GpuProbeResult, state: GpuState, reading: Reading, failures: list[Failure], unix: float
) -> GpuProbeResult:
    """Return the result of a Gpu that answers, with what the tick read."""
    mig_error = "" if state.mig_layout_read else _last_reason(failures, devices.PART)
    listed = [part.listed for part in state.process_devices]
    error_of = NvmlFindings(failures).error_of
    found = judge_gpu(reading, throttling_now(reading.values, unix))
    no_samples = error_of(utilization.PART) or mig_error or "NOT_SUPPORTED"
    return replace(
        result,
        persistence=reading.get(PERSISTENCE_MODE),
        persistence_error=_last_reason(failures, quantity_values.PART, PERSISTENCE_MODE.key),
        accounting=state.accounting_mode,
        accounting_error=_last_reason(failures, accounting.PART) or mig_error,
        mig=state.mig_enabled,
        mig_error=mig_error,
        instances=tuple(part.device for part in state.instances if isinstance(part.device, Instance)),
        processes=None if None in listed else sum(len(pids or ()) for pids in listed),
        processes_error=error_of(processes.PART) or mig_error,
        utilization_error=no_samples if reading.samples is None else "",
        profiling=state.gpm,
        profiling_error=_last_reason(failures, quantity_values.PART, gpm.SUPPORT_CALL),
        judged=tuple(found),
        problems=tuple(problem for problem in found.values() if problem is not None),
    )


def _last_reason(failures: Sequence[Failure], part: str, name: str = "") -> str:
    """Return the reason of the part's last failure of the quantity or call `name`; empty without one."""
    reasons = [each.reason for each in failures if each.part == part and f"{name}:" in each.detail]
    return reasons[-1] if reasons else ""


def _find_loaded_library(maps: Path = Path("/proc/self/maps")) -> str:
    """Return the real path of the loaded library, or its bare name if unknown."""
    try:
        for line in maps.read_text("utf-8", "backslashreplace").splitlines():
            path = line.split(None, 5)[-1]
            if path.rsplit("/", 1)[-1].startswith("libnvidia-ml.so"):
                return path
    except OSError:
        pass
    return LIBRARY_NAME


def main() -> None:
    """Query the driver and send the results through the pipe of the parent process."""
    with Connection(int(sys.argv[-1]), readable=False) as sender:
        query_driver(sender.send, pci=PciBus())

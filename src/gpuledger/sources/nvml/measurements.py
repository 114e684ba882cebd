"""Measurements of how the driver behaves, for `selftest`: refresh of counters, kept samples, list sizes.

All of them only read. They are made in the thread that reads the source, between its ticks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from ctypes import CDLL, byref, c_ulonglong
from dataclasses import dataclass
from typing import Final

from gpuledger.model.source import Clock
from gpuledger.sources.nvml.codes import Code, name_of
from gpuledger.sources.nvml.device_state import DeviceState, GpuState
from gpuledger.sources.nvml.findings import NvmlFindings
from gpuledger.sources.nvml.library import GpuLost, NvmlLibrary
from gpuledger.sources.nvml.processes import PART as LISTS_PART
from gpuledger.sources.nvml.processes import ProcessListReader
from gpuledger.sources.nvml.utilization import UtilizationReader

_ENERGY: Final = "nvmlDeviceGetTotalEnergyConsumption"
_POWER: Final = "nvmlDeviceGetPowerUsage"
# Read power at every so many readings of the counter: on some cards it takes milliseconds.
_POWER_EVERY: Final = 5
# Lists change while they are read.
_LIST_TRIES: Final = 5
# Seconds by which a timestamp of the driver may differ from a clock that it is taken from.
_SAME_CLOCK: Final = 120.0


class CountedLibrary:
    """The loaded library; counts the calls, and remembers the functions that it does not have."""

    def __init__(self, library: CDLL) -> None:
        self._library = library
        self.calls = 0
        self.missing: set[str] = set()

    def __getattr__(self, call: str) -> Callable[..., int]:
        try:
            function: Callable[..., int] = getattr(self._library, call)
        except AttributeError:
            self.missing.add(call)
            raise

        def count_and_call(*arguments: object) -> int:
            self.calls += 1
            return function(*arguments)

        return count_and_call


@dataclass(frozen=True, slots=True)
class MeterPoint:
    """The energy counter in millijoules and the power in milliwatts at one moment; None if not read."""

    at: float
    energy: int | None
    power: int | None


class MeterReader:
    """Reads the meters of Gpus in quick succession. `points` are by Gpu uuid."""

    def __init__(self, library: NvmlLibrary, clock: Clock) -> None:
        self._library = library
        self._clock = clock
        self._wide = c_ulonglong()
        self._rounds = 0
        self.points: dict[str, list[MeterPoint]] = {}

    def read(self, states: list[GpuState]) -> None:
        """Add one point for each Gpu that is up."""
        with_power = self._rounds % _POWER_EVERY == 0
        self._rounds += 1
        for state in states:
            if state.up:
                with suppress(GpuLost):
                    self.points.setdefault(state.gpu.uuid, []).append(self._point(state, with_power))

    def _point(self, state: GpuState, with_power: bool) -> MeterPoint:
        code = self._library.call_device(_ENERGY, state.handle, byref(self._wide))
        at, energy = self._clock.elapsed(), None if code else self._wide.value
        power = None
        if with_power:
            code, watts = self._library.query_number(_POWER, state.handle)
            power = None if code else watts
        return MeterPoint(at, energy, power)


@dataclass(frozen=True, slots=True)
class KeptSamples:
    """The utilization samples that the driver keeps of one Gpu.

    `error` is why there are none, as a name of NVML; NOT_FOUND if no process used an engine lately.
    `timestamps` are the distinct ones in microseconds, oldest first; `clock` is the clock that they are taken
    from (`boot`, `epoch` or `unknown`). `highest_sum` is the highest sum of the SM percentages of all
    processes at one of them.
    """

    call: str
    error: str = ""
    samples: int = 0
    timestamps: tuple[int, ...] = ()
    clock: str = ""
    highest_sum: int = 0


def read_kept_samples(library: NvmlLibrary, state: GpuState, clock: Clock) -> KeptSamples:
    """Read all samples that the driver keeps, also those that ticks have read. Raises GpuLost."""
    call, code, rows = UtilizationReader(library).read_kept(state)
    if code:
        return KeptSamples(call, name_of(code))
    sums: dict[int, int] = {}
    for at, pid, sm, *_ in rows:
        if pid:
            sums[at] = sums.get(at, 0) + sm
    if not sums:
        return KeptSamples(call, Code.NOT_FOUND.name)
    timestamps = tuple(sorted(sums))
    seconds = timestamps[-1] / 1e6
    known = {"boot": clock.elapsed(), "epoch": clock.unix()}
    same = next((name for name, now in known.items() if abs(seconds - now) < _SAME_CLOCK), "unknown")
    return KeptSamples(call, "", len(rows), timestamps, same, max(sums.values()))


@dataclass(frozen=True, slots=True)
class ListGrowth:
    """The process lists of one Device, read with a first buffer for one entry and with the usual one.

    `processes` is the number of processes in the usual reading. `grown` is True if a list was longer than the
    first buffer, `same` if both readings have the same processes and types. `error` is why they cannot be
    read.
    """

    processes: int = 0
    grown: bool = False
    same: bool = True
    error: str = ""


def read_list_growth(library: NvmlLibrary, counted: CountedLibrary, state: GpuState) -> Iterator[ListGrowth]:
    """Yield the growth of the lists of each Device of the Gpu that can run processes. Raises GpuLost."""
    for _ in range(_LIST_TRIES):
        usual, calls = _read_lists(library, counted, state, capacity=None)
        small, more_calls = _read_lists(library, counted, state, capacity=1)
        if usual == small:
            break
    for device_state, before, after in zip(state.process_devices, usual, small, strict=True):
        if before is None or after is None:
            yield ListGrowth(error=_list_error(library, device_state, state))
        else:
            yield ListGrowth(len(before), more_calls > calls, before == after)


def _read_lists(
    library: NvmlLibrary, counted: CountedLibrary, state: GpuState, capacity: int | None
) -> tuple[list[dict[int, int] | None], int]:
    """Return type bits by pid for each Device, and the number of calls."""
    reader = ProcessListReader(library) if capacity is None else ProcessListReader(library, capacity)
    reader.prepare()
    before = counted.calls
    reader.read(state, NvmlFindings())
    lists = [
        None if part.listed is None else {pid: bits for pid, (bits, _) in part.listed.items()}
        for part in state.process_devices
    ]
    return lists, counted.calls - before


def _list_error(library: NvmlLibrary, device_state: DeviceState, state: GpuState) -> str:
    findings = NvmlFindings()
    reader = ProcessListReader(library)
    reader.prepare()
    reader.read(state, findings)
    reasons = [each.reason for each in findings.failures if each.part == LISTS_PART]
    return reasons[0] if reasons and device_state.listed is None else "CHANGED"

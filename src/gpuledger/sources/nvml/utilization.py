"""The driver's per-process utilization samples, and each process's mean over their periods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ctypes import addressof, byref, c_uint, c_ulonglong, create_string_buffer
from dataclasses import dataclass, field
from typing import Final

from gpuledger.model.process import NO_USAGE, Usage, UtilizationSample
from gpuledger.sources.nvml.codes import INSUFFICIENT_SIZE, NO_PERMISSION, NOT_FOUND, SUCCESS, UNSUPPORTED
from gpuledger.sources.nvml.findings import Findings
from gpuledger.sources.nvml.library import Library, ListBuffer, view
from gpuledger.sources.nvml.state import GpuState
from gpuledger.sources.nvml.structs import BLANK_64, SAMPLE, SAMPLE_INFO, SAMPLES_INFO, SAMPLES_INFO_VERSION

PART: Final = "utilization"
_NEWER: Final = "nvmlDeviceGetProcessesUtilizationInfo"
_OLDER: Final = "nvmlDeviceGetProcessUtilization"
_MOST_SAMPLES: Final = 1 << 18
_FIRST_WINDOW: Final = 1_000_000

# Asked and found idle: the driver has samples only of processes that used an engine.
_IDLE: Final = {
    _NEWER: Usage(sm=0.0, memory=0.0, encoder=0.0, decoder=0.0, jpeg=0.0, ofa=0.0),
    _OLDER: Usage(sm=0.0, memory=0.0, encoder=0.0, decoder=0.0),
}
# Time, pid, then engines in percent: sm, memory, encoder, decoder and, from the newer call, jpeg and ofa.
_Row = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Utilization:
    """Samples since the last tick and what follows for each pid; `idle` is for the pids without a sample.

    `samples` is None when they are not readable. A pid whose samples were all disbelieved is not idle: its
    Usage is empty.
    """

    samples: tuple[UtilizationSample, ...] | None = None
    usages: Mapping[int, Usage] = field(default_factory=dict)
    idle: Usage = NO_USAGE

    def of(self, pid: int) -> Usage:
        """What the process used, 0 when it was seen idle, all None when nothing is known."""
        return self.usages.get(pid, self.idle)


NOT_READABLE: Final = Utilization()


class UtilizationSamples:
    """Reads each Gpu's samples that are newer than the newest seen.

    Timestamps are the driver's microseconds, said to be CPU time: on some machines since the epoch, on others
    since boot. So they are compared with each other only; how long a tick was our own clock says. The first
    answer may reach back many seconds and over processes long gone: of it, only the second before its newest
    sample counts.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._count = c_uint()
        self._info = create_string_buffer(SAMPLES_INFO.size)
        self._told = ListBuffer(256, SAMPLE_INFO.size, _MOST_SAMPLES)

    def read(self, state: GpuState, now: float, findings: Findings) -> Utilization:
        """Samples of the Gpu since the last call, at `now` on our own clock. Raises GpuGone."""
        # Not told while a card is cut by MIG (nvml.h).
        if state.mig_enabled or not state.cut_known or state.samples_call is None:
            return NOT_READABLE
        call = state.samples_call or _NEWER
        code, rows = self._ask(call, state)
        if code in UNSUPPORTED and not state.samples_call and call == _NEWER:
            call = _OLDER
            code, rows = self._ask(call, state)
        if code in UNSUPPORTED:
            state.samples_call = None
            return NOT_READABLE
        if code not in (SUCCESS, NOT_FOUND):
            findings.fail(PART, code, call, state.gpu)
            if code != NO_PERMISSION:
                state.fault = state.fault or code
            return NOT_READABLE
        state.samples_call = call
        state.answered = True
        by_pid = _since(rows, state)
        stamps = {row[0] for mine in by_pid.values() for row in mine}
        return _judge(by_pid, state.periods.count(stamps, now), _IDLE[call], findings)

    def _ask(self, call: str, state: GpuState) -> tuple[int, list[_Row]]:
        ask = self._newer if call == _NEWER else self._older
        while True:
            code, count = ask(state)
            if code != INSUFFICIENT_SIZE or not self._told.grow(count):
                break
        if code or not count:
            return code, []
        if call == _NEWER:
            return code, list(SAMPLE_INFO.iter_unpack(view(self._told.data, count * SAMPLE_INFO.size)))
        told = SAMPLE.iter_unpack(view(self._told.data, count * SAMPLE.size))
        return code, [(at, pid, *engines) for pid, at, *engines in told]

    def _newer(self, state: GpuState) -> tuple[int, int]:
        last, told = state.last_sample or 0, self._told
        SAMPLES_INFO.pack_into(self._info, 0, SAMPLES_INFO_VERSION, told.room, last, addressof(told.data))
        code = self._library.ask(_NEWER, state.handle, self._info)
        return code, int(SAMPLES_INFO.unpack(self._info)[1])

    def _older(self, state: GpuState) -> tuple[int, int]:
        self._count.value = self._told.room
        last = c_ulonglong(state.last_sample or 0)
        code = self._library.ask(_OLDER, state.handle, self._told.data, byref(self._count), last)
        return code, self._count.value


def _since(rows: list[_Row], state: GpuState) -> dict[int, list[_Row]]:
    """Rows by pid that are newer than the newest seen, which is then moved on; the periods are learnt."""
    rows = [row for row in rows if row[0] < BLANK_64]
    last = state.last_sample
    if last is None:
        state.periods.restart()
    newest = max((row[0] for row in rows), default=0)
    if newest > (last or 0):
        state.last_sample = newest
    new = _by_pid(row for row in rows if row[1] and row[0] > (last or 0))
    state.periods.learn((pid, [row[0] for row in mine]) for pid, mine in new.items())
    if last is None:
        return _by_pid(row for row in rows if row[1] and row[0] > newest - _FIRST_WINDOW)
    return new


def _by_pid(rows: Iterable[_Row]) -> dict[int, list[_Row]]:
    found: dict[int, list[_Row]] = {}
    for row in rows:
        found.setdefault(row[1], []).append(row)
    return found


def _judge(by_pid: dict[int, list[_Row]], periods: int, idle: Usage, findings: Findings) -> Utilization:
    samples: list[UtilizationSample] = []
    usages: dict[int, Usage] = {}
    for pid, rows in by_pid.items():
        sums = [0] * (len(rows[0]) - 2)
        believed = 0
        for at, _, *engines in rows:
            if max(engines) > 100:
                continue
            believed += 1
            sums = [total + engine for total, engine in zip(sums, engines, strict=True)]
            samples.append(UtilizationSample(pid, at, *[engine / 100 for engine in engines]))
        # A period without a sample is zero for the process, one whose sample is not believed is unknown.
        findings.invalid += len(rows) - believed
        known = max(believed, periods - len(rows) + believed)
        usages[pid] = Usage(*[total / (100 * known) for total in sums]) if believed else NO_USAGE
    return Utilization(tuple(samples), usages, idle)

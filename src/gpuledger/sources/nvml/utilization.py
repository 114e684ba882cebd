"""Read the driver's utilization samples per process and compute each process's mean over the tick."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ctypes import addressof, byref, c_uint, c_ulonglong, create_string_buffer
from dataclasses import dataclass, field
from typing import Final

from gpuledger.model.process import NO_USAGE, Usage, UtilizationSample
from gpuledger.sources.nvml.codes import UNSUPPORTED, Code
from gpuledger.sources.nvml.device_state import GpuState
from gpuledger.sources.nvml.findings import NvmlFindings
from gpuledger.sources.nvml.library import ListBuffer, NvmlLibrary, buffer_view
from gpuledger.sources.nvml.structs import BLANK_64, SAMPLE, SAMPLE_INFO, SAMPLES_INFO, SAMPLES_INFO_VERSION

PART: Final = "utilization"
_NEWER: Final = "nvmlDeviceGetProcessesUtilizationInfo"
_OLDER: Final = "nvmlDeviceGetProcessUtilization"
_MAX_SAMPLES: Final = 1 << 18
_FIRST_WINDOW_US: Final = 1_000_000

# Usage of an idle process: the driver has samples only of processes that used an engine.
_IDLE: Final = {
    _NEWER: Usage(sm=0.0, memory=0.0, encoder=0.0, decoder=0.0, jpeg=0.0, ofa=0.0),
    _OLDER: Usage(sm=0.0, memory=0.0, encoder=0.0, decoder=0.0),
}
# Timestamp, pid, then percent per engine: sm, memory, encoder, decoder and, from the newer call, jpeg, ofa.
_Row = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Utilization:
    """New samples of one Gpu and the usage of each pid; `idle` is the usage of pids without a sample.

    `samples` is None if they cannot be read. A pid with only invalid samples is not idle: its Usage is empty.
    """

    samples: tuple[UtilizationSample, ...] | None = None
    usages: Mapping[int, Usage] = field(default_factory=dict)
    idle: Usage = NO_USAGE

    def usage_of(self, pid: int) -> Usage:
        """Return the usage of the process: 0 if it was idle, all None if unknown."""
        return self.usages.get(pid, self.idle)


NOT_READABLE: Final = Utilization()


class UtilizationReader:
    """Reads the samples of each Gpu that are newer than the last one seen.

    Timestamps are microseconds on the driver's clock, called "CPU timestamp": since the epoch on some
    machines, since boot on others. So they are compared only with each other; the length of a tick comes from
    gpuledger's clock. The first result may cover many seconds and processes that ended long ago, so only the
    last second before its newest sample counts.
    """

    def __init__(self, library: NvmlLibrary) -> None:
        self._library = library
        self._count = c_uint()
        self._info = create_string_buffer(SAMPLES_INFO.size)
        self._buffer = ListBuffer(256, SAMPLE_INFO.size, _MAX_SAMPLES)

    def read(self, state: GpuState, now: float, findings: NvmlFindings) -> Utilization:
        """Return the Gpu's samples since the last call; `now` is on gpuledger's clock. Raises GpuLost."""
        # Not available under MIG (nvml.h).
        if state.mig_enabled or not state.mig_layout_known or state.utilization_call is None:
            return NOT_READABLE
        call = state.utilization_call or _NEWER
        code, rows = self._query(call, state)
        if code in UNSUPPORTED and not state.utilization_call and call == _NEWER:
            call = _OLDER
            code, rows = self._query(call, state)
        if code in UNSUPPORTED:
            state.utilization_call = None
            return NOT_READABLE
        if code not in (Code.SUCCESS, Code.NOT_FOUND):
            findings.add_error(PART, code, call, state.gpu)
            if code != Code.NO_PERMISSION:
                state.first_error = state.first_error or code
            return NOT_READABLE
        state.utilization_call = call
        state.answered = True
        by_pid = _select_new_samples(rows, state)
        timestamps = {row[0] for mine in by_pid.values() for row in mine}
        return _compute_usages(by_pid, state.periods.count(timestamps, now), _IDLE[call], findings)

    def read_kept(self, state: GpuState) -> tuple[str, int, list[_Row]]:
        """Return the call, its code, and all samples that the driver keeps, whether read before or not.

        What later calls of `read` return is not affected. Raises GpuLost.
        """
        if state.mig_enabled or state.utilization_call is None:
            return _NEWER, Code.NOT_SUPPORTED, []
        call, last = state.utilization_call or _NEWER, state.last_sample
        state.last_sample = None
        try:
            return call, *self._query(call, state)
        finally:
            state.last_sample = last

    def _query(self, call: str, state: GpuState) -> tuple[int, list[_Row]]:
        query = self._query_newer if call == _NEWER else self._query_older
        code, count = self._buffer.fill(lambda: query(state))
        if code or not count:
            return code, []
        if call == _NEWER:
            return code, list(
                SAMPLE_INFO.iter_unpack(buffer_view(self._buffer.data, count * SAMPLE_INFO.size))
            )
        entries = SAMPLE.iter_unpack(buffer_view(self._buffer.data, count * SAMPLE.size))
        return code, [(at, pid, *engines) for pid, at, *engines in entries]

    def _query_newer(self, state: GpuState) -> tuple[int, int]:
        last, buffer = state.last_sample or 0, self._buffer
        SAMPLES_INFO.pack_into(
            self._info, 0, SAMPLES_INFO_VERSION, buffer.capacity, last, addressof(buffer.data)
        )
        code = self._library.call_device(_NEWER, state.handle, self._info)
        return code, int(SAMPLES_INFO.unpack(self._info)[1])

    def _query_older(self, state: GpuState) -> tuple[int, int]:
        self._count.value = self._buffer.capacity
        last = c_ulonglong(state.last_sample or 0)
        code = self._library.call_device(_OLDER, state.handle, self._buffer.data, byref(self._count), last)
        return code, self._count.value


def _select_new_samples(rows: list[_Row], state: GpuState) -> dict[int, list[_Row]]:
    """Return samples newer than the last one seen, by pid; update that timestamp and the sample period."""
    # A sample that is listed twice is one sample.
    rows = list(dict.fromkeys(row for row in rows if row[0] < BLANK_64))
    last = state.last_sample
    if last is None:
        state.periods.restart()
    newest = max((row[0] for row in rows), default=0)
    if newest > (last or 0):
        state.last_sample = newest
    new = _group_by_pid(row for row in rows if row[1] and row[0] > (last or 0))
    state.periods.update((pid, [row[0] for row in mine]) for pid, mine in new.items())
    if last is None:
        return _group_by_pid(row for row in rows if row[1] and row[0] > newest - _FIRST_WINDOW_US)
    return new


def _group_by_pid(rows: Iterable[_Row]) -> dict[int, list[_Row]]:
    found: dict[int, list[_Row]] = {}
    for row in rows:
        found.setdefault(row[1], []).append(row)
    return found


def _compute_usages(
    by_pid: dict[int, list[_Row]], periods: int, idle: Usage, findings: NvmlFindings
) -> Utilization:
    samples: list[UtilizationSample] = []
    usages: dict[int, Usage] = {}
    for pid, rows in by_pid.items():
        sums = [0] * (len(rows[0]) - 2)
        valid = 0
        for at, _, *engines in rows:
            if max(engines) > 100:
                continue
            valid += 1
            sums = [total + engine for total, engine in zip(sums, engines, strict=True)]
            samples.append(UtilizationSample(pid, at, *[engine / 100 for engine in engines]))
        # A period without a sample counts as zero, a period with an invalid sample as unknown.
        findings.reject("utilization of a process", "above 100 %", count=len(rows) - valid)
        known = max(valid, periods - len(rows) + valid)
        usages[pid] = Usage(*[total / (100 * known) for total in sums]) if valid else NO_USAGE
    return Utilization(tuple(samples), usages, idle)

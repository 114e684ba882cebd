"""Records of the driver's accounting mode: who came and went between two ticks, and when the others did."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from ctypes import byref, c_uint, c_void_p, create_string_buffer
from dataclasses import dataclass, field
from typing import Final

from gpuledger.model.process import AccountingRecord
from gpuledger.sources.nvml.codes import (
    INSUFFICIENT_SIZE,
    NO_PERMISSION,
    NOTHING_YET,
    SUCCESS,
    UNSUPPORTED,
    name_of,
)
from gpuledger.sources.nvml.findings import Findings
from gpuledger.sources.nvml.library import Library, ListBuffer, view
from gpuledger.sources.nvml.state import GpuState
from gpuledger.sources.nvml.structs import ACCOUNTING_STATS, BLANK_64

PART: Final = "accounting"
_MODE: Final = "nvmlDeviceGetAccountingMode"
_SET_MODE: Final = "nvmlDeviceSetAccountingMode"
_PIDS: Final = "nvmlDeviceGetAccountingPids"
_STATS: Final = "nvmlDeviceGetAccountingStats"
_PID_SIZE: Final = 4
# The driver keeps 4,000 or so.
_MOST_PIDS: Final = 1 << 16
# A burst of starts is read over several ticks.
_MOST_PER_TICK: Final = 256
# How often the record of a process that is in no list is looked at until it says that the process ended.
_LOOKS: Final = 5
# Clocks of one machine differ by less, in seconds.
_SKEW: Final = 1.0
_ROOT: Final = "run as root, or once `nvidia-smi -am 1` as root"

log = logging.getLogger("gpuledger.nvml")


@dataclass(slots=True, eq=False)
class _Watch:
    """What is kept of one Gpu, of `handle`, between ticks.

    `settled` says that the mode was turned on, or need not be. `pids` is the driver's list as told last, None
    before the first; `held` are the pids that stood in the process lists then. `due` are those whose record
    is to be read, with the looks that are left.
    """

    handle: c_void_p
    ask_mode_at: float = 0.0
    on: bool = False
    settled: bool = False
    pids: bytes | None = None
    held: frozenset[int] = frozenset()
    due: dict[int, int] = field(default_factory=dict)

    def stop(self) -> None:
        """The mode is off: what comes when it is on again does not go on from this."""
        self.on, self.pids, self.held, self.due = False, None, frozenset(), {}


class AccountingRecords:
    """Reads what is new of each Gpu on which accounting mode is on, which MIG never is.

    One call per Gpu and tick, for the list of pids: nothing else tells in time that a process came and went.
    A record is read when its pid is new in that list, and when the process has left the process lists; it is
    told once the process is in the lists or has ended. Whether the mode is on is asked every `slow_interval`
    seconds; with `enable` it is turned on when the driver was started or the card came back.
    """

    def __init__(self, library: Library, slow_interval: float, enable: bool) -> None:
        self._library = library
        self._slow_interval = slow_interval
        self._enable = enable
        self._count = c_uint()
        self._pids = ListBuffer(128, _PID_SIZE, _MOST_PIDS)
        self._stats = create_string_buffer(ACCOUNTING_STATS.size)
        self._watched: dict[GpuState, _Watch] = {}

    def keep(self, states: Iterable[GpuState]) -> None:
        """Forget all other Gpus."""
        kept = frozenset(states)
        self._watched = {state: watch for state, watch in self._watched.items() if state in kept}

    def read(
        self, state: GpuState, unix: float, now: float, scanned: bool, findings: Findings
    ) -> tuple[AccountingRecord, ...]:
        """Records of processes that began or ended since the last call, in the seconds of `now`.

        `unix` is the same moment in wall time; `scanned` says that the process lists are of this tick. Raises
        GpuGone.
        """
        if state.mig_enabled or not state.cut_known:
            if state.mig_enabled:
                self._watched.pop(state, None)
            return ()
        watch = self._watched.get(state)
        if watch is None or watch.handle is not state.handle:
            watch = self._watched[state] = _Watch(state.handle)
        if now >= watch.ask_mode_at:
            self._ask_mode(state, watch, now, findings)
        if not watch.on or not self._list(state, watch, findings):
            return ()
        return self._ask(state, watch, unix, now, scanned and state.held is not None, findings)

    def _ask_mode(self, state: GpuState, watch: _Watch, now: float, findings: Findings) -> None:
        code, mode = self._library.number(_MODE, state.handle)
        if code and code not in UNSUPPORTED:
            findings.fail(PART, code, _MODE, state.gpu)
            return  # What was known stands, and it is asked again in the next tick.
        watch.ask_mode_at = now + self._slow_interval
        watch.on = mode == 1
        if not watch.settled:
            watch.settled = True
            if self._enable and not watch.on:
                watch.on = self._turn_on(state, code)
        if not watch.on:
            watch.stop()

    def _turn_on(self, state: GpuState, code: int) -> bool:
        """`code` says why there is no such mode, if there is none."""
        code = code or self._library.ask(_SET_MODE, state.handle, 1)
        if code:
            remedy = f": {_ROOT}" if code == NO_PERMISSION else ""
            log.warning(
                "GPU %d: accounting mode is not turned on: %s%s", state.gpu.index, name_of(code), remedy
            )
        return code == SUCCESS

    def _list(self, state: GpuState, watch: _Watch, findings: Findings) -> bool:
        """Read the pids, and see whose record is due."""
        pids = self._pids
        while True:
            self._count.value = pids.room
            code = self._library.ask(_PIDS, state.handle, byref(self._count), pids.data)
            if code != INSUFFICIENT_SIZE or not pids.grow(self._count.value):
                break
        if code:
            if code in UNSUPPORTED:
                watch.stop()  # Turned off since it was asked.
            elif code not in NOTHING_YET:
                findings.fail(PART, code, _PIDS, state.gpu)
            return False
        told = bytes(view(pids.data, min(self._count.value, pids.room) * _PID_SIZE))
        before, watch.pids = watch.pids, told
        left, watch.held = watch.held - state.pids, state.pids
        if before == told and not left:
            return True
        # Kept as bytes: as a set of the driver's few thousand pids it would weigh ten times as much.
        kept = _unpacked(told)
        watch.due = {pid: looks for pid, looks in watch.due.items() if pid in kept}
        watch.due |= dict.fromkeys(kept - _unpacked(before) if before is not None else (), _LOOKS)
        watch.due |= dict.fromkeys(left & kept, _LOOKS)
        return True

    def _ask(
        self, state: GpuState, watch: _Watch, unix: float, now: float, fresh: bool, findings: Findings
    ) -> tuple[AccountingRecord, ...]:
        records: list[AccountingRecord] = []
        asked = [pid for pid, looks in watch.due.items() if fresh or looks == _LOOKS]
        for pid in asked[:_MOST_PER_TICK]:
            looks = watch.due.pop(pid)
            code = self._library.ask(_STATS, state.handle, pid, self._stats)
            if code in UNSUPPORTED:
                watch.stop()
                break
            if code:
                if code not in NOTHING_YET:
                    findings.fail(PART, code, f"{_STATS} of {pid}", state.gpu)
                    _look_again(watch, pid, looks)
                continue
            time, start, running = ACCOUNTING_STATS.unpack(self._stats)
            record = _record(pid, start, None if running else time, unix, now)
            if record is None:
                findings.invalid += 1
                continue
            if record.ended is not None or pid in state.pids:
                records.append(record)
            else:
                # It came after the lists were read, or left before its end was noted.
                _look_again(watch, pid, looks)
        return tuple(records)


def _look_again(watch: _Watch, pid: int, looks: int) -> None:
    if looks > 1:
        watch.due[pid] = looks - 1


def _unpacked(pids: bytes) -> set[int]:
    return set(memoryview(pids).cast("I"))


def _record(pid: int, start: int, time: int | None, unix: float, now: float) -> AccountingRecord | None:
    """The record in the seconds of `now`; None if it cannot be true.

    `start` is microseconds of a clock that NVML calls "CPU timestamp": since 1970, or since boot, where it
    cannot be later than now. `time` is the milliseconds until the end, None while it runs.
    """
    began = start / 1e6
    if began > now + _SKEW:
        began -= unix - now
    ended = None if time is None else began + time / 1000
    if not start or start >= BLANK_64 or not 0 <= began <= (began if ended is None else ended) <= now + _SKEW:
        return None
    return AccountingRecord(pid, began, ended)

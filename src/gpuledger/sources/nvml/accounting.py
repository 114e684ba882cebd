"""Read accounting mode's records: exact start and end of processes, also of those between two ticks."""

from __future__ import annotations

import logging
from ctypes import create_string_buffer
from typing import Final

from gpuledger.model.process import AccountingRecord
from gpuledger.sources.nvml.codes import NOTHING_YET, UNSUPPORTED, Code, name_of
from gpuledger.sources.nvml.device_state import AccountingState, GpuState
from gpuledger.sources.nvml.findings import NvmlFindings
from gpuledger.sources.nvml.library import ListBuffer, NvmlLibrary, buffer_view
from gpuledger.sources.nvml.structs import ACCOUNTING_STATS, BLANK_64

PART: Final = "accounting"
_MODE: Final = "nvmlDeviceGetAccountingMode"
_SET_MODE: Final = "nvmlDeviceSetAccountingMode"
_PIDS: Final = "nvmlDeviceGetAccountingPids"
_STATS: Final = "nvmlDeviceGetAccountingStats"
_PID_SIZE: Final = 4
# The driver's own limit is about 4,000.
_MAX_PIDS: Final = 1 << 16
# The rest of a burst is read in the next ticks.
_MAX_RECORDS_PER_TICK: Final = 256
# How often to read the record of a process that is in no process list and has not ended.
_MAX_RECORD_READS: Final = 5
# Seconds by which the clocks of one machine may differ.
_MAX_CLOCK_SKEW: Final = 1.0
_ROOT_REMEDY: Final = "run as root, or once `nvidia-smi -am 1` as root"

log = logging.getLogger("gpuledger.nvml")


class AccountingReader:
    """Reads new accounting records of each Gpu on which accounting mode is on. MIG excludes the mode.

    Each tick costs one call per Gpu, for the list of pids: only this list shows a process that started and
    ended between two ticks. A record is read when its pid is new in the list and when its process has left
    the process lists. It is returned once the process is in the process lists or has ended. The mode is
    queried every `slow_interval` seconds. With `enable` it is turned on after a start of the driver or the
    return of a GPU.
    """

    def __init__(self, library: NvmlLibrary, slow_interval: float, enable: bool) -> None:
        self._library = library
        self._slow_interval = slow_interval
        self._enable = enable
        self._pids = ListBuffer(128, _PID_SIZE, _MAX_PIDS)
        self._stats = create_string_buffer(ACCOUNTING_STATS.size)

    def read(
        self, state: GpuState, unix: float, now: float, lists_read: bool, findings: NvmlFindings
    ) -> tuple[AccountingRecord, ...]:
        """Return records of processes that started or ended since the last call, on the clock of `now`.

        `unix` is the same moment in wall time. `lists_read` says whether the process lists were read in this
        tick. Raises GpuLost.
        """
        if state.mig_enabled:
            state.accounting = AccountingState()
        if state.mig_enabled or not state.mig_layout_known:
            return ()
        accounting = state.accounting
        if now >= accounting.mode_due_at:
            self._update_mode(state, now, findings)
        if not accounting.on or not self._read_pids(state, findings):
            return ()
        lists_read = lists_read and state.listed is not None
        due = [
            pid
            for pid, reads_left in accounting.pending_reads.items()
            if lists_read or reads_left == _MAX_RECORD_READS
        ]
        return self._read_records(state, due[:_MAX_RECORDS_PER_TICK], unix, now, findings)

    def _update_mode(self, state: GpuState, now: float, findings: NvmlFindings) -> None:
        accounting = state.accounting
        code, mode = self._library.query_number(_MODE, state.handle)
        state.accounting_mode = None if code else mode
        if code and code not in UNSUPPORTED:
            findings.add_error(PART, code, _MODE, state.gpu)
            return  # Keep the known mode and query again in the next tick.
        accounting.mode_due_at = now + self._slow_interval
        accounting.on = mode == 1
        if not accounting.enable_done:
            accounting.enable_done = True
            if self._enable and not accounting.on:
                accounting.on = self._enable_mode(state, code)
        if not accounting.on:
            accounting.stop()

    def _enable_mode(self, state: GpuState, code: int) -> bool:
        """Turn accounting mode on. `code` is nonzero if querying the mode has already failed."""
        code = code or self._library.call_device(_SET_MODE, state.handle, 1)
        if code:
            remedy = f": {_ROOT_REMEDY}" if code == Code.NO_PERMISSION else ""
            log.warning(
                "GPU %d: accounting mode cannot be turned on: %s%s", state.gpu.index, name_of(code), remedy
            )
        return code == Code.SUCCESS

    def _read_pids(self, state: GpuState, findings: NvmlFindings) -> bool:
        """Read the list of pids and schedule the reads that it calls for; False if there is no list."""
        accounting = state.accounting
        code, count = self._pids.read(self._library, _PIDS, state.handle)
        if code:
            if code in UNSUPPORTED:
                accounting.stop()  # Turned off since the last query of the mode.
            elif code not in NOTHING_YET:
                findings.add_error(PART, code, _PIDS, state.gpu)
            return False
        pids_now = bytes(buffer_view(self._pids.data, min(count, self._pids.capacity) * _PID_SIZE))
        before, accounting.pids = accounting.pids, pids_now
        left, accounting.listed = accounting.listed - state.pids, state.pids
        if before == pids_now and not left:
            return True
        # Stored as bytes: a set of a few thousand pids needs ten times the memory.
        kept = _unpack_pids(pids_now)
        accounting.pending_reads = {
            pid: reads_left for pid, reads_left in accounting.pending_reads.items() if pid in kept
        }
        accounting.pending_reads |= dict.fromkeys(
            kept - _unpack_pids(before) if before is not None else (), _MAX_RECORD_READS
        )
        accounting.pending_reads |= dict.fromkeys(left & kept, _MAX_RECORD_READS)
        return True

    def _read_records(
        self, state: GpuState, due: list[int], unix: float, now: float, findings: NvmlFindings
    ) -> tuple[AccountingRecord, ...]:
        accounting = state.accounting
        records: list[AccountingRecord] = []
        for pid in due:
            reads_left = accounting.pending_reads.pop(pid)
            code = self._library.call_device(_STATS, state.handle, pid, self._stats)
            if code in UNSUPPORTED:
                accounting.stop()
                break
            if code:
                if code not in NOTHING_YET:
                    findings.add_error(PART, code, f"{_STATS} of {pid}", state.gpu)
                    _read_again_later(accounting, pid, reads_left)
                continue
            time, start, running = ACCOUNTING_STATS.unpack(self._stats)
            record = _build_record(pid, start, None if running else time, unix, now)
            if record is None:
                findings.reject("accounting record", f"start {start}, time {time}", state.gpu)
                continue
            if record.ended is not None or pid in state.pids:
                records.append(record)
            else:
                # The process started after the lists were read, or the driver has not recorded its end yet.
                _read_again_later(accounting, pid, reads_left)
        return tuple(records)


def _read_again_later(accounting: AccountingState, pid: int, reads_left: int) -> None:
    if reads_left > 1:
        accounting.pending_reads[pid] = reads_left - 1


def _unpack_pids(pids: bytes) -> set[int]:
    return set(memoryview(pids).cast("I"))


def _build_record(pid: int, start: int, time: int | None, unix: float, now: float) -> AccountingRecord | None:
    """Convert a record to the clock of `now`; None if it is impossible.

    `start` is microseconds on the clock that NVML calls "CPU timestamp": since 1970, or since boot, in which
    case it cannot be later than `now`. `time` is the lifetime in milliseconds, None while the process runs.
    """
    began = start / 1e6
    if began > now + _MAX_CLOCK_SKEW:
        began -= unix - now
    ended = None if time is None else began + time / 1000
    if (
        not start
        or start >= BLANK_64
        or not 0 <= began <= (began if ended is None else ended) <= now + _MAX_CLOCK_SKEW
    ):
        return None
    return AccountingRecord(pid, began, ended)

"""The driver of this machine as a Source: one tick over all Gpus."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from ctypes import CDLL, byref, c_int
from typing import Final

from gpuledger.host.pci import PciBus
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.process import AccountingRecord, GpuProcess, HostFacts
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import Collected, Reading, Snapshot, SourceInfo
from gpuledger.model.source import Clock, Host
from gpuledger.sources.nvml import accounting, answers, devices, events, processes, utilization
from gpuledger.sources.nvml.accounting import AccountingRecords
from gpuledger.sources.nvml.codes import RELOADED, SUCCESS
from gpuledger.sources.nvml.devices import Devices
from gpuledger.sources.nvml.events import XidEvents
from gpuledger.sources.nvml.findings import Findings
from gpuledger.sources.nvml.gpm import PerformanceMetrics
from gpuledger.sources.nvml.library import GpuGone, Library, load_library, unavailable
from gpuledger.sources.nvml.processes import TYPES, ProcessLists, ProcessNames
from gpuledger.sources.nvml.readings import Readings
from gpuledger.sources.nvml.state import DeviceState, GpuState
from gpuledger.sources.nvml.utilization import NOT_READABLE, Utilization, UtilizationSamples
from gpuledger.sources.settings import SourceSettings

_FIRST_WAIT: Final = 1.0
_LONGEST_WAIT: Final = 60.0
_CLOCK_STEP: Final = 0.5


class NvmlSource:
    """Reads through libnvidia-ml.so.1. Used by one thread.

    Nothing is loaded before the first `read`. A driver that is not there, or goes, is tried again with
    growing pauses (1 s to 60 s by `clock`), and `read` raises SourceUnavailable meanwhile. While all Gpus
    are lost they are told as such, and the driver is started anew with the same pauses. With `pci` a GPU
    that is on the bus and not counted by the driver is a Failure.
    """

    def __init__(
        self,
        settings: SourceSettings,
        host: Host,
        clock: Clock,
        *,
        pci: PciBus | None = None,
        load: Callable[[], CDLL] = load_library,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._host = host
        self._clock = clock
        self._timer = timer
        self._scan_interval = settings.process_scan_interval
        self._library = Library(load)
        self._devices = Devices(self._library, settings.devices, settings.slow_interval, pci)
        self._readings = Readings(self._library, settings.slow_interval)
        self._metrics = PerformanceMetrics(self._library, clock)
        self._lists = ProcessLists(self._library)
        self._names = ProcessNames(self._library)
        self._samples = UtilizationSamples(self._library)
        self._accounting = AccountingRecords(
            self._library, settings.slow_interval, settings.enable_accounting
        )
        self._events = XidEvents(self._library)
        self._info = SourceInfo("nvml")
        self._epoch = ("", "")
        self._facts: Mapping[int, HostFacts] = {}
        self._scanned_at = 0.0
        self._wait = _FIRST_WAIT
        self._start_at: float | None = None
        self._unavailable: SourceUnavailable | None = None
        self._clock_offset: float | None = None

    @property
    def info(self) -> SourceInfo:
        """Versions are empty until the driver was reached."""
        return self._info

    @property
    def calls(self) -> int:
        """Driver calls made so far."""
        return self._library.calls

    def read(self, wanted: frozenset[Quantity]) -> Snapshot:
        """One tick; see `Source`. Raises SourceUnavailable."""
        unix, elapsed = self._clock.unix(), self._clock.elapsed()
        self._ensure_started(elapsed)
        self._notice_clock_step(unix - elapsed)
        findings = Findings()
        times = [self._timer()]

        self._devices.check(elapsed, findings)
        times.append(self._timer())
        self._forget_devices()
        values = self._read_values(wanted, elapsed, findings)
        times.append(self._timer())
        scanned = self._read_processes(unix, elapsed, findings)
        times.append(self._timer())
        used = self._read_utilization(elapsed, findings)
        times.append(self._timer())
        records = self._read_accounting(unix, elapsed, scanned, findings)
        times.append(self._timer())
        self._judge(elapsed, findings)
        xids = self._events.drain(self._devices.states, unix, findings)
        times.append(self._timer())

        told: list[Reading] = []
        for state in self._devices.states:
            uuid = state.gpu.uuid
            told += self._tell(state, values, used.get(uuid, NOT_READABLE), records.get(uuid, ()), wanted)
        parts = (
            devices.PART,
            answers.PART,
            processes.PART,
            utilization.PART,
            accounting.PART,
            events.PART,
        )
        return Snapshot(
            unix=unix,
            elapsed=elapsed,
            source=self._info,
            readings=tuple(told),
            xids=xids,
            failures=tuple(findings.failures),
            collected=tuple(
                Collected(part, after - before, findings.error_of(part))
                for part, before, after in zip(parts, times, times[1:], strict=False)
            ),
            invalid=findings.invalid,
            devices_failed=not self._devices.whole,
            boot_id=self._epoch[0],
            driver_load=self._epoch[1],
        )

    def close(self) -> None:
        """Let the driver go; a later `read` starts it again. Idempotent."""
        if self._library.started:
            self._events.reset()
            self._metrics.reset()
            self._library.stop()
        # Who closes it and reads again has reason to: what was refused before is not remembered.
        self._start_at = self._unavailable = None

    def _ensure_started(self, now: float) -> None:
        waiting = self._start_at is not None and now < self._start_at
        if self._library.started and (self._start_at is None or waiting):
            return
        if waiting and self._unavailable:
            raise SourceUnavailable(str(self._unavailable), self._unavailable.reason)
        self.close()
        try:
            self._library.start()
            self._info = self._read_info()
            # The driver may be another load of it than before, and no other moment shows that.
            self._epoch = self._host.epoch()
            self._lists.prepare()
            self._devices.find_all()
        except SourceUnavailable as error:
            self._give_up(error, now)
            raise
        self._start_at = self._unavailable = None

    def _give_up(self, error: SourceUnavailable, now: float) -> None:
        self.close()
        self._unavailable = error
        self._put_off(now)

    def _put_off(self, now: float) -> None:
        self._start_at = now + self._wait
        self._wait = min(2 * self._wait, _LONGEST_WAIT)

    def _read_info(self) -> SourceInfo:
        version = c_int()
        call = "nvmlSystemGetCudaDriverVersion_v2"
        known = self._library.call(call, byref(version)) == SUCCESS
        return SourceInfo(
            name="nvml",
            driver_version=self._library.text("nvmlSystemGetDriverVersion")[1],
            library_version=self._library.text("nvmlSystemGetNVMLVersion")[1],
            cuda_version=f"{version.value // 1000}.{version.value % 1000 // 10}" if known else "",
        )

    def _notice_clock_step(self, offset: float) -> None:
        # Where the driver's timestamps are wall time, a clock set back would hide all samples until it has
        # caught up.
        if self._clock_offset is not None and offset < self._clock_offset - _CLOCK_STEP:
            for state in self._devices.states:
                state.last_sample = None
        self._clock_offset = offset

    def _forget_devices(self) -> None:
        if self._devices.changed:
            states = self._devices.states
            self._metrics.keep(part for state in states for part in (state, *state.instances))
            self._accounting.keep(states)

    def _read_values(
        self, wanted: frozenset[Quantity], now: float, findings: Findings
    ) -> dict[str, dict[Quantity, float]]:
        values: dict[str, dict[Quantity, float]] = {}
        for state in self._devices.states:
            if not state.up:
                continue
            try:
                for part in (state, *state.instances):
                    part.fault, part.answered = SUCCESS, False
                    told = values[part.device.uuid] = self._readings.read(part, wanted, now, findings)
                    self._metrics.read(state, part, wanted, told, findings)
            except GpuGone as gone:
                state.lose(gone.code, gone.call, answers.PART, findings)
        return values

    def _read_processes(self, unix: float, now: float, findings: Findings) -> bool:
        """Whether it was time to."""
        states = self._devices.states
        unknown = any(part.held is None for state in states if state.up for part in state.parts)
        due = now - self._scanned_at >= self._scan_interval
        if not (due or unknown or self._devices.changed):
            return False
        self._scanned_at, self._devices.changed = now, False
        for state in states:
            if not state.up:
                continue
            if not state.cut_known:
                for part in state.parts:
                    part.held = None
                continue
            before = [part.pids for part in state.parts]
            try:
                self._lists.read(state, findings)
                if [part.pids for part in state.parts] != before and not self._devices.is_cut_as_known(state):
                    findings.note(processes.PART, "CHANGED", f"{state.gpu.uuid}: cut anew while it was read")
                    for part in state.parts:
                        part.held = None
            except GpuGone as gone:
                state.lose(gone.code, gone.call, processes.PART, findings)
        # Pids of a list that failed just now are asked for too: a host forgets what is not asked for, and
        # where it goes by first sight the process would come back as another one.
        pids = {pid for state in states for part in state.parts for pid in part.pids}
        self._facts = self._host.identify(pids, unix)
        self._names.keep({(pid, self._facts[pid].start) for pid in pids})
        return True

    def _read_utilization(self, now: float, findings: Findings) -> dict[str, Utilization]:
        used: dict[str, Utilization] = {}
        for state in self._devices.states:
            if not state.up:
                continue
            try:
                used[state.gpu.uuid] = self._samples.read(state, now, findings)
            except GpuGone as gone:
                state.lose(gone.code, gone.call, utilization.PART, findings)
        return used

    def _read_accounting(
        self, unix: float, now: float, scanned: bool, findings: Findings
    ) -> dict[str, tuple[AccountingRecord, ...]]:
        records: dict[str, tuple[AccountingRecord, ...]] = {}
        for state in self._devices.states:
            if not state.up:
                continue
            try:
                records[state.gpu.uuid] = self._accounting.read(state, unix, now, scanned, findings)
            except GpuGone as gone:
                state.lose(gone.code, gone.call, accounting.PART, findings)
        return records

    def _judge(self, now: float, findings: Findings) -> None:
        """A Gpu that told nothing but errors is down; with all of them down the driver is started anew."""
        states = self._devices.states
        for state in states:
            answered = state.answered or any(part.answered for part in state.instances)
            if state.up and state.fault and not answered:
                state.lose(state.fault, "every call", devices.PART, findings)
        if any(state.up for state in states):
            self._wait, self._start_at = _FIRST_WAIT, None
        elif all(state.code in RELOADED for state in states):
            error = unavailable(states[0].code, "every call")
            self._give_up(error, now)
            raise error
        elif self._start_at is None:
            self._put_off(now)

    def _tell(
        self,
        state: GpuState,
        values: Mapping[str, Mapping[Quantity, float]],
        used: Utilization,
        records: tuple[AccountingRecord, ...],
        wanted: frozenset[Quantity],
    ) -> list[Reading]:
        told: list[Reading] = []
        for part in (state, *state.instances):
            if not state.up or (part.fault and not part.answered):
                told.append(
                    Reading(part.device, False, processes=None, samples=None, mig_enabled=state.mig_enabled)
                )
                continue
            rows: tuple[GpuProcess, ...] | None = ()
            if part is not state or not state.instances:
                rows = self._rows(part, used, state.cut_known)
            told.append(
                Reading(
                    part.device,
                    values=values[part.device.uuid],
                    processes=rows,
                    samples=used.samples if part is state else None,
                    supported=self._readings.supported(part, wanted),
                    mig_enabled=state.mig_enabled,
                    accounting=records if part is state else (),
                )
            )
        return told

    def _rows(self, part: DeviceState, used: Utilization, known: bool) -> tuple[GpuProcess, ...] | None:
        if part.held is None or not known:
            return None
        device, facts, name_of, usage_of = part.device, self._facts, self._names.of, used.of
        return tuple(
            GpuProcess(
                device, pid, facts[pid], name_of(pid, facts[pid].start), TYPES[bits], memory, usage_of(pid)
            )
            for pid, (bits, memory) in part.held.items()
        )

"""Source that reads this machine's driver through NVML: one Snapshot of all Gpus per tick."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from ctypes import CDLL, byref, c_int
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from gpuledger.host.pci import PciBus
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.process import AccountingRecord, GpuProcess, HostFacts
from gpuledger.model.quantities import COLUMNS, PCIE_SAMPLES, Quantity
from gpuledger.model.snapshot import LISTED_RULES, NVIDIA_RULES, CollectorRun, Reading, Snapshot, SourceInfo
from gpuledger.model.source import Clock, Host
from gpuledger.sources.nvml import accounting, devices, events, processes, quantity_values, utilization
from gpuledger.sources.nvml.accounting import AccountingReader
from gpuledger.sources.nvml.codes import RELOADED, Code, code_of
from gpuledger.sources.nvml.codes import name_of as code_name
from gpuledger.sources.nvml.device_state import DeviceState, GpuState
from gpuledger.sources.nvml.devices import GpuDiscovery
from gpuledger.sources.nvml.events import XidEventSet
from gpuledger.sources.nvml.findings import NvmlFindings
from gpuledger.sources.nvml.gpm import GpmReader
from gpuledger.sources.nvml.library import GpuLost, NvmlLibrary, load_library, unavailable_error
from gpuledger.sources.nvml.processes import TYPES_BY_BITS, ProcessListReader, ProcessNameCache
from gpuledger.sources.nvml.quantity_reader import QuantityReader
from gpuledger.sources.nvml.utilization import NOT_READABLE, Utilization, UtilizationReader
from gpuledger.sources.settings import SourceSettings

if TYPE_CHECKING:
    from gpuledger.sources.nvml.columns import NvmlColumnReader

T = TypeVar("T")

_FIRST_RETRY_DELAY: Final = 1.0
_MAX_RETRY_DELAY: Final = 60.0
_MIN_CLOCK_STEP: Final = 0.5


class NvmlSource:
    """Reads through libnvidia-ml.so.1. Used by one thread.

    Nothing is loaded before the first `read`. While the driver is missing or unloaded, its start is retried
    with growing delays (1 s to 60 s by `clock`), and `read` raises SourceUnavailable. While all Gpus are
    lost, they are reported as down and the driver is restarted with the same delays. With `pci`, a GPU on the
    PCI bus that the driver does not count is a Failure.

    The versions in `info` are empty before the first successful start. `discovery` has the state of each Gpu
    after the last `read`, which `doctor` judges.
    """

    has_local_pids = True

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
        self._library = NvmlLibrary(load)
        self.discovery = GpuDiscovery(self._library, settings.devices, settings.slow_interval, pci)
        self._pci = pci
        slot_width = (lambda _: None) if pci is None else pci.slot_width
        self._readings = QuantityReader(self._library, settings.slow_interval, slot_width)
        self._columns: NvmlColumnReader | None = None
        self._slow_interval = settings.slow_interval
        self._metrics = GpmReader(self._library, clock)
        self._lists = ProcessListReader(self._library)
        self._names = ProcessNameCache(self._library)
        self._samples = UtilizationReader(self._library)
        self._accounting = AccountingReader(self._library, settings.slow_interval, settings.enable_accounting)
        self._events = XidEventSet(self._library)
        self.info = SourceInfo("nvml")
        self._epoch = ("", "")
        self._facts: Mapping[int, HostFacts] = {}
        self._lists_read_at = 0.0
        self._retry_delay = _FIRST_RETRY_DELAY
        self._retry_at: float | None = None
        self._unavailable: SourceUnavailable | None = None
        self._clock_offset: float | None = None
        self._logged: set[str] = set()

    def read(self, wanted: frozenset[Quantity]) -> Snapshot:
        """Read one tick; see `Source`. Raises SourceUnavailable."""
        unix, elapsed = self._clock.unix(), self._clock.elapsed()
        self._ensure_started(elapsed)
        self._handle_clock_step(unix - elapsed)
        findings = NvmlFindings(logged=self._logged)
        times = [self._timer()]

        self.discovery.update(elapsed, findings)
        times.append(self._timer())
        self._forget_removed_devices()
        values = self._read_each_gpu(
            quantity_values.PART, findings, lambda state: self._read_values(state, wanted, elapsed, findings)
        )
        times.append(self._timer())
        lists_read = self._read_processes(unix, elapsed, findings)
        times.append(self._timer())
        used = self._read_each_gpu(
            utilization.PART, findings, lambda state: self._samples.read(state, elapsed, findings)
        )
        times.append(self._timer())
        records = self._read_each_gpu(
            accounting.PART,
            findings,
            lambda state: self._accounting.read(state, unix, elapsed, lists_read, findings),
        )
        times.append(self._timer())
        self._mark_failed_gpus(elapsed, findings)
        xids = self._events.drain(self.discovery.states, unix, findings)
        times.append(self._timer())

        readings: list[Reading] = []
        for state in self.discovery.states:
            uuid = state.gpu.uuid
            readings += self._build_readings(
                state,
                values.get(uuid, {}),
                used.get(uuid, NOT_READABLE),
                records.get(uuid, ()),
                wanted,
            )
        collectors = (
            devices.PART,
            quantity_values.PART,
            processes.PART,
            utilization.PART,
            accounting.PART,
            events.PART,
        )
        return Snapshot(
            unix=unix,
            elapsed=elapsed,
            source=self.info,
            readings=tuple(readings),
            xids=xids,
            failures=tuple(findings.failures),
            collected=tuple(
                CollectorRun(collector, after - before, findings.error_of(collector))
                for collector, before, after in zip(collectors, times, times[1:], strict=False)
            ),
            invalid=findings.invalid,
            devices_failed=not self.discovery.complete,
            boot_id=self._epoch[0],
            driver_load=self._epoch[1],
        )

    def close(self) -> None:
        """Release the driver; a later `read` starts it again. Idempotent."""
        if self._library.started:
            self._events.reset()
            self._metrics.reset()
            self._library.stop()
        # Closing clears the retry delay.
        self._retry_at = self._unavailable = None

    def _ensure_started(self, now: float) -> None:
        waiting = self._retry_at is not None and now < self._retry_at
        if self._library.started and (self._retry_at is None or waiting):
            return
        if waiting and self._unavailable:
            raise SourceUnavailable(str(self._unavailable), self._unavailable.reason)
        self.close()
        try:
            self._library.start()
            self.info = self._read_info()
            # Only a start can show that the driver was loaded again.
            self._epoch = self._host.epoch()
            self._lists.prepare()
            self.discovery.list_gpus()
        except SourceUnavailable as error:
            self._fail_start(error, now)
            raise
        self._retry_at = self._unavailable = None

    def _fail_start(self, error: SourceUnavailable, now: float) -> None:
        self.close()
        self.info = replace(self.info, return_code=code_of(error.reason))
        self._unavailable = error
        self._schedule_retry(now)

    def _schedule_retry(self, now: float) -> None:
        self._retry_at = now + self._retry_delay
        self._retry_delay = min(2 * self._retry_delay, _MAX_RETRY_DELAY)

    def _read_info(self) -> SourceInfo:
        version = c_int()
        call = "nvmlSystemGetCudaDriverVersion_v2"
        known = self._library.call(call, byref(version)) == Code.SUCCESS
        return SourceInfo(
            name="nvml",
            driver_version=self._library.query_text("nvmlSystemGetDriverVersion")[1],
            library_version=self._library.query_text("nvmlSystemGetNVMLVersion")[1],
            cuda_version=f"{version.value // 1000}.{version.value % 1000 // 10}" if known else "",
            return_code=0,
        )

    def _handle_clock_step(self, offset: float) -> None:
        # If the driver's timestamps are wall time and the clock is set back, all new samples would look old.
        if self._clock_offset is not None and offset < self._clock_offset - _MIN_CLOCK_STEP:
            for state in self.discovery.states:
                state.last_sample = None
        self._clock_offset = offset

    def _forget_removed_devices(self) -> None:
        if self.discovery.changed:
            states = self.discovery.states
            self._metrics.forget_others(
                device_state for state in states for device_state in (state, *state.instances)
            )

    def _read_each_gpu(
        self, part: str, findings: NvmlFindings, read: Callable[[GpuState], T]
    ) -> dict[str, T]:
        """Return the result of `read` for each Gpu that is up, by UUID. Mark those that are lost as down."""
        results: dict[str, T] = {}
        for state in self.discovery.states:
            if state.up:
                try:
                    results[state.gpu.uuid] = read(state)
                except GpuLost as lost:
                    state.mark_lost(lost.code, lost.call, part, findings)
        return results

    def _read_values(
        self, state: GpuState, wanted: frozenset[Quantity], now: float, findings: NvmlFindings
    ) -> dict[str, Mapping[Quantity, float]]:
        values: dict[str, Mapping[Quantity, float]] = {}
        for device_state in (state, *state.instances):
            device_state.first_error, device_state.answered = Code.SUCCESS, False
            recorder = self._readings.read(device_state, wanted, now, findings)
            values[device_state.device.uuid] = recorder.values
            self._metrics.read(state, recorder, wanted)
        if COLUMNS in wanted:
            self._column_reader().read(state, now, findings, measures_pcie=PCIE_SAMPLES in wanted)
            if state.columns and state.columns.pcie_rates:
                uuid = state.gpu.uuid
                values[uuid] = {**values[uuid], **state.columns.pcie_rates}
        return values

    def _column_reader(self) -> NvmlColumnReader:
        """Return the reader of columns. Imported lazily: only the smi dialect needs it."""
        if self._columns is None:
            from gpuledger.sources.nvml.columns import NvmlColumnReader

            slot_generation = (lambda _: None) if self._pci is None else self._pci.slot_generation
            self._columns = NvmlColumnReader(self._library, self._slow_interval, slot_generation)
        return self._columns

    def _read_processes(self, unix: float, now: float, findings: NvmlFindings) -> bool:
        """Read process lists if they are due; return whether they were read."""
        states = self.discovery.states
        unknown = any(
            device_state.listed is None
            for state in states
            if state.up
            for device_state in state.process_devices
        )
        due = now - self._lists_read_at >= self._scan_interval
        if not (due or unknown or self.discovery.changed):
            return False
        self._lists_read_at, self.discovery.changed = now, False
        self._read_each_gpu(processes.PART, findings, lambda state: self._read_lists(state, findings))
        # Include pids of lists that failed in this tick: the host forgets other pids, and a start time
        # derived from the first sighting would change.
        pids = {
            pid for state in states for device_state in state.process_devices for pid in device_state.pids
        }
        self._facts = self._host.identify(pids, unix)
        self._names.forget_others({(pid, self._facts[pid].start) for pid in pids})
        return True

    def _read_lists(self, state: GpuState, findings: NvmlFindings) -> None:
        readable = state.mig_layout_known
        if readable:
            before = [device_state.pids for device_state in state.process_devices]
            self._lists.read(state, findings)
            changed = [device_state.pids for device_state in state.process_devices] != before
            if changed and not self.discovery.mig_layouts.is_unchanged(state):
                readable = False
                text = f"{state.gpu.uuid}: MIG layout changed while reading"
                findings.note(processes.PART, "CHANGED", text)
        if not readable:
            for device_state in state.process_devices:
                device_state.listed = None

    def _mark_failed_gpus(self, now: float, findings: NvmlFindings) -> None:
        """Mark Gpus that returned only errors as down. If all are down, schedule a restart of the driver."""
        states = self.discovery.states
        for state in states:
            answered = state.answered or any(device_state.answered for device_state in state.instances)
            if state.up and state.first_error and not answered:
                state.mark_lost(state.first_error, "every call", devices.PART, findings)
        if any(state.up for state in states):
            self._retry_delay, self._retry_at = _FIRST_RETRY_DELAY, None
        elif all(state.code in RELOADED for state in states):
            error = unavailable_error(states[0].code, "every call")
            self._fail_start(error, now)
            raise error
        elif self._retry_at is None:
            self._schedule_retry(now)

    def _build_readings(
        self,
        state: GpuState,
        values: Mapping[str, Mapping[Quantity, float]],
        used: Utilization,
        records: tuple[AccountingRecord, ...],
        wanted: frozenset[Quantity],
    ) -> list[Reading]:
        readings: list[Reading] = []
        for device_state in (state, *state.instances):
            if not state.up or (device_state.first_error and not device_state.answered):
                readings.append(
                    Reading(
                        device_state.device,
                        False,
                        processes=None,
                        samples=None,
                        mig_enabled=state.mig_enabled,
                        down_reason="" if state.up else code_name(state.code),
                    )
                )
                continue
            rows: tuple[GpuProcess, ...] | None = ()
            if device_state is not state or not state.instances:
                rows = self._build_processes(device_state, used, state.mig_layout_known)
            columns = state.columns if device_state is state and COLUMNS in wanted else None
            supported = self._readings.supported(device_state, wanted)
            readings.append(
                Reading(
                    device_state.device,
                    values=values[device_state.device.uuid],
                    processes=rows,
                    samples=used.samples if device_state is state else None,
                    supported={**supported, **columns.supported} if columns else supported,
                    mig_enabled=state.mig_enabled,
                    accounting=records if device_state is state else (),
                    raw=dict(columns.cells) if columns else {},
                    vgpus=columns.vgpus if columns else None,
                    rules=LISTED_RULES if state.mig_layout_read else NVIDIA_RULES,
                )
            )
        return readings

    def _build_processes(
        self, device_state: DeviceState, used: Utilization, known: bool
    ) -> tuple[GpuProcess, ...] | None:
        if device_state.listed is None or not known:
            return None
        device, facts, name_of, usage_of = (
            device_state.device,
            self._facts,
            self._names.name_of,
            used.usage_of,
        )
        return tuple(
            GpuProcess(
                device,
                pid,
                facts[pid],
                name_of(pid, facts[pid].start),
                TYPES_BY_BITS[bits],
                memory,
                usage_of(pid),
            )
            for pid, (bits, memory) in device_state.listed.items()
        )

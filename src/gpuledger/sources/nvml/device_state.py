"""State of each Device that persists between ticks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ctypes import c_void_p
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.model.quantities import Level, Quantity
from gpuledger.model.snapshot import VgpuInstance
from gpuledger.sources.nvml.codes import NOTHING_YET, Code
from gpuledger.sources.nvml.findings import NvmlFindings
from gpuledger.sources.nvml.queries import MAX_LINKS, Depth, QueryPlan, make_query_plan
from gpuledger.sources.nvml.static_facts import StaticFacts

_SECOND: Final = 1_000_000
# "Depending on the product, the sample period may be between 1 second and 1/6 second" (nvml.h); newer cards
# are faster. Two samples of one process closer than the minimum belong to the same period.
_MAX_PERIOD_US: Final = _SECOND
_MIN_PERIOD_US: Final = 10_000


class SamplePeriods:
    """Estimates the utilization sample period of one Gpu, in the driver's microseconds.

    The driver has a sample of a process only for periods in which the process used an engine. A mean over
    these samples alone would report a process that is busy a sixth of the time as always busy. NVML does not
    report the period; it is estimated as the shortest gap seen between two samples of one process.
    """

    def __init__(self) -> None:
        # The shortest period seen so far; initially the longest that nvml.h allows.
        self._length = _MAX_PERIOD_US
        self._last: dict[int, int] = {}
        self._read_at: float | None = None

    def restart(self) -> None:
        """Discard the last timestamps: the next samples do not continue from them. Keep the length."""
        self._last = {}
        self._read_at = None

    def update(self, timestamps: Iterable[tuple[int, Collection[int]]]) -> None:
        """Update the estimate from the timestamps of each pid's samples, in any order."""
        last: dict[int, int] = {}
        for pid, own in timestamps:
            before = self._last.get(pid)
            in_order = sorted(own if before is None else (before, *own))
            last[pid] = in_order[-1]
            for earlier, later in pairwise(in_order):
                if _MIN_PERIOD_US <= later - earlier < self._length:
                    self._length = later - earlier
        self._last = last

    def count(self, timestamps: Collection[int], now: float) -> int:
        """Return the number of periods since the last call; in the first call, of one second.

        `timestamps` are those of the samples in these periods. `now` is in seconds of gpuledger's clock. The
        result is at least the number of distinct timestamps: a tick may see one period more than fits its
        length.
        """
        window = _SECOND if self._read_at is None else (now - self._read_at) * _SECOND
        self._read_at = now
        return max(self._count_distinct(timestamps), round(window / self._length), 1)

    def _count_distinct(self, timestamps: Collection[int]) -> int:
        # Samples of several processes in one period may differ by microseconds.
        found, latest = 0, -_SECOND
        for timestamp in sorted(set(timestamps)):
            if timestamp - latest >= self._length / 2:
                found, latest = found + 1, timestamp
        return found


@dataclass(slots=True, eq=False)
class AccountingState:
    """Accounting state of one Gpu between ticks.

    `enable_done` is True once the mode was turned on or needs no change. `pids` is the driver's last list of
    pids with a record, None before the first read. `listed` are the pids that the process lists contained at
    that time. `pending_reads` maps pids with a due record to the number of reads left.
    """

    mode_due_at: float = 0.0
    on: bool = False
    enable_done: bool = False
    pids: bytes | None = None
    listed: frozenset[int] = frozenset()
    pending_reads: dict[int, int] = field(default_factory=dict)

    def stop(self) -> None:
        """Accounting mode is off: clear the lists, so that nothing is compared across the gap."""
        self.on, self.pids, self.listed, self.pending_reads = False, None, frozenset(), {}


@dataclass(slots=True, eq=False)
class ColumnState:
    """Columns of nvidia-smi that are no quantities, of one Gpu.

    `cells` maps the header of each column to its cell, also to the reason of its absence. `supported` says
    per field whether the Gpu has it, once known. `lacking` are the queries that it does not support until
    `all_due_at`, `failed` the code and name of each query that failed. `vgpus` is None if there are none, or
    if they are unknown. `pcie_rates` are the last measured ones.
    """

    cells: dict[str, str] = field(default_factory=dict)
    supported: dict[str, bool] = field(default_factory=dict)
    lacking: set[object] = field(default_factory=set)
    failed: dict[object, tuple[int, str]] = field(default_factory=dict)
    vgpus: tuple[VgpuInstance, ...] | None = None
    pcie_rates: dict[Quantity, float] = field(default_factory=dict)
    slow_due_at: float = 0.0
    all_due_at: float = 0.0


_MAX_CACHED_PLANS = 8
# Slot index, handle, UUID and attributes of a MIG device; compared to detect changes of the layout.
MigSlot = tuple[int, int, bytes, bytes]


@dataclass(slots=True, eq=False)
class DeviceState:
    """State of one Device between ticks.

    Support: `support` says per quantity key whether the Device has it, once known; `missing_fields` are field
    ids that it does not have; at `retry_unsupported_at` both are queried again. `links` are its NVLinks, all
    possible ones until they are known, and `reads_links_by_call` is True if it lacks their field. `gpm` says
    whether it supports GPM, None if unknown; `sampled_by` is the call that takes its GPM samples.

    Processes: `listed` maps the pids of the last process lists to type bits and bytes, None if they could not
    be read; `pids` are those of the last lists that could.

    This tick: `answered` is True if a call succeeded, `first_error` is the first error code.

    Values: `slow_errors` are codes and calls that failed in the last read of slow quantities;
    `lacks_constants` is True if a constant one of them is missing. `counters`
    holds the confirmed value of each counter and a lower reading that awaits confirmation.
    `last_nvlink_total` is the bytes moved by NVLink and the time of that reading, None if no rate can be
    computed from it; `last_counters` is the same of counters from which a rate is computed, with
    whether it was computed already.
    """

    device: Device
    handle: c_void_p
    facts: StaticFacts
    uses_memory_v1: bool = False
    support: dict[str, bool] = field(default_factory=dict)
    missing_fields: set[int] = field(default_factory=set)
    links: tuple[int, ...] = tuple(range(MAX_LINKS))
    reads_links_by_call: bool = False
    plans: dict[tuple[frozenset[Quantity], Depth], QueryPlan] = field(default_factory=dict)
    counters: dict[Quantity, tuple[float, float | None]] = field(default_factory=dict)
    last_nvlink_total: tuple[float, float] | None = None
    last_counters: dict[Quantity, tuple[float, float, bool]] = field(default_factory=dict)
    gpm: bool | None = None
    sampled_by: str = ""
    slow_values: dict[Quantity, float] = field(default_factory=dict)
    slow_errors: list[tuple[int, str]] = field(default_factory=list)
    slow_due_at: float = 0.0
    lacks_constants: bool = False
    slow_wanted: frozenset[Quantity] | None = None
    retry_unsupported_at: float | None = None
    listed: dict[int, tuple[int, int | None]] | None = None
    pids: frozenset[int] = frozenset()
    up: bool = True
    answered: bool = False
    first_error: int = Code.SUCCESS

    def plan(self, wanted: frozenset[Quantity], depth: Depth) -> QueryPlan:
        """Return the query plan for the wanted quantities and the support known so far."""
        plan = self.plans.get((wanted, depth))
        if plan is None:
            if len(self.plans) > _MAX_CACHED_PLANS:
                self.plans.clear()
            level = Level.INSTANCE if isinstance(self.device, Instance) else Level.GPU
            links = () if self.reads_links_by_call else self.links
            plan = make_query_plan(level, wanted, depth, self.support, self.missing_fields, links)
            self.plans[wanted, depth] = plan
        return plan

    def set_support(self, quantity: Quantity, has: bool) -> None:
        """Remember whether the Device has the quantity; a change discards cached plans."""
        if self.support.get(quantity.key) is not has:
            self.support[quantity.key] = has
            self.plans.clear()

    def confirmed_value(self, quantity: Quantity, value: float) -> float:
        """Return the value to report for a cumulative counter that reads `value`.

        After a single low reading, PromQL's increase() would count everything again. So a low reading is held
        back and the previous value reported until the next reading confirms it.
        """
        confirmed, low = self.counters.get(quantity, (value, None))
        if value < confirmed and (low is None or value < low):
            self.counters[quantity] = (confirmed, value)
            return confirmed
        self.counters[quantity] = (value, None)
        return value

    def refuted_reading(self, quantity: Quantity, value: float) -> float | None:
        """Return the reading of a cumulative counter that was held back and that `value` refutes, if any."""
        confirmed, low = self.counters.get(quantity, (value, None))
        return low if value >= confirmed else None

    def is_held_back(self, quantity: Quantity) -> bool:
        """Return whether the last reading of the counter was lower than the reported value."""
        return quantity in self.counters and self.counters[quantity][1] is not None

    def forget_support(self, quantities: Iterable[Quantity]) -> None:
        """Discard whether the Device has these quantities."""
        for quantity in quantities:
            self.support.pop(quantity.key, None)
        self.plans.clear()

    def retry_unsupported(self) -> None:
        """Query everything unsupported again: NVLinks may come up late, and other profilers end."""
        self.support = {key: True for key, has in self.support.items() if has}
        self.missing_fields.clear()
        self._forget_links()
        self.plans.clear()
        self.gpm = self.gpm or None
        self.uses_memory_v1 = False

    def set_links(self, links: tuple[int, ...], *, by_call: bool) -> None:
        """Remember the NVLinks, and how their state is read; a change discards cached plans."""
        if (links, by_call) != (self.links, self.reads_links_by_call):
            self.links, self.reads_links_by_call = links, by_call
            self.plans.clear()

    def _forget_links(self) -> None:
        self.links, self.reads_links_by_call = tuple(range(MAX_LINKS)), False

    def reset(self) -> None:
        """Query everything again: the GPU returned or its MIG layout changed."""
        self.support.clear()
        self.last_nvlink_total = self.gpm = None
        self.sampled_by = ""
        self.missing_fields.clear()
        self._forget_links()
        self.plans.clear()
        self.slow_values = {}
        self.slow_errors.clear()
        self.slow_wanted = None
        self.uses_memory_v1 = False

    def report_pending(self, collector: str, findings: NvmlFindings) -> None:
        """Add a failure for each static fact that could not be read."""
        for call, code in self.facts.pending.items():
            if code not in NOTHING_YET:
                findings.add_error(collector, code, call, self.device)


@dataclass(slots=True, eq=False)
class GpuState(DeviceState):
    """State of one Gpu and of its Instances.

    `mig_layout_known` is False until MIG mode and, if it is on, the Instances were read; before that, the
    Devices of processes are unknown. `mig_layout_read` says the same of this tick, and `mig_values` holds the
    values of MIG_QUANTITIES read in it. `accounting_mode` is 1 on, 0 off, None if it could not be read.
    `last_sample` is the timestamp of the newest utilization sample, in the driver's microseconds. `code` is
    the error of a Gpu that is not `up`. An `uncounted` Gpu is no longer in the driver's count.
    `needs_event_registration` is True if the Gpu must be registered for events again, `receives_events` if it
    is registered. `columns` is None until columns are read.
    """

    gpu: Gpu = field(kw_only=True)
    mig_capable: bool = True
    mig_enabled: bool = False
    mig_values: dict[Quantity, int] = field(default_factory=dict)
    mig_layout_known: bool = False
    mig_layout_read: bool = True
    instances: list[DeviceState] = field(default_factory=list)
    mig_slots: list[MigSlot] = field(default_factory=list)
    accounting_mode: int | None = None
    accounting: AccountingState = field(default_factory=AccountingState)
    last_sample: int | None = None
    periods: SamplePeriods = field(default_factory=SamplePeriods)
    utilization_call: str | None = ""
    receives_events: bool = False
    code: int = Code.SUCCESS
    uncounted: bool = False
    needs_event_registration: bool = True
    columns: ColumnState | None = None

    def retry_unsupported(self) -> None:
        """Also query MIG, utilization samples and events again."""
        DeviceState.retry_unsupported(self)
        self.mig_capable = True
        self.utilization_call = ""
        self.needs_event_registration = self.needs_event_registration or not self.receives_events

    @property
    def process_devices(self) -> list[DeviceState]:
        """Devices that can run processes: the Instances if there are any, else the Gpu."""
        return list(self.instances) or [self]

    def set_gpu(self, gpu: Gpu) -> None:
        """Replace the Gpu by one with other attributes and the same UUID."""
        self.gpu = self.device = gpu
        for instance in self.instances:
            if isinstance(instance.device, Instance):
                instance.device = replace(instance.device, parent=gpu)

    def mark_lost(self, code: int, call: str, collector: str, findings: NvmlFindings) -> None:
        """Mark the whole Gpu as unreachable."""
        self.up = False
        self.code = code
        findings.add_error(collector, code, call, self.gpu)

    def mark_found(self, handle: c_void_p) -> None:
        """The Gpu has a handle again, possibly after a reset: query everything again."""
        self.handle = handle
        self.up = self.needs_event_registration = self.mig_capable = True
        self.uncounted = self.mig_layout_known = False
        self.last_sample = None
        self.utilization_call = ""
        self.accounting = AccountingState()
        self.columns = None
        for state in (self, *self.instances):
            state.listed = None
            state.reset()
            state.facts.mark_all_unread()

"""One simulated Gpu: its devices, power meter, GPU contexts and Readings."""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger.model import quantities as q
from gpuledger.model.devices import AMD, NVIDIA, Device, Gpu, Instance
from gpuledger.model.process import NO_USAGE, GpuProcess, UtilizationSample
from gpuledger.model.quantities import QUANTITIES, Level, Quantity
from gpuledger.model.snapshot import NVIDIA_RULES, Failure, MeterRules, Reading
from gpuledger.sources.simulator.faults import FaultSchedule
from gpuledger.sources.simulator.gauges import (
    GAUGES,
    GPM_METRICS,
    GPM_RATES,
    MEMORY_QUANTITIES,
    Gauge,
    GpuConditions,
    compute_metric,
    memory_values,
)
from gpuledger.sources.simulator.gpu_timeline import Phase, RunSchedule, Timeline
from gpuledger.sources.simulator.hardware import Hardware
from gpuledger.sources.simulator.meter import PowerMeter, PowerSegments
from gpuledger.sources.simulator.power import sm_count
from gpuledger.sources.simulator.sampling import SampledUsage, sample_usage
from gpuledger.sources.simulator.scenario import FaultKind, FaultSpec, GpuSpec, Scenario
from gpuledger.sources.simulator.simulated_host import SimulatedHost

_WITH_GPM = frozenset({"Hopper", "Blackwell"})
_BEFORE_AMPERE = frozenset({"Maxwell", "Pascal", "Volta", "Turing"})
_RETIRED_PAGES = frozenset(
    {q.RETIRED_PAGES_CORRECTABLE, q.RETIRED_PAGES_UNCORRECTABLE, q.RETIRED_PAGES_PENDING}
)
_SINCE_AMPERE = frozenset(
    {
        q.REMAPPED_ROWS_CORRECTABLE,
        q.REMAPPED_ROWS_UNCORRECTABLE,
        q.ROW_REMAP_PENDING,
        q.ROW_REMAP_FAILURE,
        q.POWER_INSTANT,
    }
)
_MIG = frozenset({q.MIG_MODE, q.MIG_MAX_SLICES})
# nvmlDeviceGpuRecoveryAction_t.
_RESET = 1
# What the kernel reports of GPUs that are not NVIDIA's (the source `drm`).
_OF_KERNEL = frozenset(
    {
        q.UTILIZATION,
        q.MEMORY_USED,
        q.POWER,
        q.POWER_LIMIT,
        q.ENERGY,
        q.TEMPERATURE,
        q.MEMORY_TEMPERATURE,
        q.FAN_SPEED,
        q.GRAPHICS_CLOCK,
        q.SM_CLOCK,
        q.MAX_GRAPHICS_CLOCK,
        q.MAX_SM_CLOCK,
        q.CLOCK_EVENT_REASONS,
        q.ENGINE_ACTIVITY,
    }
)
_OF_AMD = _OF_KERNEL | {
    q.MEMORY_UTILIZATION,
    q.MEMORY_TOTAL,
    q.MEMORY_FREE,
    q.POWER_INSTANT,
    q.POWER_LIMIT_MAX,
    q.POWER_LIMIT_MIN,
    q.POWER_LIMIT_DEFAULT,
    q.TEMPERATURE_SLOWDOWN,
    q.TEMPERATURE_SHUTDOWN,
    q.MEMORY_CLOCK,
    q.MAX_MEMORY_CLOCK,
    q.PCIE_GENERATION,
    q.PCIE_GENERATION_MAX,
    q.PCIE_WIDTH,
    q.PCIE_WIDTH_MAX,
    q.PCIE_REPLAYS,
    q.ECC_CORRECTED_VOLATILE,
    q.ECC_UNCORRECTED_VOLATILE,
}
_ALL_QUANTITIES = frozenset(QUANTITIES.values())


class QuantityPlan:
    """For one set of wanted quantities: which ones a Gpu and its Instances support, and how to compute them.

    `gauges` and `metrics` are for the Gpu, `instance_metrics` for Instances, `memory_quantities` for both.
    """

    def __init__(self, wanted: frozenset[Quantity], spec: GpuSpec, mig: bool) -> None:
        lacks = _lacks(spec)
        self.gpu = _supported(wanted, lacks, Level.GPU, mig)
        self.instance = _supported(wanted, lacks, Level.INSTANCE, mig)
        supported = [QUANTITIES[key] for key, has in self.gpu.items() if has]
        self.gauges: list[tuple[Quantity, Gauge]] = [
            (item, GAUGES[item]) for item in supported if item in GAUGES
        ]
        self.memory_quantities = [item for item in supported if item in MEMORY_QUANTITIES]
        self.metrics = [item for item in supported if item in GPM_METRICS]
        self.instance_metrics = [item for item in self.metrics if self.instance.get(item.key)]


def _supported(
    wanted: frozenset[Quantity], lacks: frozenset[str], level: Level, mig: bool
) -> dict[str, bool]:
    """Return whether a Device of this level supports each of the wanted quantities."""
    known = GAUGES.keys() | GPM_METRICS | {*MEMORY_QUANTITIES}
    supported = {}
    for quantity in sorted(wanted & _ALL_QUANTITIES, key=lambda item: item.key):
        if level is Level.INSTANCE and quantity.level is not Level.INSTANCE:
            continue
        is_known = quantity in known and quantity.key not in lacks
        supported[quantity.key] = is_known and (quantity.under_mig or not mig)
    return supported


def _lacks(spec: GpuSpec) -> frozenset[str]:
    """Return the keys of quantities that the scenario or the architecture excludes."""
    if spec.vendor != NVIDIA:
        others = _ALL_QUANTITIES - (_OF_AMD if spec.vendor == AMD else _OF_KERNEL)
        # Activity of partitions only: the kernel has utilization of a whole GPU.
        uncut = all(partition.instances is None for partition in spec.partitions)
        return spec.lacks | {item.key for item in (others | {q.ENGINE_ACTIVITY} if uncut else others)}
    missing = _SINCE_AMPERE if spec.architecture in _BEFORE_AMPERE else _RETIRED_PAGES
    if spec.architecture not in _WITH_GPM:
        missing |= GPM_METRICS | GPM_RATES
        if all(partition.instances is None for partition in spec.partitions):
            missing |= _MIG
    return spec.lacks | {quantity.key for quantity in missing}


# Xids that come with an uncorrectable ECC error (NVIDIA's Xid catalogue).
_UNCORRECTED_XIDS = frozenset({48, 94, 95})


class SimulatedGpu:
    """One GPU: `advance` to a time, then read samples, processes and readings, in this order."""

    def __init__(
        self,
        hardware: Hardware,
        scenario: Scenario,
        schedule: RunSchedule,
        faults: FaultSchedule,
        host: SimulatedHost,
        seed: int,
    ) -> None:
        self.gpu: Gpu = hardware.gpu
        self.hardware = hardware
        self._faults = faults
        self._host = host
        self._seed = seed
        self._placements = tuple(
            (index, placement)
            for index, spec in enumerate(scenario.processes)
            for placement in spec.placements
            if placement.gpu == hardware.gpu.index
        )
        self._schedule = schedule
        self._meter = PowerMeter(self.segments(), faults)
        self._current = self._meter.now()
        self._at = 0
        self._uncorrected = 0
        self._xids_until = -1
        spec = hardware.spec
        # Of other makers only the boot is known to restart the counter.
        self._rules = (
            NVIDIA_RULES
            if spec.vendor == NVIDIA
            else MeterRules("", starts_at_zero=False, basis=spec.basis or "engine_time", listed=True)
        )
        self._plans: dict[tuple[frozenset[Quantity], bool], QuantityPlan] = {}
        # Engine usage since the last read, and the same if the driver returned it per process, else None.
        self._engines: SampledUsage | None = None
        self._sampling: SampledUsage | None = None

    def segments(self) -> PowerSegments:
        """Return new PowerSegments of this Gpu, which start at time 0."""
        return PowerSegments(
            self.hardware, Timeline(self.hardware, self._schedule, self._placements), self._seed
        )

    @property
    def phase(self) -> Phase:
        """The phase at the current time."""
        return self._current[0]

    @property
    def down_reason(self) -> str:
        """Why the Gpu is down, as the driver's name of the error; empty if it is up."""
        if self._active("gpu_lost"):
            return "GPU_IS_LOST"
        return "RESET_REQUIRED" if self._active("reset_required") else ""

    def advance(self, at: int) -> None:
        """Advance to `at` microseconds of scenario time."""
        self._at = at
        self._meter.advance(at)
        events = self._faults.xids(self._xids_until, at)
        self._uncorrected += sum(
            spec.gpu == self.gpu.index and spec.xid in _UNCORRECTED_XIDS for _, spec in events
        )
        self._xids_until = at
        self._current = self._meter.now()

    def collect_samples(self, after: int) -> Failure | None:
        """Read the samples that ended after `after`; return the failure if they cannot be read."""
        self._sampling = self._engines = None
        if self.down_reason:
            return None
        self._engines = sample_usage(
            self._meter.history, self._current, self.hardware.spec.samples_per_second, after, self._at
        )
        if self.phase.partition.mig_enabled:
            # NVML has no samples per process here, but GPM reports the engines of each Instance.
            return None
        if self._active("utilization_fails"):
            return Failure("utilization", "UNKNOWN", self.gpu, "the driver did not return its samples")
        self._sampling = self._engines
        return None

    @property
    def samples(self) -> tuple[UtilizationSample, ...] | None:
        """The samples since the last read; None if they cannot be read."""
        return None if self._sampling is None else self._sampling.samples

    def processes(self) -> tuple[dict[Device, tuple[GpuProcess, ...] | None], list[Failure]]:
        """Return the process list of each Device that can have processes (None: unreadable), and failures."""
        found: dict[Device, list[GpuProcess]] = {device: [] for device in self._process_devices()}
        for context in self.phase.contexts:
            run = context.run
            found[context.device].append(
                GpuProcess(
                    device=context.device,
                    pid=run.pid,
                    host=self._host.facts(run, self._at),
                    name=run.spec.name,
                    types=run.spec.types,
                    memory=run.spec.memory,
                    usage=NO_USAGE if self._sampling is None else self._sampling.usage_of(run),
                )
            )
        lists: dict[Device, tuple[GpuProcess, ...] | None] = {
            device: tuple(sorted(processes, key=lambda process: process.pid))
            for device, processes in found.items()
        }
        failures = []
        for device in lists:
            if self.down_reason:
                lists[device] = None
            elif any(_affects_device(fault, device) for fault in self._active("process_list_fails")):
                lists[device] = None
                detail = "the driver did not return its process list"
                failures.append(Failure("processes", "UNKNOWN", device, detail))
        return lists, failures

    def readings(
        self, wanted: frozenset[Quantity], lists: Mapping[Device, tuple[GpuProcess, ...] | None]
    ) -> tuple[list[Reading], int]:
        """Return the Readings of the Gpu and its Instances, and how many impossible values were dropped."""
        partition = self.phase.partition
        plan = self._find_plan(wanted, partition.mig_enabled)
        if self.down_reason:
            return self._build_down_readings(plan), 0
        conditions = self._conditions()
        values = {
            quantity: value for quantity, gauge in plan.gauges if (value := gauge(conditions)) is not None
        }
        spec = self.hardware.spec
        self._add_metrics(plan.metrics, values, self.gpu)
        memory = memory_values(spec.memory, spec.reserved_memory, conditions.memory_used)
        values |= {quantity: memory[quantity] for quantity in plan.memory_quantities}
        invalid = self._apply_bad_values(values, wanted, self.gpu)
        readings = [
            Reading(
                device=self.gpu,
                values=values,
                processes=lists.get(self.gpu, ()),
                samples=self.samples,
                supported=plan.gpu,
                mig_enabled=partition.mig_enabled,
                rules=self._rules,
            )
        ]
        for instance, part in partition.instances:
            instance_values: dict[Quantity, float] = {}
            self._add_metrics(plan.instance_metrics, instance_values, instance)
            memory = memory_values(part.memory, 0, self._memory_used(instance, part.memory))
            instance_values |= {quantity: memory[quantity] for quantity in plan.memory_quantities}
            invalid += self._apply_bad_values(instance_values, wanted, instance)
            readings.append(
                Reading(
                    device=instance,
                    values=instance_values,
                    processes=lists.get(instance),
                    samples=None,
                    supported=plan.instance,
                    rules=self._rules,
                )
            )
        return readings, invalid

    def _active(self, kind: FaultKind) -> list[FaultSpec]:
        return self._faults.active_faults(kind, self._at, self.gpu.index)

    def _process_devices(self) -> list[Device]:
        partition = self.phase.partition
        return [instance for instance, _ in partition.instances] or [self.gpu]

    def _memory_used(self, device: Device, available: int) -> int:
        # On real hardware an allocation beyond the memory fails; here it is capped.
        held = sum(context.run.spec.memory for context in self.phase.contexts if context.device == device)
        return min(available, held)

    def _conditions(self) -> GpuConditions:
        spec = self.hardware.spec
        partition = self.phase.partition
        if partition.instances:
            used = sum(self._memory_used(instance, part.memory) for instance, part in partition.instances)
        else:
            used = self._memory_used(self.gpu, spec.memory - spec.reserved_memory)
        return GpuConditions(
            at=self._at,
            index=self.gpu.index,
            seed=self._seed,
            spec=spec,
            meter=self._meter,
            draw=self._current[1],
            usage=NO_USAGE if self._engines is None or partition.mig_enabled else self._engines.busy,
            is_used=bool(self.phase.contexts),
            memory_used=min(used, spec.memory - spec.reserved_memory),
            uncorrected=self._uncorrected,
            mig=partition.mig_enabled,
            faults=self._faults.card_faults(self.gpu.index, self._meter.loaded_at or 0, self._at),
        )

    def _add_metrics(self, wanted: list[Quantity], values: dict[Quantity, float], device: Device) -> None:
        if not wanted:
            return
        busy, memory = self._engine_shares(device)
        for quantity in wanted:
            values[quantity] = compute_metric(quantity, busy, memory)

    def _engine_shares(self, device: Device) -> tuple[float, float]:
        """Return the shares of time that a Device's engines and memory were busy since the last read."""
        if self._engines is None:
            return 0.0, 0.0
        whole = self.hardware.spec.sm_count
        busy = memory = 0.0
        for context in self.phase.contexts:
            if device in (context.device, context.device.gpu):
                used, size = self._engines.usage_of(context.run), sm_count(context.device, whole)
                busy += (used.sm or 0.0) * size
                memory += (used.memory or 0.0) * size
        size = sm_count(device, whole)
        return min(1.0, busy / size), min(1.0, memory / size)

    def _apply_bad_values(
        self, values: dict[Quantity, float], wanted: frozenset[Quantity], device: Device
    ) -> int:
        invalid = 0
        for fault in self._active("bad_value"):
            quantity = QUANTITIES[fault.quantity]
            if quantity not in wanted or quantity not in values or not _targets_device(fault, device):
                continue
            del values[quantity]
            if fault.value is not None and quantity.is_possible(fault.value):
                values[quantity] = fault.value
            else:
                invalid += 1
        return invalid

    def _build_down_readings(self, plan: QuantityPlan) -> list[Reading]:
        # The driver still says how to recover, but reads nothing from the card.
        partition = self.phase.partition
        devices: list[Device] = [self.gpu, *(instance for instance, _ in partition.instances)]
        reset = self.down_reason == "RESET_REQUIRED" and plan.gpu.get(q.RECOVERY_ACTION.key)
        return [
            Reading(
                device=device,
                up=False,
                values={q.RECOVERY_ACTION: _RESET} if reset and device == self.gpu else {},
                down_reason=self.down_reason,
                processes=None,
                samples=None,
                supported=plan.gpu if device == self.gpu else plan.instance,
                mig_enabled=partition.mig_enabled and device == self.gpu,
                rules=self._rules,
            )
            for device in devices
        ]

    def _find_plan(self, wanted: frozenset[Quantity], mig: bool) -> QuantityPlan:
        key = (wanted, mig)
        if key not in self._plans:
            self._plans[key] = QuantityPlan(wanted, self.hardware.spec, mig)
        return self._plans[key]


def _targets_device(fault: FaultSpec, device: Device) -> bool:
    if isinstance(device, Instance):
        return (fault.gi, fault.ci) == (device.gi, device.ci)
    return fault.gi is None


def _affects_device(fault: FaultSpec, device: Device) -> bool:
    return fault.gi is None or _targets_device(fault, device)

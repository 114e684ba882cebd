"""One simulated Gpu: its devices, meter and seats, and the Readings that they give."""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger.model import quantities as q
from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.model.process import NO_USAGE, GpuProcess, UtilizationSample
from gpuledger.model.quantities import QUANTITIES, Level, Quantity
from gpuledger.model.snapshot import Failure, Reading
from gpuledger.sources.simulator.faults import Faults
from gpuledger.sources.simulator.gauges import GAUGES, METRICS, RATES, STORES, Gauge, Store, View, metric
from gpuledger.sources.simulator.hardware import Hardware
from gpuledger.sources.simulator.meter import Meter, Stretches
from gpuledger.sources.simulator.people import People
from gpuledger.sources.simulator.power import sm_count
from gpuledger.sources.simulator.sampling import Sampling, sample
from gpuledger.sources.simulator.scenario import FaultKind, FaultSpec, GpuSpec, Scenario
from gpuledger.sources.simulator.timeline import Phase, Roster, Timeline

# What NVML does not tell of a GPU under MIG (nvml.h, nvmlDeviceGetUtilizationRates).
_NOT_UNDER_MIG = frozenset(
    {q.UTILIZATION, q.MEMORY_UTILIZATION, q.ENCODER_UTILIZATION, q.DECODER_UTILIZATION, q.COMPUTE_MODE}
)
_WITH_GPM = frozenset({"Hopper", "Blackwell"})
_BEFORE_AMPERE = frozenset({"Maxwell", "Pascal", "Volta", "Turing"})
_PAGES = frozenset({q.RETIRED_PAGES_CORRECTABLE, q.RETIRED_PAGES_UNCORRECTABLE, q.RETIRED_PAGES_PENDING})
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
_EVERY = frozenset(QUANTITIES.values())


class Abilities:
    """For one set of wanted quantities: whether a Gpu and its Instances have each, and how to answer.

    `gauges`, `metrics` and `stores` are of the Gpu, `inside` and `stores` of its Instances.
    """

    def __init__(self, wanted: frozenset[Quantity], spec: GpuSpec, mig: bool) -> None:
        lacks = _lacks(spec)
        self.gpu = _supported(wanted, lacks, Level.GPU, mig)
        self.instance = _supported(wanted, lacks, Level.INSTANCE, mig)
        told = [QUANTITIES[key] for key, has in self.gpu.items() if has]
        self.gauges: list[tuple[Quantity, Gauge]] = [(item, GAUGES[item]) for item in told if item in GAUGES]
        self.stores = [item for item in told if item in STORES]
        self.metrics = [item for item in told if item in METRICS]
        self.inside = [item for item in self.metrics if self.instance.get(item.key)]


def _supported(
    wanted: frozenset[Quantity], lacks: frozenset[str], level: Level, mig: bool
) -> dict[str, bool]:
    """For the quantities asked of a Device of this level, whether it has them."""
    known = GAUGES.keys() | STORES.keys() | METRICS
    answers = {}
    for quantity in sorted(wanted & _EVERY, key=lambda item: item.key):
        if level is Level.INSTANCE and quantity.level is not Level.INSTANCE:
            continue
        told = quantity in known and quantity.key not in lacks
        answers[quantity.key] = told and not (mig and quantity in _NOT_UNDER_MIG)
    return answers


def _lacks(spec: GpuSpec) -> frozenset[str]:
    """What the model lacks by the scenario's word and by its architecture."""
    missing = _SINCE_AMPERE if spec.architecture in _BEFORE_AMPERE else _PAGES
    if spec.architecture not in _WITH_GPM:
        missing |= METRICS | RATES
        if all(layout.instances is None for layout in spec.layouts):
            missing |= _MIG
    return spec.lacks | {quantity.key for quantity in missing}


# Xids that come with an uncorrectable ECC error (NVIDIA's Xid catalogue).
_UNCORRECTED_XIDS = frozenset({48, 94, 95})


class Card:
    """Advanced to a moment, then asked part by part."""

    def __init__(
        self,
        hardware: Hardware,
        scenario: Scenario,
        roster: Roster,
        faults: Faults,
        people: People,
        seed: int,
    ) -> None:
        self.gpu: Gpu = hardware.gpu
        self.hardware = hardware
        self._faults = faults
        self._people = people
        self._seed = seed
        self._places = tuple(
            (index, place)
            for index, spec in enumerate(scenario.processes)
            for place in spec.places
            if place.gpu == hardware.gpu.index
        )
        self._roster = roster
        self._meter = Meter(self.stretches(), faults)
        self._moment = self._meter.now()
        self._at = 0
        self._uncorrected = 0
        self._heard = -1
        self._plans: dict[tuple[frozenset[Quantity], bool], Abilities] = {}
        # What was measured of the engines since the last read, and the part of it that is told per process.
        self._engines: Sampling | None = None
        self._sampling: Sampling | None = None

    def stretches(self) -> Stretches:
        """A fresh walk over this Gpu's stretches of constant power."""
        return Stretches(self.hardware, Timeline(self.hardware, self._roster, self._places), self._seed)

    @property
    def phase(self) -> Phase:
        """What holds at the present moment."""
        return self._moment[0]

    @property
    def is_lost(self) -> bool:
        """Whether the Gpu has fallen off the bus."""
        return bool(self._active("gpu_lost"))

    def advance(self, at: int) -> None:
        """Go on to `at` microseconds of scenario time."""
        self._at = at
        self._meter.advance(at)
        events = self._faults.xids(self._heard, at)
        self._uncorrected += sum(
            spec.gpu == self.gpu.index and spec.xid in _UNCORRECTED_XIDS for _, spec in events
        )
        self._heard = at
        self._moment = self._meter.now()

    def take_samples(self, after: int) -> Failure | None:
        """Read the sample buffer for what ended after `after`; the failure if it cannot be read."""
        self._sampling = self._engines = None
        if self.is_lost:
            return None
        self._engines = sample(
            self._meter.history, self._moment, self.hardware.spec.samples_per_second, after, self._at
        )
        if self.phase.era.mig_enabled:
            # There are no samples per process, but the engines of each Instance can be read (GPM).
            return None
        self._sampling = self._engines
        if self._active("utilization_fails"):
            return Failure("utilization", "UNKNOWN", self.gpu, "the driver did not tell its samples")
        return None

    @property
    def samples(self) -> tuple[UtilizationSample, ...] | None:
        """The samples taken; None when they are not readable."""
        readable = self._sampling is not None and not self._active("utilization_fails")
        return self._sampling.samples if self._sampling is not None and readable else None

    def processes(self) -> tuple[dict[Device, tuple[GpuProcess, ...] | None], list[Failure]]:
        """The process list of each Device that can hold any (None: not readable), and the failures."""
        found: dict[Device, list[GpuProcess]] = {device: [] for device in self._holders()}
        readable = self.samples is not None
        for seat in self.phase.seats:
            run = seat.run
            usage = NO_USAGE
            if readable and self._sampling is not None:
                usage = self._sampling.usage_of(run)
            found[seat.device].append(
                GpuProcess(
                    device=seat.device,
                    pid=run.pid,
                    host=self._people.facts(run, self._at),
                    name=run.spec.name,
                    types=run.spec.types,
                    memory=run.spec.memory,
                    usage=usage,
                )
            )
        lists: dict[Device, tuple[GpuProcess, ...] | None] = {
            device: tuple(sorted(processes, key=lambda process: process.pid))
            for device, processes in found.items()
        }
        failures = []
        for device in lists:
            if self.is_lost:
                lists[device] = None
            elif any(_concerns(fault, device) for fault in self._active("process_list_fails")):
                lists[device] = None
                failures.append(Failure("processes", "UNKNOWN", device, "the driver did not tell its list"))
        return lists, failures

    def readings(
        self, wanted: frozenset[Quantity], lists: Mapping[Device, tuple[GpuProcess, ...] | None]
    ) -> tuple[list[Reading], int]:
        """The Readings of the Gpu and its Instances, and how many values were dropped as impossible."""
        era = self.phase.era
        plan = self._plan(wanted, era.mig_enabled)
        if self.is_lost:
            return self._lost(plan), 0
        view = self._view()
        values = {quantity: value for quantity, gauge in plan.gauges if (value := gauge(view)) is not None}
        spec = self.hardware.spec
        self._tell_metrics(plan.metrics, values, self.gpu)
        self._tell_memory(plan, values, Store(spec.memory, spec.reserved_memory, view.memory_used))
        invalid = self._spoil(values, wanted, self.gpu)
        readings = [
            Reading(
                device=self.gpu,
                values=values,
                processes=lists.get(self.gpu, ()),
                samples=self.samples,
                supported=plan.gpu,
                mig_enabled=era.mig_enabled,
            )
        ]
        for instance, part in era.instances:
            inside: dict[Quantity, float] = {}
            self._tell_metrics(plan.inside, inside, instance)
            self._tell_memory(plan, inside, Store(part.memory, 0, self._held(instance, part.memory)))
            invalid += self._spoil(inside, wanted, instance)
            readings.append(
                Reading(
                    device=instance,
                    values=inside,
                    processes=lists.get(instance),
                    samples=None,
                    supported=plan.instance,
                )
            )
        return readings, invalid

    def _active(self, kind: FaultKind) -> list[FaultSpec]:
        return self._faults.active(kind, self._at, self.gpu.index)

    def _holders(self) -> list[Device]:
        era = self.phase.era
        return [instance for instance, _ in era.instances] or [self.gpu]

    def _held(self, device: Device, most: int) -> int:
        # A real allocation beyond the memory fails; the simulated one is cut.
        held = sum(seat.run.spec.memory for seat in self.phase.seats if seat.device == device)
        return min(most, held)

    def _view(self) -> View:
        spec = self.hardware.spec
        era = self.phase.era
        if era.instances:
            used = sum(self._held(instance, part.memory) for instance, part in era.instances)
        else:
            used = self._held(self.gpu, spec.memory - spec.reserved_memory)
        return View(
            at=self._at,
            index=self.gpu.index,
            seed=self._seed,
            spec=spec,
            meter=self._meter,
            draw=self._moment[1],
            usage=self._sampling.busy if self._sampling is not None else NO_USAGE,
            is_used=bool(self.phase.seats),
            memory_used=min(used, spec.memory - spec.reserved_memory),
            uncorrected=self._uncorrected,
            mig=era.mig_enabled,
        )

    def _tell_metrics(self, wanted: list[Quantity], values: dict[Quantity, float], device: Device) -> None:
        if not wanted:
            return
        busy, memory = self._busy(device)
        for quantity in wanted:
            values[quantity] = metric(quantity, busy, memory)

    def _busy(self, device: Device) -> tuple[float, float]:
        """Shares of time in which the engines and the memory of a Device were busy since the last read."""
        if self._engines is None:
            return 0.0, 0.0
        whole = self.hardware.spec.sm_count
        busy = memory = 0.0
        for seat in self.phase.seats:
            if device in (seat.device, seat.device.gpu):
                used, size = self._engines.usage_of(seat.run), sm_count(seat.device, whole)
                busy += (used.sm or 0.0) * size
                memory += (used.memory or 0.0) * size
        size = sm_count(device, whole)
        return min(1.0, busy / size), min(1.0, memory / size)

    def _tell_memory(self, plan: Abilities, values: dict[Quantity, float], store: Store) -> None:
        for quantity in plan.stores:
            values[quantity] = STORES[quantity](store)

    def _spoil(self, values: dict[Quantity, float], wanted: frozenset[Quantity], device: Device) -> int:
        invalid = 0
        for fault in self._active("bad_value"):
            quantity = QUANTITIES[fault.quantity]
            if quantity not in wanted or quantity not in values or not _is_of(fault, device):
                continue
            del values[quantity]
            if fault.value is not None and quantity.believes(fault.value):
                values[quantity] = fault.value
            else:
                invalid += 1
        return invalid

    def _lost(self, plan: Abilities) -> list[Reading]:
        era = self.phase.era
        devices: list[Device] = [self.gpu, *(instance for instance, _ in era.instances)]
        return [
            Reading(
                device=device,
                up=False,
                processes=None,
                samples=None,
                supported=plan.gpu if device == self.gpu else plan.instance,
                mig_enabled=era.mig_enabled and device == self.gpu,
            )
            for device in devices
        ]

    def _plan(self, wanted: frozenset[Quantity], mig: bool) -> Abilities:
        key = (wanted, mig)
        if key not in self._plans:
            self._plans[key] = Abilities(wanted, self.hardware.spec, mig)
        return self._plans[key]


def _is_of(fault: FaultSpec, device: Device) -> bool:
    if isinstance(device, Instance):
        return (fault.gi, fault.ci) == (device.gi, device.ci)
    return fault.gi is None


def _concerns(fault: FaultSpec, device: Device) -> bool:
    return fault.gi is None or _is_of(fault, device)

"""A deterministic simulated GPU node, for tests, demonstrations and proofs without a GPU."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from threading import Event

from gpuledger.model.devices import Device, is_selected
from gpuledger.model.down_reasons import describe_down
from gpuledger.model.errors import SourceUnavailable, unknown_name_error
from gpuledger.model.process import GpuProcess
from gpuledger.model.quantities import Quantity
from gpuledger.model.session import Account
from gpuledger.model.snapshot import CollectorRun, Failure, Reading, Snapshot, SourceInfo, XidEvent
from gpuledger.model.source import Clock
from gpuledger.model.workload import Allocation, Workload
from gpuledger.sources.device_selection import DeviceSelection
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.simulator.faults import FaultSchedule
from gpuledger.sources.simulator.gpu_timeline import GpuContext, Phase, RunSchedule
from gpuledger.sources.simulator.hardware import build_hardware
from gpuledger.sources.simulator.meter import PowerSegments
from gpuledger.sources.simulator.power import split_floor
from gpuledger.sources.simulator.scenario import SECOND, AllocationSpec, PodSpec, Scenario
from gpuledger.sources.simulator.simulated_gpu import SimulatedGpu
from gpuledger.sources.simulator.simulated_host import FOUND_BY, SimulatedHost, process_start

_PICO = 10**12


class ExactEnergy:
    """The exact energy accounts of one GPU, computed forward from time 0.

    A resident is charged its part of the floor, a process the load that it causes; the rest is idle.
    """

    def __init__(self, segments: PowerSegments, boot: tuple[int, float]) -> None:
        """`boot`: the node's uptime at time 0 in microseconds, and the unix time of time 0."""
        self._hardware = segments.hardware
        self._segments = segments
        self._boot = boot
        self._idle = Account(self._hardware.gpu, "idle")
        self._booked: defaultdict[Account, Fraction] = defaultdict(Fraction)
        self._booked[self._idle] = Fraction(0)
        self.at = 0

    def advance(self, at: int) -> None:
        """Advance to `at` microseconds."""
        phase: Phase | None = None
        since = self.at
        loads: list[int] = []
        for begin, end, next_phase, draw in self._segments.between(self.at, at):
            if next_phase is not phase:
                if phase is not None:
                    self._book(phase, begin - since, loads)
                phase, since, loads = next_phase, begin, [0] * len(next_phase.contexts)
            for index, load in enumerate(draw.loads):
                loads[index] += load * (end - begin)
        if phase is not None:
            self._book(phase, at - since, loads)
        self.at = max(self.at, at)

    def joules(self) -> dict[Account, Fraction]:
        """Return joules per account up to the current time; their sum is exactly the integral of power."""
        return {account: picojoules / _PICO for account, picojoules in self._booked.items()}

    def _book(self, phase: Phase, duration: int, loads: list[int]) -> None:
        shares, idle = split_floor(self._hardware, phase)
        self._booked[self._idle] += idle * duration
        for context, share, load in zip(phase.contexts, shares, loads, strict=True):
            self._booked[self._account(context)] += share * duration + load

    def _account(self, context: GpuContext) -> Account:
        device = context.device
        start = process_start(context.run, *self._boot)
        key = (device.uuid, context.run.pid, start.boot_id, start.ticks, start.seen)
        return Account(self._hardware.gpu, "process", device.instance, key)


_MAX_WAIT_SECONDS = 0.05


class Simulator:
    """Source of a simulated node. Its state depends only on scenario, seed and time, not on earlier reads.

    Scenario time is the clock's elapsed seconds since construction times `speed`; it is `Snapshot.elapsed`.
    """

    has_local_pids = False

    def __init__(self, scenario: Scenario, settings: SourceSettings, clock: Clock) -> None:
        """Raises UsageError when `settings.devices` names a GPU that the scenario does not have."""
        self._scenario = scenario
        self._clock = clock
        self._speed = settings.speed
        self._began = clock.elapsed()
        self._unix = clock.unix()
        self._faults = FaultSchedule(scenario.faults)
        self._schedule = RunSchedule(scenario.processes, settings.seed)
        self._host = SimulatedHost(settings.seed, scenario.uptime, self._unix)
        self.selection = DeviceSelection(settings.devices)
        self._simulated_gpus = self._build_selected_gpus(settings)
        self._exact_energies: list[ExactEnergy] = []
        self._allocation_workloads = [
            (spec, self._host.workload(spec.pod, 0, "")) for spec in scenario.allocations
        ]
        self._last = 0
        self._read_at: int | None = None
        self._closed = Event()
        self.info = SourceInfo(
            name="simulator",
            simulated=True,
            driver_version=scenario.driver_version,
            library_version=scenario.library_version,
            cuda_version=scenario.cuda_version,
            detail=scenario.name,
        )

    def read(self, wanted: frozenset[Quantity]) -> Snapshot:
        """Read the node. Blocks during a `hang` fault; raises SourceUnavailable during `source_fails`."""
        at = self._wait_for_hang()
        self.selection.log_omission()
        failing = self._faults.active_faults("source_fails", at)
        if failing:
            raise SourceUnavailable(
                f"scenario {self._scenario.name}: the driver does not answer ({failing[0].reason}); wait "
                "until the source_fails fault ends",
                failing[0].reason,
            )
        after = max(0, at - SECOND) if self._read_at is None else self._read_at
        xids_after = -1 if self._read_at is None else self._read_at
        self._read_at = at
        parts = _PartTimer(self._clock)
        with parts.time("devices"):
            for simulated in self._simulated_gpus:
                simulated.advance(at)
                if reason := simulated.down_reason:
                    gpu = simulated.gpu
                    detail = f"GPU {gpu.index} ({gpu.uuid}) {describe_down(reason)}"
                    parts.failures.append(Failure("devices", reason, gpu, detail))
        with parts.time("utilization"):
            sample_failures = [simulated.collect_samples(after) for simulated in self._simulated_gpus]
            parts.failures += [failure for failure in sample_failures if failure is not None]
        with parts.time("processes"):
            lists: dict[Device, tuple[GpuProcess, ...] | None] = {}
            for simulated in self._simulated_gpus:
                found, failures = simulated.processes()
                lists.update(found)
                parts.failures += failures
            allocations = tuple(self._allocations(at))
        with parts.time("readings"):
            readings: list[Reading] = []
            invalid = 0
            for simulated in self._simulated_gpus:
                gpu_readings, dropped = simulated.readings(wanted, lists)
                readings += gpu_readings
                invalid += dropped
        with parts.time("events"):
            xids = tuple(self._xid_events(xids_after, at))
        return Snapshot(
            unix=self._unix + at / SECOND,
            elapsed=at / SECOND,
            source=self.info,
            readings=tuple(readings),
            allocations=allocations,
            xids=xids,
            failures=tuple(parts.failures),
            collected=tuple(parts.collected),
            invalid=invalid,
        )

    def close(self) -> None:
        """Interrupt a blocked read. That read and later ones raise SourceUnavailable. Idempotent."""
        self._closed.set()

    def true_energy(self, t: float | None = None) -> Mapping[Account, Fraction]:
        """Return the true joules per account up to `t` seconds of scenario time (None: now), exactly.

        Accounts are those of processes (from their start on a Device) and the `idle` account of each GPU.
        Their sum per GPU is the integral of its power, regardless of its counter and of faults. A `t` before
        that of the last call computes again from 0.
        """
        at = self._now() if t is None else round(t * SECOND)
        if not self._exact_energies or self._exact_energies[0].at > at:
            boot = (self._scenario.uptime, self._unix)
            self._exact_energies = [
                ExactEnergy(simulated.segments(), boot) for simulated in self._simulated_gpus
            ]
        accounts: dict[Account, Fraction] = {}
        for exact in self._exact_energies:
            exact.advance(at)
            accounts.update(exact.joules())
        return accounts

    def _build_selected_gpus(self, settings: SourceSettings) -> list[SimulatedGpu]:
        built = [build_hardware(spec, index, settings.seed) for index, spec in enumerate(self._scenario.gpus)]
        for wanted in settings.devices:
            if not any(is_selected(hardware.gpu, (wanted,)) for hardware in built):
                raise unknown_name_error("device", wanted, [str(hardware.gpu.index) for hardware in built])
        self.selection.compare(hardware.gpu for hardware in built)
        return [
            SimulatedGpu(hardware, self._scenario, self._schedule, self._faults, self._host, settings.seed)
            for hardware in built
            if is_selected(hardware.gpu, settings.devices)
        ]

    def _now(self) -> int:
        elapsed = self._clock.elapsed() - self._began
        self._last = max(self._last, round(elapsed * self._speed * SECOND))
        return self._last

    def _wait_for_hang(self) -> int:
        while not self._closed.is_set():
            at = self._now()
            until = self._faults.hang_until(at)
            if until is None:
                return at
            self._closed.wait(min(_MAX_WAIT_SECONDS, (until - at) / SECOND / self._speed))
        raise SourceUnavailable("the simulator is closed", "closed")

    def _allocations(self, at: int) -> Iterator[Allocation]:
        found = {(device.uuid, workload): device for device, workload in self._allocated_devices(at)}
        pods = Counter(uuid for uuid, *_ in {(uuid, one.namespace, one.pod) for uuid, one in found})
        for (uuid, workload), device in found.items():
            # Several pods on a Device that is not shared by replicas: their parts are unknown.
            replicas = self._scenario.gpus[device.gpu.index].replicas or (1 if pods[uuid] == 1 else 0)
            fraction = Fraction(1, replicas) if replicas else None
            yield Allocation(device, workload, FOUND_BY, fraction=fraction)

    def _allocated_devices(self, at: int) -> Iterator[tuple[Device, Workload]]:
        for spec, workload in self._allocation_workloads:
            if spec.start <= at < spec.stop:
                device = self._find_allocated_device(spec, at)
                if device is not None:
                    yield device, workload
        for simulated in self._simulated_gpus:
            for context in simulated.phase.contexts:
                if isinstance(context.run.spec.owner, PodSpec):
                    owner = self._host.facts(context.run, at).workload
                    if owner is not None and owner.pod:
                        yield context.device, owner

    def _find_allocated_device(self, spec: AllocationSpec, at: int) -> Device | None:
        for simulated in self._simulated_gpus:
            if simulated.gpu.index == spec.placement.gpu:
                found = simulated.hardware.device_at(spec.placement, at)
                return found[0] if found is not None else None
        return None

    def _xid_events(self, after: int, until: int) -> Iterator[XidEvent]:
        gpus = {simulated.gpu.index: simulated.gpu for simulated in self._simulated_gpus}
        for time, spec in self._faults.xids(after, until):
            if spec.gpu in gpus:
                ci = spec.ci if spec.gi is not None else None
                yield XidEvent(gpus[spec.gpu], spec.xid, self._unix + time / SECOND, spec.gi, ci)


class _PartTimer:
    """Times the parts of one tick and collects their failures."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.failures: list[Failure] = []
        self.collected: list[CollectorRun] = []

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        begun = self._clock.elapsed()
        yield
        errors = [failure.detail for failure in self.failures if failure.part == name]
        self.collected.append(CollectorRun(name, self._clock.elapsed() - begun, "; ".join(errors)))

"""A deterministic GPU node, so that everything downstream can be run, shown and proven without a GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from threading import Event

from gpuledger.model.devices import Device, is_chosen
from gpuledger.model.errors import SourceUnavailable, unknown
from gpuledger.model.process import GpuProcess
from gpuledger.model.quantities import Quantity
from gpuledger.model.session import Account
from gpuledger.model.snapshot import Collected, Failure, Reading, Snapshot, SourceInfo, XidEvent
from gpuledger.model.source import Clock
from gpuledger.model.workload import Allocation, Workload
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.simulator.card import Card
from gpuledger.sources.simulator.faults import Faults
from gpuledger.sources.simulator.hardware import build
from gpuledger.sources.simulator.meter import Stretches
from gpuledger.sources.simulator.people import FOUND_BY, People, start_of
from gpuledger.sources.simulator.power import floor_shares
from gpuledger.sources.simulator.scenario import SECOND, AllocationSpec, Pod, Scenario
from gpuledger.sources.simulator.timeline import Phase, Roster, Seat

_PICO = 10**12


class TruthWalk:
    """Books the exact energy of one Gpu, going forward from time 0.

    A resident bears its part of the floor, a process the load that it causes; the rest is idle.
    """

    def __init__(self, stretches: Stretches, boot: tuple[int, float]) -> None:
        """`boot`: the node's uptime at time 0 in microseconds, and the unix time of time 0."""
        self._hardware = stretches.hardware
        self._stretches = stretches
        self._boot = boot
        self._idle = Account(self._hardware.gpu, "idle")
        self._booked: defaultdict[Account, Fraction] = defaultdict(Fraction)
        self._booked[self._idle] = Fraction(0)
        self.at = 0

    def advance(self, at: int) -> None:
        """Go on to `at` microseconds."""
        phase: Phase | None = None
        since = self.at
        loads: list[int] = []
        for begin, end, holding, drawn in self._stretches.between(self.at, at):
            if holding is not phase:
                if phase is not None:
                    self._book(phase, begin - since, loads)
                phase, since, loads = holding, begin, [0] * len(holding.seats)
            for index, load in enumerate(drawn.loads):
                loads[index] += load * (end - begin)
        if phase is not None:
            self._book(phase, at - since, loads)
        self.at = max(self.at, at)

    def joules(self) -> dict[Account, Fraction]:
        """Joules per account up to now; their sum is the integral of the power, exactly."""
        return {account: picojoules / _PICO for account, picojoules in self._booked.items()}

    def _book(self, phase: Phase, lasting: int, loads: list[int]) -> None:
        shares, idle = floor_shares(self._hardware, phase)
        self._booked[self._idle] += idle * lasting
        for seat, share, load in zip(phase.seats, shares, loads, strict=True):
            self._booked[self._account(seat)] += share * lasting + load

    def _account(self, seat: Seat) -> Account:
        device = seat.device
        start = start_of(seat.run, *self._boot)
        key = (device.uuid, seat.run.pid, start.boot_id, start.ticks, start.seen)
        return Account(self._hardware.gpu, "process", device.instance, key)


_LONGEST_NAP = 0.05


class Simulator:
    """A Source whose state is a function of scenario, seed and time alone, however often it is read.

    Scenario time is the clock's elapsed seconds since construction times `speed`; it is `Snapshot.elapsed`.
    """

    def __init__(self, scenario: Scenario, settings: SourceSettings, clock: Clock) -> None:
        """Raises UsageError when `settings.devices` names a GPU that the scenario does not have."""
        self._scenario = scenario
        self._clock = clock
        self._speed = settings.speed
        self._began = clock.elapsed()
        self._unix = clock.unix()
        self._faults = Faults(scenario.faults)
        self._roster = Roster(scenario.processes, settings.seed)
        self._people = People(settings.seed, scenario.uptime, self._unix)
        self._cards = self._chosen_cards(settings)
        self._truths: list[TruthWalk] = []
        self._handed = [(spec, self._workload(spec.pod)) for spec in scenario.allocations]
        self._last = 0
        self._read_at: int | None = None
        self._closed = Event()
        self._info = SourceInfo(
            name="simulator",
            simulated=True,
            driver_version=scenario.driver_version,
            library_version=scenario.library_version,
            cuda_version=scenario.cuda_version,
            detail=scenario.name,
        )

    @property
    def info(self) -> SourceInfo:
        """Name `simulator`, with the scenario's name as detail."""
        return self._info

    def read(self, wanted: frozenset[Quantity]) -> Snapshot:
        """The node now. Blocks while the scenario hangs; raises SourceUnavailable when it says so."""
        at = self._arrive()
        failing = self._faults.active("source_fails", at)
        if failing:
            raise SourceUnavailable(
                f"scenario {self._scenario.name}: the driver does not answer ({failing[0].reason}); wait",
                failing[0].reason,
            )
        after = max(0, at - SECOND) if self._read_at is None else self._read_at
        heard = -1 if self._read_at is None else self._read_at
        self._read_at = at
        parts = _Parts(self._clock)
        with parts.of("devices"):
            for card in self._cards:
                card.advance(at)
                if card.is_lost:
                    parts.failures.append(Failure("devices", "GPU_IS_LOST", card.gpu, "fallen off the bus"))
        with parts.of("utilization"):
            told = [card.take_samples(after) for card in self._cards]
            parts.failures += [failure for failure in told if failure is not None]
        with parts.of("processes"):
            lists: dict[Device, tuple[GpuProcess, ...] | None] = {}
            for card in self._cards:
                found, failures = card.processes()
                lists.update(found)
                parts.failures += failures
            allocations = tuple(self._allocations(at))
        with parts.of("readings"):
            readings: list[Reading] = []
            invalid = 0
            for card in self._cards:
                mine, dropped = card.readings(wanted, lists)
                readings += mine
                invalid += dropped
        with parts.of("events"):
            xids = tuple(self._xids(heard, at))
        return Snapshot(
            unix=self._unix + at / SECOND,
            elapsed=at / SECOND,
            source=self._info,
            readings=tuple(readings),
            allocations=allocations,
            xids=xids,
            failures=tuple(parts.failures),
            collected=tuple(parts.collected),
            invalid=invalid,
        )

    def close(self) -> None:
        """Release a read that hangs; it and later ones raise SourceUnavailable. Idempotent."""
        self._closed.set()

    def truth(self, t: float | None = None) -> Mapping[Account, Fraction]:
        """True joules per account up to `t` seconds of scenario time (None: now), as exact fractions.

        Accounts are those of processes (from their first moment on a Device) and each Gpu's `idle`. Their sum
        over a Gpu is the integral of its power, whatever its counter or faults said. Going back in time
        starts over from 0.
        """
        at = self._now() if t is None else round(t * SECOND)
        if not self._truths or self._truths[0].at > at:
            boot = (self._scenario.uptime, self._unix)
            self._truths = [TruthWalk(card.stretches(), boot) for card in self._cards]
        accounts: dict[Account, Fraction] = {}
        for walk in self._truths:
            walk.advance(at)
            accounts.update(walk.joules())
        return accounts

    def _chosen_cards(self, settings: SourceSettings) -> list[Card]:
        built = [build(spec, index, settings.seed) for index, spec in enumerate(self._scenario.gpus)]
        for wanted in settings.devices:
            if not any(is_chosen(hardware.gpu, (wanted,)) for hardware in built):
                raise unknown("device", wanted, [str(hardware.gpu.index) for hardware in built])
        return [
            Card(hardware, self._scenario, self._roster, self._faults, self._people, settings.seed)
            for hardware in built
            if is_chosen(hardware.gpu, settings.devices)
        ]

    def _now(self) -> int:
        elapsed = self._clock.elapsed() - self._began
        self._last = max(self._last, round(elapsed * self._speed * SECOND))
        return self._last

    def _arrive(self) -> int:
        while not self._closed.is_set():
            at = self._now()
            until = self._faults.hang_until(at)
            if until is None:
                return at
            self._closed.wait(min(_LONGEST_NAP, (until - at) / SECOND / self._speed))
        raise SourceUnavailable("the simulator is closed", "closed")

    def _workload(self, pod: Pod) -> Workload:
        return self._people.workload(pod, 0, "")

    def _allocations(self, at: int) -> Iterator[Allocation]:
        seen: set[tuple[str, Workload]] = set()
        for device, workload in self._holdings(at):
            if (device.uuid, workload) not in seen:
                seen.add((device.uuid, workload))
                yield Allocation(device, workload, FOUND_BY)

    def _holdings(self, at: int) -> Iterator[tuple[Device, Workload]]:
        for spec, workload in self._handed:
            if spec.start <= at < spec.stop:
                device = self._allocated(spec, at)
                if device is not None:
                    yield device, workload
        for card in self._cards:
            for seat in card.phase.seats:
                if isinstance(seat.run.spec.owner, Pod):
                    owner = self._people.facts(seat.run, at).workload
                    if owner is not None and owner.pod:
                        yield seat.device, owner

    def _allocated(self, spec: AllocationSpec, at: int) -> Device | None:
        for card in self._cards:
            if card.gpu.index == spec.place.gpu:
                found = card.hardware.device(spec.place, at)
                return found[0] if found is not None else None
        return None

    def _xids(self, after: int, until: int) -> Iterator[XidEvent]:
        gpus = {card.gpu.index: card.gpu for card in self._cards}
        for time, spec in self._faults.xids(after, until):
            if spec.gpu in gpus:
                ci = spec.ci if spec.gi is not None else None
                yield XidEvent(gpus[spec.gpu], spec.xid, self._unix + time / SECOND, spec.gi, ci)


class _Parts:
    """The parts of one tick: how long each took, and what failed in it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.failures: list[Failure] = []
        self.collected: list[Collected] = []

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        begun = self._clock.elapsed()
        yield
        error = next((failure.reason for failure in self.failures if failure.part == name), "")
        self.collected.append(Collected(name, self._clock.elapsed() - begun, error))

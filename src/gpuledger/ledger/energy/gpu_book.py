"""The books of one Gpu: gathers evidence tick by tick, closes intervals, learns floors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpuledger.ledger.energy.booking import MEASURED, SLICES, Booked, Policy, book, is_active
from gpuledger.ledger.energy.counter import LONGEST, Counter, Epoch, Tick, Verdict
from gpuledger.ledger.energy.evidence import DESKTOP, Evidence, Sighting
from gpuledger.ledger.energy.floor import QUIET_AFTER, FloorBook, Floors
from gpuledger.ledger.energy.residence import Residence, residences
from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.process import GpuProcess
from gpuledger.model.quantities import (
    ENERGY,
    ENGINE_ACTIVITY,
    POWER,
    POWER_LIMIT,
    POWER_LIMIT_MAX,
    UTILIZATION,
)
from gpuledger.model.snapshot import Reading

# The driver's sample buffer reaches back this far at most; clocks of one machine differ by less than that.
_OLDEST_SAMPLE = 60.0
_NOTHING = Booked(0, MEASURED, 0, 0, {})
_SKEW = 0.5


@dataclass(frozen=True, slots=True)
class Posted:
    """What one tick put into the books of a Gpu: an interval, or energy that nobody observed.

    Times are unix seconds; `floors` are those reckoned with; `residents` is everybody who was there. `life`
    is the epoch of the counter that it is part of; `integrated` marks energy that is an integral of power,
    and part of no epoch. `length` is the interval's in microseconds, on the source's clock: unix time may be
    set meanwhile; 0 where there is no interval.
    """

    gpu: Gpu
    begins: float
    ends: float
    booked: Booked
    unobserved: int = 0
    life: int = 0
    floors: Floors = field(default_factory=Floors)
    residents: tuple[Residence, ...] = ()
    integrated: bool = False
    length: int = 0

    @property
    def millijoules(self) -> int:
        """Everything that it put into the books."""
        return self.booked.delta + self.unobserved

    def voided(self) -> Posted:
        """The same energy as nobody's who is known: it could not be posted otherwise."""
        return replace(self, booked=_NOTHING, unobserved=self.millijoules, residents=())


class _Look(NamedTuple):
    """One tick's look at the Gpu. `at` is on the source's clock; `parts` are the Readings of its Instances,
    none without MIG; `good` says that every process list could be read.
    """

    at: float
    unix: float
    parts: Sequence[Reading]
    sighting: Sighting
    good: bool

    @property
    def instances(self) -> tuple[Instance, ...]:
        """The Instances that it is cut into."""
        return tuple([part.device for part in self.parts if isinstance(part.device, Instance)])


@dataclass(slots=True)
class GpuBook:
    """State of one Gpu between ticks. `counter` and `floors` are what is stored over restarts.

    `driver` is the version that the floors were learnt under. `invalid` counts readings not believed.
    `integral` is power integrated since the open interval began or the counter moved, in millijoules, for
    Gpus whose counter is missing or frozen. `still_since` is when the counter was first read or last moved in
    this run. `ghosts` are, by pid, the processes of the last interval that no list had.
    """

    gpu: Gpu
    counter: Counter
    floors: FloorBook
    policy: Policy = Policy.APPORTIONED
    driver: str = ""
    evidence: Evidence | None = None
    invalid: int = 0
    has_counter: bool = field(init=False)
    still_since: float | None = None
    # The driver load that a lower reading ended.
    ended_load: str = ""
    ghosts: dict[int, GpuProcess] = field(default_factory=dict)
    frozen: bool = False
    integral: float = 0.0
    began_unix: float = 0.0
    offset: float | None = None
    quiet_since: float | None = None
    power: tuple[float, float] | None = None
    seen_unix: float | None = None

    def __post_init__(self) -> None:
        # One that failed to answer after a restart is not one that the Gpu does not have.
        self.has_counter = self.counter.last is not None

    def begin_epoch(self, epoch: Epoch, unix: float) -> list[Posted]:
        """Go on in this epoch: another one when the driver was loaded anew, else the same, known better."""
        before = self.counter
        if not epoch.differs(before.epoch):
            # The source goes on telling the load that a lower reading ended, until it opens the driver anew.
            if not before.epoch.driver_load and epoch.driver_load not in ("", self.ended_load):
                self.counter = replace(before, epoch=epoch)
            return []
        self.counter, verdict = before.resumed(epoch)
        self.evidence = None
        return self._unobserved(verdict.tail, unix, before.life)

    def interrupt(self) -> None:
        """Nobody looks from here on: the open interval, and what is used until the first move that is seen
        afterwards, is unobserved. So it is after a restart of the program, too.
        """
        self.counter, _ = self.counter.resumed(self.counter.epoch)
        self.evidence = self.power = self.quiet_since = self.still_since = None
        self.ghosts = {}

    def post(
        self, at: float, unix: float, reading: Reading, parts: Sequence[Reading], *, whole: bool
    ) -> list[Posted]:
        """Take in one tick: the Gpu's reading and its Instances' (empty without MIG).

        `whole` is false when the Devices could not all be listed.
        """
        holders = parts or (reading,)
        lists = [holder.processes for holder in holders]
        good = whole and reading.up and all(processes is not None for processes in lists)
        self._integrate(at, reading)
        sighting = Sighting(at, {process.key: process for processes in lists for process in processes or ()})
        self._gather(at, unix, reading, parts)
        posted = self._close(_Look(at, unix, parts, sighting, good), reading)
        if good and self.evidence is not None and self.evidence.first is not sighting:
            self.evidence.between.append(sighting)
        return posted

    def _integrate(self, at: float, reading: Reading) -> None:
        power = reading.get(POWER)
        if power is None:
            self.power = None
            return
        if self.power is not None:
            before, then = self.power
            # Nobody knows the power within a gap: it is not made up.
            if at - then <= LONGEST:
                self.integral += (power + before) / 2 * (at - then) * 1000
        self.power = (power, at)

    def _gather(self, at: float, unix: float, reading: Reading, parts: Sequence[Reading]) -> None:
        if reading.samples:
            newest = max(sample.at for sample in reading.samples) / 1e6
            self.offset = _offset(newest, at, unix, self.offset)
        evidence = self.evidence
        if evidence is not None and at - evidence.began > 2 * LONGEST:
            # Nobody will be billed by it any more: it only grows.
            evidence = self.evidence = None
        if evidence is None:
            return
        evidence.offset = self.offset or 0.0
        for record in reading.accounting:
            if record.ended is None or record.ended >= evidence.began:
                evidence.records.setdefault(record.pid, {})[record.began] = record
        if reading.samples is None or parts:
            evidence.samples_readable = False
        else:
            oldest = (evidence.began - evidence.offset) * 1e6
            evidence.samples += [sample for sample in reading.samples if sample.at >= oldest]
        evidence.busy = evidence.busy or (bool(reading.get(UTILIZATION)) and not self._is_desktop(reading))
        if parts and evidence.activity is not None:
            self._gather_activity(at, evidence, parts)

    def _is_desktop(self, reading: Reading) -> bool:
        """Only drawing processes, and little to draw: a desktop's flicker is no activity."""
        somebody = reading.processes or ()
        drawing = bool(somebody) and not any(process.computes for process in somebody)
        return drawing and (reading.get(UTILIZATION) or 0.0) < DESKTOP

    def _gather_activity(self, at: float, evidence: Evidence, parts: Sequence[Reading]) -> None:
        since, evidence.activity_at = evidence.activity_at, at
        for part in parts:
            ratio = part.get(ENGINE_ACTIVITY)
            if ratio is None or evidence.activity is None or not isinstance(part.device, Instance):
                evidence.activity = None
                return
            evidence.activity[part.device] = evidence.activity.get(part.device, 0.0) + ratio * (at - since)
            evidence.busy = evidence.busy or ratio > 0

    def _close(self, now: _Look, reading: Reading) -> list[Posted]:
        energy = reading.get(ENERGY)
        if energy is None:
            if self.has_counter or not now.good or self.power is None:
                return []
            return self._close_integrated(now)
        if not self.has_counter:
            # Power stood in for it until now.
            self.has_counter = True
            self.counter, _ = self.counter.read(Tick(now.at, int(energy), now.good, None))
            self.still_since = now.at
            return self._end_integral(now)
        limit = reading.get(POWER_LIMIT_MAX) or reading.get(POWER_LIMIT)
        before = self.counter
        self.counter, verdict = before.read(Tick(now.at, int(energy), now.good, limit))
        self.invalid += verdict.invalid
        if verdict.epoch_closed:
            self.ended_load = before.epoch.driver_load
        moved = self.counter.moved_at != before.moved_at
        if self.still_since is None or moved:
            self.still_since = now.at
        if self.frozen:
            if moved:
                return self._thaw(now)
            return self._close_integrated(now) if now.good else []
        if self._is_frozen(now):
            return self._freeze(now)
        if moved and not verdict.closes:
            # What the counter told is not to be had from power once more.
            self.integral = 0.0
        return self._unobserved(verdict.tail, now.unix, before.life) + self._act(verdict, now)

    def _is_frozen(self, now: _Look) -> bool:
        still = self.still_since is not None and now.at - self.still_since >= LONGEST
        # A reading under suspicion did move, if only nobody knows yet from where.
        still = still and self.counter.aside is None
        return now.good and still and self.power is not None and self.power[0] > 0

    def _freeze(self, now: _Look) -> list[Posted]:
        """From its last move on, power stands in for the counter."""
        self.frozen = True
        before = self.counter
        if before.last is not None:
            self.counter = replace(before, booked=before.last)
        if before.tail:
            # Then what is integrated is not the power of the whole interval: it teaches nothing.
            self.quiet_since = None
        return self._unobserved(before.tail, now.unix, before.life) + self._close_integrated(now)

    def _unobserved(
        self, millijoules: int, unix: float, life: int, *, integrated: bool = False
    ) -> list[Posted]:
        """What was used since the last interval began and cannot be anybody's; nothing when there is none."""
        if not millijoules:
            return []
        began = self.seen_unix if self.seen_unix is not None else unix
        return [Posted(self.gpu, min(began, unix), unix, _NOTHING, millijoules, life, integrated=integrated)]

    def _thaw(self, now: _Look) -> list[Posted]:
        """The counter moves again: an epoch of its own begins where it now stands."""
        self.frozen = False
        here = self.counter.last or 0
        self.counter = Counter(
            self.counter.epoch,
            opening=here,
            booked=here,
            last=here,
            last_at=now.at,
            moved_at=now.at,
            started_at=now.at if now.good else None,
            refresh=self.counter.refresh,
            life=self.counter.life + 1,
        )
        return self._end_integral(now)

    def _end_integral(self, now: _Look) -> list[Posted]:
        """Power stands in no longer: book what was integrated, to nobody where the lists do not tell."""
        if not now.good:
            self.evidence = None
        posted = self._close_integrated(now)
        if not now.good:
            self.evidence = None
        return posted

    def _act(self, verdict: Verdict, now: _Look) -> list[Posted]:
        if verdict.closes:
            posted = [self._booked(now, verdict.delta, integrated=False)]
        else:
            posted = self._unobserved(verdict.unobserved, now.unix, self.counter.life)
        if verdict.epoch_closed:
            self.evidence = None
        if self.counter.started_at == now.at:
            self._begin(now)
        return posted

    def _close_integrated(self, now: _Look) -> list[Posted]:
        millijoules = int(self.integral)
        if self.evidence is not None:
            posted = [self._booked(now, millijoules, integrated=True)]
        else:
            # Power was told, but for too long not who was there.
            posted = self._unobserved(millijoules, now.unix, self.counter.life, integrated=True)
        # What is less than a millijoule stays for the next interval.
        left = self.integral % 1
        self._begin(now)
        self.integral = left
        return posted

    def _begin(self, now: _Look) -> None:
        self.evidence = Evidence(
            self.gpu, now.sighting, now.instances, offset=self.offset or 0.0, ghosts=self.ghosts
        )
        self.integral = 0.0
        self.began_unix = self.seen_unix = now.unix

    def _booked(self, now: _Look, delta: int, *, integrated: bool) -> Posted:
        evidence = self.evidence
        assert evidence is not None
        length = round((now.at - evidence.began) * 1e6)
        everybody = residences(evidence, now.sighting, now.unix)
        self.ghosts = {
            one.process.pid: one.process for one in everybody if not evidence.lists(one.key, now.sighting)
        }
        floors = self.floors.floors
        if now.instances != evidence.instances:
            # Cut anew meanwhile: who had which SMs in this interval cannot be said.
            booked = Booked(delta, SLICES, 0, delta, {})
        else:
            booked = book(
                evidence, length, delta, everybody, floors, integrated=integrated, policy=self.policy
            )
        self._learn(now, length, delta, everybody)
        return Posted(
            self.gpu,
            self.began_unix,
            now.unix,
            booked,
            life=self.counter.life,
            floors=floors,
            residents=tuple(everybody),
            integrated=integrated,
            length=length,
        )

    def _learn(self, now: _Look, length: int, delta: int, everybody: Sequence[Residence]) -> None:
        """Quiet intervals teach the floor: none active now nor for the ten seconds before."""
        evidence = self.evidence
        assert evidence is not None
        unknown = bool(everybody) and not evidence.samples_readable and evidence.activity is None
        if unknown or is_active(evidence, everybody):
            self.quiet_since = None
            return
        if self.quiet_since is None:
            self.quiet_since = now.at
        elif evidence.began - self.quiet_since >= QUIET_AFTER and length:
            tenants = [one for one in everybody if not one.draws]
            if all(one.certain for one in tenants):
                self.floors.learn(now.unix, delta * 1_000_000 // length, length / 1e6, anybody=bool(tenants))


def _offset(newest: float, at: float, unix: float, before: float | None) -> float:
    """What to add to a driver's sample time to get the source's own (the header says only "CPU timestamp").

    Drivers count from boot or from 1970; where neither fits, a sample is never newer than its tick, so the
    least distance ever seen is the nearest to the truth.
    """
    for known in (0.0, at - unix):
        if -_SKEW <= at - newest - known <= _OLDEST_SAMPLE:
            return known
    return at - newest if before is None else min(before, at - newest)

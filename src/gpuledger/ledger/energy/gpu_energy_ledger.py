"""The energy ledger of one Gpu: collects evidence each tick, closes intervals, learns floors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpuledger.ledger.energy.booking import (
    MEASURED,
    SLICES,
    BookedInterval,
    EnergyPolicy,
    apportion,
    is_active,
)
from gpuledger.ledger.energy.counter import (
    CounterReading,
    EnergyCounter,
    Epoch,
    ReadingVerdict,
)
from gpuledger.ledger.energy.evidence import Evidence, ProcessLists, SampleClock
from gpuledger.ledger.energy.floor import QUIET_AFTER, FloorEstimator, Floors
from gpuledger.ledger.energy.power_integral import PowerIntegral, PowerOutcome, highest_limit
from gpuledger.ledger.energy.residence import Residence, residences
from gpuledger.ledger.service_processes import serving_processes
from gpuledger.model import quantities as q
from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.process import GpuProcess, ProcessKey
from gpuledger.model.snapshot import LONGEST_INTERVAL, Reading

_NOTHING = BookedInterval(0, MEASURED, 0, 0, {})


# A superchip module may draw 2.25 times the limit of one of its GPUs (GB200: 2700 W and 1200 W).
_MODULE_LIMIT = 3


@dataclass(frozen=True, slots=True)
class Posting:
    """The energy that one tick booked for a Gpu: an interval, or unobserved energy.

    Times are unix seconds; `floors` are those used; `residents` are all processes that were present.
    `epoch_number` is the counter epoch to which it belongs. `integrated` marks energy that is an integral of
    power and belongs to no epoch. `length` is the length of the interval in microseconds on the source's
    clock, because unix time can be set meanwhile; 0 without an interval.
    """

    gpu: Gpu
    begins: float
    ends: float
    booked: BookedInterval
    unobserved: int = 0
    epoch_number: int = 0
    floors: Floors = field(default_factory=Floors)
    residents: tuple[Residence, ...] = ()
    integrated: bool = False
    length: int = 0

    @property
    def millijoules(self) -> int:
        """All energy of the posting."""
        return self.booked.delta + self.unobserved

    def voided(self) -> Posting:
        """The same energy as unobserved, because it could not be posted otherwise."""
        return replace(self, booked=_NOTHING, unobserved=self.millijoules, residents=())


class _Tick(NamedTuple):
    """One tick's data of the Gpu.

    `at` is on the source's clock. `parts` are the Readings of its Instances, empty without MIG. `good` says
    that every process list was read.
    """

    at: float
    unix: float
    parts: Sequence[Reading]
    lists: ProcessLists
    good: bool

    @property
    def instances(self) -> tuple[Instance, ...]:
        """The Instances of the Gpu."""
        return tuple([part.device for part in self.parts if isinstance(part.device, Instance)])


@dataclass(slots=True)
class GpuEnergyLedger:
    """Energy state of one Gpu between ticks. `counter` and `floors` are stored across restarts.

    `driver` is the version under which the floors were learned. `invalid` counts rejected readings. `power`
    is integrated since the open interval began or the counter moved, for Gpus with a missing or frozen
    counter. `still_since` is when this run first read the counter or last saw it move. `ended_load` is the
    driver load that a lower reading ended. `ghosts` are, by pid, processes of the last interval that were in
    no list. `metered_at` is the last reading of the counter or, without one, of power. `unread_since` is when
    the known counter was first missing beside a reading of power.
    """

    gpu: Gpu
    counter: EnergyCounter
    floors: FloorEstimator
    policy: EnergyPolicy = EnergyPolicy.APPORTIONED
    driver: str = ""
    evidence: Evidence | None = None
    invalid: int = 0
    has_counter: bool = field(init=False)
    still_since: float | None = None
    ended_load: str = ""
    ghosts: dict[int, GpuProcess] = field(default_factory=dict)
    frozen: bool = False
    began_unix: float = 0.0
    sample_clock: SampleClock = field(default_factory=SampleClock)
    quiet_since: float | None = None
    power: PowerIntegral = field(default_factory=PowerIntegral)
    seen_unix: float | None = None
    metered_at: float | None = None
    unread_since: float | None = None

    def __post_init__(self) -> None:
        # A known counter that fails after a restart is not a missing one.
        self.has_counter = self.counter.last is not None

    def is_metered(self, now: float) -> bool:
        """Return whether the Gpu's energy can be measured: its meter was read within the last minute."""
        return self.metered_at is not None and now - self.metered_at <= LONGEST_INTERVAL

    @property
    def uses_power(self) -> bool:
        """Whether energy is summed from power: there is no counter, or it stands still."""
        return self.frozen or not self.has_counter

    def begin_epoch(self, epoch: Epoch, unix: float, *, starts_at_zero: bool = True) -> list[Posting]:
        """Continue in this epoch, or close the old one if the driver was reloaded."""
        before = self.counter
        if not epoch.differs(before.epoch):
            # The source reports the ended driver load until it reopens the driver.
            if not before.epoch.driver_load and epoch.driver_load not in ("", self.ended_load):
                self.counter = replace(before, epoch=epoch)
            return []
        self.counter, verdict = before.resumed(epoch, starts_at_zero=starts_at_zero)
        self.evidence = self.still_since = self.quiet_since = None
        posted = self._unobserved(verdict.tail, unix, before.epoch_number)
        if self.frozen:
            # Power replaced the counter until now.
            millijoules = int(self.power.millijoules)
            posted += self._unobserved(millijoules, unix, before.epoch_number, integrated=True)
            self.frozen = False
        if self.has_counter:
            self.power.millijoules = 0.0
        return posted

    def interrupt(self) -> None:
        """Stop observing: energy until the first observed move is unobserved, as after a restart."""
        self.counter, _ = self.counter.resumed(self.counter.epoch)
        self.power.interrupt()
        self.evidence = self.quiet_since = self.still_since = self.unread_since = None
        self.ghosts = {}
        if self.has_counter and not self.frozen:
            # The counter covers the energy of the interval that ends here.
            self.power.millijoules = 0.0

    def post(
        self,
        at: float,
        unix: float,
        reading: Reading,
        parts: Sequence[Reading],
        *,
        whole: bool,
        serving: frozenset[ProcessKey] | None = None,
    ) -> list[Posting]:
        """Apply one tick: the readings of the Gpu and its Instances (empty without MIG).

        `whole` is False if not all Devices could be listed. `serving` are processes that serve others,
        None to find those of this Gpu.
        """
        holders = parts or (reading,)
        process_lists = [holder.processes for holder in holders]
        good = whole and reading.up and all(processes is not None for processes in process_lists)
        outcome = self.power.add(at, reading)
        uses_power = self.frozen or (not self.has_counter and reading.get(q.ENERGY) is None)
        if uses_power and outcome is PowerOutcome.REJECTED:
            self.invalid += 1
        elif uses_power and outcome is PowerOutcome.BEGUN:
            # The integral does not cover the whole interval: it must not teach a floor.
            self.quiet_since = None
        listed = {process.key: process for processes in process_lists for process in processes or ()}
        lists = ProcessLists(at, listed, serving_processes(listed.values()) if serving is None else serving)
        self._gather(at, unix, reading, parts)
        # If a known counter fails, power does not replace it until a minute has passed.
        if reading.get(q.ENERGY) is not None or (self.power.reaches(at) and not self.has_counter):
            self.metered_at = at
        posted = self._close(_Tick(at, unix, parts, lists, good), reading)
        if good and self.evidence is not None and self.evidence.lists[0] is not lists:
            self.evidence.lists.append(lists)
        return posted

    def _gather(self, at: float, unix: float, reading: Reading, parts: Sequence[Reading]) -> None:
        offset = self.sample_clock.update(reading, at, unix)
        evidence = self.evidence
        if evidence is not None and at - evidence.began > 2 * LONGEST_INTERVAL:
            # Too old to be apportioned: discard it, or it would only grow.
            evidence = self.evidence = None
        if evidence is None:
            return
        evidence.gather(reading, offset, is_cut=bool(parts))
        if parts and evidence.activity is not None:
            self._gather_activity(at, evidence, parts)

    def _gather_activity(self, at: float, evidence: Evidence, parts: Sequence[Reading]) -> None:
        since, evidence.activity_at = evidence.activity_at, at
        for part in parts:
            ratio = part.get(q.ENGINE_ACTIVITY)
            if ratio is None or evidence.activity is None or not isinstance(part.device, Instance):
                evidence.activity = None
                return
            evidence.activity[part.device] = evidence.activity.get(part.device, 0.0) + ratio * (at - since)
            evidence.busy = evidence.busy or ratio > 0

    def _close(self, now: _Tick, reading: Reading) -> list[Posting]:
        energy = reading.get(q.ENERGY)
        if energy is None:
            return self._close_without_counter(now)
        self.unread_since = None
        if not self.has_counter:
            # Until now, power replaced the counter.
            self.has_counter = True
            self.counter, _ = self.counter.take_reading(CounterReading(now.at, int(energy), now.good, None))
            self.still_since = now.at
            return self._end_integral(now)
        limit = highest_limit(reading)
        if limit is not None and reading.counts_module_energy:
            limit *= _MODULE_LIMIT
        before = self.counter
        self.counter, verdict = before.take_reading(
            CounterReading(now.at, int(energy), now.good, limit, reading.rules.starts_at_zero)
        )
        self.invalid += verdict.invalid
        moved = self.counter.moved_at not in (None, before.moved_at)
        # The first reading of a run is no observed move, but covers the energy until then, too.
        rose = self.counter.last != before.last
        if verdict.epoch_closed:
            self.ended_load = before.epoch.driver_load
        if self.still_since is None or moved or verdict.epoch_closed:
            self.still_since = now.at
        if self.frozen:
            if rose or verdict.epoch_closed:
                return self._thaw(now)
            return self._close_integrated(now) if now.good and self.power.reaches(now.at) else []
        if self._is_frozen(now):
            return self._freeze(now)
        if verdict.epoch_closed or (rose and not verdict.closes):
            # Avoid double counting: the counter already covers this energy.
            self.power.restart(now.at)
        return self._unobserved(verdict.tail, now.unix, before.epoch_number) + self._act(verdict, now)

    def _close_without_counter(self, now: _Tick) -> list[Posting]:
        if self.power.last is None:
            self.unread_since = None
            return []
        if self.has_counter and self.unread_since is None:
            self.unread_since = now.at
        if not now.good or not self.power.reaches(now.at):
            return []
        if not self.has_counter:
            return self._close_integrated(now)
        is_late = self.unread_since is not None and now.at - self.unread_since >= LONGEST_INTERVAL
        return self._replace_counter(now) if is_late and self.power.millijoules else []

    def _replace_counter(self, now: _Tick) -> list[Posting]:
        """Use power from here on: the source has no counter, as nvidia-smi after a run with NVML.

        If the counter is read again, its epoch opens at its first move: power covers the time before.
        """
        before = self.counter
        self.has_counter = self.frozen = False
        self.counter = EnergyCounter(before.epoch, epoch_number=before.epoch_number + 1)
        self.metered_at = now.at
        if before.tail:
            # The integral does not cover the whole interval: it must not teach a floor.
            self.quiet_since = None
        tail = self._unobserved(before.tail, now.unix, before.epoch_number)
        return tail + self._close_integrated(now)

    def _is_frozen(self, now: _Tick) -> bool:
        still = self.still_since is not None and now.at - self.still_since >= LONGEST_INTERVAL
        # A suspect reading did move; only its start is unknown.
        still = still and self.counter.suspect is None
        return now.good and still and self.power.reaches(now.at) and self.power.is_drawn

    def _freeze(self, now: _Tick) -> list[Posting]:
        """Use power instead of the counter from its last move on."""
        self.frozen = True
        before = self.counter
        if before.last is not None:
            self.counter = replace(before, booked=before.last)
        if before.tail:
            # The integral does not cover the whole interval: it must not teach a floor.
            self.quiet_since = None
        return self._unobserved(before.tail, now.unix, before.epoch_number) + self._close_integrated(now)

    def _unobserved(
        self, millijoules: int, unix: float, life: int, *, integrated: bool = False
    ) -> list[Posting]:
        """Book energy used since the last interval began as unobserved; no posting if there is none."""
        if not millijoules:
            return []
        began = self.seen_unix if self.seen_unix is not None else unix
        return [Posting(self.gpu, min(began, unix), unix, _NOTHING, millijoules, life, integrated=integrated)]

    def _thaw(self, now: _Tick) -> list[Posting]:
        """The counter moves again: begin a separate epoch at its current value."""
        self.frozen = False
        here = self.counter.last or 0
        self.counter = EnergyCounter(
            self.counter.epoch,
            opening=here,
            booked=here,
            last=here,
            last_at=now.at,
            running=True,
            moved_at=now.at,
            started_at=now.at if now.good else None,
            refresh=self.counter.refresh,
            epoch_number=self.counter.epoch_number + 1,
        )
        return self._end_integral(now)

    def _end_integral(self, now: _Tick) -> list[Posting]:
        """Stop using power: book the integral, as unobserved without good lists."""
        if not now.good:
            self.evidence = None
        posted = self._close_integrated(now)
        if not now.good:
            self.evidence = None
        return posted

    def _act(self, verdict: ReadingVerdict, now: _Tick) -> list[Posting]:
        if verdict.closes:
            posted = [self._booked(now, verdict.delta, integrated=False)]
        else:
            posted = self._unobserved(verdict.unobserved, now.unix, self.counter.epoch_number)
        if verdict.epoch_closed:
            self.evidence = None
        if self.counter.started_at == now.at:
            self._begin(now)
        return posted

    def _close_integrated(self, now: _Tick) -> list[Posting]:
        millijoules = int(self.power.millijoules)
        if self.evidence is not None and now.at - self.evidence.lists[-1].at <= LONGEST_INTERVAL:
            posted = [self._booked(now, millijoules, integrated=True)]
        else:
            # Power was reported, but the processes were unknown for too long.
            posted = self._unobserved(millijoules, now.unix, self.counter.epoch_number, integrated=True)
        # Keep the fraction of a millijoule for the next interval.
        left = self.power.millijoules % 1
        self._begin(now)
        self.power.millijoules = left
        return posted

    def _begin(self, now: _Tick) -> None:
        self.evidence = Evidence(
            self.gpu,
            [now.lists],
            instances=now.instances,
            offset=self.sample_clock.offset or 0.0,
            ghosts=self.ghosts,
        )
        self.power.restart(now.at)
        self.began_unix = self.seen_unix = now.unix

    def _booked(self, now: _Tick, delta: int, *, integrated: bool) -> Posting:
        evidence = self.evidence
        assert evidence is not None
        evidence.lists.append(now.lists)
        evidence.ended_unix = now.unix
        residents = residences(evidence)
        listed = evidence.all_processes()
        self.ghosts = {one.process.pid: one.process for one in residents if one.key not in listed}
        floors = self.floors.floors
        if now.instances != evidence.instances:
            # The MIG layout changed during the interval: the SMs of each process are unknown.
            booked = BookedInterval(delta, SLICES, 0, delta, {})
        else:
            booked = apportion(evidence, delta, residents, floors, integrated=integrated, policy=self.policy)
        self._learn(evidence, delta, residents)
        return Posting(
            self.gpu,
            self.began_unix,
            now.unix,
            booked,
            epoch_number=self.counter.epoch_number,
            floors=floors,
            residents=tuple(residents),
            integrated=integrated,
            length=evidence.length,
        )

    def _learn(self, evidence: Evidence, delta: int, residents: Sequence[Residence]) -> None:
        """Learn the floor from quiet intervals: no activity now nor in the ten seconds before."""
        length = evidence.length
        unknown = bool(residents) and not evidence.samples_readable and evidence.activity is None
        if unknown or is_active(evidence, residents):
            self.quiet_since = None
            return
        if self.quiet_since is None:
            self.quiet_since = evidence.ended
        elif evidence.began - self.quiet_since >= QUIET_AFTER and length:
            computing = [one for one in residents if not one.draws]
            if all(one.certain for one in computing):
                self.floors.learn(
                    evidence.ended_unix,
                    delta * 1_000_000 // length,
                    length / 1e6,
                    has_residents=bool(computing),
                )

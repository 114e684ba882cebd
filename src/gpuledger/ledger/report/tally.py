"""Sums report amounts: time and energy by party and price, presence by parties in each second."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from gpuledger.ledger.energy.booking import MEASURED
from gpuledger.ledger.report.charges import Rate
from gpuledger.ledger.report.gpu_time import NONE_RUNNING, GpuPart, GpuTime
from gpuledger.ledger.report.grouping import Grouping, Key
from gpuledger.ledger.report.idle_spread import IdleSpread
from gpuledger.ledger.report.party import Party
from gpuledger.ledger.report.segments import PriceSegment, SegmentPrices
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH
from gpuledger.ledger.time.account import DOWN, OWNER, UNCUT
from gpuledger.ledger.watched_time import MICRO
from gpuledger.model.session import ALLOCATION, IDLE, UNATTRIBUTED, UNOBSERVED

# Parties of which the key is remembered. Entries are added in the order of time.
_CACHED = 256
# Seconds of presence without energy that are no gap: the start of a run, and the interval that is still open.
_SLACK = 120


class EnergyEntry(NamedTuple):
    """Millijoules of one Gpu over time with the same residents and method: one span, or spans of an hour.

    `shares` has every resident, also those without energy. `microseconds` is the length. `is_integrated`: it
    is power summed over time, because no counter was read.
    """

    uuid: str
    method: str
    microseconds: int
    idle: int
    unattributed: int
    unobserved: int
    shares: Collection[tuple[Party, int]]
    is_integrated: bool = False


class TimeEntry(NamedTuple):
    """Seconds (`ledger.watched_time`) of one party from a quarter on, and the number of Sessions it adds.

    Each party has one set of seconds by quarter or by hour. `held`: resident or allocated, and certainly
    inactive; `busy`: resident, and an engine was busy; `unknown`: the others resident or allocated, of which
    neither is known. `old` are the seconds of which a version without `unknown` kept only those held.
    """

    quarter: int
    party: Party
    resident: int
    held: int
    busy: int
    allocated: int
    sessions: int
    unknown: int = 0
    old: int = 0


@dataclass(slots=True)
class Amount:
    """The sums of one row: microseconds, millijoules by method, charges by rate, seconds present, Sessions.

    `integrated` are the millijoules that are power summed over time, whatever the method of their split.
    `high` is the upper bound of the energy. `resident`, `held`, `allocated`, `active` and `unknown` are
    seconds of whole Gpus, in which each second counts once; `old` are those of `unknown` that an earlier
    version recorded, in which an engine can have been busy.
    """

    microseconds: int = 0
    estimated: int = 0
    uncut: int = 0
    methods: Counter[str] = field(default_factory=Counter)
    integrated: int = 0
    high: int = 0
    time_charges: Counter[Rate] = field(default_factory=Counter)
    energy_charges: Counter[Rate] = field(default_factory=Counter)
    # Millijoules by grams of CO2 per kilowatt-hour, None if that is unknown.
    emissions: Counter[Fraction | None] = field(default_factory=Counter)
    resident: Fraction = Fraction(0)
    held: Fraction = Fraction(0)
    allocated: Fraction = Fraction(0)
    active: Fraction = Fraction(0)
    unknown: Fraction = Fraction(0)
    old: Fraction = Fraction(0)
    sessions: int = 0
    # Seconds resident, held, allocated, active, unknown and old by Device, not yet weighted by its part of
    # its Gpu.
    seconds: dict[str, list[int]] = field(default_factory=dict)
    # Uuids of the Gpus on which the row had processes, allocations or energy.
    gpus: set[str] = field(default_factory=set)

    @property
    def has_activity(self) -> bool:
        """Whether it is known for some of its time whether an engine was busy, or it has no such time."""
        return not self.unknown or bool(self.active or self.held)

    @property
    def millijoules(self) -> int:
        """All energy booked to the row."""
        return self.methods.total()

    @property
    def measured(self) -> int:
        """Energy that needed no model: the lower bound."""
        return self.methods[MEASURED]

    @property
    def grams(self) -> Fraction:
        """Grams of CO2 of the energy of which they are known."""
        known = [amount * rate for rate, amount in self.emissions.items() if rate is not None]
        return sum(known, Fraction(0)) / MILLIJOULES_PER_KWH


@dataclass(slots=True)
class GpuAmount:
    """The energy of one Gpu: all its millijoules, those in its own accounts, and the time observed.

    `metered` is the time of which the energy is in some account, in microseconds. `integrated` are those of
    the millijoules that are power summed over time.
    """

    millijoules: int = 0
    integrated: int = 0
    idle: int = 0
    unattributed: int = 0
    unobserved: int = 0
    microseconds: int = 0
    metered: int = 0


class Tally:
    """Sums amounts by period and key. Memory grows with rows and Gpus, not with time, if `settle` is called.

    `share` returns the part of its Gpu that a Device (by uuid) is. A Gpu counts once per row, however many of
    the row's parties were on it. Presence is valid only after `finish`. `gpu_of` returns the uuid of a
    Device's Gpu, None if it is not known. `spread` charges idle time and energy to those who were billed.
    """

    def __init__(
        self,
        grouping: Grouping,
        share: Callable[[str], Fraction],
        gpu_of: Callable[[str], str | None] = lambda device: device,
        basis: str = ALLOCATION,
        *,
        spread: bool = False,
    ) -> None:
        # Parties with an amount, only where the grouping has teams.
        self.parties: set[Party] = set()
        parties = self.parties

        def key_of(party: Party) -> Key:
            if grouping.teams:
                parties.add(party)
            return grouping.key(party)

        self._key_of: Callable[[Party], Key] = lru_cache(_CACHED)(key_of)
        self._own_key: Callable[[str], Key] = lru_cache(None)(grouping.own_key)
        self._share = share
        self._gpu_of = gpu_of
        self._basis = basis
        self._spread = IdleSpread() if spread else None
        self._segment = PriceSegment(0, 0, 0)
        self._prices = SegmentPrices()
        self._watched: Counter[str] = Counter()
        # Resident, held, busy, allocated, unknown and old seconds of a key, by quarter and Device.
        self._seconds: dict[tuple[int, str], dict[Key, list[int]]]
        self._seconds = defaultdict(lambda: defaultdict(lambda: [0, 0, 0, 0, 0, 0]))
        self._present: Counter[str] = Counter()
        self._occupied: Counter[str] = Counter()
        self.amounts: dict[tuple[int, Key], Amount] = defaultdict(Amount)
        # Rows of the Gpus' own accounts, and what time without a price would have cost.
        self.own: dict[tuple[int, str, Key], Amount] = defaultdict(Amount)
        self.unbilled: dict[tuple[int, str, Key], Counter[Rate]] = defaultdict(Counter)
        self.gpus: dict[str, GpuAmount] = defaultdict(GpuAmount)
        # Watched microseconds by Gpu and account, and by Gpu in each segment, in the order of time.
        self.watched: dict[str, Counter[str]] = defaultdict(Counter)
        self.segments: dict[PriceSegment, Counter[str]] = {}
        # Parts of Gpus with time in each segment.
        self.uses: set[tuple[GpuPart, PriceSegment]] = set()
        self.occupied = Fraction(0)
        # Seconds in which Gpus had a resident; under MIG, those of the busiest Instance.
        self.occupied_by_gpu: dict[str, int] = {}

    def begin_segment(self, segment: PriceSegment, prices: SegmentPrices) -> None:
        """Add what follows to this segment. Call it before the first entry, and `finish` after the last."""
        self._end_segment()
        self._segment, self._prices = segment, prices
        self._watched = self.segments.setdefault(segment, Counter())

    def begin_period(self, number: int) -> None:
        """Add the presence that follows to the rows of this period."""
        self._end_segment()
        self._segment = PriceSegment(number, 0, 0)

    def add_gpu_time(self, time: GpuTime) -> None:
        """Add watched time, of one span or the sum of several."""
        amount = time.microseconds(self._basis)
        if not amount:
            return
        part, account = time.part, IDLE if time.account == UNCUT else time.account
        rate = self._prices.time_rate(part)
        self.watched[part.gpu][account] += amount
        self._watched[part.gpu] += amount
        self.uses.add((part, self._segment))
        if account in (UNOBSERVED, DOWN):
            self.add_unbilled(self._segment.period, account, rate, amount)
            return
        row = self._row(account, part.gpu, time.party)
        row.microseconds += amount
        row.time_charges[rate] += amount
        if time.is_estimate:
            row.estimated += amount
        if time.account == UNCUT:
            row.uncut += amount
        if time.party is None:
            row.gpus.add(part.gpu)
        if self._spread is None:
            return
        self._spread.add_watched(part.gpu, part.model)
        if account == IDLE:
            self._spread.add_idle_time(part.model, rate, amount)
        elif time.party is not None:
            self._spread.add_billed(part.model, time.party, amount)

    def add_unbilled(self, period: int, account: str, rate: Rate, microseconds: int) -> None:
        """Add time that has no price, with the rate that it would have had."""
        self.unbilled[period, account, self._own_key(rate.gpu)][rate] += microseconds

    def _row(self, account: str, gpu: str, party: Party | None = None) -> Amount:
        period = self._segment.period
        if account == OWNER and party is not None:
            return self.amounts[period, self._key_of(party)]
        return self.own[period, account, self._own_key(gpu)]

    def add_energy(self, energy: EnergyEntry) -> None:
        """Add a span, or several of an hour."""
        gpu = self.gpus[energy.uuid]
        gpu.idle += energy.idle
        gpu.unattributed += energy.unattributed
        gpu.unobserved += energy.unobserved
        shares: dict[Key, int] = {}
        for party, millijoules in energy.shares:
            key = self._key_of(party)
            shares[key] = shares.get(key, 0) + millijoules
        used = sum(shares.values())
        gpu.metered += energy.microseconds
        total = energy.idle + energy.unattributed + energy.unobserved + used
        gpu.millijoules += total
        gpu.integrated += total if energy.is_integrated else 0
        if energy.method != UNOBSERVED:
            gpu.microseconds += energy.microseconds
        # Unobserved energy has no residents and is part of no bound.
        most = energy.idle + energy.unattributed + used
        for key, millijoules in shares.items():
            amount = self.amounts[self._segment.period, key]
            amount.gpus.add(energy.uuid)
            amount.high += millijoules if energy.method == MEASURED else most
            amount.integrated += millijoules if energy.is_integrated else 0
            self._charge_energy(amount, energy.uuid, energy.method, millijoules)
        own = (energy.idle, energy.unattributed, energy.unobserved)
        for account, millijoules in zip((IDLE, UNATTRIBUTED, UNOBSERVED), own, strict=True):
            if millijoules:
                self._charge_energy(self._row(account, energy.uuid), energy.uuid, account, millijoules)
        if self._spread is not None and energy.idle:
            self._spread.add_idle_energy(self._prices.energy_rate(energy.uuid), energy.idle)

    def _charge_energy(self, amount: Amount, uuid: str, method: str, millijoules: int) -> None:
        amount.methods[method] += millijoules
        amount.energy_charges[self._prices.energy_rate(uuid)] += millijoules
        amount.emissions[self._prices.grams_per_kwh] += millijoules

    def add_times(self, times: TimeEntry) -> None:
        """Add the seconds of one party from a quarter on."""
        quarter, party, resident, held, busy, allocated, sessions, unknown, old = times
        if not party.command and allocated and not resident:
            party = replace(party, command=NONE_RUNNING)
        key = self._key_of(party)
        seconds = self._seconds[quarter, party.device][key]
        seconds[0] |= resident
        seconds[1] |= held
        seconds[2] |= busy
        seconds[3] |= allocated
        seconds[4] |= unknown
        seconds[5] |= old
        self.amounts[self._segment.period, key].sessions += sessions

    def settle(self) -> None:
        """Count the collected seconds: their hours are complete."""
        for (_, device), place in self._seconds.items():
            present = reserved = 0
            for key, (resident, held, busy, allocated, unclear, early) in place.items():
                present |= resident
                reserved |= allocated
                amount = self.amounts[self._segment.period, key]
                counts = amount.seconds.setdefault(device, [0, 0, 0, 0, 0, 0])
                old = early & (resident | allocated)
                unknown = (unclear | old & ~held) & ~busy
                counts[0] += resident.bit_count()
                counts[1] += (held & ~busy & ~unknown).bit_count()
                counts[2] += allocated.bit_count()
                counts[3] += busy.bit_count()
                counts[4] += unknown.bit_count()
                counts[5] += (unknown & old).bit_count()
            self._present[device] += present.bit_count()
            self._occupied[device] += (present | reserved).bit_count()
        self._seconds.clear()

    def finish(self) -> None:
        """Weight the sums by the Devices' parts of their Gpus, after the last entry."""
        self._end_segment()
        for amount in self.amounts.values():
            for device, (resident, held, allocated, active, unknown, old) in amount.seconds.items():
                share = self._share(device)
                amount.resident += share * resident
                amount.held += share * held
                amount.allocated += share * allocated
                amount.active += share * active
                amount.unknown += share * unknown
                amount.old += share * old
            gpus = map(self._gpu_of, amount.seconds)
            amount.gpus.update(uuid for uuid in gpus if uuid is not None)
            amount.seconds.clear()
        for device, seconds in self._occupied.items():
            self.occupied += self._share(device) * seconds
        for device, seconds in self._present.items():
            uuid = self._gpu_of(device)
            if uuid is not None:
                self.occupied_by_gpu[uuid] = max(self.occupied_by_gpu.get(uuid, 0), seconds)
        self._occupied.clear()
        self._present.clear()

    def _end_segment(self) -> None:
        self.settle()
        if self._spread is None:
            return
        for party, is_time, rate, amount in self._spread.shares():
            row, idle = self._row(OWNER, rate.gpu, party), self._row(IDLE, rate.gpu)
            if is_time:
                row.time_charges[rate] += amount
                idle.time_charges[rate] -= amount
            else:
                row.energy_charges[rate] += amount
                idle.energy_charges[rate] -= amount
        self._spread = IdleSpread()

    @property
    def unmetered(self) -> frozenset[str]:
        """Uuids of Gpus of which no account has any energy, although something was present on them, or they
        were idle for longer than an interval is open.
        """
        present = self.occupied_by_gpu.keys() | set().union(*(one.gpus for one in self.amounts.values()))
        idle = {gpu for gpu, accounts in self.watched.items() if accounts[IDLE] > _SLACK * MICRO}
        return frozenset((present | idle) - self.gpus.keys())

    @property
    def partly_metered(self) -> frozenset[str]:
        """Uuids of Gpus that had residents, or were idle, for longer than their energy was measured."""
        found = set()
        for uuid, gpu in self.gpus.items():
            # Scraped energy has no length.
            idle = self.watched[uuid][IDLE] / MICRO if gpu.metered and uuid in self.watched else 0
            seconds = max(self.occupied_by_gpu.get(uuid, 0), idle)
            gap = seconds - gpu.metered / MICRO
            if gap > max(_SLACK, seconds / 100):
                found.add(uuid)
        return frozenset(found)

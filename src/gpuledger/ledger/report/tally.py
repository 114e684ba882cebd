"""Sums report amounts: energy by parties resident together, time by parties present in each second."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from gpuledger.ledger.energy.booking import MEASURED
from gpuledger.ledger.report.grouping import Grouping, Key, Party
from gpuledger.model.session import UNOBSERVED

_MICRO = 1_000_000
# Seconds of presence without energy that are no gap: the start of a run, and the interval that is still open.
_SLACK = 120


class EnergyEntry(NamedTuple):
    """Millijoules of one Gpu over time with the same residents and method: one span, or spans of an hour.

    `shares` has every resident, also those without energy. `microseconds` is the length.
    """

    uuid: str
    method: str
    microseconds: int
    idle: int
    unattributed: int
    unobserved: int
    shares: Iterable[tuple[Party, int]]


class TimeEntry(NamedTuple):
    """Seconds (`ledger.watched_time`) of one party in one unix hour, and the number of Sessions it adds.

    `held`: resident or allocated, and certainly inactive; `busy`: resident, and active or unknown.
    """

    hour: int
    party: Party
    resident: int
    held: int
    busy: int
    allocated: int
    sessions: int


@dataclass(slots=True)
class Amount:
    """The sums of one row: millijoules by method, their upper bound, seconds of whole Gpus, Sessions."""

    methods: Counter[str] = field(default_factory=Counter)
    high: int = 0
    resident: Fraction = Fraction(0)
    held: Fraction = Fraction(0)
    allocated: Fraction = Fraction(0)
    sessions: int = 0
    # Seconds resident, held and allocated by Device, not yet weighted by the Device's part of its Gpu.
    seconds: dict[str, list[int]] = field(default_factory=dict)
    # Uuids of the Gpus on which the row was present or had energy.
    gpus: set[str] = field(default_factory=set)

    @property
    def millijoules(self) -> int:
        """All energy booked to the row."""
        return self.methods.total()

    @property
    def measured(self) -> int:
        """Energy that needed no model: the lower bound."""
        return self.methods[MEASURED]


@dataclass(slots=True)
class GpuAmount:
    """The sums of one Gpu: all its millijoules, those in its own accounts, and the time observed.

    `metered` is the time of which the energy is in some account, in microseconds.
    """

    millijoules: int = 0
    idle: int = 0
    unattributed: int = 0
    unobserved: int = 0
    microseconds: int = 0
    metered: int = 0


class Tally:
    """Sums amounts by key. Memory grows with rows and Gpus, not with time, if `settle` is called.

    `share` returns the part of its Gpu that a Device (by uuid) is. A Gpu counts once per row, however many of
    the row's parties were on it. Times are valid only after `finish`. `gpu_of` returns the uuid of a Device's
    Gpu, None if it is not known.
    """

    def __init__(
        self,
        grouping: Grouping,
        share: Callable[[str], Fraction],
        gpu_of: Callable[[str], str | None] = lambda device: device,
    ) -> None:
        self._key_of: Callable[[Party], Key] = lru_cache(50_000)(grouping.key)
        self._share = share
        self._gpu_of = gpu_of
        # Resident, held, busy and allocated seconds of a key (None: of any), by hour and Device.
        self._seconds: dict[tuple[int, str], dict[Key | None, list[int]]]
        self._seconds = defaultdict(lambda: defaultdict(lambda: [0, 0, 0, 0]))
        self._occupied: Counter[str] = Counter()
        self.amounts: dict[Key, Amount] = defaultdict(Amount)
        self.gpus: dict[str, GpuAmount] = defaultdict(GpuAmount)
        self.occupied = Fraction(0)
        # Seconds in which Gpus had a resident; under MIG, those of the busiest Instance.
        self.occupied_by_gpu: dict[str, int] = {}

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
        gpu.millijoules += energy.idle + energy.unattributed + energy.unobserved + used
        if energy.method != UNOBSERVED:
            gpu.microseconds += energy.microseconds
        # Unobserved energy has no residents and is part of no bound.
        most = energy.idle + energy.unattributed + used
        for key, millijoules in shares.items():
            amount = self.amounts[key]
            amount.gpus.add(energy.uuid)
            amount.methods[energy.method] += millijoules
            amount.high += millijoules if energy.method == MEASURED else most

    def add_times(self, times: TimeEntry) -> None:
        """Add the seconds of one party in one hour."""
        key = self._key_of(times.party)
        device = times.party.device
        place = self._seconds[times.hour, device]
        place[None][0] |= times.resident
        seconds = place[key]
        seconds[0] |= times.resident
        seconds[1] |= times.held
        seconds[2] |= times.busy
        seconds[3] |= times.allocated
        self.amounts[key].sessions += times.sessions

    def settle(self) -> None:
        """Count the collected seconds: their hours are complete."""
        for (_, device), place in self._seconds.items():
            self._occupied[device] += place.pop(None)[0].bit_count()
            for key, (resident, held, busy, allocated) in place.items():
                assert key is not None
                counts = self.amounts[key].seconds.setdefault(device, [0, 0, 0])
                counts[0] += resident.bit_count()
                counts[1] += (held & ~busy).bit_count()
                counts[2] += allocated.bit_count()
        self._seconds.clear()

    def finish(self) -> None:
        """Weight the sums by the Devices' parts of their Gpus, after the last entry."""
        self.settle()
        for amount in self.amounts.values():
            for device, (resident, held, allocated) in amount.seconds.items():
                share = self._share(device)
                amount.resident += share * resident
                amount.held += share * held
                amount.allocated += share * allocated
            gpus = map(self._gpu_of, amount.seconds)
            amount.gpus.update(uuid for uuid in gpus if uuid is not None)
            amount.seconds.clear()
        for device, seconds in self._occupied.items():
            self.occupied += self._share(device) * seconds
            uuid = self._gpu_of(device)
            if uuid is not None:
                self.occupied_by_gpu[uuid] = max(self.occupied_by_gpu.get(uuid, 0), seconds)
        self._occupied.clear()

    @property
    def unmetered(self) -> frozenset[str]:
        """Uuids of Gpus on which something was present, but of which no account has any energy."""
        present = self.occupied_by_gpu.keys() | set().union(*(one.gpus for one in self.amounts.values()))
        return frozenset(present - self.gpus.keys())

    @property
    def partly_metered(self) -> frozenset[str]:
        """Uuids of Gpus that had residents for longer than their energy was measured."""
        found = set()
        for uuid, seconds in self.occupied_by_gpu.items():
            gap = seconds - self.gpus[uuid].metered / _MICRO if uuid in self.gpus else 0
            if gap > max(_SLACK, seconds / 100):
                found.add(uuid)
        return frozenset(found)

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
    """The sums of one Gpu: all its millijoules, those in its own accounts, and the time observed."""

    millijoules: int = 0
    idle: int = 0
    unattributed: int = 0
    unobserved: int = 0
    microseconds: int = 0


class Tally:
    """Sums amounts by key. Memory grows with rows and Gpus, not with time, if `settle` is called.

    `share` returns the part of its Gpu that a Device (by uuid) is. A Gpu counts once per row, however many of
    the row's parties were on it. Times are valid only after `finish`.
    """

    def __init__(self, grouping: Grouping, share: Callable[[str], Fraction]) -> None:
        self._key_of: Callable[[Party], Key] = lru_cache(50_000)(grouping.key)
        self._share = share
        # Resident, held, busy and allocated seconds of a key (None: of any), by hour and Device.
        self._seconds: dict[tuple[int, str], dict[Key | None, list[int]]]
        self._seconds = defaultdict(lambda: defaultdict(lambda: [0, 0, 0, 0]))
        self._occupied: Counter[str] = Counter()
        self.amounts: dict[Key, Amount] = defaultdict(Amount)
        self.gpus: dict[str, GpuAmount] = defaultdict(GpuAmount)
        self.occupied = Fraction(0)

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
        gpu.millijoules += energy.idle + energy.unattributed + energy.unobserved + used
        if energy.method != UNOBSERVED:
            gpu.microseconds += energy.microseconds
        # Unobserved energy has no residents and is part of no bound.
        most = energy.idle + energy.unattributed + used
        for key, millijoules in shares.items():
            amount = self.amounts[key]
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
            amount.seconds.clear()
        for device, seconds in self._occupied.items():
            self.occupied += self._share(device) * seconds
        self._occupied.clear()

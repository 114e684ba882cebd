"""Adding up: energy by who was resident together, time by who was there in which second."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from gpuledger.ledger.energy.booking import MEASURED
from gpuledger.ledger.report.grouping import Grouping, Key
from gpuledger.ledger.report.party import Party

IDLE, UNATTRIBUTED, UNOBSERVED = "idle", "unattributed", "unobserved"


class Energy(NamedTuple):
    """Millijoules of one Gpu over time with the same residents and method: a span, or spans of an hour.

    `shares` has every resident, those with nothing too. `microseconds` is how long it lasted.
    """

    uuid: str
    method: str
    microseconds: int
    idle: int
    unattributed: int
    unobserved: int
    shares: Iterable[tuple[Party, int]]


class Times(NamedTuple):
    """Seconds (`ledger.seconds`) of one party in one unix hour, and how many Sessions it adds.

    `held`: there or handed over, and certainly did nothing; `busy`: there, and did something or nobody can
    tell.
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
    """What a row has. Millijoules by method, their upper bound, seconds of whole Gpus, Sessions."""

    methods: Counter[str] = field(default_factory=Counter)
    high: int = 0
    resident: Fraction = Fraction(0)
    held: Fraction = Fraction(0)
    allocated: Fraction = Fraction(0)
    sessions: int = 0

    @property
    def millijoules(self) -> int:
        """Everything booked to it."""
        return self.methods.total()

    @property
    def measured(self) -> int:
        """What needs no model: the lower bound."""
        return self.methods[MEASURED]


@dataclass(slots=True)
class GpuAmount:
    """What a Gpu's own books have: all its millijoules, those by its own accounts, and time observed."""

    millijoules: int = 0
    idle: int = 0
    unattributed: int = 0
    unobserved: int = 0
    microseconds: int = 0


_Place = tuple[int, Key | None, str]


@dataclass(slots=True)
class _Seconds:
    resident: int = 0
    held: int = 0
    busy: int = 0
    allocated: int = 0


class Tally:
    """Gathers amounts by key. Memory grows with rows and Gpus, not with time, if `settle` is called.

    `share` says how much of its Gpu a Device (by uuid) is. A Gpu is counted once for a row, however many of
    the row's parties were on it.
    """

    def __init__(self, grouping: Grouping, share: Callable[[str], Fraction]) -> None:
        self._key = grouping.key
        self._share = share
        self._keys: dict[Party, Key] = {}
        self._seconds: dict[_Place, _Seconds] = defaultdict(_Seconds)
        self.amounts: dict[Key, Amount] = defaultdict(Amount)
        self.gpus: dict[str, GpuAmount] = defaultdict(GpuAmount)
        self.occupied = Fraction(0)

    def add_energy(self, energy: Energy) -> None:
        """Book a span, or several of an hour."""
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
        # Unobserved energy has no residents: a bound is never made of it.
        most = energy.idle + energy.unattributed + used
        for key, millijoules in shares.items():
            amount = self.amounts[key]
            amount.methods[energy.method] += millijoules
            amount.high += millijoules if energy.method == MEASURED else most

    def add_times(self, times: Times) -> None:
        """Count the seconds of one party in one hour."""
        key = self._key_of(times.party)
        device = times.party.device
        for whose in (key, None):
            seconds = self._seconds[times.hour, whose, device]
            seconds.resident |= times.resident
            seconds.held |= times.held
            seconds.busy |= times.busy
            seconds.allocated |= times.allocated
        self.amounts[key].sessions += times.sessions

    def settle(self) -> None:
        """Sum up the seconds gathered: nothing more comes of these hours."""
        for (_, key, device), seconds in self._seconds.items():
            share = self._share(device)
            resident = share * seconds.resident.bit_count()
            if key is None:
                self.occupied += resident
                continue
            amount = self.amounts[key]
            amount.resident += resident
            amount.held += share * (seconds.held & ~seconds.busy).bit_count()
            amount.allocated += share * seconds.allocated.bit_count()
        self._seconds.clear()

    def _key_of(self, party: Party) -> Key:
        key = self._keys.get(party)
        if key is None:
            if len(self._keys) > 50_000:
                self._keys.clear()
            key = self._keys[party] = self._key(party)
        return key


def own_amounts(gpus: Mapping[str, GpuAmount]) -> dict[str, int]:
    """Millijoules of the Gpus' own accounts."""
    return {
        IDLE: sum(gpu.idle for gpu in gpus.values()),
        UNATTRIBUTED: sum(gpu.unattributed for gpu in gpus.values()),
        UNOBSERVED: sum(gpu.unobserved for gpu in gpus.values()),
    }

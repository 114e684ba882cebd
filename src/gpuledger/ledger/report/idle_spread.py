"""Spreads the idle time and energy of one hour over those who were billed on Gpus of the same model.

`price.idle: spread` charges them for it in proportion to their billed time, in whole microseconds and
millijoules (largest remainder, ties by identity). Unpriced idle time is not spread, and neither is that of an
hour in which nobody was billed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from gpuledger.ledger.energy.shares import round_shares
from gpuledger.ledger.report.charges import Rate
from gpuledger.ledger.report.party import Party, party_text

# Kept as long as the program runs: few, those of the last hours.
_text = lru_cache(2048)(party_text)


class SpreadShare(NamedTuple):
    """Idle microseconds (`is_time`) or millijoules that are charged to a party."""

    party: Party
    is_time: bool
    rate: Rate
    amount: int


class IdleSpread:
    """Billed and idle amounts of one hour, by model."""

    def __init__(self) -> None:
        self._billed: dict[str, Counter[Party]] = defaultdict(Counter)
        self._idle: dict[str, Counter[tuple[bool, Rate]]] = defaultdict(Counter)
        self._energy: Counter[Rate] = Counter()
        self._models: dict[str, str] = {}

    def add_billed(self, model: str, party: Party, microseconds: int) -> None:
        """Add time that an owner pays for."""
        self._billed[model][party] += microseconds

    def add_watched(self, gpu: str, model: str) -> None:
        """Say that a Gpu of this model was watched in this hour."""
        self._models[gpu] = model

    def add_idle_time(self, model: str, rate: Rate, microseconds: int) -> None:
        """Add time in which nobody had a Gpu or a part of it."""
        if rate.price is not None:
            self._idle[model][True, rate] += microseconds

    def add_idle_energy(self, rate: Rate, millijoules: int) -> None:
        """Add energy of the account idle."""
        if rate.price is not None:
            self._energy[rate] += millijoules

    def shares(self) -> Iterator[SpreadShare]:
        """What each party is charged for; the same amounts are not charged to the account idle."""
        for rate, millijoules in self._energy.items():
            if rate.gpu in self._models:
                self._idle[self._models[rate.gpu]][False, rate] += millijoules
        for model, idle in self._idle.items():
            billed = {_text(party): (party, amount) for party, amount in self._billed[model].items()}
            weights = {text: amount for text, (_, amount) in billed.items()}
            for (is_time, rate), total in idle.items() if any(weights.values()) else ():
                for text, amount in _in_proportion(total, weights).items():
                    if amount:
                        yield SpreadShare(billed[text][0], is_time, rate, amount)


def _in_proportion(total: int, weights: Mapping[str, int]) -> Mapping[str, int]:
    """Whole parts of a total in proportion to the weights."""
    exact = {text: total * weight for text, weight in weights.items()}
    return round_shares(total, exact, sum(weights.values()))

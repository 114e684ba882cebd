"""How long Sessions lasted, as a histogram per Gpu."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

from gpuledger.model.family import Distribution

# From a test run to a training of a week; seconds.
BOUNDS = (10.0, 60.0, 300.0, 1800.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0)


class Durations:
    """Counts since the program started, by Gpu uuid."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        self._told: dict[str, Distribution] = {}

    def add(self, uuid: str, seconds: float) -> None:
        """Take in a Session that has ended; one over which the wall clock was set back counts as 0 s."""
        seconds = max(seconds, 0.0)
        counts = self._counts.setdefault(uuid, [0] * (len(BOUNDS) + 1))
        counts[bisect_left(BOUNDS, seconds)] += 1
        self._sums[uuid] = self._sums.get(uuid, 0.0) + seconds
        running = tuple(accumulate(counts))
        told = Distribution(BOUNDS, running[:-1], running[-1], self._sums[uuid])
        # A new mapping each time: Pages hold the old ones.
        self._told = {**self._told, uuid: told}

    def told(self) -> Mapping[str, Distribution]:
        """As of now."""
        return self._told

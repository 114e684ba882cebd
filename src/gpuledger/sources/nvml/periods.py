"""How many sample periods of the driver a tick spans: what the samples of a process are a share of."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import Final

_SECOND: Final = 1_000_000
# "Depending on the product, the sample period may be between 1 second and 1/6 second" (nvml.h); newer cards
# are quicker. Samples of one process that are closer than the second figure are not from two periods.
_LONGEST: Final = _SECOND
_SHORTEST: Final = 10_000


class SamplePeriods:
    """Sample periods of one Gpu, in the driver's microseconds.

    The driver keeps a sample of a process only for a period in which it used an engine, so a mean over its
    samples alone would tell a process that was busy for a sixth of the time as busy all the time. How long a
    period is NVML does not say: it is the least gap ever seen between two samples of a process.
    """

    def __init__(self) -> None:
        self._length = _LONGEST
        self._last: dict[int, int] = {}
        self._read_at: float | None = None

    @property
    def length(self) -> int:
        """The shortest period seen so far; nvml.h's longest until two samples of a process were seen."""
        return self._length

    def restart(self) -> None:
        """What is read next does not go on from what was read; how long a period is stays known."""
        self._last = {}
        self._read_at = None

    def learn(self, stamps: Iterable[tuple[int, Collection[int]]]) -> None:
        """Take in each pid with the timestamps of its samples, in any order."""
        last: dict[int, int] = {}
        for pid, told in stamps:
            before = self._last.get(pid)
            in_order = sorted(told if before is None else (before, *told))
            last[pid] = in_order[-1]
            for earlier, later in pairwise(in_order):
                if _SHORTEST <= later - earlier < self._length:
                    self._length = later - earlier
        self._last = last

    def count(self, stamps: Collection[int], now: float) -> int:
        """Periods since the last call, of which `stamps` had samples; of a second in the first one.

        `now` is seconds of our own clock. There are at least as many periods as different timestamps: a tick
        may see one more than its length has room for.
        """
        window = _SECOND if self._read_at is None else (now - self._read_at) * _SECOND
        self._read_at = now
        return max(self._distinct(stamps), round(window / self._length), 1)

    def _distinct(self, stamps: Collection[int]) -> int:
        # Samples of several processes in one period need not have the same microsecond.
        found, latest = 0, -_SECOND
        for stamp in sorted(set(stamps)):
            if stamp - latest >= self._length / 2:
                found, latest = found + 1, stamp
        return found

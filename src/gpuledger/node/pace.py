"""How far apart ticks are: as asked, unless reading the driver takes too large a share of the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

_WINDOW = 10
_CALM = 100
_SLOWEST = 8


class Pace:
    """Doubles the interval when the median of ten ticks is above a fifth of it, 8 times at most; halves it
    again after a hundred ticks below a tenth. All times are seconds.
    """

    def __init__(self, interval: float) -> None:
        self.asked = interval
        self.interval = interval
        self._recent: deque[float] = deque(maxlen=_WINDOW)
        self._calm = 0

    def note(self, seconds: float) -> bool:
        """Take in what a tick cost; True when the interval changed by it."""
        self._recent.append(seconds)
        self._calm = self._calm + 1 if seconds < self.interval / 10 else 0
        if self._is_slow() and self.interval < self.asked * _SLOWEST:
            return self._change(self.interval * 2)
        if self._calm >= _CALM and self.interval > self.asked:
            return self._change(self.interval / 2)
        return False

    def _is_slow(self) -> bool:
        return len(self._recent) == _WINDOW and _median(self._recent) > self.interval / 5

    def _change(self, interval: float) -> bool:
        self.interval = interval
        self._recent.clear()
        self._calm = 0
        return True


def _median(values: Collection[float]) -> float:
    # The standard library's brings decimal, fractions and random into memory.
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2

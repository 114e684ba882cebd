"""The interval between ticks follows how long they take."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection
from math import ceil

from gpuledger.model.snapshot import LONGEST_INTERVAL

log = logging.getLogger("gpuledger.node")

_WINDOW = 10
_CALM = 100
_SLOWEST = 8
# The interval of a slow command: longer than its last reads by this factor, and never so long that no GPU
# time is watched.
_PACE_WINDOW = 3
_PACE_FACTOR = 1.25
_LONGEST_PACE = 0.8 * LONGEST_INTERVAL


class AdaptiveInterval:
    """The interval between ticks, adapted to how long they take. All times are seconds.

    Doubles, up to 8 times the requested interval, when the median of ten ticks exceeds a fifth of it, as long
    as GPU time is watched. Halves again after a hundred ticks below a tenth of it. A command that takes
    longer than the interval sets it at once.
    """

    def __init__(self, interval: float) -> None:
        self.requested = interval
        self.interval = interval
        self._recent: deque[float] = deque(maxlen=_WINDOW)
        self._calm = 0
        # The last ticks while the interval follows them.
        self._pace: deque[float] = deque(maxlen=_PACE_WINDOW)

    def add_tick(self, seconds: float, *, of_command: bool = False) -> bool:
        """Record the duration of a tick; True when this changed the interval, which is logged.

        The same slow command runs in each tick: its first duration is that of the next ones. Any other tick
        may be slow once.
        """
        if of_command and (self._pace or seconds > self.interval):
            return self._follow(seconds)
        self._recent.append(seconds)
        self._calm = self._calm + 1 if seconds < self.interval / 10 else 0
        watches = self.interval * 2 < LONGEST_INTERVAL or self.interval >= LONGEST_INTERVAL
        if self._is_slow() and self.interval < self.requested * _SLOWEST and watches:
            return self._change(self.interval * 2, seconds)
        if self._calm >= _CALM and self.interval > self.requested:
            return self._change(self.interval / 2, seconds)
        return False

    def _follow(self, seconds: float) -> bool:
        if seconds <= self.requested:
            self._pace.clear()
            return self._change(self.requested, seconds)
        self._pace.append(seconds)
        slowest = float(ceil(_PACE_FACTOR * max(self._pace)))
        wanted = max(self.requested, min(slowest, _LONGEST_PACE))
        return wanted != self.interval and self._change(wanted, seconds)

    def _is_slow(self) -> bool:
        return len(self._recent) == _WINDOW and _median(self._recent) > self.interval / 5

    def _change(self, interval: float, seconds: float) -> bool:
        level = logging.WARNING if interval > self.interval else logging.INFO
        log.log(level, "a tick takes %.0f ms: the interval is now %g s", seconds * 1000, interval)
        self.interval = interval
        self._recent.clear()
        self._calm = 0
        return True


def _median(values: Collection[float]) -> float:
    # statistics.median would load decimal, fractions and random into memory.
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2

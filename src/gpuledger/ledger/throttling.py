"""For how long the clocks of each Gpu were reduced in the last hour, by reason."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from gpuledger.ledger.watched_time import MICRO
from gpuledger.model.devices import Gpu
from gpuledger.model.quantities import CLOCK_EVENT_REASONS
from gpuledger.model.session import ThrottleRow
from gpuledger.model.snapshot import LONGEST_INTERVAL, Reading, Snapshot
from gpuledger.model.throttle_reasons import THROTTLE_REASONS, ThrottleReason

# Seconds of a bucket, and the number of buckets: together at most an hour.
_BUCKET: Final = 60
_BUCKETS: Final = 60
# Seconds without throttling after which it has ended: drivers count in steps, and loads vary.
_HOLD: Final = 8.0
# Seconds between two looks at the counters: they count what happens in between.
_PERIOD: Final = 10.0
_SECOND: Final = 1_000_000_000


class ThrottledInterval(NamedTuple):
    """The time between two looks at the counters of a Gpu, and the throttled part of it by reason.

    Whole microseconds; only reasons that occurred.
    """

    microseconds: int
    reasons: Mapping[str, int]


@dataclass(slots=True)
class _ReasonTimes:
    """One reason on one Gpu. `buckets` are (number, observed seconds, throttled seconds)."""

    counter: float | None = None
    is_estimate: bool = False
    buckets: deque[tuple[int, float, float]] = field(default_factory=deque)
    began: float | None = None
    last: float = 0.0

    def add(self, observed: float, throttled: float, unix: float, elapsed: float) -> None:
        """Add an interval that ends now."""
        number, length, slowed = int(elapsed // _BUCKET), 0.0, 0.0
        if self.buckets and self.buckets[-1][0] == number:
            _, length, slowed = self.buckets.pop()
        self.buckets.append((number, length + observed, slowed + throttled))
        if throttled:
            self.began = unix if self.began is None else self.began
            self.last = elapsed

    def expire(self, elapsed: float) -> None:
        """Forget what was more than an hour ago, and when the throttling began if it has ended."""
        oldest = elapsed // _BUCKET - _BUCKETS
        while self.buckets and self.buckets[0][0] <= oldest:
            self.buckets.popleft()
        if self.began is not None and elapsed - self.last > _HOLD:
            self.began = None

    def row(self, name: str) -> ThrottleRow | None:
        """The row of this reason; None if the clocks were not reduced for it."""
        seconds = sum(slowed for _, _, slowed in self.buckets)
        if not seconds:
            return None
        observed = sum(length for _, length, _ in self.buckets)
        newest = list(self.buckets)[-2:]
        recent = sum(slowed for _, _, slowed in newest) / (sum(length for _, length, _ in newest) or 1.0)
        return ThrottleRow(
            name, self.began, min(seconds, observed), observed, min(recent, 1.0), self.is_estimate
        )


class ThrottleTimes:
    """Follows the counters of throttling, every `period` seconds.

    Memory and time do not depend on how long it runs. An interval counts only if both its ends were read, it
    is at most a minute long, and the counter did not restart.
    """

    def __init__(self, period: float = _PERIOD) -> None:
        self._period = period
        self._due = -inf
        self._rows: Mapping[str, tuple[ThrottleRow, ...]] = {}
        self._gpus: dict[str, dict[str, _ReasonTimes]] = {}
        self._read_at: dict[str, float] = {}
        self._unix: dict[str, float] = {}
        # Those that ended with the last posting, by Gpu uuid; None if it did not look at the counters.
        self.intervals: dict[str, ThrottledInterval] | None = None

    def post(self, snapshot: Snapshot) -> Mapping[str, tuple[ThrottleRow, ...]]:
        """Add one Snapshot if it is time; return the rows of the Gpus, the longest first."""
        # The clock of a recording can go back.
        if 0 < self._due - snapshot.elapsed <= self._period:
            self.intervals = None
            return self._rows
        self._due = snapshot.elapsed + self._period
        self.intervals = {}
        rows: dict[str, tuple[ThrottleRow, ...]] = {}
        for reading in snapshot.readings:
            if isinstance(reading.device, Gpu):
                found = self._post_gpu(reading, snapshot)
                if found:
                    rows[reading.device.uuid] = found
        self._rows = rows
        return rows

    def _post_gpu(self, reading: Reading, snapshot: Snapshot) -> tuple[ThrottleRow, ...]:
        uuid, elapsed = reading.device.uuid, snapshot.elapsed
        times = self._gpus.setdefault(uuid, {})
        seconds = elapsed - self._read_at.get(uuid, elapsed)
        began = self._unix.get(uuid, snapshot.unix)
        self._read_at[uuid], self._unix[uuid] = elapsed, snapshot.unix
        reasons: dict[str, int] = {}
        is_known = False
        for reason in THROTTLE_REASONS:
            one = times.get(reason.name)
            throttled = self._throttled(reason, reading, seconds, one)
            if throttled is None and one is None:
                continue
            if one is None:
                one = times[reason.name] = _ReasonTimes()
            if throttled is not None:
                one.counter, slowed, one.is_estimate = throttled
                if slowed is not None and 0 < seconds <= LONGEST_INTERVAL:
                    one.add(seconds, slowed, began, elapsed)
                    is_known = True
                    if slowed:
                        reasons[reason.name] = round(min(slowed, seconds) * MICRO)
            else:
                one.counter = None
            one.expire(elapsed)
        if is_known and self.intervals is not None:
            self.intervals[uuid] = ThrottledInterval(round(seconds * MICRO), reasons)
        made = (one.row(name) for name, one in times.items())
        return tuple(sorted((row for row in made if row), key=lambda row: -row.seconds))

    def _throttled(
        self, reason: ThrottleReason, reading: Reading, seconds: float, one: _ReasonTimes | None
    ) -> tuple[float | None, float | None, bool] | None:
        """The counter, the throttled seconds of the interval, and whether they are estimated."""
        values = reading.values
        for quantities in reason.counters:
            if all(quantity in values for quantity in quantities):
                counter = sum(values[quantity] for quantity in quantities)
                before = None if one is None else one.counter
                slowed = None if before is None else (counter - before) / _SECOND
                # A counter that went back was reset; one that outruns the clock is wrong.
                if slowed is not None and not 0 <= slowed <= 2 * seconds + 1:
                    slowed = None
                return counter, slowed, len(quantities) > 1
        active = values.get(CLOCK_EVENT_REASONS)
        if active is None or not reason.bits:
            return None
        return None, seconds if reason.is_active(int(active)) else 0.0, True

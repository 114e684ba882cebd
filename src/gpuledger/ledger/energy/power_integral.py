"""Power summed over time, in place of an energy counter that is missing or stands still."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from gpuledger.model import quantities as q
from gpuledger.model.snapshot import LONGEST_INTERVAL, Reading

# A reading of power beyond this multiple of the highest limit is wrong: peaks of milliseconds are below it.
_POWER_LIMIT = 2


class PowerOutcome(Enum):
    """What a reading of power did to the integral. BEGUN: it does not cover the time before the reading."""

    ABSENT = auto()
    REJECTED = auto()
    BEGUN = auto()
    CONTINUED = auto()


@dataclass(slots=True)
class PowerIntegral:
    """The integral of a Gpu's power since its last restart.

    `last` is the last reading in watts, and when. `excess_since` is when power began to be beyond what its
    limit allows, `excess_at` when it last was. Times are on the source's clock.
    """

    millijoules: float = 0.0
    last: tuple[float, float] | None = None
    excess_since: float | None = None
    excess_at: float = 0.0

    def add(self, at: float, reading: Reading) -> PowerOutcome:
        """Add the power of a tick; over a gap of more than a minute it is unknown and not integrated."""
        power = reading.get(q.POWER)
        if power is None:
            self.excess_since = None
            # A GPU that is down, or idle and perhaps asleep, may draw less than before and after.
            may_sleep = not reading.up or reading.get(q.UTILIZATION) == 0
            if may_sleep or not self._is_recent(at):
                self.last = None
            return PowerOutcome.ABSENT
        if self._is_excessive(at, power, reading):
            return PowerOutcome.REJECTED
        outcome = PowerOutcome.BEGUN
        if self.last is not None and self._is_recent(at):
            before, then = self.last
            self.millijoules += (power + before) / 2 * (at - then) * 1000
            outcome = PowerOutcome.CONTINUED
        self.last = (power, at)
        return outcome

    @property
    def is_drawn(self) -> bool:
        """Whether the last reading is above 0."""
        return self.last is not None and self.last[0] > 0

    def reaches(self, at: float) -> bool:
        """Whether power was read at this tick, so that the integral reaches until now."""
        return self.last is not None and self.last[1] == at

    def restart(self, at: float) -> None:
        """Integrate from here on: not from an earlier reading of power, if there is none at this tick."""
        self.millijoules = 0.0
        if not self.reaches(at):
            self.last = None

    def interrupt(self) -> None:
        """Forget the last reading: the power until the next one is unknown."""
        self.last = self.excess_since = None

    def _is_recent(self, at: float) -> bool:
        return self.last is not None and at - self.last[1] <= LONGEST_INTERVAL

    def _is_excessive(self, at: float, power: float, reading: Reading) -> bool:
        """Whether power cannot be true: the next reading replaces it. After a minute, its limit is wrong."""
        limit = highest_limit(reading)
        if limit is None or power <= _POWER_LIMIT * limit:
            self.excess_since = None
            return False
        if self.excess_since is None or at - self.excess_at > LONGEST_INTERVAL:
            self.excess_since = at
        self.excess_at = at
        return at - self.excess_since <= LONGEST_INTERVAL


def highest_limit(reading: Reading) -> float | None:
    """The highest limit of power in watts that the Gpu can have; None if it has none, or if it says 0."""
    return reading.get(q.POWER_LIMIT_MAX) or reading.get(q.POWER_LIMIT) or None

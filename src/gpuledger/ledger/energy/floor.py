"""The floor: power that a Gpu draws while inactive, configured or learned from quiet times (rule 3).

Two floors: *empty* without residents, *resident* with them (a context alone raises the clocks). Integer
milliwatts; times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# A learned floor is the 5th percentile of at least one quiet minute within a week.
_SHARE = 0.05
_ENOUGH = 60.0
_DAY = 86_400.0
_DAYS = 7
# Seconds since the last activity until the Gpu counts as quiet: clocks and voltage take seconds to drop.
QUIET_AFTER = 10.0
_STEP = 100


@dataclass(frozen=True, slots=True)
class Floors:
    """Milliwatts; None is unknown.

    An unknown empty floor counts as 0, an unknown resident floor as the empty one: then floor energy is
    apportioned as work.
    """

    empty: int | None = None
    resident: int | None = None

    @property
    def pair(self) -> tuple[int, int]:
        """Empty and resident floor for computations. A resident floor below the empty one is raised to it."""
        empty = self.empty or 0
        return empty, max(empty, empty if self.resident is None else self.resident)


@dataclass(slots=True)
class QuietPower:
    """Seconds at each power level by day, in steps of 100 mW, from which a floor is learned. Keeps seven
    days.

    `changed` holds the days and steps that changed since it was last cleared.
    """

    days: dict[int, dict[int, float]] = field(default_factory=dict)
    changed: set[tuple[int, int]] = field(default_factory=set)

    def add(self, unix: float, milliwatts: int, seconds: float) -> None:
        """Add a quiet interval."""
        day = int(unix // _DAY)
        steps = self.days.setdefault(day, {})
        step = milliwatts // _STEP
        steps[step] = steps.get(step, 0.0) + seconds
        self.changed.add((day, step))
        for old in [kept for kept in self.days if kept <= day - _DAYS]:
            del self.days[old]
            self.changed -= {(day, step) for day, step in self.changed if day == old}

    def floor(self) -> int | None:
        """The 5th percentile of power in milliwatts, None without enough data."""
        total: dict[int, float] = {}
        for steps in self.days.values():
            for step, seconds in steps.items():
                total[step] = total.get(step, 0.0) + seconds
        whole = sum(total.values())
        if whole < _ENOUGH:
            return None
        passed = 0.0
        for step in sorted(total):
            passed += total[step]
            if passed >= whole * _SHARE:
                return step * _STEP + _STEP // 2
        return None


@dataclass(slots=True)
class FloorEstimator:
    """Estimates the floors of one Gpu. Configured floors override learned ones.

    The percentile is recomputed after each minute of new quiet time, not at every tick.
    """

    configured: Floors = field(default_factory=Floors)
    empty: QuietPower = field(default_factory=QuietPower)
    resident: QuietPower = field(default_factory=QuietPower)
    _known: Floors | None = None
    _since: float = 0.0

    def set_configured(self, configured: Floors) -> None:
        """Use these configured floors from now on; learned data is kept."""
        self.configured, self._known = configured, None

    def learn(self, unix: float, milliwatts: int, seconds: float, *, has_residents: bool) -> None:
        """Add an interval that was entirely quiet, with or without residents."""
        (self.resident if has_residents else self.empty).add(unix, milliwatts, seconds)
        self._since += seconds
        if self._since >= _ENOUGH:
            self._known = None

    @property
    def floors(self) -> Floors:
        """The current floors."""
        if self._known is None:
            self._since = 0.0
            self._known = Floors(
                self.configured.empty if self.configured.empty is not None else self.empty.floor(),
                self.configured.resident if self.configured.resident is not None else self.resident.floor(),
            )
        return self._known


def configured_floors(empty_watts: float | None, resident_watts: float | None) -> Floors:
    """Floors from the configuration, which is in watts."""
    return Floors(
        None if empty_watts is None else round(empty_watts * 1000),
        None if resident_watts is None else round(resident_watts * 1000),
    )

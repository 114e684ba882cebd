"""The power that a Gpu draws without doing anything: given, or learnt from its quiet times (rule 3).

Two floors: *empty* while nobody is resident, *resident* otherwise (a context alone raises the clocks).
Integer milliwatts; times are seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

# What is learnt is the 5th percentile of at least a minute of quiet within a week.
_SHARE = 0.05
_ENOUGH = 60.0
_DAY = 86_400.0
_DAYS = 7
# Quiet means that the last activity is so long ago: clocks and voltage take seconds to come down.
QUIET_AFTER = 10.0
_STEP = 100


@dataclass(frozen=True, slots=True)
class Floors:
    """Milliwatts; None is not known. An unknown empty floor counts as 0, an unknown resident one as the
    empty one: then what is really floor is apportioned as work.
    """

    empty: int | None = None
    resident: int | None = None

    @property
    def pair(self) -> tuple[int, int]:
        """Empty and resident floor to reckon with. A resident floor below the empty one is noise."""
        empty = self.empty or 0
        return empty, max(empty, empty if self.resident is None else self.resident)


@dataclass(slots=True)
class QuietPower:
    """Seconds at each power, by day: what a floor is learnt from. Steps of 100 mW; seven days are kept.

    `changed` holds the days and steps taken in since somebody last cleared it.
    """

    days: dict[int, dict[int, float]] = field(default_factory=dict)
    changed: set[tuple[int, int]] = field(default_factory=set)

    def add(self, unix: float, milliwatts: int, seconds: float) -> None:
        """Take in a quiet interval."""
        day = int(unix // _DAY)
        steps = self.days.setdefault(day, {})
        step = milliwatts // _STEP
        steps[step] = steps.get(step, 0.0) + seconds
        self.changed.add((day, step))
        for old in [kept for kept in self.days if kept <= day - _DAYS]:
            del self.days[old]
            self.changed -= {(day, step) for day, step in self.changed if day == old}

    def floor(self) -> int | None:
        """The 5th percentile of power in milliwatts, None while too little is known."""
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

    def stored(self) -> list[tuple[int, int, float]]:
        """As rows of day, step and seconds."""
        return [(day, step, seconds) for day, steps in self.days.items() for step, seconds in steps.items()]

    @classmethod
    def restored(cls, rows: Iterable[tuple[int, int, float]]) -> QuietPower:
        """From such rows."""
        made = cls()
        for day, step, seconds in rows:
            made.days.setdefault(day, {})[step] = seconds
        return made


@dataclass(slots=True)
class FloorBook:
    """What is known of one Gpu's floors. Given floors beat learnt ones.

    The percentile is reckoned anew once a minute of new quiet has come in, not at every tick.
    """

    given: Floors = field(default_factory=Floors)
    empty: QuietPower = field(default_factory=QuietPower)
    resident: QuietPower = field(default_factory=QuietPower)
    _known: Floors | None = None
    _since: float = 0.0

    def give(self, given: Floors) -> None:
        """Reckon with these from here on; what is learnt stays."""
        self.given, self._known = given, None

    def learn(self, unix: float, milliwatts: int, seconds: float, *, anybody: bool) -> None:
        """Take in an interval that was quiet throughout, with or without residents."""
        (self.resident if anybody else self.empty).add(unix, milliwatts, seconds)
        self._since += seconds
        if self._since >= _ENOUGH:
            self._known = None

    @property
    def floors(self) -> Floors:
        """The floors to reckon with now."""
        if self._known is None:
            self._since = 0.0
            self._known = Floors(
                self.given.empty if self.given.empty is not None else self.empty.floor(),
                self.given.resident if self.given.resident is not None else self.resident.floor(),
            )
        return self._known


def given_floors(empty_watts: float | None, resident_watts: float | None) -> Floors:
    """Floors from the configuration, in watts."""
    return Floors(
        None if empty_watts is None else round(empty_watts * 1000),
        None if resident_watts is None else round(resident_watts * 1000),
    )

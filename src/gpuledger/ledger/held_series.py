"""Counter series as `increase()` needs them: born at 0, told in full a little later, never stepping back.

A series that appears with all it has is worth nothing to `increase()`: it sees no rise. So each is told as 0
until `hold` seconds after its birth (at least a scrape interval), and then with everything booked to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

# The first label is the uuid of the Gpu, by which books balance.
Labels = tuple[str, ...]


@dataclass(slots=True)
class Held:
    """One series: whole millijoules, the measured ones among them; when it was born and when its owner was
    last alive, in the source's seconds. `number` is its name in the store, 0 before it has one; `renamed`
    says that more than the millijoules is not stored yet, `stored` whether anything is.
    """

    born: float
    alive: float
    millijoules: int = 0
    measured: int = 0
    number: int = 0
    renamed: bool = True
    stored: bool = False

    def is_told(self, now: float, hold: float) -> bool:
        """Whether the page says all it has, or still 0."""
        return now - self.born >= hold


@dataclass(slots=True)
class HeldSeries:
    """Series by labels. `hold` and `retention` are seconds; `closed` sums, by uuid, what ended series had.

    A series ends `retention` after its owner was last alive, but not while he is, and never before all it has
    was told for as long as it was held back. `changed` and `dropped` (by number, whether it is stored) are
    what the store has not been told.
    """

    hold: float
    retention: float
    series: dict[Labels, Held] = field(default_factory=dict)
    closed: Counter[str] = field(default_factory=Counter)
    changed: set[Labels] = field(default_factory=set)
    dropped: dict[int, bool] = field(default_factory=dict)

    def open(self, labels: Labels, now: float) -> Held:
        """The series of these labels, born now if it is not there."""
        held = self.series.get(labels)
        if held is None:
            held = self.series[labels] = Held(now, now)
            self.changed.add(labels)
        held.alive = now
        return held

    def add(self, labels: Labels, millijoules: int, now: float, measured: int = 0) -> None:
        """Book to a series."""
        held = self.series.get(labels) or self.open(labels, now)
        held.alive = now
        held.millijoules += millijoules
        held.measured += measured
        self.changed.add(labels)

    def keep_alive(self, labels: Labels, now: float) -> None:
        """Its owner is still there; a series that is not there stays away until something is booked to it."""
        held = self.series.get(labels)
        if held is not None:
            held.alive = now

    def rename(self, labels: Labels) -> None:
        """Somebody else stands behind these labels now."""
        self.series[labels].renamed = True
        self.changed.add(labels)

    def end(self, now: float) -> list[Labels]:
        """Drop what has been told long enough after its owner went; answers the labels."""
        gone = [
            labels
            for labels, held in self.series.items()
            if held.alive < now and now - held.alive >= self.retention and now - held.born >= 2 * self.hold
        ]
        for labels in gone:
            self._close(labels)
        return gone

    def replace(self, labels: Labels) -> None:
        """End a series at once: another owner takes over its labels and begins at 0."""
        if labels in self.series:
            self._close(labels)

    def _close(self, labels: Labels) -> None:
        held = self.series.pop(labels)
        self.closed[labels[0]] += held.millijoules
        self.changed.discard(labels)
        if held.number:
            self.dropped[held.number] = held.stored

    def told(self, now: float) -> Iterator[tuple[Labels, int, int]]:
        """Labels, millijoules and measured millijoules as the page says them."""
        for labels, held in self.series.items():
            if held.is_told(now, self.hold):
                yield labels, held.millijoules, held.measured
            else:
                yield labels, 0, 0

    def pending(self, now: float) -> Mapping[str, int]:
        """Booked, but not told yet, by uuid."""
        waiting: Counter[str] = Counter()
        for labels, held in self.series.items():
            if not held.is_told(now, self.hold):
                waiting[labels[0]] += held.millijoules
        return waiting

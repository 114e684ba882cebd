"""Counter series that suit `increase()`: each starts at 0, jumps to its full value later and never decreases.

`increase()` ignores the first value of a series. So each series is exported as 0 for `hold` seconds (at least
one scrape interval), then with everything booked to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

# The first label is the Gpu uuid, by which the accounts are balanced.
Labels = tuple[str, ...]


@dataclass(slots=True)
class ExportedCounter:
    """One series, in whole millijoules, of which `measured` are the measured ones.

    `born` is when the series began, `alive` when its owner was last present, in seconds of the source's
    clock. `number` is its key in the store, 0 before it has one. `renamed` marks changes besides the energy
    that are not stored yet, `stored` says whether a row exists.
    """

    born: float
    alive: float
    millijoules: int = 0
    measured: int = 0
    number: int = 0
    renamed: bool = True
    stored: bool = False

    def is_exported(self, now: float, hold: float) -> bool:
        """Return whether the full value is exported, or still 0."""
        return now - self.born >= hold


@dataclass(slots=True)
class ExportedCounters:
    """Series by labels. `hold` and `retention` are seconds; `closed` sums the energy of ended series by uuid.

    A series ends `retention` seconds after its owner was last present, but not before its full value has been
    exported for `hold` seconds. `changed` and `dropped` (number -> whether a row exists) are changes for the
    store.
    """

    hold: float
    retention: float
    series: dict[Labels, ExportedCounter] = field(default_factory=dict)
    closed: Counter[str] = field(default_factory=Counter)
    changed: set[Labels] = field(default_factory=set)
    dropped: dict[int, bool] = field(default_factory=dict)

    def open(self, labels: Labels, now: float) -> ExportedCounter:
        """The series with these labels, created if necessary."""
        counter = self.series.get(labels)
        if counter is None:
            counter = self.series[labels] = ExportedCounter(now, now)
            self.changed.add(labels)
        counter.alive = now
        return counter

    def add(self, labels: Labels, millijoules: int, now: float, measured: int = 0) -> None:
        """Book energy to a series."""
        counter = self.series.get(labels) or self.open(labels, now)
        counter.alive = now
        counter.millijoules += millijoules
        counter.measured += measured
        self.changed.add(labels)

    def keep_alive(self, labels: Labels, now: float) -> None:
        """Record that the owner is still present. Creates no series."""
        counter = self.series.get(labels)
        if counter is not None:
            counter.alive = now

    def rename(self, labels: Labels) -> None:
        """Record that another process now has these labels."""
        self.series[labels].renamed = True
        self.changed.add(labels)

    def end(self, now: float) -> list[Labels]:
        """Drop series that were exported long enough after their owner left; return their labels."""
        gone = [
            labels
            for labels, counter in self.series.items()
            if counter.alive < now
            and now - counter.alive >= self.retention
            and now - counter.born >= 2 * self.hold
        ]
        for labels in gone:
            self._close(labels)
        return gone

    def replace(self, labels: Labels) -> None:
        """End a series at once: another owner takes its labels and begins at 0."""
        if labels in self.series:
            self._close(labels)

    def _close(self, labels: Labels) -> None:
        counter = self.series.pop(labels)
        self.closed[labels[0]] += counter.millijoules
        self.changed.discard(labels)
        if counter.number:
            self.dropped[counter.number] = counter.stored

    def exported(self, now: float) -> Iterator[tuple[Labels, int, int]]:
        """Labels, millijoules and measured millijoules as exported now."""
        for labels, counter in self.series.items():
            if counter.is_exported(now, self.hold):
                yield labels, counter.millijoules, counter.measured
            else:
                yield labels, 0, 0

    def pending(self, now: float) -> Mapping[str, int]:
        """Millijoules that are booked but not exported yet, by uuid."""
        waiting: Counter[str] = Counter()
        for labels, counter in self.series.items():
            if not counter.is_exported(now, self.hold):
                waiting[labels[0]] += counter.millijoules
        return waiting

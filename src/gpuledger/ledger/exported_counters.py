"""Counter series that suit `increase()`: each starts at 0, jumps to its full value later and never decreases.

`increase()` ignores the first value of a series. So each series is exported as 0 for `hold` seconds (at least
one scrape interval), then with everything booked to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

# The first label is the Gpu uuid, by which the accounts are balanced.
Labels = tuple[str, ...]


def latest_exported(before: float, now: float, hold: float) -> float:
    """When the newest series that is exported in full began; `before` is the last result.

    A longer hold does not hold back what was exported already: counters never decrease.
    """
    return max(before, now - hold)


@dataclass(slots=True)
class ExportedCounter:
    """One series: its `amount` is in whole millijoules or microseconds.

    `measured` are the measured millijoules. A series of time has there the highest amount so far, which is
    exported: one more microsecond of a Gpu can leave an account one less. `born` is when the series began,
    `alive` when its owner was last present, in seconds of the source's clock. `number` is its key in the
    store, 0 before it has one. `renamed` marks changes besides the amounts that are not stored yet, `stored`
    says whether a row exists.
    """

    born: float
    alive: float
    amount: int = 0
    measured: int = 0
    number: int = 0
    renamed: bool = True
    stored: bool = False


@dataclass(slots=True)
class ExportedCounters:
    """Series by labels. `hold` and `retention` are seconds; `closed` sums ended series by uuid.

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
    # When the newest series that was exported in full began.
    _latest: float = -inf

    def open(self, labels: Labels, now: float) -> ExportedCounter:
        """The series with these labels, created if necessary."""
        counter = self.series.get(labels)
        if counter is None:
            counter = self.series[labels] = ExportedCounter(now, now)
            self.changed.add(labels)
        counter.alive = now
        return counter

    def add(self, labels: Labels, amount: int, now: float, measured: int = 0) -> None:
        """Book an amount to a series."""
        counter = self.series.get(labels) or self.open(labels, now)
        counter.alive = now
        counter.amount += amount
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

    def end(self, now: float, has_left: Callable[[str, ExportedCounter], bool] | None = None) -> list[Labels]:
        """Drop series that were exported long enough after their owner left; return their labels.

        `has_left` says that of the series of a Gpu's uuid; without it, an owner that is not present now has.
        """
        gone = [
            labels
            for labels, counter in self.series.items()
            if counter.alive < now
            and now - counter.alive >= self.retention
            and now - counter.born >= 2 * self.hold
            and (has_left is None or has_left(labels[0], counter))
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
        self.closed[labels[0]] += counter.amount
        self.changed.discard(labels)
        self.drop(counter)

    def drop(self, counter: ExportedCounter) -> None:
        """Let the store delete the row of a counter that is no longer used."""
        if counter.number:
            self.dropped[counter.number] = counter.stored

    def export_until(self, latest: float) -> None:
        """Export series in full that began until then, as an earlier run did: counters never decrease."""
        self._latest = max(self._latest, latest)

    def latest(self, now: float) -> float:
        """When the newest series that is exported in full began."""
        self._latest = latest_exported(self._latest, now, self.hold)
        return self._latest

    def exported(self, now: float) -> Iterator[tuple[Labels, int, int]]:
        """Labels, amount and measured amount as exported now."""
        latest = self.latest(now)
        for labels, counter in self.series.items():
            if counter.born <= latest:
                yield labels, counter.amount, counter.measured
            else:
                yield labels, 0, 0

    def pending(self, now: float) -> Mapping[str, int]:
        """Amounts that are booked but not exported yet, by uuid."""
        waiting: Counter[str] = Counter()
        latest = self.latest(now)
        for labels, counter in self.series.items():
            if counter.born > latest:
                waiting[labels[0]] += counter.amount
        return waiting

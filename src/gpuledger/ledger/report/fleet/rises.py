"""By how much counters rose, from what a Prometheus tells of them range by range.

`increase()` guesses: it stretches what it saw to the ends of the range. The difference of two scraped values
guesses nothing, and differences from range to range join without a gap. So a rise is

- where the counter did not fall: the last value less the last value before the range: exact;
- where it fell once and stands below its highest value now: up to the highest, and then from 0: exact;
- else what increase() says, twice. It stretches what it saw of n samples, n - 1 distances, by at most 1.1
  mean distances at either end. So the rise within the range is at least increase() / (1 + 2.2 / (n - 1)), and
  with the sample before it, which a range that begins a little earlier has, it is at most the increase() of
  that one. The middle is taken, and half of the difference is its `error`.

A counter that was not there when the range began, while its Gpu was, begins at 0 (`energy.zero_hold` makes a
series begin so for as long as a scrape takes to see it), whatever it had before it ended. One that nobody had
seen before, on a Gpu that nobody had seen, begins at the first value seen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuledger.ledger.report.fleet.scraped import Name, Target, Window, Windows

# Prometheus's extrapolation threshold, as a multiple of the mean distance of samples, at both ends.
_STRETCH = 2 * 1.1


class Rise(NamedTuple):
    """In the counter's unit. The truth lies within `error` of `amount`; it began anew so many `falls`."""

    amount: float = 0.0
    error: float = 0.0
    falls: int = 0

    def plus(self, other: Rise) -> Rise:
        """Both, one after the other."""
        return Rise(self.amount + other.amount, self.error + other.error, self.falls + other.falls)


def rise(window: Window, base: float | None, *, born: bool = False) -> Rise:
    """Of one series over one range; `base` is its last value before, None where there is none to go by.
    `born` says that it is 0 because the series began within the range.
    """
    if not window.resets:
        if base is None:
            return Rise(window.last - window.least)
        # It fell while nobody scraped: what it had was told before it ended.
        return Rise(window.last - base) if window.least >= base else Rise(window.last, falls=1)
    joined = born or window.wider_samples > window.samples
    if base is not None and joined and window.resets == 1:
        top = max(window.highest, base)
        if window.last < top:
            return Rise(top - base + window.last, falls=1)
    low = window.increase / (1 + _STRETCH / max(window.samples - 1, 1))
    high = window.increase
    if base is not None and not born:
        # Where no sample came just before the range, it may have fallen unseen before the first one in it.
        unseen = max(window.highest - base, min(window.highest, base))
        high = window.wider if joined else high + unseen
    return Rise((high + low) / 2, (high - low) / 2, window.resets)


@dataclass(slots=True)
class Rises:
    """Adds up counters of the same kind range by range, by our own labels.

    A counter goes on when its target is called otherwise (a DaemonSet's pod has another address after a
    restart): the scrape's labels only say in which order the pieces of one range come.
    """

    total: dict[Name, Rise] = field(default_factory=dict)
    # What each target told last, in the last range in which the counter was seen at all.
    _lasts: dict[Name, Mapping[Target, float]] = field(default_factory=dict)

    def begin(self, before: Windows) -> None:
        """Take in what was told last before the first range."""
        for name, pieces in before.items():
            self._remember(name, pieces)

    def add(self, windows: Windows, born: Callable[[Name], bool]) -> Mapping[Name, Rise]:
        """One range, the one that follows; answers its rises. `born` says of which counters it is known that
        they began within it.
        """
        found = self.beyond(windows, born)
        for name, gained in found.items():
            self.total[name] = self.total.get(name, Rise()).plus(gained)
            self._remember(name, windows[name])
        return found

    def beyond(self, windows: Windows, born: Callable[[Name], bool]) -> Mapping[Name, Rise]:
        """What a range that follows would add; it is not added."""
        return {name: self._gained(name, pieces, new=born(name)) for name, pieces in windows.items()}

    def _gained(self, name: Name, pieces: Mapping[Target, Window], *, new: bool) -> Rise:
        before = self._lasts.get(name, {})
        if before and all(piece.least >= max(before.values()) for piece in pieces.values()):
            # It went on where it was: it had not ended, whatever is missing of it.
            new = False
        bases = [0.0] if new else list(before.values())
        gained = Rise()
        # Who was there before comes first; of those who follow each other, the higher one comes later.
        for target in sorted(pieces, key=lambda one: (one not in before, pieces[one].least, one)):
            piece = pieces[target]
            gained = gained.plus(rise(piece, _base(piece, bases), born=new))
            bases, new = [piece.last], False
        return gained

    def _remember(self, name: Name, pieces: Mapping[Target, Window]) -> None:
        self._lasts[name] = {target: piece.last for target, piece in pieces.items()}


def _base(piece: Window, bases: Collection[float]) -> float | None:
    """From where the piece went on: the highest value that it is not below."""
    if not bases:
        return None
    below = [base for base in bases if base <= piece.least]
    return max(below or bases)

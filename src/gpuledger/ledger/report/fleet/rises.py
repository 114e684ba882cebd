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

Of a counter that several targets tell, a piece that begins within what another one told is the same again: it
adds what it has above that. It fell only if it begins below all that was told, or if it can have begun anew
and reached that much; where both may be, the middle is taken, and half of the difference is its `error`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from gpuledger.ledger.report.fleet.scraped import Name, Target, Window, Windows

# Prometheus's extrapolation threshold, as a multiple of the mean distance of samples, at both ends.
_STRETCH = 2 * 1.1


class Rise(NamedTuple):
    """In the counter's unit. The truth lies within `error` of `amount`; it began anew so many `falls`.

    So much was told `again` by another target, at the same time, and is counted once; None if nothing was.
    `unclear` says that it may just as well be of a counter that began anew.
    """

    amount: float = 0.0
    error: float = 0.0
    falls: int = 0
    again: float | None = None
    unclear: bool = False

    def plus(self, other: Rise) -> Rise:
        """Both, one after the other."""
        return Rise(
            self.amount + other.amount,
            self.error + other.error,
            self.falls + other.falls,
            other.again if self.again is None else self.again + (other.again or 0.0),
            self.unclear or other.unclear,
        )


class Shared(NamedTuple):
    """What is known of a counter that several targets tell, in its unit: two of them can both have told
    `most` of it, and it has `newborn` at most when it is first told after it began anew.
    """

    most: float = inf
    newborn: float = -1.0


def _any(_: Name) -> Shared:
    return Shared()


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
    low, high = _seen(window), window.increase
    if base is not None and not born:
        # Where no sample came just before the range, it may have fallen unseen before the first one in it.
        unseen = max(window.highest - base, min(window.highest, base))
        high = window.wider if joined else high + unseen
    return Rise((high + low) / 2, (high - low) / 2, window.resets)


def _seen(window: Window) -> float:
    """At least so much it rose from the first sample in it to the last."""
    if not window.resets:
        return window.last - window.least
    return window.increase / (1 + _STRETCH / max(window.samples - 1, 1))


def _beside(piece: Window, taken: Sequence[Window], floor: float, after: Rise, shared: Shared) -> Rise:
    """What a piece adds to those `taken` of a counter that stood at `floor`; `after` is what it adds if it
    came after them.
    """
    top = max(max(one.last, one.highest) for one in taken)
    floor = min(floor, *(one.least for one in taken))
    fell = piece.resets or any(one.resets for one in taken)
    if not fell and not floor <= piece.least < top:
        return after
    again = max(min(piece.last, top) - piece.least, 0.0)
    low = 0.0 if piece.resets else max(0.0, piece.last - top)
    if not fell and (piece.least > shared.newborn or again <= shared.most < inf):
        return Rise(low, again=again)
    found = _between(after, Rise(max(low, _seen(piece) - shared.most)))
    return found._replace(falls=after.falls, again=again, unclear=True)


def _between(one: Rise, other: Rise) -> Rise:
    """One of both."""
    low = min(one.amount - one.error, other.amount - other.error)
    high = max(one.amount + one.error, other.amount + other.error)
    return Rise((high + low) / 2, (high - low) / 2, one.falls)


@dataclass(frozen=True, slots=True)
class _Stand:
    """Where a counter stood when it was last told: at one of `values`, and `unclear` is at which one.
    `told` is what each target had last.
    """

    told: Mapping[Target, float] = field(default_factory=dict)
    values: tuple[float, ...] = ()
    unclear: bool = False


@dataclass(slots=True)
class Rises:
    """Adds up counters of the same kind range by range, by our own labels.

    A counter goes on when its target is called otherwise (a DaemonSet's pod has another address after a
    restart): the scrape's labels only say in which order the pieces of one range come.
    """

    total: dict[Name, Rise] = field(default_factory=dict)
    _stands: dict[Name, _Stand] = field(default_factory=dict)

    def begin(self, before: Windows) -> None:
        """Take in what was told last before the first range."""
        for name, pieces in before.items():
            told = _lasts(pieces)
            self._stands[name] = _Stand(told, tuple(told.values()))

    def add(
        self, windows: Windows, born: Callable[[Name], bool], shared: Callable[[Name], Shared | None] = _any
    ) -> Mapping[Name, Rise]:
        """One range, the one that follows; answers its rises. `born` says of which counters it is known that
        they began within it, `shared` which of them several targets can have told at the same time.
        """
        found = {}
        for name, pieces in windows.items():
            found[name], self._stands[name] = self._gained(name, pieces, shared(name), new=born(name))
            self.total[name] = self.total.get(name, Rise()).plus(found[name])
        return found

    def beyond(
        self, windows: Windows, born: Callable[[Name], bool], shared: Callable[[Name], Shared | None] = _any
    ) -> Mapping[Name, Rise]:
        """What a range that follows would add; it is not added."""
        return {
            name: self._gained(name, pieces, shared(name), new=born(name))[0]
            for name, pieces in windows.items()
        }

    def _gained(
        self, name: Name, pieces: Mapping[Target, Window], shared: Shared | None, *, new: bool
    ) -> tuple[Rise, _Stand]:
        before = self._stands.get(name, _Stand())
        if before.values and all(piece.least >= max(before.values) for piece in pieces.values()):
            # It went on where it was: it had not ended, whatever is missing of it.
            new = False
        bases = (0.0,) if new else before.values
        floor, gained, taken = min(bases, default=inf), Rise(), list[Window]()
        # Who was there before comes first; of those who follow each other, the higher one comes later.
        for target in sorted(pieces, key=lambda one: (one not in before.told, pieces[one].least, one)):
            piece = pieces[target]
            base = _base(piece, bases)
            own = base if new or taken else before.told.get(target, base)
            # What it fell from is what its own target told.
            more = rise(piece, own if piece.resets else base, born=new)
            if before.unclear and own != base:
                more = _between(more, rise(piece, own))
            if shared and taken:
                more = _beside(piece, taken, floor, more, shared)
            gained = gained.plus(more)
            taken.append(piece)
            bases, new = _stands(piece, bases, more), False
        return gained, _Stand(_lasts(pieces), bases, gained.unclear)


def _lasts(pieces: Mapping[Target, Window]) -> Mapping[Target, float]:
    return {target: piece.last for target, piece in pieces.items()}


def _base(piece: Window, bases: Collection[float]) -> float | None:
    """From where the piece went on: the highest value that it is not below."""
    if not bases:
        return None
    below = [base for base in bases if base <= piece.least]
    return max(below or bases)


def _stands(piece: Window, bases: Collection[float], more: Rise) -> tuple[float, ...]:
    """Where the counter stands after a piece that added so much."""
    if more.unclear:
        return (*bases, piece.last)
    return (piece.last if more.again is None else max((piece.last, *bases)),)

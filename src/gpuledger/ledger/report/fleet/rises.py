"""Computes the increase (rise) of counters from Prometheus values, range by range.

`increase()` extrapolates to the ends of the range. The difference of two scraped values does not, and
differences of consecutive ranges join without a gap. So a rise is

- without a reset, the last value minus the last value before the range: exact;
- after one reset, if the counter is now below its highest value, the rise to the highest value plus the
  current value: exact;
- otherwise the middle of two values of increase(), which extrapolates n samples (n - 1 distances) by at most
  1.1 mean distances at either end. The rise within the range is at least increase() / (1 + 2.2 / (n - 1)).
  With the sample before it, which a range that begins slightly earlier includes, it is at most the increase()
  of that range. The middle is used, and half of the difference is its `error`.

A counter that did not exist when the range began, while its Gpu did, begins at 0 (`energy.zero_hold` exports
a new series as 0 for at least one scrape), regardless of its value before an earlier end. A new counter on a
new Gpu begins at its first value.

If several targets export a counter, a piece that begins within the values of another target duplicates it and
only adds what exceeds them. It was reset only if it begins below all exported values, or if it can have begun
again and reached its value; if both are possible, the middle is used, and half of the difference is its
`error`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from gpuledger.ledger.report.fleet.scraped import Name, SeriesWindow, SeriesWindows, Target

# Prometheus's extrapolation threshold, as a multiple of the mean distance of samples, at both ends.
_STRETCH = 2 * 1.1


class Rise(NamedTuple):
    """An increase in the counter's unit, with `resets`. The true value is within `error` of `amount`.

    `duplicated` was also exported by another target at the same time and is counted once; None without
    duplicates. `ambiguous` says that the duplicate may instead be a counter that began again.
    """

    amount: float = 0.0
    error: float = 0.0
    resets: int = 0
    duplicated: float | None = None
    ambiguous: bool = False

    def plus(self, other: Rise) -> Rise:
        """The sum of two consecutive rises."""
        return Rise(
            self.amount + other.amount,
            self.error + other.error,
            self.resets + other.resets,
            other.duplicated if self.duplicated is None else self.duplicated + (other.duplicated or 0.0),
            self.ambiguous or other.ambiguous,
        )


class SharedBound(NamedTuple):
    """Bounds for a counter that several targets export, in its unit.

    Two targets can both have exported at most `max_common` of it. After a reset its first exported value is
    at most `max_after_reset`.
    """

    max_common: float = inf
    max_after_reset: float = -1.0


def _no_bound(_: Name) -> SharedBound:
    return SharedBound()


def compute_rise(window: SeriesWindow, base: float | None, *, born: bool = False) -> Rise:
    """The rise of one series over one range. `base` is its last value before, None if unknown.

    `born`: the series began within the range, so `base` is 0.
    """
    if not window.resets:
        if base is None:
            return Rise(window.last - window.least)
        # It was reset between scrapes; its earlier value had been exported before.
        return Rise(window.last - base) if window.least >= base else Rise(window.last, resets=1)
    joined = born or window.wider_samples > window.samples
    if base is not None and joined and window.resets == 1:
        top = max(window.highest, base)
        if window.last < top:
            return Rise(top - base + window.last, resets=1)
    low, high = _least_rise(window), window.increase
    if base is not None and not born:
        # Without a sample just before the range, an unseen reset may precede the first sample in it.
        unseen = max(window.highest - base, min(window.highest, base))
        high = window.wider if joined else high + unseen
    return Rise((high + low) / 2, (high - low) / 2, window.resets)


def _least_rise(window: SeriesWindow) -> float:
    """The minimum rise from the first to the last sample in the range."""
    if not window.resets:
        return window.last - window.least
    return window.increase / (1 + _STRETCH / max(window.samples - 1, 1))


def _overlapping_rise(
    piece: SeriesWindow, taken: Sequence[SeriesWindow], floor: float, after: Rise, shared: SharedBound
) -> Rise:
    """The additional rise of a piece next to `taken` pieces of a counter that stood at `floor`.

    `after` is its rise if it followed them.
    """
    top = max(max(one.last, one.highest) for one in taken)
    floor = min(floor, *(one.least for one in taken))
    fell = piece.resets or any(one.resets for one in taken)
    if not fell and not floor <= piece.least < top:
        return after
    again = max(min(piece.last, top) - piece.least, 0.0)
    low = 0.0 if piece.resets else max(0.0, piece.last - top)
    if not fell and (piece.least > shared.max_after_reset or again <= shared.max_common < inf):
        return Rise(low, duplicated=again)
    found = _middle(after, Rise(max(low, _least_rise(piece) - shared.max_common)))
    return found._replace(resets=after.resets, duplicated=again, ambiguous=True)


def _middle(one: Rise, other: Rise) -> Rise:
    """A rise that covers both alternatives."""
    low = min(one.amount - one.error, other.amount - other.error)
    high = max(one.amount + one.error, other.amount + other.error)
    return Rise((high + low) / 2, (high - low) / 2, one.resets)


@dataclass(frozen=True, slots=True)
class _CounterValue:
    """The last value of a counter: one of `values`; `ambiguous` if it is unknown which one.

    `exported` is the last value of each of `targets`. Two tuples are smaller than a dict: a month of a large
    fleet has millions of counters, nearly all with one target.
    """

    targets: tuple[Target, ...] = ()
    exported: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    ambiguous: bool = False

    @classmethod
    def of(
        cls, pieces: Mapping[Target, SeriesWindow], values: tuple[float, ...] = (), *, ambiguous: bool = False
    ) -> _CounterValue:
        """The value after these pieces: any of those exported, unless `values` are given."""
        exported = tuple(piece.last for piece in pieces.values())
        # One object if they are equal.
        return cls(tuple(pieces), values if values == exported else exported, values or exported, ambiguous)


@dataclass(slots=True)
class Rises:
    """Sums rises of counters of one kind, range by range, by gpuledger's own labels.

    A counter continues when its target's labels change (a DaemonSet's pod has another address after a
    restart): the scrape labels only determine the order of the pieces of one range.
    """

    total: dict[Name, Rise] = field(default_factory=dict)
    _values: dict[Name, _CounterValue] = field(default_factory=dict)

    def begin(self, before: SeriesWindows) -> None:
        """Take the last values before the first range."""
        for name, pieces in before.items():
            self._values[name] = _CounterValue.of(pieces)

    def add(
        self,
        windows: SeriesWindows,
        born: Callable[[Name], bool],
        shared: Callable[[Name], SharedBound | None] = _no_bound,
    ) -> Mapping[Name, Rise]:
        """Add the next range and return its rises.

        `born` returns whether a counter certainly began within it, `shared` the bounds if several targets can
        have exported a counter at the same time.
        """
        found = {}
        for name, pieces in windows.items():
            found[name], self._values[name] = self._gained(name, pieces, shared(name), new=born(name))
            add_rise(self.total, name, found[name])
        return found

    def copy(self) -> Rises:
        """A copy: adding a range to the copy returns its rises and leaves these sums unchanged."""
        return Rises(dict(self.total), dict(self._values))

    def _gained(
        self, name: Name, pieces: Mapping[Target, SeriesWindow], shared: SharedBound | None, *, new: bool
    ) -> tuple[Rise, _CounterValue]:
        before = self._values.get(name, _CounterValue())
        if before.values and all(piece.least >= max(before.values) for piece in pieces.values()):
            # It continued at its value: it had not ended, despite missing samples.
            new = False
        bases = (0.0,) if new else before.values
        floor, gained, taken = min(bases, default=inf), Rise(), list[SeriesWindow]()
        exported = dict(zip(before.targets, before.exported, strict=True))
        # Known targets first; of consecutive targets, the higher value is the later one.
        for target in sorted(pieces, key=lambda one: (one not in exported, pieces[one].least, one)):
            piece = pieces[target]
            base = _base(piece, bases)
            own = base if new or taken else exported.get(target, base)
            # A reset is relative to the last value from the same target.
            more = compute_rise(piece, own if piece.resets else base, born=new)
            if before.ambiguous and own != base:
                more = _middle(more, compute_rise(piece, own))
            if shared and taken:
                more = _overlapping_rise(piece, taken, floor, more, shared)
            gained = gained.plus(more)
            taken.append(piece)
            bases, new = _values_after(piece, bases, more), False
        return gained, _CounterValue.of(pieces, bases, ambiguous=gained.ambiguous)


def add_rise(sums: dict[Name, Rise], name: Name, gained: Rise) -> None:
    """Add a rise to the sum of its counter. The first one is the sum itself: most counters have no other."""
    known = sums.get(name)
    sums[name] = known.plus(gained) if known else gained


def _base(piece: SeriesWindow, bases: Collection[float]) -> float | None:
    """The value from which the piece continued: the highest value that it is not below."""
    if not bases:
        return None
    below = [base for base in bases if base <= piece.least]
    return max(below or bases)


def _values_after(piece: SeriesWindow, bases: Collection[float], more: Rise) -> tuple[float, ...]:
    """The possible values of the counter after a piece with this rise."""
    if more.ambiguous:
        return (*bases, piece.last)
    return (piece.last if more.duplicated is None else max((piece.last, *bases)),)

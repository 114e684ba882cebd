"""From the labels on a target's page to those of the series that is delivered, and to its bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gpuledger.agent.relabel.rule import LABEL_NAME, METRIC_NAME, NAME, Relabelling
from gpuledger.agent.scrape.lines import LONGEST_CACHED, BadSeries
from gpuledger.exposition.remote_write import labels_bytes, series_bytes, series_prefix, timestamp_tail

_EXPORTED: Final = "exported_"
_NO_RULES: Final = Relabelling(())

# What becomes of a series: the bytes before its value (or its last sample, where one is kept); nothing,
# because metric relabelling drops it; or nothing, because it is not to be delivered.
Fate = bytes | tuple[()] | frozenset[object]
DROPPED: Final[tuple[()]] = ()
UNSENT: Final[frozenset[object]] = frozenset()
# One of them: two prefixes as they usually are, and their place.
_ROUTE_BYTES: Final = 400
# Other deliveries that are known beyond twice those of what is told.
_SPARE_ROUTES: Final = 64
# A value has so many bytes: what stands before them is the prefix.
VALUE_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class LabelLimits:
    """Most labels of a series, and most letters of a label's name and value; 0 is no limit."""

    labels: int = 0
    name_length: int = 0
    value_length: int = 0

    def check(self, labels: Mapping[str, str]) -> None:
        """Raise BadSeries for a series beyond a limit."""
        if self.labels and len(labels) > self.labels:
            raise BadSeries(f"{labels.get(NAME)} has {len(labels)} labels, {self.labels} are allowed")
        if not self.name_length and not self.value_length:
            return
        for name, value in labels.items():
            if self.name_length and len(name.encode()) > self.name_length:
                raise BadSeries(f"a label name of {labels.get(NAME)} is longer than {self.name_length} bytes")
            if self.value_length and len(value.encode()) > self.value_length:
                raise BadSeries(
                    f"the label {name} of {labels.get(NAME)} is longer than {self.value_length} bytes"
                )


@dataclass(frozen=True, slots=True)
class Delivery:
    """What is done to every series on its way out: labels of this agent, and one set of receivers' rules."""

    external_labels: tuple[tuple[str, str], ...] = ()
    rules: Relabelling = _NO_RULES

    def prefix(self, labels: Mapping[str, str]) -> Fate:
        """The bytes before the value; UNSENT where the rules drop the series."""
        going = dict(labels)
        for name, value in self.external_labels:
            going.setdefault(name, value)
        if self.rules and not self.rules.apply(going):
            return UNSENT
        return series_prefix(encoded(going)) if going else UNSENT


class Labelling:
    """The rules for the series of one target, all of them known when its scraping begins.

    `labels` are the target's own. With `honor` those that the page has already stand as they are; without,
    the page's own are moved aside, to `exported_...`. `others` are what is done to the series for receivers
    with rules of their own, when not all have the same: `routed` turns the one's bytes into theirs.
    """

    def __init__(
        self,
        labels: Mapping[str, str],
        rules: Relabelling = _NO_RULES,
        limits: LabelLimits | None = None,
        delivery: Delivery | None = None,
        others: Sequence[Delivery] = (),
    ) -> None:
        self._target = dict(sorted(labels.items()))
        self._rules = rules
        self._limits = limits or LabelLimits()
        self._delivery = delivery or Delivery()
        self._others = tuple((other, dict[bytes, Fate]()) for other in others)
        self._room = _SPARE_ROUTES

    def fate(self, page: dict[str, str], *, honor: bool) -> Fate:
        """What becomes of a series with these labels on the page, which this may change. Raises BadSeries."""
        labels = self._final(page, honor=honor)
        return DROPPED if labels is None else self._prefix(labels)

    def reported(self, name: str) -> Fate:
        """The bytes before the value of one of the series that tell of the scrape itself."""
        return self._prefix({NAME: name, **self._target})

    def routed(self, other: int, entries: Sequence[bytes]) -> list[bytes]:
        """Prefixes with something after them, as the other delivery of that number has them."""
        route = self._others[other][1]
        found = []
        for entry in entries:
            fate = route.get(entry[:-VALUE_BYTES])
            if isinstance(fate, bytes):
                found.append(fate + entry[-VALUE_BYTES:])
        return found

    def inherit(self, before: Labelling) -> None:
        """Know the other deliveries of what was told under rules of before, which may end; they are equal."""
        for (_, route), (_, old) in zip(self._others, before._others, strict=True):
            for prefix, fate in old.items():
                route.setdefault(prefix, fate)

    @property
    def kept_bytes(self) -> int:
        """What is known of other deliveries takes about so much."""
        return _ROUTE_BYTES * sum(len(route) for _, route in self._others)

    @property
    def crowded(self) -> bool:
        """The other deliveries of many more series are known than were told when `told` was called last."""
        return any(len(route) > self._room for _, route in self._others)

    def told(self, series: int) -> None:
        """So many were told, and what is known may be about twice as many."""
        self._room = 2 * series + _SPARE_ROUTES

    def forget(self, told: Iterable[bytes]) -> None:
        """Keep the other deliveries of series with these prefixes alone."""
        kept = set(told)
        for _, route in self._others:
            for prefix in [prefix for prefix in route if prefix not in kept]:
                del route[prefix]

    def _prefix(self, labels: Mapping[str, str]) -> Fate:
        prefix = self._delivery.prefix(labels)
        if isinstance(prefix, bytes):
            for other, route in self._others:
                route[prefix] = other.prefix(labels)
        return prefix

    def _final(self, page: dict[str, str], *, honor: bool) -> dict[str, str] | None:
        if honor:
            labels = {**self._target, **page}
        else:
            aside = [(name, page[name]) for name in self._target if page.get(name)]
            labels = {**page, **self._target}
            if aside:
                _move_aside(labels, aside)
        if "" in labels.values():
            labels = {name: value for name, value in labels.items() if value}
        if self._rules and not self._rules.apply(labels):
            return None
        self._check(labels)
        return labels

    def _check(self, labels: Mapping[str, str]) -> None:
        name, names = labels.get(NAME, ""), tuple(labels)
        short = len(name) + sum(map(len, names)) <= LONGEST_CACHED
        if not (_valid if short else _valid.__wrapped__)(name, names):
            if not labels.get(NAME):
                raise BadSeries("metric relabelling leaves a series without a name")
            raise BadSeries(
                f"metric relabelling leaves a name that is none: {labels.get(NAME)!r}, {list(labels)}"
            )
        self._limits.check(labels)


@lru_cache(maxsize=4096)
def _valid(name: str, labels: tuple[str, ...]) -> bool:
    return METRIC_NAME.fullmatch(name) is not None and all(map(LABEL_NAME.fullmatch, labels))


def timed(prefix: bytes, value: bytes, milliseconds: int) -> bytes:
    """One whole sample with a timestamp of its own."""
    try:
        return prefix + value + timestamp_tail(milliseconds)
    except ValueError:
        at = 1
        while prefix[at] & 128:
            at += 1
        # Without the series' length before the labels, and the sample's beginning after them.
        return series_bytes(prefix[at + 1 : -3], value, milliseconds)


def _move_aside(labels: dict[str, str], aside: Sequence[tuple[str, str]]) -> None:
    """The page's own labels under names that nobody has yet, the shortest names first."""
    for name, value in sorted(aside, key=lambda pair: len(pair[0])):
        free = _EXPORTED + name
        while labels.get(free):
            free = _EXPORTED + free
        labels[free] = value


def encoded(labels: Mapping[str, str]) -> bytes:
    """The `labels` fields of a series, as `labels_bytes` makes them: pairs recur, and are made once."""
    return b"".join(
        [
            (_pair if len(name) + len(value) <= LONGEST_CACHED else _pair.__wrapped__)(name, value)
            for name, value in sorted(labels.items())
        ]
    )


@lru_cache(maxsize=8192)
def _pair(name: str, value: str) -> bytes:
    return labels_bytes(((name, value),))

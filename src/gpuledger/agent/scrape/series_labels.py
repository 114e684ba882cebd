"""Series labels: target labels, metric relabeling, limits and write relabeling, up to the encoded series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gpuledger.agent.relabel.rules import LABEL_NAME, METRIC_NAME, NAME, RelabelRules
from gpuledger.agent.scrape.line_parser import LONGEST_CACHED, BadSeries
from gpuledger.exposition.remote_write import (
    STALE,
    encode_label_fields,
    encode_series,
    encode_series_prefix,
    encode_timestamp,
)

_EXPORTED: Final = "exported_"
_NO_RULES: Final = RelabelRules()

# Result for a series: the encoded bytes before its value (in a cache: with the last value), DROPPED by metric
# relabeling, UNSENT (dropped by write relabeling, or a duplicate), or REPORTED: the scrape report has the
# series. All but the bytes are false.
SeriesOutcome = bytes | tuple[()] | frozenset[object] | str
DROPPED: Final[tuple[()]] = ()
UNSENT: Final[frozenset[object]] = frozenset()
REPORTED: Final = ""
# Estimated memory of one route: two prefixes of usual length and a dictionary slot.
_ROUTE_BYTES: Final = 400
# Routes allowed beyond twice the number of exported series.
_SPARE_ROUTES: Final = 64
# Length of an encoded value; the bytes before it are the prefix.
VALUE_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class LabelLimits:
    """Most labels of a series, and most bytes of a label's name and value; 0 is no limit."""

    labels: int = 0
    name_length: int = 0
    value_length: int = 0

    def check(self, labels: Mapping[str, str]) -> None:
        """Raise BadSeries for a series above a limit."""
        if self.labels and len(labels) > self.labels:
            raise BadSeries(f"{labels.get(NAME)} has {len(labels)} labels, label_limit is {self.labels}")
        if not self.name_length and not self.value_length:
            return
        for name, value in labels.items():
            if self.name_length and len(name.encode()) > self.name_length:
                raise BadSeries(
                    f"a label name of {labels.get(NAME)} is longer than the limit of {self.name_length} bytes"
                )
            if self.value_length and len(value.encode()) > self.value_length:
                raise BadSeries(
                    f"the value of label {name} of {labels.get(NAME)} is longer than the limit of "
                    f"{self.value_length} bytes"
                )


@dataclass(frozen=True, slots=True)
class WriteRelabeling:
    """External labels and one set of write_relabel_configs, applied to every series before delivery."""

    external_labels: tuple[tuple[str, str], ...] = ()
    rules: RelabelRules = _NO_RULES

    def prefix(self, labels: Mapping[str, str]) -> SeriesOutcome:
        """Return the encoded bytes before the value; UNSENT if the rules drop the series."""
        relabeled = dict(labels)
        for name, value in self.external_labels:
            relabeled.setdefault(name, value)
        if self.rules and not self.rules.apply(relabeled):
            return UNSENT
        return encode_series_prefix(encode_labels(relabeled)) if relabeled else UNSENT


class SeriesLabeler:
    """Labels and encodes the series of one target.

    `labels` are the target labels, which are added to those of the page. In a conflict the page's value wins
    with `honor` (honor_labels); else the page's label is renamed to `exported_...`. `others` are the write
    relabelings of receivers with different rules; `route_entries` translates encoded entries for them.
    """

    def __init__(
        self,
        labels: Mapping[str, str],
        rules: RelabelRules = _NO_RULES,
        limits: LabelLimits | None = None,
        relabeling: WriteRelabeling | None = None,
        others: Sequence[WriteRelabeling] = (),
    ) -> None:
        self._target = dict(sorted(labels.items()))
        self._rules = rules
        self._limits = limits or LabelLimits()
        self._relabeling = relabeling or WriteRelabeling()
        self._others = tuple((other, dict[bytes, SeriesOutcome]()) for other in others)
        self._room = _SPARE_ROUTES
        self.merged = 0
        # The scrape report's series as each relabeling encodes them: of all receivers, then of `others`.
        self._reported: tuple[set[SeriesOutcome], ...] = tuple(set() for _ in (None, *others))

    def outcome(self, page: dict[str, str], *, honor: bool) -> SeriesOutcome:
        """Return the outcome for a series with these page labels; may modify `page`. Raises BadSeries."""
        labels = self._final_labels(page, honor=honor)
        if labels is None:
            return DROPPED
        prefix = self._relabeling.prefix(labels)
        if prefix in self._reported[0]:
            return REPORTED
        if isinstance(prefix, bytes):
            for (other, route), reported in zip(self._others, self._reported[1:], strict=True):
                outcome = other.prefix(labels)
                route[prefix] = UNSENT if outcome in reported else outcome
        return prefix

    def report_series(self, name: str) -> SeriesOutcome:
        """Return the outcome for a series of the scrape report (`up`, `scrape_*`).

        Later, series of the page that are equal to it are REPORTED: they would be second samples of one
        series and time.
        """
        labels = {NAME: name, **self._target}
        prefix = self._relabeling.prefix(labels)
        if isinstance(prefix, bytes):
            self._reported[0].add(prefix)
            for (other, route), reported in zip(self._others, self._reported[1:], strict=True):
                route[prefix] = outcome = other.prefix(labels)
                if isinstance(outcome, bytes):
                    reported.add(outcome)
        return prefix

    def route_entries(self, other: int, entries: Sequence[bytes]) -> list[bytes]:
        """Translate entries (prefix and value) for the write relabeling `others[other]`.

        If it makes one series of several, the first entry is used, and the others are counted in `merged`.
        """
        route = self._others[other][1]
        found: dict[bytes, bytes] = {}
        for entry in entries:
            outcome = route.get(entry[:-VALUE_BYTES])
            if not isinstance(outcome, bytes):
                continue
            if outcome not in found:
                found[outcome] = entry[-VALUE_BYTES:]
            elif entry[-VALUE_BYTES:] != STALE:
                self.merged += 1
        return [prefix + value for prefix, value in found.items()]

    def inherit(self, previous: SeriesLabeler) -> None:
        """Copy the routes of a labeler with equal `others`, so that its series can end."""
        for (_, route), (_, old) in zip(self._others, previous._others, strict=True):
            for prefix, outcome in old.items():
                route.setdefault(prefix, outcome)

    @property
    def kept_bytes(self) -> int:
        """Estimated memory of the routes in bytes."""
        return _ROUTE_BYTES * sum(len(route) for _, route in self._others)

    @property
    def has_stale_routes(self) -> bool:
        """Whether there are many more routes than series at the last `set_exported_series`."""
        return any(len(route) > self._room for _, route in self._others)

    def set_exported_series(self, series: int) -> None:
        """Set the number of exported series; about twice as many routes are allowed."""
        self._room = 2 * series + _SPARE_ROUTES

    def prune_routes(self, prefixes: Iterable[bytes]) -> None:
        """Delete the routes of all series except those with these prefixes."""
        kept = set(prefixes)
        for _, route in self._others:
            for prefix in [prefix for prefix in route if prefix not in kept]:
                del route[prefix]

    def _final_labels(self, page: dict[str, str], *, honor: bool) -> dict[str, str] | None:
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
        self._check_labels(labels)
        return labels

    def _check_labels(self, labels: Mapping[str, str]) -> None:
        name, names = labels.get(NAME, ""), tuple(labels)
        short = len(name) + sum(map(len, names)) <= LONGEST_CACHED
        if not (_valid if short else _valid.__wrapped__)(name, names):
            if not labels.get(NAME):
                raise BadSeries("metric relabeling removed the name of a series")
            raise BadSeries(
                "metric relabeling produced an invalid metric or label name: "
                f"{labels.get(NAME)!r}, {list(labels)}"
            )
        self._limits.check(labels)


@lru_cache(maxsize=4096)
def _valid(name: str, labels: tuple[str, ...]) -> bool:
    return METRIC_NAME.fullmatch(name) is not None and all(map(LABEL_NAME.fullmatch, labels))


def encode_timed_sample(prefix: bytes, value: bytes, milliseconds: int) -> bytes:
    """Encode one sample with an explicit timestamp."""
    try:
        return prefix + value + encode_timestamp(milliseconds)
    except ValueError:
        at = 1
        while prefix[at] & 128:
            at += 1
        # Strip the series' length before the labels, and the start of the sample after them.
        return encode_series(prefix[at + 1 : -3], value, milliseconds)


def _move_aside(labels: dict[str, str], aside: Sequence[tuple[str, str]]) -> None:
    """Add the page's labels under unused `exported_` names, the shortest names first."""
    for name, value in sorted(aside, key=lambda pair: len(pair[0])):
        free = _EXPORTED + name
        while labels.get(free):
            free = _EXPORTED + free
        labels[free] = value


def encode_labels(labels: Mapping[str, str]) -> bytes:
    """Encodes the `labels` fields of a series like `encode_label_fields`, with a cache: label pairs recur."""
    return b"".join(
        [
            (_pair if len(name) + len(value) <= LONGEST_CACHED else _pair.__wrapped__)(name, value)
            for name, value in sorted(labels.items())
        ]
    )


@lru_cache(maxsize=8192)
def _pair(name: str, value: str) -> bytes:
    return encode_label_fields(((name, value),))

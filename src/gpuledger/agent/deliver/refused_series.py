"""Series that a receiver refuses: found in halves of a request, remembered, and left out for a while.

If one series of a request is invalid, Mimir, Cortex, Thanos and VictoriaMetrics answer 4xx and keep the
others; Prometheus may keep none. In both cases a request without the invalid series is accepted, and samples
that the receiver has already do no harm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Final, NamedTuple

from gpuledger.agent.deliver.queue import QueuedRecord
from gpuledger.agent.deliver.records import decode_labels, decompress_record, read_series
from gpuledger.model.source import Clock
from gpuledger.model.text import clean_name

# A series that was refused twice in succession is left out so long; then one sample is tried. After one
# refusal it is only sent apart from the others: a sample out of order says nothing of the next one.
LEFT_OUT_SECONDS: Final = 600.0
_LEFT_OUT_AFTER: Final = 2
# Bounds of the remembered series and of the requests of one search.
_MOST_SERIES: Final = 10_000
_MOST_REQUESTS: Final = 200
# Requests for the rest of the series that were refused twice; then that is lost.
_REST_REQUESTS: Final = 40
# So many samples of other series show whether a limit concerns them, too.
_OTHERS: Final = 8
# Characters of a series in the log.
_LONGEST_NAME: Final = 200
# A receiver that refuses so many samples and accepts none probably refuses everything.
_HOPELESS: Final = 8


class SeriesSample(NamedTuple):
    """One series of a record: its encoded labels, the whole encoded field, and the number of its samples."""

    item: QueuedRecord
    labels: bytes
    field: bytes
    samples: int

    @property
    def name(self) -> str:
        """The series for the log, shortened."""
        pairs = decode_labels(self.labels)
        metric = pairs.pop("__name__", "")
        inside = ", ".join(f'{label}="{value}"' for label, value in pairs.items())
        return clean_name(f"{metric}{{{inside}}}", _LONGEST_NAME)


@dataclass(slots=True)
class _Refusal:
    """How often in succession a series was refused, and when last (monotonic seconds)."""

    times: int = 0
    at: float = 0.0


class RefusedSeries:
    """The refused series of one receiver, by target and labels; bounded. Not thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._targets: dict[int, dict[bytes, _Refusal]] = {}
        self.count = 0

    def concerns(self, item: QueuedRecord) -> bool:
        """Return whether series of the record's target were refused."""
        return item.record.shard in self._targets

    def is_known(self, sample: SeriesSample) -> bool:
        """Return whether the last sample of the series was refused."""
        return self._find(sample) is not None

    def is_left_out(self, sample: SeriesSample) -> bool:
        """Return whether the sample must not be sent."""
        known = self._find(sample)
        return (
            known is not None
            and known.times >= _LEFT_OUT_AFTER
            and self._clock.elapsed() - known.at < LEFT_OUT_SECONDS
        )

    def add(self, sample: SeriesSample) -> None:
        """Remember that the receiver refused this sample."""
        known = self._find(sample)
        if known is None:
            if self.count >= _MOST_SERIES:
                return
            known = _Refusal()
            self._targets.setdefault(sample.item.record.shard, {})[sample.labels] = known
            self.count += 1
        known.times += 1
        known.at = self._clock.elapsed()

    def remove(self, sample: SeriesSample) -> None:
        """Forget a series, because the receiver accepted a sample of it."""
        series = self._targets.get(sample.item.record.shard, {})
        if series.pop(sample.labels, None) is not None:
            self.count -= 1
            if not series:
                del self._targets[sample.item.record.shard]

    def _find(self, sample: SeriesSample) -> _Refusal | None:
        return self._targets.get(sample.item.record.shard, {}).get(sample.labels)

    def forget_ended(self) -> None:
        """Forget series of which no sample was tried for long: they have ended."""
        before = self._clock.elapsed() - 2 * LEFT_OUT_SECONDS
        for shard, series in list(self._targets.items()):
            kept = {labels: refusal for labels, refusal in series.items() if refusal.at > before}
            self.count -= len(series) - len(kept)
            if kept:
                self._targets[shard] = kept
            else:
                del self._targets[shard]


class RefusalSearch:
    """Finds the samples of some records that a receiver refuses, in parts that the caller sends.

    Call `next_part`, send it, and call `accept` or `refuse` with it, until there is no part left. Then `lost`
    is the number of samples of each record (by serial) that the receiver does not have. Series that were
    refused before are sent after the others, or left out. `is_news`: a series was refused that was not
    refused before.
    """

    def __init__(self, items: Sequence[QueuedRecord], series: RefusedSeries) -> None:
        self._series = series
        self.lost: Counter[int] = Counter()
        self.accepted = self.is_news = False
        # Samples refused one by one, as opposed to whole parts.
        self.refused: list[SeriesSample] = []
        self._requests = 0
        plain, suspects = list[SeriesSample](), list[SeriesSample]()
        for sample in _samples_of(items):
            if series.is_left_out(sample):
                self.lost[sample.item.serial] += sample.samples
            else:
                (suspects if series.is_known(sample) else plain).append(sample)
        self._parts: list[Sequence[SeriesSample]] = [part for part in (suspects, plain) if part]
        # Refused parts that are divided last, and only if the receiver accepted another one.
        self._waiting: list[Sequence[SeriesSample]] = []
        # Samples of series that were refused twice in this search; `_ends` after all others were sent.
        self._rest: list[SeriesSample] = []
        self._ends = False

    @property
    def is_exhausted(self) -> bool:
        """Whether refused parts are not divided any more, because the search took too many requests."""
        return self._requests >= _MOST_REQUESTS

    def next_part(self) -> Sequence[SeriesSample]:
        """Return the samples to send next, in their order; empty if the search is over."""
        self._requests += 1
        if self._ends and self.is_exhausted:
            for part in (*self._parts, *self._waiting):
                self._lose(part, _samples_in(part))
            return ()
        while self._parts or self._waiting or self._rest:
            if self._parts:
                if part := self._set_rest_aside(self._parts.pop()):
                    return part
            elif self._waiting:
                self._divide_waiting()
            else:
                self._begin_rest()
        return ()

    def _divide_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for part in reversed(waiting):
            if self.accepted:
                self._parts += _halves(part)
            else:
                self._lose(part, _samples_in(part))

    def _set_rest_aside(self, part: Sequence[SeriesSample]) -> Sequence[SeriesSample]:
        """Set samples of series aside that were refused twice by now: a backlog has many of each series."""
        if not self.refused or self._ends:
            return part
        rest = [self._series.is_left_out(sample) for sample in part]
        self._rest += compress(part, rest)
        return [sample for sample, is_rest in zip(part, rest, strict=True) if not is_rest]

    def _begin_rest(self) -> None:
        """Send the rest of each series in parts that double, because often all or only the first are bad."""
        self._ends, self._requests = True, max(self._requests, _MOST_REQUESTS - _REST_REQUESTS)
        series: dict[tuple[int, bytes], list[SeriesSample]] = {}
        for sample in self._rest:
            series.setdefault((sample.item.record.shard, sample.labels), []).append(sample)
        self._rest = []
        for samples in series.values():
            while samples:
                # Halves, from the end: the smallest part is the first.
                self._parts.append(samples[len(samples) // 2 :])
                del samples[len(samples) // 2 :]

    def retry(self, part: Sequence[SeriesSample]) -> None:
        """Return a part that is sent again after a pause; it is the next one, and requests count from 0."""
        self._requests = 0
        self._parts.append(list(part))

    def others_than(self, part: Sequence[SeriesSample]) -> list[Sequence[SeriesSample]]:
        """Return a few samples of other series, as parts, each the first of its series that was not sent."""
        firsts: dict[tuple[int, bytes], SeriesSample] = {}
        for each in (part, *self._waiting, *reversed(self._parts)):
            for sample in each:
                firsts.setdefault((sample.item.record.shard, sample.labels), sample)
        others = [sample for sample in firsts.values() if sample not in part]
        return [[sample] for sample in others[:: len(others) // _OTHERS + 1]]

    def accept(self, part: Sequence[SeriesSample], unwritten: int = 0) -> None:
        """Continue after the receiver accepted a part, but for this number of samples."""
        self.accepted = True
        for sample in part:
            self._series.remove(sample)
        self._lose(part, unwritten)

    def refuse(self, part: Sequence[SeriesSample], *, divisible: bool, unwritten: int | None = None) -> None:
        """Continue after the receiver refused a part; `divisible`: some of its samples may be the cause.

        `unwritten`: samples that it did not write; None: all.
        """
        samples = _samples_in(part)
        unwritten = samples if unwritten is None else unwritten
        self.accepted |= unwritten < samples
        if len(part) > 1 and divisible and not self.is_exhausted:
            if self.accepted or len(self.refused) < _HOPELESS:
                self._parts += _halves(part)
            else:
                self._waiting.append(part)
            return
        self._lose(part, unwritten)
        if len(part) == 1:
            self.refused += part
            self.is_news |= not self._series.is_known(part[0])
            self._series.add(part[0])

    def _lose(self, part: Sequence[SeriesSample], unwritten: int) -> None:
        """Count this number of samples as lost: the last ones, if it is not known which."""
        for sample in reversed(part):
            missing = min(unwritten, sample.samples)
            self.lost[sample.item.serial] += missing
            unwritten -= missing


def _samples_in(part: Sequence[SeriesSample]) -> int:
    return sum(sample.samples for sample in part)


def _halves(part: Sequence[SeriesSample]) -> list[Sequence[SeriesSample]]:
    """Return the second half and the first, divided between two targets if there are several.

    Often all series of a target are invalid, and all of another one are valid.
    """
    middle = len(part) // 2
    borders = [
        number
        for number in range(1, len(part))
        if part[number].item.record.shard != part[number - 1].item.record.shard
    ]
    middle = min(borders, key=lambda border: abs(border - middle), default=middle)
    return [part[middle:], part[:middle]]


def _samples_of(items: Sequence[QueuedRecord]) -> Iterator[SeriesSample]:
    for item in items:
        for field, labels, samples in read_series(decompress_record(item.record)):
            yield SeriesSample(item, labels, field, samples)

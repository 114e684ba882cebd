"""One page against what the page before it said: quickly by looking its lines up, or carefully one by one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import filterfalse, repeat
from struct import Struct
from typing import Final, cast

from gpuledger.agent.scrape.labelling import DROPPED, UNSENT, VALUE_BYTES, Fate, Labelling
from gpuledger.agent.scrape.lines import BadLine, BadSeries, Format, Sample, labels_of
from gpuledger.exposition.remote_write import STALE

_pack: Final = Struct("<d").pack
_INFINITY: Final = float("inf")
# A text of these alone is read alike, or refused alike, by float() and by Go's ParseFloat.
_NUMERIC: Final = b"0123456789+-.eE"

# Among what lines became: a line that is no sample, and a sample with a timestamp of its own.
COMMENT: Final = False
TIMED: Final = b""

# What a line became: prefix and value, or one of COMMENT, TIMED, DROPPED, UNSENT.
Entry = Fate | bool
Lines = dict[bytes, Entry]
# By the text of a series that has more in its line than its value: what becomes of it, and whether it was
# told without a timestamp of its own, and so can end.
Odd = dict[bytes, tuple[Fate, bool]]


class Clash(Exception):
    """Two lines tell one series: only reading them in order says which one counts."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Samples on the page, those left by metric relabelling, and series that were not there before."""

    scraped: int = 0
    kept: int = 0
    added: int = 0


@dataclass(slots=True)
class Samples:
    """What is to be delivered of one page.

    `entries` are prefix and value of samples of the scrape's own time, markers of series that ended
    included; `timed` are prefix, value and milliseconds. `duplicates` were told again on the same page.
    """

    counts: Counts = field(default_factory=Counts)
    entries: list[bytes] = field(default_factory=list)
    timed: list[tuple[bytes, bytes, int]] = field(default_factory=list)
    duplicates: int = 0


@dataclass(slots=True)
class Known:
    """What the page before said. `live` is false once staleness markers have ended it all; with `clashes`
    several of its lines told one series, so that only `careful` can go on from it. `reading` is how it was
    read: format, and whose labels stand.
    """

    lines: Lines = field(default_factory=dict)
    odd: Odd = field(default_factory=dict)
    live: bool = False
    clashes: bool = False
    reading: tuple[str, bool] = ("", False)

    def tracked(self) -> set[bytes]:
        """Prefixes of all series that were told without a timestamp of their own.

        Lines that are written differently can be of one series.
        """
        found = {entry[:-VALUE_BYTES] for entry in self.lines.values() if isinstance(entry, bytes)}
        found.update(prefix for prefix, tracked in self.odd.values() if tracked and isinstance(prefix, bytes))
        return found


class Reader:
    """Reads one page. `counts` and `partial` say how far it came, and what was told so far, when BadLine is
    raised.
    """

    def __init__(
        self, labelling: Labelling, form: Format, *, honor: bool, honor_timestamps: bool, known: Known
    ) -> None:
        self._labelling = labelling
        self._form = form
        self._honor = honor
        self._honor_timestamps = honor_timestamps
        self._known = known
        self._odd: Odd = {}
        self._fates: dict[bytes, Fate] = {}
        self._timed: list[tuple[bytes, bytes, int]] = []
        self._added = 0
        self._seen_before: Collection[bytes] = ()
        self.counts = Counts()
        self.partial = Known()

    def quick(self, lines: list[bytes]) -> tuple[Samples, Known]:
        """The page's samples, and what is known now. Takes the known lines apart.

        Not for a page after one with clashes. Raises Clash where `careful` must decide, and BadLine.
        """
        rest = self._known.lines
        if self._known.clashes and list(rest) != lines:
            # Which line of a series counts is known of these lines in this order alone.
            raise Clash
        entries: list[Entry | None] = list(map(rest.pop, lines, repeat(None)))
        ended: Lines = {
            line.rpartition(b" ")[0]: entry for line, entry in rest.items() if entry is not COMMENT
        }
        missing = [at for at, entry in enumerate(entries) if entry is None]
        odd_lines: list[bytes] = []
        for at in missing:
            line = lines[at]
            text, _, written = line.rpartition(b" ")
            old = ended.get(text)
            if old is not None and not written.translate(None, _NUMERIC):
                try:
                    value = float(written)
                except ValueError:
                    value = _INFINITY
                if -_INFINITY < value < _INFINITY:
                    del ended[text]
                    entries[at] = old[:-VALUE_BYTES] + _pack(value) if old else old  # type: ignore[index]  # (bytes where it is not empty)
                    continue
            try:
                sample = self._form.sample(line)
                entries[at] = COMMENT if sample is None else self._new(sample, ended)
            except BadLine as error:
                self._break_off(lines[:at], entries[:at], odd_lines, error)
                raise BadLine(f"line {at + 1}: {error}") from None
            if sample is not None and not sample.plain:
                odd_lines.append(line)
        now = Known(dict(zip(lines, cast("list[Entry]", entries), strict=True)), self._odd, live=True)
        for line in odd_lines:
            now.lines.pop(line, None)
        now.clashes = self._known.clashes
        sent = self._count(entries)
        if (self._added or self._odd or self._known.odd) and not _distinct(sent):
            raise Clash
        samples = Samples(self.counts, sent, self._timed)
        self._end(samples, [cast("bytes", entry)[:-VALUE_BYTES] for entry in ended.values() if entry])
        return samples, now

    def careful(self, lines: Sequence[bytes]) -> tuple[Samples, Known]:
        """The same, line by line: the first line of a series counts. Raises BadLine."""
        known, now = self._known, Known(live=True)
        self._seen_before = {line.rpartition(b" ")[0] for line in known.lines}
        # One that was unsent may have been so for another line's sake.
        before: Lines = {}
        for line, entry in known.lines.items():
            if entry is not COMMENT and entry != UNSENT:
                before.setdefault(line.rpartition(b" ")[0], entry)
        ended = known.tracked()
        seen: set[bytes] = set()
        entries: list[Entry | None] = []
        samples = Samples()
        for at, line in enumerate(lines):
            try:
                sample = self._form.sample(line)
                entry = COMMENT if sample is None else self._new(sample, before)
            except BadLine as error:
                self._count(entries, error)
                now.odd, now.live = self._odd, False
                self.partial = now
                raise BadLine(f"line {at + 1}: {error}") from None
            if entry and isinstance(entry, bytes):
                prefix = entry[:-VALUE_BYTES]
                if prefix in seen:
                    samples.duplicates += 1
                    now.clashes = True
                    entry = UNSENT
                seen.add(prefix)
            entries.append(entry)
            if sample is None or sample.plain:
                now.lines.setdefault(line, entry)
        now.odd = self._odd
        samples.entries, samples.timed = self._count(entries), self._timed
        samples.counts = self.counts
        if known.live:
            samples.entries += [prefix + STALE for prefix in ended - seen]
        return samples, now

    def _new(self, sample: Sample, ended: Lines) -> Entry:
        """What becomes of a sample whose line is not known; its series may be."""
        series, value, time, plain = sample
        if not self._honor_timestamps:
            time = None
        fate: Fate
        if series in ended:
            # One with a time of its own from now on is not among those that end; what was told of it is.
            old = ended.pop(series) if time is None else ended[series]
            fate = cast("bytes", old)[:-VALUE_BYTES] if old else cast("Fate", old)
        elif series in self._known.odd:
            fate = self._known.odd[series][0]
        elif series in self._fates:
            fate = self._fates[series]
        else:
            fate = self._labelling.fate(labels_of(series), honor=self._honor)
            self._added += fate is not DROPPED and series not in self._seen_before
        self._fates[series] = fate
        if not plain:
            self._odd[series] = (fate, time is None)
        if not isinstance(fate, bytes):
            return fate
        if time is None:
            return fate + value
        self._timed.append((fate, value, time))
        return TIMED

    def _count(self, entries: list[Entry | None], error: BadLine | None = None) -> list[bytes]:
        """Set the counts, up to the line of an error; answers what is to be sent."""
        sent = cast("list[bytes]", list(filter(None, entries)))
        others = list(filterfalse(None, entries))
        scraped = len(entries) - others.count(COMMENT)
        kept = scraped - others.count(DROPPED)
        self.counts = Counts(scraped + isinstance(error, BadSeries), kept, self._added)
        return sent

    def _break_off(
        self, lines: list[bytes], entries: list[Entry | None], odd_lines: list[bytes], error: BadLine
    ) -> None:
        """Keep what stands before an error, unless two lines of it tell one series."""
        sent = self._count(entries, error)
        if _distinct(sent):
            told = dict(zip(lines, cast("list[Entry]", entries), strict=True))
            for line in odd_lines:
                told.pop(line, None)
            self.partial = Known(told, self._odd)

    def _end(self, samples: Samples, ended: list[bytes]) -> None:
        """Mark what is no longer told."""
        if not self._known.live:
            return
        ended += [
            prefix
            for series, (prefix, tracked) in self._known.odd.items()
            if tracked and isinstance(prefix, bytes) and not self._odd.get(series, ((), False))[1]
        ]
        if ended:
            told = {entry[:-VALUE_BYTES] for entry in samples.entries}
            samples.entries += [prefix + STALE for prefix in ended if prefix not in told]


def _distinct(sent: list[bytes]) -> bool:
    """Whether all of them are samples of different series."""
    return len({entry[:-VALUE_BYTES] for entry in sent}) == len(sent)

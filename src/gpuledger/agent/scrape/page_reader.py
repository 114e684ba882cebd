"""Page reader: compares a page with the previous one: in place, by dictionary lookup or line by line."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import compress, count, filterfalse, repeat
from operator import ne
from typing import Final, cast

from gpuledger.agent.deliver.metadata import TargetMetadata
from gpuledger.agent.scrape.line_parser import BadLine, BadSeries, PageFormat, ParsedSample, parse_labels
from gpuledger.agent.scrape.series_labels import (
    DROPPED,
    REPORTED,
    UNSENT,
    VALUE_BYTES,
    SeriesLabeler,
    SeriesOutcome,
)
from gpuledger.exposition.remote_write import STALE, encode_value

_INFINITY: Final = float("inf")
# Python's float() and Go's ParseFloat agree on texts of only these characters.
_NUMERIC: Final = b"0123456789+-.eE"

# Line entries without bytes: a line without a sample, and a sample with an explicit timestamp.
COMMENT: Final = False
TIMED: Final = b""

# Parsed line: series prefix and value, or one of COMMENT, TIMED, DROPPED, UNSENT, REPORTED.
LineEntry = SeriesOutcome | bool
# Series with a line of more than series and value, by series text: outcome, and whether the sample had no
# explicit timestamp, so that the series gets a staleness marker when it ends.
IrregularSeries = dict[bytes, tuple[SeriesOutcome, bool]]


class DuplicateSeries(Exception):
    """Two lines of a page are samples of one series: only `read_line_by_line` can decide which is used."""


@dataclass(frozen=True, slots=True)
class SampleCounts:
    """Samples on the page, samples kept by metric relabeling, and series that are new on this page."""

    scraped: int = 0
    kept: int = 0
    added: int = 0


@dataclass(slots=True)
class PageSamples:
    """Samples of one page to deliver.

    `entries`: prefix and value of samples with the scrape's timestamp, including staleness markers. `timed`:
    prefix, value and milliseconds of samples with an explicit timestamp. `duplicates`: number of repeated
    samples of a series and time, and of samples of the scrape report's series. `ahead`: number of samples
    that were dropped because their timestamp is too far in the future. `metadata`: HELP and TYPE; None: as
    before.
    """

    counts: SampleCounts = field(default_factory=SampleCounts)
    entries: list[bytes] = field(default_factory=list)
    timed: list[tuple[bytes, bytes, int]] = field(default_factory=list)
    duplicates: int = 0
    ahead: int = 0
    metadata: TargetMetadata | None = None


@dataclass(slots=True)
class KnownPage:
    """Parsed lines of the previous page, except those of `irregular` series: each line and its entry.

    `live` is false after staleness markers were returned for all of its series. With `has_duplicates`,
    several lines were samples of one series, and the next page needs `read_line_by_line`. `parsed_as` is the
    name of its format and the value of honor_labels.
    """

    lines: Sequence[bytes] = ()
    entries: Sequence[LineEntry] = ()
    irregular: IrregularSeries = field(default_factory=dict)
    live: bool = False
    has_duplicates: bool = False
    parsed_as: tuple[str, bool] = ("", False)

    def prefixes(self, *, timed: bool = False) -> set[bytes]:
        """Return the prefixes of all series; of those with explicit timestamps only if `timed`.

        A set, because differently written lines can be of one series.
        """
        found = {entry[:-VALUE_BYTES] for entry in self.entries if entry and isinstance(entry, bytes)}
        found.update(
            prefix
            for prefix, tracked in self.irregular.values()
            if (tracked or timed) and isinstance(prefix, bytes)
        )
        return found


class PageReader:
    """Reads one page. After BadLine, `counts` and `partial` describe the lines before the bad one.

    `newest`: samples with a later explicit timestamp (unix ms) are dropped. `comments_changed`: lines without
    a sample, such as HELP and TYPE, may differ from those of the previous page.
    """

    def __init__(
        self,
        labeler: SeriesLabeler,
        fmt: PageFormat,
        *,
        honor: bool,
        honor_timestamps: bool,
        newest: float,
        known: KnownPage,
    ) -> None:
        self._labeler = labeler
        self._fmt = fmt
        self._honor = honor
        self._honor_timestamps = honor_timestamps
        self._newest = newest
        self._known = known
        self._irregular: IrregularSeries = {}
        self._outcomes: dict[bytes, SeriesOutcome] = {}
        # Values by series and explicit timestamp (ms).
        self._timed: dict[tuple[bytes, int], bytes] = {}
        self._added = self._ahead = self._reported = self._repeated = 0
        self._seen_before: Collection[bytes] = ()
        self.counts = SampleCounts()
        self.partial = KnownPage()
        self.comments_changed = False

    def read_in_place(self, lines: list[bytes]) -> tuple[PageSamples, KnownPage] | None:
        """Return the page's samples and its KnownPage, if only values differ from the previous page.

        This is the fastest way, and most pages allow it. None if a line has another series or comment.
        """
        known = self._known
        if known.irregular or known.has_duplicates or not known.live or len(lines) != len(known.lines):
            return None
        entries: list[LineEntry | None] = [*known.entries]
        for at in compress(count(), map(ne, lines, known.lines)):
            line, entry = lines[at], entries[at]
            series, _, written = line.rpartition(b" ")
            if entry is COMMENT or known.lines[at].rpartition(b" ")[0] != series:
                return None
            if (value := _finite_value(written)) is None:
                return None
            if entry:
                entries[at] = cast("bytes", entry)[:-VALUE_BYTES] + encode_value(value)
        sent = self._set_counts(entries)
        samples = PageSamples(self.counts, sent, duplicates=self._reported)
        return samples, KnownPage(lines, cast("list[LineEntry]", entries), live=True)

    def read_by_lookup(self, lines: list[bytes]) -> tuple[PageSamples, KnownPage]:
        """Return the page's samples and its KnownPage.

        The previous one must have no duplicates: the choice among them depends on their order. Raises
        DuplicateSeries if `read_line_by_line` must read the page, and BadLine.
        """
        rest = dict(zip(self._known.lines, self._known.entries, strict=True))
        entries: list[LineEntry | None] = list(map(rest.pop, lines, repeat(None)))
        ended: dict[bytes, LineEntry] = {
            line.rpartition(b" ")[0]: entry for line, entry in rest.items() if entry is not COMMENT
        }
        missing = [at for at, entry in enumerate(entries) if entry is None]
        self.comments_changed = COMMENT in rest.values()
        irregular_lines: list[bytes] = []
        for at in missing:
            line = lines[at]
            text, _, written = line.rpartition(b" ")
            old = ended.get(text)
            if old is not None and (value := _finite_value(written)) is not None:
                del ended[text]
                entries[at] = cast("bytes", old)[:-VALUE_BYTES] + encode_value(value) if old else old
                continue
            try:
                sample = self._fmt.parse_line(line)
                entries[at] = COMMENT if sample is None else self._new_entry(sample, ended)
            except BadLine as error:
                self._save_partial(lines[:at], entries[:at], irregular_lines, error)
                raise BadLine(f"line {at + 1}: {error}") from None
            if sample is None:
                self.comments_changed = True
            elif not sample.plain:
                irregular_lines.append(line)
        current = KnownPage(*_without(irregular_lines, lines, entries), self._irregular, live=True)
        sent = self._set_counts(entries)
        if (self._added or self._irregular or self._known.irregular) and not _distinct(sent):
            raise DuplicateSeries
        samples = PageSamples(
            self.counts, sent, self._timed_samples(), self._reported + self._repeated, self._ahead
        )
        self._add_staleness_markers(
            samples, [cast("bytes", entry)[:-VALUE_BYTES] for entry in ended.values() if entry]
        )
        return samples, current

    def read_line_by_line(self, lines: Sequence[bytes]) -> tuple[PageSamples, KnownPage]:
        """As `read_by_lookup`, but the first of several lines of one series is used. Raises BadLine."""
        known, current = self._known, KnownPage(live=True)
        self.comments_changed = True
        lines_kept, entries_kept = list[bytes](), list[LineEntry]()
        current.lines, current.entries = lines_kept, entries_kept
        self._seen_before = {line.rpartition(b" ")[0] for line in known.lines}
        # UNSENT entries are skipped: the line may have been a duplicate of another.
        before: dict[bytes, LineEntry] = {}
        for line, entry in zip(known.lines, known.entries, strict=True):
            if entry is not COMMENT and entry != UNSENT:
                before.setdefault(line.rpartition(b" ")[0], entry)
        ended = known.prefixes()
        seen: set[bytes] = set()
        entries: list[LineEntry | None] = []
        samples = PageSamples()
        for at, line in enumerate(lines):
            try:
                sample = self._fmt.parse_line(line)
                entry = COMMENT if sample is None else self._new_entry(sample, before)
            except BadLine as error:
                self._set_counts(entries, error)
                current.irregular, current.live = self._irregular, False
                self.partial = current
                raise BadLine(f"line {at + 1}: {error}") from None
            if entry and isinstance(entry, bytes):
                prefix = entry[:-VALUE_BYTES]
                if prefix in seen:
                    samples.duplicates += 1
                    current.has_duplicates = True
                    entry = UNSENT
                seen.add(prefix)
            entries.append(entry)
            if sample is None or sample.plain:
                lines_kept.append(line)
                entries_kept.append(entry)
        current.irregular = self._irregular
        samples.entries, samples.timed = self._set_counts(entries), self._timed_samples()
        samples.counts, samples.ahead = self.counts, self._ahead
        samples.duplicates += self._reported + self._repeated
        if known.live:
            samples.entries += [prefix + STALE for prefix in ended - seen]
        return samples, current

    def _new_entry(self, sample: ParsedSample, ended: dict[bytes, LineEntry]) -> LineEntry:
        """Return the entry of a sample with a new line; its series may be known."""
        series, value, time, plain = sample
        if not self._honor_timestamps:
            time = None
        outcome: SeriesOutcome
        if series in ended:
            # Now that it has an explicit timestamp, the series without one has ended.
            old = ended.pop(series) if time is None else ended[series]
            outcome = cast("bytes", old)[:-VALUE_BYTES] if old else cast("SeriesOutcome", old)
        elif series in self._known.irregular:
            outcome = self._known.irregular[series][0]
        elif series in self._outcomes:
            outcome = self._outcomes[series]
        else:
            outcome = self._labeler.outcome(parse_labels(series), honor=self._honor)
            self._added += outcome is not DROPPED and series not in self._seen_before
        self._outcomes[series] = outcome
        if not plain:
            self._irregular[series] = (outcome, time is None)
        if not isinstance(outcome, bytes):
            return outcome
        if time is None:
            return outcome + value
        if time > self._newest:
            self._ahead += 1
        elif (outcome, time) in self._timed:
            self._repeated += 1
        else:
            self._timed[outcome, time] = value
        return TIMED

    def _timed_samples(self) -> list[tuple[bytes, bytes, int]]:
        return [(prefix, value, time) for (prefix, time), value in self._timed.items()]

    def _set_counts(self, entries: list[LineEntry | None], error: BadLine | None = None) -> list[bytes]:
        """Set the counts (up to the line of an error) and return the entries to send."""
        sent = cast("list[bytes]", list(filter(None, entries)))
        others = list(filterfalse(None, entries))
        scraped = len(entries) - others.count(COMMENT)
        kept = scraped - others.count(DROPPED)
        self._reported = others.count(REPORTED)
        self.counts = SampleCounts(scraped + isinstance(error, BadSeries), kept, self._added)
        return sent

    def _save_partial(
        self,
        lines: list[bytes],
        entries: list[LineEntry | None],
        irregular_lines: list[bytes],
        error: BadLine,
    ) -> None:
        """Store the lines before an error in `partial`, unless two of them are of one series."""
        sent = self._set_counts(entries, error)
        if _distinct(sent):
            self.partial = KnownPage(*_without(irregular_lines, lines, entries), self._irregular)

    def _add_staleness_markers(self, samples: PageSamples, ended: list[bytes]) -> None:
        """Add staleness markers for series that are no longer on the page."""
        if not self._known.live:
            return
        ended += [
            prefix
            for series, (prefix, tracked) in self._known.irregular.items()
            if tracked and isinstance(prefix, bytes) and not self._irregular.get(series, ((), False))[1]
        ]
        if ended:
            present = {entry[:-VALUE_BYTES] for entry in samples.entries}
            samples.entries += [prefix + STALE for prefix in ended if prefix not in present]


def _finite_value(written: bytes) -> float | None:
    """Return a value that is a usual number; None for NaN, infinity and all else."""
    if written.translate(None, _NUMERIC):
        return None
    try:
        value = float(written)
    except ValueError:
        return None
    return value if -_INFINITY < value < _INFINITY else None


def _without(
    omitted: Collection[bytes], lines: list[bytes], entries: list[LineEntry | None]
) -> tuple[list[bytes], list[LineEntry]]:
    """Return lines and entries without the omitted lines."""
    parsed = cast("list[LineEntry]", entries)
    if not omitted:
        return lines, parsed
    omitted = set(omitted)
    kept = [line not in omitted for line in lines]
    return list(compress(lines, kept)), list(compress(parsed, kept))


def _distinct(sent: list[bytes]) -> bool:
    """Return whether all entries are of different series."""
    return len({entry[:-VALUE_BYTES] for entry in sent}) == len(sent)

"""Page cache of one target: lines that are equal to the last page's are not parsed again.

The last page is kept as a list of its lines and of their encoded entries. Where `PageMemoryBudget` has no
room for it between scrapes, it is packed (marshal and snappy): half a million series then take about 25 MiB
instead of 290, and a scrape takes a sixth longer.
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from math import inf
from typing import Any, Final

from cramjam import snappy

from gpuledger.agent.deliver.metadata import TargetMetadata
from gpuledger.agent.scrape.line_parser import EOF_LINE, BadLine, PageFormat
from gpuledger.agent.scrape.page_reader import (
    DuplicateSeries,
    KnownPage,
    PageReader,
    PageSamples,
    SampleCounts,
)
from gpuledger.agent.scrape.series_labels import SeriesLabeler
from gpuledger.agent.scrape.state import PageMemoryBudget
from gpuledger.exposition.remote_write import METRIC_TYPES, STALE, FamilyMetadata

# Version 2 has no object references: faster, and no object occurs twice.
_MARSHAL: Final = 2
# Estimated memory of one line besides its text and its entry: two object headers and two places in lists.
_LINE_BYTES: Final = 100


class PageError(Exception):
    """A page is rejected. `counts` holds what was counted until then, for the scrape report."""

    def __init__(self, text: str, counts: SampleCounts) -> None:
        super().__init__(text)
        self.counts = counts


class PageCache:
    """Reads the successive pages of one target. Not thread-safe; `memory` is shared with other targets."""

    def __init__(
        self,
        labeler: SeriesLabeler,
        *,
        honor_timestamps: bool = True,
        memory: PageMemoryBudget | None = None,
    ) -> None:
        self.labeler = labeler
        self._honor_timestamps = honor_timestamps
        self._memory = PageMemoryBudget() if memory is None else memory
        # At most one of the two is set.
        self._packed = b""
        self._unpacked: KnownPage | None = None
        self._held = 0
        self._metadata_known = False

    @property
    def kept_bytes(self) -> int:
        """Memory of the cached page in bytes; an estimate while it is not packed."""
        return self._held or len(self._packed)

    def read_page(
        self, body: bytes, fmt: PageFormat, *, honor: bool, limit: int = 0, newest: float = inf
    ) -> PageSamples:
        """Return the samples of a page, and staleness markers for series that are no longer on it.

        `honor`: the page's labels take precedence over the target's (honor_labels). `limit`: most samples
        after metric relabeling; 0 is no limit. `newest`: latest timestamp (unix ms) that the page may set.
        Raises PageError; the caller then delivers `end_series()`.
        """
        lines, ended = _split_lines(body, fmt)
        parsed_as = (fmt.name, honor)
        known = self._known(parsed_as)
        reader = self._reader(fmt, honor, newest, known)
        try:
            try:
                samples, current = reader.read_in_place(lines) or (
                    reader.read_line_by_line if known.has_duplicates else reader.read_by_lookup
                )(lines)
            except DuplicateSeries:
                reader = self._reader(fmt, honor, newest, self._known(parsed_as))
                samples, current = reader.read_line_by_line(lines)
        except BadLine as error:
            self._remember(reader.partial, parsed_as)
            raise PageError(str(error), reader.counts) from None
        if not ended:
            raise PageError("the OpenMetrics page does not end with # EOF", samples.counts)
        current.parsed_as = parsed_as
        if limit and samples.counts.kept > limit:
            self._remember(current, parsed_as)
            counts = replace(samples.counts, added=min(limit, samples.counts.added))
            raise PageError(f"the page has {counts.kept} samples, sample_limit is {limit}", counts)
        if reader.comments_changed or not self._metadata_known:
            samples.metadata = parse_metadata(lines, fmt)
            self._metadata_known = True
        self._keep(current, len(body) + sum(map(len, samples.entries)) + len(lines) * _LINE_BYTES)
        return samples

    def end_series(self) -> list[bytes]:
        """Return staleness markers for all series of the last page; a second call returns none."""
        known = self._last()
        if not known.live:
            return []
        known.live = False
        self._pack(known)
        return [prefix + STALE for prefix in known.prefixes()]

    def live_prefixes(self) -> set[bytes]:
        """Return the prefixes of the series that `end_series` would end."""
        known = self._last()
        return known.prefixes() if known.live else set()

    def known_prefixes(self) -> set[bytes]:
        """Return the prefixes of all series on the last accepted page."""
        return self._last().prefixes(timed=True)

    def release_memory(self) -> None:
        """Pack the page and release the shared memory: no scrape follows soon."""
        if self._unpacked is not None:
            self._pack(self._unpacked)

    def inherit(self, other: PageCache) -> None:
        """Take over the series of the same target's cache under other rules, so that they can end."""
        self._pack(_keep_tracked_only(other._last(), ("", False)))

    def _known(self, parsed_as: tuple[str, bool]) -> KnownPage:
        known = self._last()
        # Parsed differently, the same text can mean another series: keep only the series that can end.
        return known if known.parsed_as == parsed_as else _keep_tracked_only(known, parsed_as)

    def _reader(self, fmt: PageFormat, honor: bool, newest: float, known: KnownPage) -> PageReader:
        return PageReader(
            self.labeler,
            fmt,
            honor=honor,
            honor_timestamps=self._honor_timestamps,
            newest=newest,
            known=known,
        )

    def _last(self) -> KnownPage:
        if self._unpacked is not None:
            return self._unpacked
        if not self._packed:
            return KnownPage()
        return KnownPage(*marshal.loads(snappy.decompress_raw(self._packed)))

    def _remember(self, rejected: KnownPage, parsed_as: tuple[str, bool]) -> None:
        """Store the series of a rejected first page, so that the next page does not count them as new."""
        if (rejected.lines or rejected.irregular) and not self.kept_bytes:
            rejected.live, rejected.parsed_as = False, parsed_as
            self._pack(rejected)

    def _keep(self, known: KnownPage, size: int) -> None:
        self._held = self._memory.replace_reservation(self._held, size)
        if self._held:
            # The garbage collector does not visit tuples of bytes again and again, as it does lists.
            known.lines, known.entries = tuple(known.lines), tuple(known.entries)
            self._unpacked, self._packed = known, b""
        else:
            self._pack(known)

    def _pack(self, known: KnownPage) -> None:
        self._held = self._memory.replace_reservation(self._held, 0)
        parts: Any = (
            tuple(known.lines),
            tuple(known.entries),
            known.irregular,
            known.live,
            known.has_duplicates,
            known.parsed_as,
        )
        self._packed = bytes(snappy.compress_raw(marshal.dumps(parts, _MARSHAL)))
        self._unpacked = None


def _split_lines(body: bytes, fmt: PageFormat) -> tuple[list[bytes], bool]:
    """Return the lines without `# EOF`, and whether the page ends as its format requires."""
    lines = body.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    ended = lines[-1:] == [EOF_LINE]
    if fmt.requires_eof and ended:
        lines.pop()
    return lines, ended or not fmt.requires_eof


def _keep_tracked_only(known: KnownPage, parsed_as: tuple[str, bool]) -> KnownPage:
    """Return a page with only the series that can end, under keys that match no series text."""
    return KnownPage(
        irregular={prefix: (prefix, True) for prefix in known.prefixes()},
        live=known.live,
        parsed_as=parsed_as,
    )


_COMMENT: Final = re.compile(rb"[ \t]*#[ \t]+(HELP|TYPE|UNIT)[ \t]+([^ \t]+)(?:[ \t](.*))?", re.DOTALL)
_ESCAPE: Final = re.compile(r'\\([\\"n])')
# Metadata of so many different pages is shared; a fleet has one per exporter, version and configuration.
_MOST_PAGES: Final = 256
# Longer comments are not shared: the last ones of each page would fill the memory.
_SHARED_BYTES: Final = 128 << 10
# Bytes of a page's metadata; the memory of accepted pages is limited, and this is not part of it.
_MOST_BYTES: Final = 4 << 20


def parse_metadata(lines: Iterable[bytes], fmt: PageFormat) -> TargetMetadata:
    """Return the metadata of an accepted page: HELP, TYPE and UNIT within the first `_MOST_BYTES` of them.

    Of two lines of a kind, the last counts. Targets with equal lines share one result.
    """
    comments = tuple(_metadata_lines(lines))
    parse = _parse_shared if sum(map(len, comments)) <= _SHARED_BYTES else _parse_comments
    return parse(comments, fmt)


def _metadata_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    left = _MOST_BYTES
    for line in lines:
        is_comment = line[:1] == b"#" or (line[:1] in b" \t" and line.lstrip(b" \t")[:1] == b"#")
        if is_comment and _COMMENT.fullmatch(line):
            left -= len(line) + _LINE_BYTES
            if left < 0:
                return
            yield line


def _parse_comments(comments: tuple[bytes, ...], fmt: PageFormat) -> TargetMetadata:
    found: dict[str, dict[str, str]] = {}
    for comment in comments:
        if match := _COMMENT.fullmatch(comment):
            kind, family, text = ((part or b"").decode("utf-8", "replace") for part in match.groups())
            found.setdefault(family, {})[kind] = text if kind == "HELP" else text.strip(" \t")
    return TargetMetadata(
        FamilyMetadata(
            family,
            METRIC_TYPES.get(texts.get("TYPE", ""), 0),
            _unescape(texts.get("HELP", ""), quotes=fmt.requires_eof),
            texts.get("UNIT", ""),
        )
        for family, texts in found.items()
    )


_parse_shared: Final = lru_cache(maxsize=_MOST_PAGES)(_parse_comments)


def _unescape(text: str, *, quotes: bool) -> str:
    """Resolve escapes of a HELP text; only OpenMetrics escapes quotes."""
    if "\\" not in text:
        return text
    resolved = {"n": "\n", "\\": "\\", '"': '"' if quotes else '\\"'}
    return _ESCAPE.sub(lambda match: resolved[match[1]], text)

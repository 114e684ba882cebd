"""The pages of one target, one after the other: what is as it was last time is not read again.

What a page said is kept as one dictionary from each line to the bytes that it became. Where `PageMemory` has
no room for that between two scrapes it is packed: half a million series then take some 25 MiB instead of
290, for a sixth of a scrape's time.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from cramjam import snappy

from gpuledger.agent.scrape.labelling import VALUE_BYTES, Labelling
from gpuledger.agent.scrape.lines import END, BadLine, Format
from gpuledger.agent.scrape.reader import Clash, Counts, Known, Reader, Samples
from gpuledger.agent.scrape.state import PageMemory, unpacked_bytes
from gpuledger.exposition.remote_write import STALE

# Version 2 keeps no table of objects seen: quicker, and nothing is in there twice.
_MARSHAL: Final = 2


class PageError(Exception):
    """A page that cannot be taken; what was counted of it until then is reported all the same."""

    def __init__(self, text: str, counts: Counts) -> None:
        super().__init__(text)
        self.counts = counts


class Pages:
    """Used by one thread. `labelling` says what becomes of each series; `memory` is shared with others."""

    def __init__(
        self, labelling: Labelling, *, honor_timestamps: bool = True, memory: PageMemory | None = None
    ) -> None:
        self.labelling = labelling
        self._honor_timestamps = honor_timestamps
        self._memory = PageMemory() if memory is None else memory
        # One of the two at most is there.
        self._packed = b""
        self._unpacked: Known | None = None
        self._held = 0

    @property
    def kept_bytes(self) -> int:
        """What is kept of the last page takes so much; estimated where it is not packed."""
        return self._held or len(self._packed)

    def take(self, body: bytes, form: Format, *, honor: bool, limit: int = 0) -> Samples:
        """The samples of a page, and the staleness markers of what it no longer tells.

        With `honor` the page's own labels stand before the target's. `limit` is the most samples that
        metric relabelling may leave; 0 is no limit. Raises PageError; the caller then delivers `end()`.
        """
        lines, ended = _lines_of(body, form)
        known = self._known(form, honor)
        reader = self._reader(form, honor, known)
        try:
            try:
                samples, now = (reader.careful if known.clashes else reader.quick)(lines)
            except Clash:
                reader = self._reader(form, honor, self._known(form, honor))
                samples, now = reader.careful(lines)
        except BadLine as error:
            self._remember(reader.partial, known.reading)
            raise PageError(str(error), reader.counts) from None
        if not ended:
            raise PageError("the page does not end with # EOF", samples.counts)
        now.reading = known.reading
        if limit and samples.counts.kept > limit:
            self._remember(now, known.reading)
            counts = Counts(samples.counts.scraped, samples.counts.kept, min(limit, samples.counts.added))
            raise PageError(f"the page has {counts.kept} samples, sample_limit is {limit}", counts)
        self._keep(now, unpacked_bytes(len(body), len(lines), sum(map(len, samples.entries))))
        return samples

    def end(self) -> list[bytes]:
        """Staleness markers for all that was told last, once: the scrape failed, or the target is gone."""
        known = self._last()
        if not known.live:
            return []
        known.live = False
        self._pack(known)
        return [prefix + STALE for prefix in known.tracked()]

    def prefixes(self) -> Iterator[bytes]:
        """Of all series that are known of the last page that was taken."""
        known = self._last()
        yield from (
            entry[:-VALUE_BYTES] for entry in known.lines.values() if entry and isinstance(entry, bytes)
        )
        yield from (prefix for prefix, _ in known.odd.values() if isinstance(prefix, bytes))

    def rest(self) -> None:
        """Give back what is held of the shared memory: no page comes for the time being."""
        if self._unpacked is not None:
            self._pack(self._unpacked)

    def inherit(self, other: Pages) -> None:
        """Go on where the pages of the same target under other rules stood: what they told may end."""
        self._pack(_tracked_alone(other._last(), ("", False)))

    def _known(self, form: Format, honor: bool) -> Known:
        known = self._last()
        reading = (form.name, honor)
        # The same text may mean another series now: all that is taken over is what may end.
        return known if known.reading == reading else _tracked_alone(known, reading)

    def _reader(self, form: Format, honor: bool, known: Known) -> Reader:
        return Reader(self.labelling, form, honor=honor, honor_timestamps=self._honor_timestamps, known=known)

    def _last(self) -> Known:
        """What is known of the last page, for a reader to take apart."""
        if self._unpacked is not None:
            return replace(self._unpacked, lines=self._unpacked.lines.copy())
        if not self._packed:
            return Known()
        return Known(*marshal.loads(snappy.decompress_raw(self._packed)))

    def _remember(self, refused: Known, reading: tuple[str, bool]) -> None:
        """Know the series of a first page that was not taken: they are not new the next time either."""
        if (refused.lines or refused.odd) and not self.kept_bytes:
            refused.live, refused.reading = False, reading
            self._pack(refused)

    def _keep(self, known: Known, size: int) -> None:
        self._held = self._memory.exchange(self._held, size)
        if self._held:
            self._unpacked, self._packed = known, b""
        else:
            self._pack(known)

    def _pack(self, known: Known) -> None:
        self._held = self._memory.exchange(self._held, 0)
        parts = (known.lines, known.odd, known.live, known.clashes, known.reading)
        self._packed = bytes(snappy.compress_raw(marshal.dumps(parts, _MARSHAL)))
        self._unpacked = None


def _lines_of(body: bytes, form: Format) -> tuple[list[bytes], bool]:
    """The page's lines, and whether it ends as its format wants; the end is then left out."""
    lines = body.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    if not form.ends:
        return lines, True
    if lines and lines[-1] == END:
        lines.pop()
        return lines, True
    return lines, False


def _tracked_alone(known: Known, reading: tuple[str, bool]) -> Known:
    """What may end, under keys that are no text of a series."""
    return Known(odd={prefix: (prefix, True) for prefix in known.tracked()}, live=known.live, reading=reading)

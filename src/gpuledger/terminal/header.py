"""The lines above and below the tables: node, freshness, totals, notes, keys."""

from __future__ import annotations

from dataclasses import dataclass

from rich.segment import Segment
from textual.strip import Strip
from textual.widget import Widget

from gpuledger.terminal import number_format
from gpuledger.terminal.layout import Glyphs, Line, Span, truncate_line
from gpuledger.terminal.palette import style
from gpuledger.terminal.snapshot import NodeSnapshot
from gpuledger.terminal.sort_order import SORT_KEYS
from gpuledger.terminal.top_view import (
    SnapshotOrigin,
    TopView,
    banner_lines,
    format_clock,
    title_line,
    totals_line,
)

# A snapshot is stale when it has not changed for this many node intervals or seconds, whichever is longer.
_STALE_INTERVALS = 3
_STALE_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Freshness:
    """The seconds since the snapshot changed, the last error, and whether the user stopped the view."""

    age: float = 0.0
    error: str = ""
    stopped: bool = False

    def stale(self, newest: NodeSnapshot) -> str:
        """Why the snapshot is stale, as text; empty when it is fresh."""
        if self.error:
            return f"STALE {number_format.lasting(self.age)}: {self.error}"
        allowed = max(_STALE_SECONDS, _STALE_INTERVALS * newest.interval_seconds)
        if newest.paused or self.age <= allowed:
            return ""
        since = format_clock(newest.unix)
        return f"STALE {number_format.lasting(self.age)}: the node has not read its GPUs since {since}"


def head_lines(
    snapshot: NodeSnapshot | None,
    stale: str,
    freshness: Freshness,
    view: TopView,
    origin: SnapshotOrigin,
    glyphs: Glyphs,
) -> list[Line]:
    """The lines above the tables."""
    if snapshot is None:
        return [((f"gpuledger top: {origin.name}: ", "bold"), (freshness.error or "reading", ""))]
    lines = [title_line(snapshot, origin, format_clock(snapshot.unix), glyphs)]
    if stale:
        lines.append(((f" {stale} ", "stale"),))
    if freshness.stopped:
        lines.append(((" STOPPED: press space to continue ", "chosen"),))
    lines += banner_lines(snapshot)
    if snapshot.devices:
        lines.append(totals_line(view.devices(snapshot), glyphs))
    return lines


def note_line(notes: list[str]) -> list[Line]:
    """The first note, and the key that shows the others."""
    more: list[Span] = [(f"[n: {len(notes) - 1} more] ", "key")] if len(notes) > 1 else []
    return [(*more, (notes[0], "dim"))] if notes else []


def key_line(width: int, *, local: bool = False) -> Line:
    """What the keys do, as much as fits into `width` cells. `local`: with keys for local processes."""
    pairs = [("q", "quit"), ("?", "help"), ("/", "filter"), ("enter", "details"), ("space", "stop")]
    pairs += [("t", "tree"), ("k", "end a process")] if local else []
    if width >= 110:
        pairs += [("0-9", "GPU"), ("tab", "table"), ("i", "MIG")]
    spans: list[Span] = [part for key, word in pairs for part in ((key, "key"), (f" {word}  ", ""))]
    if local and width < 110:
        # The headings show the letters, too.
        return tuple(spans)
    spans.append(("sort: ", "dim"))
    whole = 180 if local else 150
    for name, key in SORT_KEYS.items():
        spans.append((key.letter, "letter"))
        spans.append((f"{name.removeprefix(key.letter) if width >= whole else ''} ", ""))
    spans.append(("< >", "key"))
    return tuple(spans)


def line_strip(line: Line, width: int, *, colored: bool, role: str | None = None) -> Strip:
    """The line as Textual draws it, `width` cells wide; `role` replaces the roles of all its spans."""
    segments = [Segment(text, style(role or own, colored=colored)) for text, own in line]
    return Strip(segments).adjust_cell_length(width, style(role or ""))


class TextLines(Widget):
    """A widget of text lines: as high as its lines, each truncated at the edge."""

    DEFAULT_CSS = "TextLines { height: 1; background: ansi_default; }"

    def __init__(self, name: str, glyphs: Glyphs, *, colored: bool) -> None:
        super().__init__(id=name)
        self._glyphs, self._colored = glyphs, colored
        self.lines: list[Line] = []
        self.display = False

    def show(self, lines: list[Line]) -> None:
        """Replace the lines; without lines the widget takes no space."""
        if len(lines) != len(self.lines):
            self.styles.height = len(lines)
            self.display = bool(lines)
        self.lines = lines
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One line of the widget."""
        width = self.size.width
        line = truncate_line(self.lines[y], width, self._glyphs) if y < len(self.lines) else ()
        return line_strip(line, width, colored=self._colored)

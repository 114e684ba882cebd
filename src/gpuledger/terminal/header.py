"""What stands above and below the tables: node, freshness, sums, notes, keys."""

from __future__ import annotations

from dataclasses import dataclass

from rich.segment import Segment
from textual.strip import Strip
from textual.widget import Widget

from gpuledger.terminal import figures
from gpuledger.terminal.line import Glyphs, Line, Span, cut
from gpuledger.terminal.order import KEYS
from gpuledger.terminal.palette import style
from gpuledger.terminal.picture import Picture
from gpuledger.terminal.view import Origin, View, banners, clock_text, title, totals

# A picture that has not changed for so many of the node's intervals, and seconds, is not the present.
_STALE_INTERVALS = 3
_STALE_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Freshness:
    """How old the newest picture is, in seconds since it changed; why there is no newer one; whether the user
    has stopped the view.
    """

    age: float = 0.0
    trouble: str = ""
    stopped: bool = False

    def stale(self, newest: Picture) -> str:
        """That and why the picture is not the present; empty when it is."""
        if self.trouble:
            return f"STALE {figures.lasting(self.age)}: {self.trouble}"
        patience = max(_STALE_SECONDS, _STALE_INTERVALS * newest.interval)
        if newest.paused or self.age <= patience:
            return ""
        since = clock_text(newest.unix)
        return f"STALE {figures.lasting(self.age)}: the node has not read its GPUs since {since}"


def head_lines(
    picture: Picture | None, stale: str, freshness: Freshness, view: View, origin: Origin, glyphs: Glyphs
) -> list[Line]:
    """All above the tables."""
    if picture is None:
        return [((f"gpuledger top: {origin.name}: ", "bold"), (freshness.trouble or "reading", ""))]
    lines = [title(picture, origin, clock_text(picture.unix), glyphs)]
    if stale:
        lines.append(((f" {stale} ", "stale"),))
    if freshness.stopped:
        lines.append(((" STOPPED by you: space goes on ", "chosen"),))
    lines += banners(picture)
    if picture.devices:
        lines.append(totals(view.devices(picture), glyphs))
    return lines


def note_line(told: list[str]) -> list[Line]:
    """The first of the notes, and how to see the others."""
    more: list[Span] = [(f"[n: {len(told) - 1} more] ", "key")] if len(told) > 1 else []
    return [(*more, (told[0], "dim"))] if told else []


def key_line(width: int) -> Line:
    """What the keys do, in as many words as fit."""
    pairs = [("q", "quit"), ("?", "help"), ("/", "filter"), ("enter", "details"), ("space", "stop")]
    if width >= 110:
        pairs += [("0-9", "GPU"), ("tab", "table"), ("i", "MIG")]
    spans: list[Span] = [part for key, word in pairs for part in ((key, "key"), (f" {word}  ", ""))]
    spans.append(("sort: ", "dim"))
    for name, key in KEYS.items():
        spans.append((key.letter, "letter"))
        spans.append((f"{name.removeprefix(key.letter) if width >= 150 else ''} ", ""))
    spans.append(("< >", "key"))
    return tuple(spans)


class Lines(Widget):
    """As high as there are lines, each cut at the edge."""

    DEFAULT_CSS = "Lines { height: 1; background: ansi_default; }"

    def __init__(self, name: str, glyphs: Glyphs) -> None:
        super().__init__(id=name)
        self._glyphs = glyphs
        self._lines: list[Line] = []
        self._coloured = True
        self.display = False

    @property
    def lines(self) -> list[Line]:
        """As shown."""
        return self._lines

    def show(self, lines: list[Line], *, coloured: bool) -> None:
        """Other lines; none takes no place."""
        if len(lines) != len(self._lines):
            self.styles.height = len(lines)
            self.display = bool(lines)
        self._lines, self._coloured = lines, coloured
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One of them."""
        width = self.size.width
        line = cut(self._lines[y], width, self._glyphs) if y < len(self._lines) else ()
        segments = [Segment(text, style(role, coloured=self._coloured)) for text, role in line]
        return Strip(segments).adjust_cell_length(width, style(""))

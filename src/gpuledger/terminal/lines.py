"""Some lines of text on the screen."""

from __future__ import annotations

from rich.segment import Segment
from textual.strip import Strip
from textual.widget import Widget

from gpuledger.terminal.line import Glyphs, Line, cut
from gpuledger.terminal.palette import style


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

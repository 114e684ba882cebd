"""A table that stays smooth with thousands of rows: only the lines in view are ever made."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar, Generic, TypeVar

from rich.segment import Segment
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from gpuledger.terminal.line import Column, Glyphs, Line, Placed, place, row_line
from gpuledger.terminal.palette import style
from gpuledger.terminal.text import gap_for, heading

R = TypeVar("R")

# A scroll bar, and a cell between it and the text.
_BAR = 2


class Table(ScrollView, Generic[R], can_focus=True):
    """Rows R under a heading that stays. The cursor is on a row's key, wherever the next sort puts it."""

    DEFAULT_CSS = """
    Table {
        overflow-x: hidden; overflow-y: auto; background: ansi_default; scrollbar-size-vertical: 1;
        scrollbar-color: ansi_blue; scrollbar-color-hover: ansi_blue; scrollbar-color-active: ansi_blue;
        scrollbar-background: ansi_default; scrollbar-background-hover: ansi_default;
        scrollbar-background-active: ansi_default;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "move_to(0)", show=False),
        Binding("end", "move_to(-1)", show=False),
        Binding("enter", "choose", show=False),
    ]

    class Chosen(Message):
        """A row was asked for."""

        def __init__(self, table: Widget, row: object) -> None:
            super().__init__()
            self.table, self.row = table, row

    class HeadingClicked(Message):
        """A column's heading was clicked."""

        def __init__(self, table: Widget, column: str) -> None:
            super().__init__()
            self.table, self.column = table, column

    def __init__(
        self, key: Callable[[R], Hashable], glyphs: Glyphs, *, letters: bool = False, name: str = ""
    ) -> None:
        super().__init__(id=name or None)
        self._key, self._glyphs, self._letters = key, glyphs, letters
        self._rows: Sequence[R] = ()
        self._columns: Sequence[Column[R]] = ()
        self._placed: list[Placed[R]] = []
        self._by = ""
        self._faded = False
        self._coloured = True
        self._cursor: Hashable = None
        self._index = 0

    @property
    def rows(self) -> Sequence[R]:
        """As shown."""
        return self._rows

    @property
    def current(self) -> R | None:
        """The row under the cursor; None before anybody has moved it."""
        return None if self._cursor is None or not self._rows else self._rows[self._index]

    def show(
        self,
        rows: Sequence[R],
        columns: Sequence[Column[R]],
        *,
        by: str = "",
        faded: bool = False,
        coloured: bool = True,
    ) -> None:
        """Draw other rows. The cursor stays on its row, and that row where it was on the screen."""
        before = self._index - self.scroll_offset.y
        visible = 0 <= before < self._height
        self._rows, self._columns, self._by = rows, columns, by
        self._faded, self._coloured = faded, coloured
        self._lay_out()
        if self._cursor is not None:
            self._find_cursor()
            if visible:
                self.scroll_to(y=max(0, self._index - before), animate=False, force=True, immediate=True)
        self.refresh()

    def forget_cursor(self) -> None:
        """As if nobody had moved it."""
        self._cursor, self._index = None, 0
        self.refresh()

    def _find_cursor(self) -> None:
        for index, row in enumerate(self._rows):
            if self._key(row) == self._cursor:
                self._index = index
                return
        # It has ended: its neighbour is where the eye is.
        self._index = min(self._index, max(0, len(self._rows) - 1))
        self._cursor = self._key(self._rows[self._index]) if self._rows else None

    @property
    def _height(self) -> int:
        """Of the rows, without the heading."""
        return max(1, self.size.height - 1)

    @property
    def _room(self) -> int:
        return max(1, self.size.width - (_BAR if len(self._rows) > self._height else 0))

    def _lay_out(self) -> None:
        room = self._room
        self._placed = place(self._columns, self._rows, room, gap_for(room))
        self.virtual_size = Size(self.size.width, len(self._rows) + 1)

    def on_resize(self) -> None:
        """Other columns may fit now; the cursor stays in sight."""
        self._lay_out()
        if self._cursor is not None:
            self._into_view()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One line of the screen: the heading, a row, or nothing."""
        width = self.size.width
        gap = gap_for(self._room)
        if y == 0:
            return self._strip(heading(self._placed, gap, letters=self._letters, by=self._by), width)
        index = y - 1 + self.scroll_offset.y
        if index >= len(self._rows):
            return Strip.blank(width, style(""))
        line = row_line(self._placed, self._rows[index], self._glyphs, gap)
        if self._cursor is not None and index == self._index and self.has_focus:
            text = "".join(part for part, _ in line)
            return Strip([Segment(text, style("cursor"))]).extend_cell_length(width, style("cursor"))
        return self._strip(line, width, faded=self._faded)

    def _strip(self, line: Line, width: int, *, faded: bool = False) -> Strip:
        segments = [
            Segment(text, style("dim" if faded else role, coloured=self._coloured)) for text, role in line
        ]
        return Strip(segments).adjust_cell_length(width, style(""))

    def action_move(self, steps: int) -> None:
        """The first move puts the cursor on the first row in sight."""
        if self._rows:
            start = self.scroll_offset.y if self._cursor is None else self._index + steps
            self._put(start)

    def action_page(self, pages: int) -> None:
        """Up or down by what is in sight."""
        if self._rows:
            self._put(self._index + pages * self._height)

    def action_move_to(self, index: int) -> None:
        """The first, or with -1 the last row."""
        if self._rows:
            self._put(index if index >= 0 else len(self._rows) - 1)

    def action_choose(self) -> None:
        """Tell that the row under the cursor is asked for; the first one, where there is no cursor yet."""
        if self._rows:
            if self._cursor is None:
                self._put(self._index)
            self.post_message(self.Chosen(self, self._rows[self._index]))

    def _put(self, index: int) -> None:
        self._index = min(len(self._rows) - 1, max(0, index))
        self._cursor = self._key(self._rows[self._index])
        self._into_view()
        self.refresh()

    def _into_view(self) -> None:
        top = self.scroll_offset.y
        if self._index < top:
            self.scroll_to(y=self._index, animate=False, force=True, immediate=True)
        elif self._index >= top + self._height:
            self.scroll_to(y=self._index - self._height + 1, animate=False, force=True, immediate=True)

    def on_click(self, event: Click) -> None:
        """A heading sorts, a row takes the cursor, a row clicked twice is chosen."""
        if event.y == 0:
            self._click_heading(event.x)
            return
        index = event.y - 1 + self.scroll_offset.y
        if index < len(self._rows):
            self._put(index)
            if event.chain == 2:
                self.action_choose()

    def _click_heading(self, x: int) -> None:
        left = 0
        gap = gap_for(self._room)
        for item in self._placed:
            if left <= x < left + item.width:
                self.post_message(self.HeadingClicked(self, item.column.key))
                return
            left += item.width + gap

    def watch_has_focus(self, has_focus: bool) -> None:
        """The cursor is shown where keys go."""
        super().watch_has_focus(has_focus)
        self.refresh()

"""A table widget that renders only its visible lines, so that thousands of rows stay fast."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar, Generic, TypeVar

from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from gpuledger.terminal.header import line_strip
from gpuledger.terminal.layout import Glyphs, PlacedColumn, TableColumn, place_columns, row_line
from gpuledger.terminal.palette import style
from gpuledger.terminal.plain_output import column_gap, heading_line

R = TypeVar("R")

# A scroll bar, and a cell between it and the text.
_BAR = 2


class Table(ScrollView, Generic[R], can_focus=True):
    """Rows R under a fixed heading. The cursor is bound to a row's key and follows it when sorted."""

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
        """The user chose a row."""

        def __init__(self, table: Widget, row: object) -> None:
            super().__init__()
            self.table, self.row = table, row

    class HeadingClicked(Message):
        """The user clicked a column heading."""

        def __init__(self, table: Widget, column: str) -> None:
            super().__init__()
            self.table, self.column = table, column

    def __init__(
        self, key: Callable[[R], Hashable], glyphs: Glyphs, name: str, *, letters: bool = False, colored: bool
    ) -> None:
        super().__init__(id=name)
        self._key, self._glyphs, self._letters, self._colored = key, glyphs, letters, colored
        self.rows: Sequence[R] = ()
        self._columns: Sequence[TableColumn[R]] = ()
        self._placed: list[PlacedColumn[R]] = []
        self._by = ""
        self._faded = False
        self._cursor: Hashable = None
        self._index = 0
        # Whether the row of the cursor has ended since the user moved it.
        self._lost = False

    @property
    def current(self) -> R | None:
        """The row under the cursor; None before the cursor was first moved."""
        return None if self._cursor is None or not self.rows else self.rows[self._index]

    @property
    def chosen(self) -> R | None:
        """The row that the user moved the cursor to; None without one, or when it has ended."""
        return None if self._lost else self.current

    def show(
        self,
        rows: Sequence[R],
        columns: Sequence[TableColumn[R]],
        *,
        by: str = "",
        faded: bool,
    ) -> None:
        """Replace the rows. The cursor remains on its row, and the row on its line of the screen."""
        before = self._index - self.scroll_offset.y
        visible = 0 <= before < self._height
        self.rows, self._columns, self._by, self._faded = rows, columns, by, faded
        self._update_layout()
        if self._cursor is not None:
            self._find_cursor()
            if visible:
                self.scroll_to(y=max(0, self._index - before), animate=False, force=True, immediate=True)
        self.refresh()

    def forget_cursor(self) -> None:
        """Remove the cursor."""
        self._cursor, self._index = None, 0
        self.refresh()

    def _find_cursor(self) -> None:
        keys = [self._key(row) for row in self.rows]
        if self._cursor in keys:
            self._index = keys.index(self._cursor)
        else:
            # The process has ended: move to its neighbour, which the user did not choose.
            self._lost = True
            self._index = min(self._index, max(0, len(keys) - 1))
            self._cursor = keys[self._index] if keys else None

    @property
    def _height(self) -> int:
        """Visible lines without the heading."""
        return max(1, self.size.height - 1)

    @property
    def _room(self) -> int:
        return max(1, self.size.width - (_BAR if len(self.rows) > self._height else 0))

    def _update_layout(self) -> None:
        room = self._room
        self._placed = place_columns(self._columns, self.rows, room, column_gap(room))
        self.virtual_size = Size(self.size.width, len(self.rows) + 1)

    def on_resize(self) -> None:
        """Fit the columns again and keep the cursor visible."""
        self._update_layout()
        if self._cursor is not None:
            self._scroll_to_cursor()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One line of the screen: the heading, a row, or nothing."""
        width = self.size.width
        gap = column_gap(self._room)
        if y == 0:
            heading = heading_line(self._placed, self._glyphs, gap, letters=self._letters, by=self._by)
            return line_strip(heading, width, colored=self._colored)
        index = y - 1 + self.scroll_offset.y
        if index >= len(self.rows):
            return Strip.blank(width, style(""))
        line = row_line(self._placed, self.rows[index], self._glyphs, gap)
        role = "dim" if self._faded else None
        if self._cursor is not None and index == self._index and self.has_focus:
            role = "cursor"
        return line_strip(line, width, colored=self._colored, role=role)

    def action_move(self, steps: int) -> None:
        """Move the cursor; the first move puts it on the first visible row."""
        self._move_cursor_to(self.scroll_offset.y if self._cursor is None else self._index + steps)

    def action_page(self, pages: int) -> None:
        """Move up or down by the visible lines."""
        self._move_cursor_to(self._index + pages * self._height)

    def action_move_to(self, index: int) -> None:
        """Move to a row; -1 is the last one."""
        self._move_cursor_to(index if index >= 0 else len(self.rows) - 1)

    def action_choose(self) -> None:
        """Post Chosen for the row under the cursor, or for the first row when there is no cursor."""
        if self.rows:
            if self._cursor is None:
                self._move_cursor_to(self._index)
            self.post_message(self.Chosen(self, self.rows[self._index]))

    def _move_cursor_to(self, index: int) -> None:
        if self.rows:
            self._index = min(len(self.rows) - 1, max(0, index))
            self._cursor, self._lost = self._key(self.rows[self._index]), False
            self._scroll_to_cursor()
            self.refresh()

    def _scroll_to_cursor(self) -> None:
        top = self.scroll_offset.y
        y = min(self._index, max(top, self._index - self._height + 1))
        if y != top:
            self.scroll_to(y=y, animate=False, force=True, immediate=True)

    def on_click(self, event: Click) -> None:
        """A click on a heading sorts, on a row moves the cursor; a double click chooses the row."""
        if event.y == 0:
            self._click_heading(event.x)
            return
        index = event.y - 1 + self.scroll_offset.y
        if index < len(self.rows):
            self._move_cursor_to(index)
            if event.chain == 2:
                self.action_choose()

    def _click_heading(self, x: int) -> None:
        left = 0
        gap = column_gap(self._room)
        for item in self._placed:
            if left <= x < left + item.width:
                self.post_message(self.HeadingClicked(self, item.column.key))
                return
            left += item.width + gap

    def watch_has_focus(self, has_focus: bool) -> None:
        """Show the cursor only while the table has the focus."""
        super().watch_has_focus(has_focus)
        self.refresh()

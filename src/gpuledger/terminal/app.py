"""The live view."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from threading import Event, Thread
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.message import Message
from textual.widgets import Input

from gpuledger.model.errors import GpuledgerError
from gpuledger.terminal.columns import device_columns, process_columns
from gpuledger.terminal.feed import Feed
from gpuledger.terminal.header import Freshness, Lines, head_lines, key_line, note_line
from gpuledger.terminal.line import Glyphs, Line
from gpuledger.terminal.order import KEYS
from gpuledger.terminal.picture import DeviceRow, Picture, ProcessRow, read_picture
from gpuledger.terminal.screens import HELP, MEANING, Fact, Sheet, facts_of_process
from gpuledger.terminal.search import Filter
from gpuledger.terminal.table import Table
from gpuledger.terminal.view import View, caption, empty, notes

# Seconds between asks of a node that does not answer.
_SLOWEST = 5.0


class Watcher:
    """Calls `shows` with each picture, and `misses` with why there is none; both from its own thread."""

    def __init__(
        self,
        feed: Feed,
        interval: float,
        shows: Callable[[Picture], object],
        misses: Callable[[str], object],
    ) -> None:
        """`interval` is seconds between two asks."""
        self._feed, self._interval = feed, interval
        self._shows, self._misses = shows, misses
        self._ended = Event()
        self._woken = Event()
        # A daemon: an ask that waits for its time to run out must not keep the user waiting.
        self._thread = Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        """Ask the first time at once."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more. An ask under way is not waited for."""
        self._ended.set()
        self._woken.set()

    def ask(self) -> None:
        """Do not wait for the next time."""
        self._woken.set()

    def _run(self) -> None:
        delay = self._interval
        while not self._ended.is_set():
            try:
                picture = read_picture(self._feed.snapshot())
            except GpuledgerError as error:
                delay = max(self._interval, min(_SLOWEST, delay * 1.5))
                if not self._ended.is_set():
                    self._misses(str(error))
            else:
                delay = self._interval
                if not self._ended.is_set():
                    self._shows(picture)
            self._woken.wait(delay)
            self._woken.clear()


# Lines of a screen on which some may be left empty.
ROOMY = 30


class TopApp(App[None]):
    """Tables of GPUs and of processes, drawn anew with each picture of a feed."""

    CSS = """
    Screen { background: ansi_default; layout: vertical; }
    Sheet { background: transparent; }
    #devices { height: 4; }
    #processes { height: 1fr; }
    #filter { height: 1; border: none; padding: 0; background: ansi_default; display: none; }
    """
    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("q", "quit", show=False),
        Binding("space", "pause", show=False),
        Binding("slash", "filter", show=False),
        Binding("escape", "everything", show=False),
        Binding("question_mark,h,f1", "help", show=False),
        Binding("n", "notes", show=False),
        Binding("i", "fold", show=False),
        Binding("r", "read", show=False),
        Binding("less_than_sign", "neighbour(-1)", show=False),
        Binding("greater_than_sign", "neighbour(1)", show=False),
        *(Binding(key.letter, f"sort('{name}')", show=False) for name, key in KEYS.items()),
        *(Binding(str(digit), f"gpu('{digit}')", show=False) for digit in range(10)),
    ]

    class Came(Message):
        """A picture."""

        def __init__(self, picture: Picture) -> None:
            super().__init__()
            self.picture = picture

    class Missed(Message):
        """No picture, and why."""

        def __init__(self, why: str) -> None:
            super().__init__()
            self.why = why

    def __init__(
        self,
        feed: Feed,
        view: View,
        interval: float,
        glyphs: Glyphs,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`interval` is seconds between two asks of the feed; `clock` tells seconds."""
        super().__init__()
        self.theme = "ansi-dark"
        self._feed, self._glyphs, self._clock = feed, glyphs, clock
        self._view = view
        self._coloured = not self.no_color
        self._watcher = Watcher(
            feed,
            interval,
            lambda picture: self.post_message(self.Came(picture)),
            lambda why: self.post_message(self.Missed(why)),
        )
        # Held here: a timer may still come when the screen has let go of them.
        self.head, self.caption = Lines("head", glyphs), Lines("caption", glyphs)
        self.note, self.keys = Lines("note", glyphs), Lines("keys", glyphs)
        self.devices = Table[DeviceRow](lambda row: (row.uuid, row.instance), glyphs, name="devices")
        self.processes = Table[ProcessRow](lambda row: row.key, glyphs, letters=True, name="processes")
        self.filter = Input(id="filter", placeholder="words, !not, user:name; enter", compact=True)
        # What is drawn, and the last that came.
        self._picture: Picture | None = None
        self.newest: Picture | None = None
        self._changed = clock()
        self._trouble = ""
        self._frozen = False
        self._sheet: Sheet | None = None
        self._subject: _Followed | None = None
        self._filter_before = view.filter

    def compose(self) -> ComposeResult:
        """Head, GPUs, what is shown of the processes, processes, keys."""
        yield from (self.head, self.devices, self.caption, self.processes, self.note, self.filter, self.keys)

    def on_mount(self) -> None:
        """Begin to look."""
        if not self._coloured:
            # It is made of nothing but colour.
            for table in (self.devices, self.processes):
                table.styles.scrollbar_size_vertical = 0
        self.processes.focus()
        self._watcher.start()
        self.set_interval(1.0, self.refresh_head)

    def on_unmount(self) -> None:
        """Look no more."""
        self._watcher.stop()

    def on_top_app_came(self, message: Came) -> None:
        """A picture: the present, unless it is the same as before."""
        before = self.newest
        self.newest, self._trouble = message.picture, ""
        if before is None or before.unix != message.picture.unix:
            self._changed = self._clock()
        if not self._frozen:
            self._picture = self.newest
            self._draw()
        else:
            self.refresh_head()

    def on_top_app_missed(self, message: Missed) -> None:
        """The last picture stays, and says that it is the last."""
        self._trouble = message.why
        self._draw()

    def on_resize(self, event: Resize) -> None:
        """The tables share what there is."""
        self._draw(event.size.height)

    def _draw(self, height: int | None = None) -> None:
        picture = self._picture
        self.refresh_head()
        if picture is None:
            return
        stale = bool(self._stale())
        devices, processes = self._view.devices(picture), self._view.processes(picture)
        self._share_height(len(devices), height or self.size.height)
        self.devices.show(devices, device_columns(self._glyphs), faded=stale, coloured=self._coloured)
        self.processes.show(
            processes,
            process_columns(self._glyphs, self._view.order, picture.unix),
            by=self._view.order.by,
            faded=stale,
            coloured=self._coloured,
        )
        told = (
            caption(picture, processes, self._view, self._glyphs)
            if processes
            else ((empty(picture), "bold"),)
        )
        gap: list[Line] = [()] if (height or self.size.height) >= ROOMY else []
        self.caption.show([*gap, told], coloured=self._coloured)
        if self._sheet is not None and self._subject is not None:
            self._sheet.families(*self._subject.told(picture))

    def _share_height(self, devices: int, height: int) -> None:
        """All GPUs where there is room; at least three processes, and at most half of the screen else."""
        others = len(self.head.lines) + 5
        most = max(4, (height - others) * 3 // 5)
        self.devices.styles.height = min(devices + 1, most)
        self.devices.display = devices > 0

    def _stale(self) -> str:
        return "" if self.newest is None else self._freshness().stale(self.newest)

    def _freshness(self) -> Freshness:
        return Freshness(self._clock() - self._changed, self._trouble, self._frozen)

    def refresh_head(self) -> None:
        """What stands around the tables; an age grows without a picture."""
        coloured = self._coloured
        lines = head_lines(
            self._picture, self._stale(), self._freshness(), self._view, self._feed.origin, self._glyphs
        )
        if self.size.height >= ROOMY:
            lines.append(())
        self.head.show(lines, coloured=coloured)
        self.keys.show([key_line(self.size.width)], coloured=coloured)
        self.note.show(note_line(self._told()), coloured=coloured)

    def _told(self) -> list[str]:
        if self._picture is None:
            return []
        return [*notes(self._picture, self._feed.origin), *self._feed.remarks()]

    def action_sort(self, name: str) -> None:
        """By this column; again: the other way."""
        self._look(replace(self._view, order=self._view.order.chosen(name)))

    def action_neighbour(self, steps: int) -> None:
        """By the column beside it."""
        self._look(replace(self._view, order=self._view.order.moved(steps)))

    def action_gpu(self, name: str) -> None:
        """This GPU alone, where it is there."""
        if self._picture is not None and any(row.gpu == name for row in self._picture.devices):
            self._look(self._view.on_gpu(name))

    def action_read(self) -> None:
        """Ask for a picture now."""
        self._watcher.ask()

    def action_fold(self) -> None:
        """Without MIG instances, or with them."""
        self._look(replace(self._view, folded=not self._view.folded))

    def action_everything(self) -> None:
        """No filter, all GPUs, no cursor."""
        if self._filtering:
            self._look(replace(self._view, filter=self._filter_before))
            self._end_filter()
            return
        for table in (self.devices, self.processes):
            table.forget_cursor()
        self._look(replace(self._view, filter=Filter(), gpus=()))

    def action_pause(self) -> None:
        """Hold the picture, or go on with the newest."""
        self._frozen = not self._frozen
        if not self._frozen:
            self._picture = self.newest
        self._draw()

    def action_filter(self) -> None:
        """Ask for words; what is typed counts at once."""
        box = self.filter
        self._filter_before = self._view.filter
        box.value = self._view.filter.text
        box.display = True
        self.keys.display = False
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Each letter narrows."""
        self._look(replace(self._view, filter=Filter.of(event.value)))

    def on_input_submitted(self) -> None:
        """The filter stays."""
        self._end_filter()

    @property
    def _filtering(self) -> bool:
        return bool(self.filter.display)

    def _end_filter(self) -> None:
        self.filter.display = False
        self.keys.display = True
        self.processes.focus()

    def action_help(self) -> None:
        """What the keys do, and what the words mean."""
        self._open(Sheet("keys and words", [*HELP, ("", ""), *MEANING]))

    def action_notes(self) -> None:
        """What the numbers rest on."""
        told = self._told() or ["Nothing is missing."]
        self._open(Sheet("notes", [(f"{number}.", note) for number, note in enumerate(told, 1)]))

    def _open(self, sheet: Sheet, subject: _Followed | None = None) -> None:
        self._sheet, self._subject = sheet, subject
        self.push_screen(sheet, lambda _: self._forget_sheet())

    def _forget_sheet(self) -> None:
        self._sheet = self._subject = None

    def on_table_chosen(self, message: Table.Chosen) -> None:
        """A GPU narrows to itself; a process shows its details."""
        row = message.row
        if isinstance(row, DeviceRow):
            self._look(self._view.on_gpu(row.place))
            return
        if isinstance(row, ProcessRow) and self._picture is not None:
            subject = _Followed(row)
            self._open(Sheet(*subject.told(self._picture)), subject)

    def on_table_heading_clicked(self, message: Table.HeadingClicked) -> None:
        """A heading that can be sorted by."""
        if message.table is self.processes and message.column in KEYS:
            self.action_sort(message.column)

    def _look(self, view: View) -> None:
        self._view = view
        self._draw()


class _Followed:
    """A process whose details are looked at, from picture to picture, and on when it has ended."""

    def __init__(self, row: ProcessRow) -> None:
        self._row = row

    def told(self, picture: Picture) -> tuple[str, list[Fact]]:
        """A title and facts."""
        now = next((one for one in picture.processes if one.key == self._row.key), None)
        self._row = now or self._row
        gone = [] if now is not None else [("state", "has ended; this is what was last seen")]
        pid = self._row.pid
        return "many processes" if pid is None else f"process {pid}", [
            *gone,
            *facts_of_process(self._row, picture),
        ]

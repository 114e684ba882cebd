"""The live view: a Textual app that polls snapshots and draws the tables of GPUs and processes."""

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
from gpuledger.terminal.filters import ProcessFilter
from gpuledger.terminal.header import Freshness, TextLines, head_lines, key_line, note_line
from gpuledger.terminal.layout import Glyphs, Line
from gpuledger.terminal.screens import GLOSSARY, HELP, Fact, FactScreen, process_facts
from gpuledger.terminal.snapshot import DeviceRow, NodeSnapshot, ProcessRow, parse_snapshot
from gpuledger.terminal.sort_order import SORT_KEYS
from gpuledger.terminal.table import Table
from gpuledger.terminal.top_view import TopView, caption_line, data_notes, no_process_text

# Seconds: the longest delay between requests to a node that does not answer.
_MAX_RETRY_DELAY = 5.0


class SnapshotPoller:
    """Polls a feed in its own thread; passes snapshots to `on_snapshot`, failures to `on_error`."""

    def __init__(
        self,
        feed: Feed,
        interval: float,
        on_snapshot: Callable[[NodeSnapshot], object],
        on_error: Callable[[str], object],
    ) -> None:
        """`interval` is the seconds between two requests."""
        self._feed, self._interval = feed, interval
        self._on_snapshot, self._on_error = on_snapshot, on_error
        self._stopped = Event()
        self._wake = Event()
        # Daemon thread: a request that waits for its timeout must not delay the exit.
        self._thread = Thread(target=self._run, name="snapshot poller", daemon=True)

    def start(self) -> None:
        """Start polling; the first request is sent immediately."""
        self._thread.start()

    def stop(self) -> None:
        """Stop polling, without waiting for a running request."""
        self._stopped.set()
        self._wake.set()

    def poll_now(self) -> None:
        """Send the next request immediately."""
        self._wake.set()

    def _run(self) -> None:
        delay = self._interval
        while not self._stopped.is_set():
            try:
                snapshot = parse_snapshot(self._feed.snapshot())
            except GpuledgerError as error:
                delay = max(self._interval, min(_MAX_RETRY_DELAY, delay * 1.5))
                if not self._stopped.is_set():
                    self._on_error(str(error))
            else:
                delay = self._interval
                if not self._stopped.is_set():
                    self._on_snapshot(snapshot)
            self._wake.wait(delay)
            self._wake.clear()


# A screen with this many lines has room for blank lines.
ROOMY_HEIGHT = 30


class TopApp(App[None]):
    """Tables of GPUs and processes, redrawn with each snapshot of a feed."""

    CSS = """
    Screen { background: ansi_default; layout: vertical; }
    FactScreen { background: transparent; }
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
        *(Binding(key.letter, f"sort('{name}')", show=False) for name, key in SORT_KEYS.items()),
        *(Binding(str(digit), f"gpu('{digit}')", show=False) for digit in range(10)),
    ]

    class SnapshotReceived(Message):
        """A new snapshot."""

        def __init__(self, snapshot: NodeSnapshot) -> None:
            super().__init__()
            self.snapshot = snapshot

    class SnapshotFailed(Message):
        """A failed request, with its error."""

        def __init__(self, error: str) -> None:
            super().__init__()
            self.error = error

    def __init__(
        self,
        feed: Feed,
        view: TopView,
        interval: float,
        glyphs: Glyphs,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`interval` is the seconds between two requests; `clock` returns monotonic seconds."""
        super().__init__()
        self.theme = "ansi-dark"
        self._feed, self._glyphs, self._clock = feed, glyphs, clock
        self._view = view
        self._colored = not self.no_color
        self._watcher = SnapshotPoller(
            feed,
            interval,
            lambda snapshot: self.post_message(self.SnapshotReceived(snapshot)),
            lambda error: self.post_message(self.SnapshotFailed(error)),
        )
        # Kept here: a timer may still fire after the screen has removed them.
        self.head, self.caption = TextLines("head", glyphs), TextLines("caption", glyphs)
        self.note, self.keys = TextLines("note", glyphs), TextLines("keys", glyphs)
        self.devices = Table[DeviceRow](lambda row: (row.uuid, row.instance), glyphs, name="devices")
        self.processes = Table[ProcessRow](lambda row: row.key, glyphs, letters=True, name="processes")
        self.filter = Input(id="filter", placeholder="words, !not, user:name; enter", compact=True)
        # The snapshot that is drawn, and the newest one.
        self._snapshot: NodeSnapshot | None = None
        self.newest: NodeSnapshot | None = None
        self._changed = clock()
        self._error = ""
        self._frozen = False
        self._fact_screen: FactScreen | None = None
        self._subject: _ProcessDetails | None = None
        self._filter_before = view.filter

    def compose(self) -> ComposeResult:
        """Header, GPUs, caption of the processes, processes, note, keys."""
        yield from (self.head, self.devices, self.caption, self.processes, self.note, self.filter, self.keys)

    def on_mount(self) -> None:
        """Start polling."""
        if not self._colored:
            # A scroll bar consists only of color.
            for table in (self.devices, self.processes):
                table.styles.scrollbar_size_vertical = 0
        self.processes.focus()
        self._watcher.start()
        self.set_interval(1.0, self.refresh_head)

    def on_unmount(self) -> None:
        """Stop polling."""
        self._watcher.stop()

    def on_top_app_snapshot_received(self, message: SnapshotReceived) -> None:
        """Show the new snapshot, unless the view is stopped."""
        before = self.newest
        self.newest, self._error = message.snapshot, ""
        if before is None or before.unix != message.snapshot.unix:
            self._changed = self._clock()
        if not self._frozen:
            self._snapshot = self.newest
            self._draw()
        else:
            self.refresh_head()

    def on_top_app_snapshot_failed(self, message: SnapshotFailed) -> None:
        """Keep the last snapshot and mark it as stale."""
        self._error = message.error
        self._draw()

    def on_resize(self, event: Resize) -> None:
        """Divide the new height between the tables."""
        self._draw(event.size.height)

    def _draw(self, height: int | None = None) -> None:
        snapshot = self._snapshot
        self.refresh_head()
        if snapshot is None:
            return
        stale = bool(self._stale())
        devices, processes = self._view.devices(snapshot), self._view.processes(snapshot)
        self._share_height(len(devices), height or self.size.height)
        self.devices.show(devices, device_columns(self._glyphs), faded=stale, colored=self._colored)
        self.processes.show(
            processes,
            process_columns(self._glyphs, self._view.order, snapshot.unix),
            by=self._view.order.by,
            faded=stale,
            colored=self._colored,
        )
        caption = (
            caption_line(snapshot, processes, self._view, self._glyphs)
            if processes
            else ((no_process_text(snapshot), "bold"),)
        )
        gap: list[Line] = [()] if (height or self.size.height) >= ROOMY_HEIGHT else []
        self.caption.show([*gap, caption], colored=self._colored)
        if self._fact_screen is not None and self._subject is not None:
            self._fact_screen.show_facts(*self._subject.facts(snapshot))

    def _share_height(self, devices: int, height: int) -> None:
        """Show all GPUs in up to three fifths of the free lines; the processes get the rest."""
        others = len(self.head.lines) + 5
        most = max(4, (height - others) * 3 // 5)
        self.devices.styles.height = min(devices + 1, most)
        self.devices.display = devices > 0

    def _stale(self) -> str:
        return "" if self.newest is None else self._freshness().stale(self.newest)

    def _freshness(self) -> Freshness:
        return Freshness(self._clock() - self._changed, self._error, self._frozen)

    def refresh_head(self) -> None:
        """Redraw the lines around the tables: the age grows without a new snapshot."""
        colored = self._colored
        lines = head_lines(
            self._snapshot, self._stale(), self._freshness(), self._view, self._feed.origin, self._glyphs
        )
        if self.size.height >= ROOMY_HEIGHT:
            lines.append(())
        self.head.show(lines, colored=colored)
        self.keys.show([key_line(self.size.width)], colored=colored)
        self.note.show(note_line(self._all_notes()), colored=colored)

    def _all_notes(self) -> list[str]:
        if self._snapshot is None:
            return []
        return [*data_notes(self._snapshot, self._feed.origin), *self._feed.remarks()]

    def action_sort(self, name: str) -> None:
        """Sort by this column; again: reverse the order."""
        self._change_view(replace(self._view, order=self._view.order.chosen(name)))

    def action_neighbour(self, steps: int) -> None:
        """Sort by a column next to the current one."""
        self._change_view(replace(self._view, order=self._view.order.moved(steps)))

    def action_gpu(self, name: str) -> None:
        """Show only this GPU, if it exists."""
        if self._snapshot is not None and any(row.gpu == name for row in self._snapshot.devices):
            self._change_view(self._view.on_gpu(name))

    def action_read(self) -> None:
        """Request a snapshot now."""
        self._watcher.poll_now()

    def action_fold(self) -> None:
        """Hide or show MIG instances."""
        self._change_view(replace(self._view, folded=not self._view.folded))

    def action_everything(self) -> None:
        """Clear the filter, the GPU selection and the cursor."""
        if self._filtering:
            self._change_view(replace(self._view, filter=self._filter_before))
            self._end_filter()
            return
        for table in (self.devices, self.processes):
            table.forget_cursor()
        self._change_view(replace(self._view, filter=ProcessFilter(), gpus=()))

    def action_pause(self) -> None:
        """Stop updating the view, or continue with the newest snapshot."""
        self._frozen = not self._frozen
        if not self._frozen:
            self._snapshot = self.newest
        self._draw()

    def action_filter(self) -> None:
        """Open the filter box; typing filters immediately."""
        box = self.filter
        self._filter_before = self._view.filter
        box.value = self._view.filter.text
        box.display = True
        self.keys.display = False
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter with each typed character."""
        self._change_view(replace(self._view, filter=ProcessFilter.of(event.value)))

    def on_input_submitted(self) -> None:
        """Keep the filter and close its box."""
        self._end_filter()

    @property
    def _filtering(self) -> bool:
        return bool(self.filter.display)

    def _end_filter(self) -> None:
        self.filter.display = False
        self.keys.display = True
        self.processes.focus()

    def action_help(self) -> None:
        """Show what the keys do and what the terms mean."""
        self._open(FactScreen("keys and terms", [*HELP, ("", ""), *GLOSSARY]))

    def action_notes(self) -> None:
        """Show the notes about the data."""
        shown = self._all_notes() or ["Nothing is missing."]
        self._open(FactScreen("notes", [(f"{number}.", note) for number, note in enumerate(shown, 1)]))

    def _open(self, screen: FactScreen, subject: _ProcessDetails | None = None) -> None:
        self._fact_screen, self._subject = screen, subject
        self.push_screen(screen, lambda _: self._forget_fact_screen())

    def _forget_fact_screen(self) -> None:
        self._fact_screen = self._subject = None

    def on_table_chosen(self, message: Table.Chosen) -> None:
        """Show only the chosen GPU, or the details of the chosen process."""
        row = message.row
        if isinstance(row, DeviceRow):
            self._change_view(self._view.on_gpu(row.place))
            return
        if isinstance(row, ProcessRow) and self._snapshot is not None:
            subject = _ProcessDetails(row)
            self._open(FactScreen(*subject.facts(self._snapshot)), subject)

    def on_table_heading_clicked(self, message: Table.HeadingClicked) -> None:
        """Sort by the clicked column."""
        if message.table is self.processes and message.column in SORT_KEYS:
            self.action_sort(message.column)

    def _change_view(self, view: TopView) -> None:
        self._view = view
        self._draw()


class _ProcessDetails:
    """The details of one process, followed across snapshots; kept when the process has ended."""

    def __init__(self, row: ProcessRow) -> None:
        self._row = row

    def facts(self, snapshot: NodeSnapshot) -> tuple[str, list[Fact]]:
        """The title and the facts."""
        now = next((row for row in snapshot.processes if row.key == self._row.key), None)
        self._row = now or self._row
        ended = [] if now is not None else [("state", "has ended; these are its last values")]
        pid = self._row.pid
        return "several processes" if pid is None else f"process {pid}", [
            *ended,
            *process_facts(self._row, snapshot),
        ]

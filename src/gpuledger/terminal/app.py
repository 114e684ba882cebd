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
from textual.widgets import Input

from gpuledger.model.errors import GpuledgerError
from gpuledger.terminal.columns import device_columns, process_columns
from gpuledger.terminal.feed import Feed
from gpuledger.terminal.filters import ProcessFilter
from gpuledger.terminal.header import Freshness, TextLines, head_lines, key_line, note_line
from gpuledger.terminal.layout import Glyphs, Line
from gpuledger.terminal.local_processes import LocalProcesses
from gpuledger.terminal.process_actions import ProcessActions
from gpuledger.terminal.process_forest import TreeRow
from gpuledger.terminal.process_screens import TreeScreen
from gpuledger.terminal.screens import GLOSSARY, HELP, SIGNAL_KEYS, FactScreen, ProcessScreen
from gpuledger.terminal.snapshot import DeviceRow, NodeSnapshot, ProcessRow, parse_snapshot
from gpuledger.terminal.sort_order import SORT_KEYS
from gpuledger.terminal.table import Table
from gpuledger.terminal.top_view import TopView, caption_line, data_notes, no_process_text

# Seconds: the longest delay between requests to a node that does not answer.
_MAX_RETRY_DELAY = 5.0


class SnapshotPoller(Thread):
    """Polls a feed in its own thread; passes snapshots to `on_snapshot`, failures to `on_error`."""

    def __init__(
        self,
        feed: Feed,
        interval: float,
        on_snapshot: Callable[[NodeSnapshot], object],
        on_error: Callable[[str], object],
    ) -> None:
        """`interval` is the seconds between two requests."""
        # Daemon thread: a request that waits for its timeout must not delay the exit.
        super().__init__(name="snapshot poller", daemon=True)
        self._feed, self._interval = feed, interval
        self._on_snapshot, self._on_error = on_snapshot, on_error
        self._stopping = Event()
        self._wake = Event()

    def stop(self) -> None:
        """Stop polling, without waiting for a running request."""
        self._stopping.set()
        self._wake.set()

    def poll_now(self) -> None:
        """Send the next request immediately."""
        self._wake.set()

    def run(self) -> None:
        """Poll until `stop`; the first request is sent immediately."""
        delay = self._interval
        while not self._stopping.is_set():
            try:
                snapshot = parse_snapshot(self._feed.snapshot())
            except GpuledgerError as error:
                delay = max(self._interval, min(_MAX_RETRY_DELAY, delay * 1.5))
                if not self._stopping.is_set():
                    self._on_error(str(error))
            else:
                delay = self._interval
                if not self._stopping.is_set():
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
    Toast { background: ansi_default; color: ansi_default; border: round ansi_default; padding: 0 1; }
    """
    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("q,f10", "quit", show=False),
        Binding("space", "pause", show=False),
        # With priority, so that keys typed immediately after it are received by the filter box.
        Binding("slash", "filter", show=False, priority=True),
        Binding("escape", "everything", show=False),
        Binding("question_mark,h,f1", "help", show=False),
        Binding("n", "notes", show=False),
        Binding("i", "fold", show=False),
        Binding("r,f5,ctrl+r", "read", show=False),
        Binding("t", "tree", show=False),
        *(Binding(keys, f"signal('{name}')", show=False) for keys, name in SIGNAL_KEYS),
        Binding("less_than_sign", "neighbour(-1)", show=False),
        Binding("greater_than_sign", "neighbour(1)", show=False),
        *(Binding(key.letter, f"sort('{name}')", show=False) for name, key in SORT_KEYS.items()),
        *(Binding(str(digit), f"gpu('{digit}')", show=False) for digit in range(10)),
    ]

    def __init__(
        self,
        feed: Feed,
        view: TopView,
        interval: float,
        glyphs: Glyphs,
        clock: Callable[[], float] = time.monotonic,
        local: LocalProcesses | None = None,
    ) -> None:
        """`interval` is the seconds between two requests; `clock` returns monotonic seconds; `local` has the
        processes of the feed if it shows this machine, None for another one.
        """
        super().__init__()
        self.theme = "ansi-dark"
        self._feed, self._view, self._glyphs, self._clock = feed, view, glyphs, clock
        colored = not self.no_color
        self._watcher = SnapshotPoller(
            feed,
            interval,
            lambda snapshot: self.call_later(self._show_snapshot, snapshot),
            lambda error: self.call_later(self._show_error, error),
        )
        self._local = ProcessActions(self, local, glyphs, lambda: self.call_later(self._draw))
        # Kept here: a timer may still fire after the screen has removed them.
        self.head, self.caption, self.note, self.keys = (
            TextLines(name, glyphs, colored=colored) for name in ("head", "caption", "note", "keys")
        )
        self.devices = Table[DeviceRow](lambda row: row.device_key, glyphs, "devices", colored=colored)
        self.processes = Table[ProcessRow](
            lambda row: row.key, glyphs, "processes", letters=True, colored=colored
        )
        self.filter = Input(id="filter", placeholder="words, !not, user:name; enter", compact=True)
        # The snapshot that is drawn, and the newest one.
        self._snapshot: NodeSnapshot | None = None
        self.newest: NodeSnapshot | None = None
        self._changed = clock()
        self._error = ""
        self._frozen = False
        self._filter_before = view.filter

    def compose(self) -> ComposeResult:
        """Header, GPUs, caption of the processes, processes, note, keys."""
        yield from (self.head, self.devices, self.caption, self.processes, self.note, self.filter, self.keys)

    def on_mount(self) -> None:
        """Start polling."""
        if self.no_color:
            # A scroll bar consists only of color.
            for table in (self.devices, self.processes):
                table.styles.scrollbar_size_vertical = 0
        self.processes.focus()
        self._watcher.start()
        self.set_interval(1.0, self.refresh_head)

    def on_unmount(self) -> None:
        """Stop polling."""
        self._watcher.stop()

    def _show_snapshot(self, snapshot: NodeSnapshot) -> None:
        """Show the new snapshot, unless the view is stopped."""
        if self.newest is None or self.newest.unix != snapshot.unix:
            self._changed = self._clock()
        self.newest, self._error = snapshot, ""
        if not self._frozen:
            self._snapshot = self.newest
            self._draw()
        else:
            self.refresh_head()

    def _show_error(self, error: str) -> None:
        """Keep the last snapshot and mark it as stale."""
        self._error = error
        self._draw()

    def on_resize(self, event: Resize) -> None:
        """Divide the new height between the tables."""
        self._draw(event.size.height)

    def _draw(self, height: int | None = None) -> None:
        snapshot = self._snapshot
        self.refresh_head()
        if snapshot is None:
            return
        snapshot = self._local.with_command_lines(snapshot)
        stale = bool(self._stale())
        devices, processes = self._view.devices(snapshot), self._view.processes(snapshot)
        self._share_height(len(devices), height or self.size.height)
        self.devices.show(devices, device_columns(self._glyphs, devices), faded=stale)
        columns = process_columns(self._glyphs, self._view.order, snapshot.unix)
        self.processes.show(processes, columns, by=self._view.order.by, faded=stale)
        caption = (
            caption_line(snapshot, processes, self._view, self._glyphs)
            if processes
            else ((no_process_text(snapshot), "bold"),)
        )
        gap: list[Line] = [()] if (height or self.size.height) >= ROOMY_HEIGHT else []
        self.caption.show([*gap, caption])
        for screen in self.screen_stack:
            if isinstance(screen, ProcessScreen | TreeScreen):
                screen.update_from(snapshot)

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
        lines = head_lines(
            self._snapshot, self._stale(), self._freshness(), self._view, self._feed.origin, self._glyphs
        )
        if self.size.height >= ROOMY_HEIGHT:
            lines.append(())
        self.head.show(lines)
        self.keys.show([key_line(self.size.width, local=self._local.possible)])
        self.note.show(note_line(self._all_notes()))

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
        if self.filter.display:
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

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:  # noqa: ARG002  (as in App)
        """In the filter box and in other screens, `/` is an ordinary key."""
        return action != "filter" or self.focused in (self.devices, self.processes)

    def action_filter(self) -> None:
        """Open the filter box; typing filters immediately."""
        box = self.filter
        self._filter_before = self._view.filter
        box.value = self._view.filter.text
        box.display = True
        self.keys.display = False
        self.set_focus(box)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter with each typed character."""
        self._change_view(replace(self._view, filter=ProcessFilter.of(event.value)))

    def on_input_submitted(self) -> None:
        """Keep the filter and close its box."""
        self._end_filter()

    def _end_filter(self) -> None:
        self.filter.display = False
        self.keys.display = True
        self.set_focus(self.processes)

    def action_help(self) -> None:
        """Show what the keys do and what the terms mean."""
        self.push_screen(FactScreen("keys and terms", [*HELP, ("", ""), *GLOSSARY]))

    def action_notes(self) -> None:
        """Show the notes about the data."""
        shown = self._all_notes() or ["Nothing is missing."]
        self.push_screen(FactScreen("notes", [(f"{number}.", note) for number, note in enumerate(shown, 1)]))

    def action_tree(self) -> None:
        """Show the processes below those that started them."""
        if self._snapshot is not None:
            self._local.open_tree(self._view.processes)
            self._draw()

    def action_signal(self, name: str) -> None:
        """Ask whether to send this signal to the chosen process."""
        self._local.ask_for_signal(name, self.processes.chosen if self.processes.has_focus else None)

    def on_table_chosen(self, message: Table.Chosen) -> None:
        """Show only the chosen GPU, or the details of the chosen process."""
        row = message.row
        if isinstance(row, DeviceRow):
            self._change_view(self._view.on_gpu(row.place))
        elif isinstance(row, ProcessRow) and self._snapshot is not None:
            self.push_screen(ProcessScreen(row, self._snapshot, self._local.facts_of))
        elif isinstance(row, TreeRow) and self._snapshot is not None:
            self._local.open_details(row, self._snapshot)

    def on_table_heading_clicked(self, message: Table.HeadingClicked) -> None:
        """Sort by the clicked column."""
        if message.table is self.processes and message.column in SORT_KEYS:
            self.action_sort(message.column)

    def _change_view(self, view: TopView) -> None:
        self._view = view
        self._draw()

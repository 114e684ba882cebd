"""The screens that open over the tables: details of a process, help, notes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from datetime import datetime
from typing import ClassVar

from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from gpuledger.terminal import number_format
from gpuledger.terminal.palette import style
from gpuledger.terminal.snapshot import DeviceRow, NodeSnapshot, ProcessRow
from gpuledger.terminal.top_view import missing_owner_text

Fact = tuple[str, str]

# The keys that send a signal: those of nvitop, the `k` of top, and the F9 of htop and nvtop.
SIGNAL_KEYS: Sequence[tuple[str, str]] = (("k,T,f9", "TERM"), ("K", "KILL"), ("I", "INT"))

_JOULES_PER_WH = 3600
# The fields of Owner, in their order.
_OWNER_NAMES = ("kind of owner", "namespace", "pod", "container", "job", "user")


def process_facts(row: ProcessRow, snapshot: NodeSnapshot) -> list[Fact]:
    """Names and texts. Unknown owner names are omitted; absent quantities are shown as `-`."""
    device = next((device for device in snapshot.devices if device.device_key == row.device_key), None)
    unresolved = f"a process {missing_owner_text(row.unresolved)}" if row.unresolved else ""
    names = zip((*_OWNER_NAMES, "owner missing"), (*astuple(row.owner), unresolved), strict=True)
    return [
        ("command", row.command_line or row.command or number_format.ABSENT),
        ("pid", number_format.count(row.pid)),
        ("on", _where(row, device)),
        *((name, text) for name, text in names if text),
        ("type", row.types or number_format.ABSENT),
        ("memory", _memory(row, device)),
        ("SM", number_format.share(row.sm_ratio)),
        ("memory bandwidth", number_format.share(row.memory_bandwidth_ratio)),
        ("power", _watts(row.power_watts)),
        ("energy", _energy(row.joules)),
        ("measured", _energy(row.measured_joules)),
        ("apportioned", _energy(_difference(row.joules, row.measured_joules))),
        ("started", started_text(row, snapshot.unix)),
    ]


def _where(row: ProcessRow, device: DeviceRow | None) -> str:
    named = "" if device is None else f", {device.name}" + (f" ({device.profile})" if device.profile else "")
    return f"GPU {row.place}{named}, {row.uuid}"


def _memory(row: ProcessRow, device: DeviceRow | None) -> str:
    used = number_format.size(row.memory_bytes)
    total = None if device is None else device.memory_total_bytes
    if row.memory_bytes is None or not total:
        return used
    return f"{used} of {number_format.size(total)} ({number_format.share(row.memory_bytes / total)})"


def _watts(number: float | None) -> str:
    return number_format.ABSENT if number is None else f"{number_format.watts(number)} W"


def _energy(number: float | None) -> str:
    if number is None:
        return number_format.ABSENT
    joules, hours = number_format.joules(number), number / _JOULES_PER_WH
    return f"{joules} ({hours:,.2f} Wh)" if hours >= 0.01 else joules


def _difference(whole: float | None, part: float | None) -> float | None:
    return None if whole is None or part is None else max(0.0, whole - part)


def started_text(row: ProcessRow, now: float) -> str:
    """When the process started, and how long ago; `now` is the node's unix time."""
    if row.start_unix is None:
        return number_format.ABSENT
    at = datetime.fromtimestamp(row.start_unix).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    lasting = number_format.lasting(now - row.start_unix)
    return f"{at}, {lasting} ago" if row.start_exact else f"before {at}: first seen {lasting} ago"


HELP: Sequence[Fact] = (
    ("arrows, page up/down", "move the cursor; it follows its process when the order changes"),
    ("enter", "details of the process; in the table of GPUs: show only this GPU; again: all"),
    ("tab", "switch to the other table"),
    ("0 to 9", "show only this GPU; the same digit again, or esc: all"),
    ("/", "filter: all these words; !word: without it; user: ns: pod: container: job: command: pid: gpu:"),
    ("esc", "clear the filter, the GPU selection and the cursor"),
    ("g p o c m s w j a", "sort by the column with this initial; again: reverse the order"),
    ("< and >", "sort by the column to the left or right"),
    ("t", "process tree: GPU processes below the shell, launcher or container that started them"),
    ("k, T or F9; K; I", "send SIGTERM, SIGKILL or SIGINT to the chosen process, after a confirmation"),
    ("i", "hide or show MIG instances"),
    ("space", "stop updating, and continue"),
    ("r, ctrl-r, F5", "read now, without waiting for the next interval"),
    ("n", "notes: problems of GPUs and what to do, what the numbers are based on, and what is missing"),
    ("?", "this help"),
    ("q, F10, ctrl-c", "quit"),
)
GLOSSARY: Sequence[Fact] = (
    ("active", "an engine was active in the last interval"),
    ("HELD", "allocated, or with processes on it, but no engine is active"),
    ("idle", "neither allocated nor used by a process"),
    ("DOWN", "does not answer, is lost, or requires a reset; OWNER says why"),
    ("PROBLEM", "the worst problem of the GPU: its last Xid, throttling, a slow link, memory; n: all"),
    ("unknown", "the driver does not report whether an engine is active"),
    ("-", "not reported by the driver; not zero"),
    ("*** in a command", "an argument that looks like a secret; not shown"),
    ("watts, joules", "of a process: its share of the GPU's energy counter, as booked in the ledger"),
)


class FactScreen(ModalScreen[None]):
    """Facts in two columns; esc, q, enter, ? and n close it."""

    DEFAULT_CSS = """
    FactScreen { align: center middle; background: transparent; }
    FactScreen > VerticalScroll {
        width: 90%; max-width: 100; height: auto; max-height: 90%;
        border: round ansi_default; padding: 0 1; background: ansi_default;
    }
    FactScreen Static { width: 100%; height: auto; background: ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark,n", "leave", show=False),
        Binding("up", "scroll(-1)", show=False),
        Binding("down", "scroll(1)", show=False),
    ]

    def __init__(self, title: str, facts: Sequence[Fact]) -> None:
        super().__init__()
        self._title, self.facts = title, facts

    def compose(self) -> ComposeResult:
        """One text in a scrolling box."""
        with VerticalScroll() as box:
            box.border_title = self._title
            box.border_subtitle = "esc"
            yield Static(self._text(), id="facts", markup=False)

    def _text(self) -> RenderableType:
        table = RichTable.grid(padding=(0, 2))
        for name, text in self.facts:
            table.add_row(Text(name, style("bold")), Text(text, overflow="fold"))
        return table

    def action_leave(self) -> None:
        """Return to the tables."""
        self.dismiss()

    def action_scroll(self, lines: int) -> None:
        """Scroll up or down."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)


class ProcessScreen(FactScreen):
    """The details of one process, followed across snapshots; kept when the process has ended."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(keys, f"app.signal('{name}')", show=False) for keys, name in SIGNAL_KEYS
    ]

    def __init__(
        self,
        row: ProcessRow,
        snapshot: NodeSnapshot,
        more: Callable[[ProcessRow], Sequence[Fact]] = lambda _: (),
    ) -> None:
        """`more` returns further facts about a process."""
        title = "several processes" if row.pid is None else f"process {row.pid}"
        super().__init__(title, [*process_facts(row, snapshot), *more(row)])
        self.row, self._more = row, more

    def update_from(self, snapshot: NodeSnapshot) -> None:
        """Show the values of this snapshot."""
        now = next((row for row in snapshot.processes if row.key == self.row.key), None)
        self.row = now or self.row
        ended = [] if now is not None else [("state", "has ended; these are its last values")]
        self.facts = [*ended, *process_facts(self.row, snapshot), *self._more(self.row)]
        if self.is_mounted:
            self.query_one("#facts", Static).update(self._text())

"""What lies over the tables for a while: details, help, notes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar

from rich.table import Table as RichTable
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from gpuledger.terminal import figures
from gpuledger.terminal.palette import style
from gpuledger.terminal.picture import DeviceRow, Picture, ProcessRow
from gpuledger.workloads.checks import REASONS

Fact = tuple[str, str]

_JOULES_PER_WH = 3600


def facts_of_process(row: ProcessRow, picture: Picture) -> list[Fact]:
    """Name and text; what is not known is not listed, but for quantities, where that is news."""
    device = next(
        (one for one in picture.devices if (one.uuid, one.instance) == (row.uuid, row.instance)), None
    )
    owner = row.owner
    names = [
        ("kind of owner", owner.kind),
        ("namespace", owner.namespace),
        ("pod", owner.pod),
        ("container", owner.container),
        ("job", owner.job),
        ("user", owner.user),
    ]
    return [
        ("command", row.command or figures.ABSENT),
        ("pid", figures.count(row.pid)),
        ("on", _where(row, device)),
        *((name, text) for name, text in names if text),
        *_unresolved(row),
        ("type", row.types or figures.ABSENT),
        ("memory", _memory(row, device)),
        ("SM", figures.share(row.sm)),
        ("memory bandwidth", figures.share(row.bandwidth)),
        ("power", _watts(row.watts)),
        ("energy", _energy(row.joules)),
        ("measured", _energy(row.measured)),
        ("apportioned", _energy(_difference(row.joules, row.measured))),
        ("began", _began(row, picture.unix)),
    ]


def _where(row: ProcessRow, device: DeviceRow | None) -> str:
    named = "" if device is None else f", {device.name}" + (f" ({device.profile})" if device.profile else "")
    return f"GPU {row.place}{named}, {row.uuid}"


def _unresolved(row: ProcessRow) -> list[Fact]:
    if not row.unresolved:
        return []
    why, remedy = REASONS.get(row.unresolved, ("without an owner", "see gpuledger doctor"))
    return [("owner missing", f"a process {why} ({row.unresolved}): {remedy}")]


def _memory(row: ProcessRow, device: DeviceRow | None) -> str:
    told = figures.size(row.memory)
    total = None if device is None else device.memory_total
    if row.memory is None or not total:
        return told
    return f"{told} of {figures.size(total)} ({figures.share(row.memory / total)})"


def _watts(number: float | None) -> str:
    return figures.ABSENT if number is None else f"{figures.watts(number)} W"


def _energy(number: float | None) -> str:
    if number is None:
        return figures.ABSENT
    hours = number / _JOULES_PER_WH
    return f"{figures.joules(number)} ({hours:,.2f} Wh)" if hours >= 0.01 else figures.joules(number)


def _difference(whole: float | None, part: float | None) -> float | None:
    return None if whole is None or part is None else max(0.0, whole - part)


def _began(row: ProcessRow, now: float) -> str:
    if row.start is None:
        return figures.ABSENT
    at = datetime.fromtimestamp(row.start).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    lasting = figures.lasting(now - row.start)
    return f"{at}, {lasting} ago" if row.exact else f"before {at}: first seen {lasting} ago"


HELP: Sequence[Fact] = (
    ("arrows, page up/down", "move the cursor; it stays on its process whatever the order becomes"),
    ("enter", "details of the process; in the table of GPUs: this GPU alone, and again: all"),
    ("tab", "to the other table"),
    ("0 to 9", "this GPU alone; the same again, or esc: all"),
    ("/", "filter: all these words; !word: without it; user: ns: pod: container: job: command: pid: gpu:"),
    ("esc", "no filter, all GPUs, no cursor"),
    ("g p o c m s w j a", "sort by the column that begins so; again: the other way"),
    ("< and >", "sort by the column to the left, to the right"),
    ("i", "MIG instances folded away, or shown"),
    ("space", "stop the picture, and go on"),
    ("r", "read now, without waiting for the next time"),
    ("n", "what the numbers rest on, and what is missing"),
    ("?", "this"),
    ("q, ctrl-c", "leave"),
)
MEANING: Sequence[Fact] = (
    ("active", "an engine worked in the last interval"),
    ("HELD", "handed out, or with processes on it, and no engine works"),
    ("idle", "nobody has it"),
    ("unknown", "whether an engine works is not told"),
    ("-", "not told by the driver, which is not zero"),
    ("watts, joules", "of a process: what was booked to it of the GPU's own energy counter"),
)


class Sheet(ModalScreen[None]):
    """Facts in two columns, to be read and left with any of esc, q and enter."""

    DEFAULT_CSS = """
    Sheet { align: center middle; background: transparent; }
    Sheet > VerticalScroll {
        width: 90%; max-width: 100; height: auto; max-height: 90%;
        border: round ansi_default; padding: 0 1; background: ansi_default;
    }
    Sheet Static { width: 100%; height: auto; background: ansi_default; }
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
        """One text, scrolled where it is longer than the screen."""
        with VerticalScroll() as box:
            box.border_title = self._title
            box.border_subtitle = "esc"
            yield Static(self._text(), id="facts", markup=False)

    def families(self, title: str, facts: Sequence[Fact]) -> None:
        """Other facts, as of the next picture."""
        self._title, self.facts = title, facts
        if self.is_mounted:
            self.query_one(VerticalScroll).border_title = title
            self.query_one("#facts", Static).update(self._text())

    def _text(self) -> RichTable:
        table = RichTable.grid(padding=(0, 2))
        for name, told in self.facts:
            table.add_row(Text(name, style("bold")), Text(told, overflow="fold"))
        return table

    def action_leave(self) -> None:
        """Back to the tables."""
        self.dismiss()

    def action_scroll(self, lines: int) -> None:
        """Up or down."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

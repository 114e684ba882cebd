"""The screens for processes of this machine: their tree, and the confirmation of a signal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Static

from gpuledger.terminal.header import TextLines
from gpuledger.terminal.layout import Glyphs, Line
from gpuledger.terminal.local_processes import SIGNALS, LocalProcesses, ProcessId
from gpuledger.terminal.palette import style
from gpuledger.terminal.process_forest import TreeRow, build_forest, forest_columns
from gpuledger.terminal.screens import SIGNAL_KEYS, Fact, FactScreen
from gpuledger.terminal.snapshot import NodeSnapshot, ProcessRow
from gpuledger.terminal.table import Table


class TreeScreen(ModalScreen[None]):
    """The GPU processes below their parents, followed across snapshots."""

    DEFAULT_CSS = """
    TreeScreen { background: ansi_default; layout: vertical; }
    TreeScreen Table { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,t", "leave", show=False),
        Binding("question_mark,h,f1", "app.help", show=False),
        *(Binding(keys, f"app.signal('{name}')", show=False) for keys, name in SIGNAL_KEYS),
    ]

    def __init__(
        self,
        local: LocalProcesses,
        command_line: Callable[[ProcessId], str],
        choose: Callable[[NodeSnapshot], list[ProcessRow]],
        glyphs: Glyphs,
        *,
        colored: bool,
    ) -> None:
        """`command_line` returns what is known now; `choose` returns the processes that are shown."""
        super().__init__()
        self._local, self._command_line, self._choose, self._glyphs = local, command_line, choose, glyphs
        self.caption, self.keys = (
            TextLines(name, glyphs, colored=colored) for name in ("tree-caption", "tree-keys")
        )
        self.tree_table = Table[TreeRow](lambda row: row.key, glyphs, "tree", colored=colored)

    def compose(self) -> ComposeResult:
        """Caption, processes, keys."""
        yield from (self.caption, self.tree_table, self.keys)

    def on_mount(self) -> None:
        """Show the keys."""
        self.tree_table.focus()
        self.keys.show([_tree_keys()])

    @property
    def current(self) -> TreeRow | None:
        """The process that the user chose."""
        return self.tree_table.chosen

    @property
    def identities(self) -> list[ProcessId]:
        """The processes that are shown."""
        return [row.identity for row in self.tree_table.rows if row.identity is not None]

    def update_from(self, snapshot: NodeSnapshot) -> None:
        """Show the processes of this snapshot."""
        rows = build_forest(self._choose(snapshot), self._local, self._glyphs)
        self.tree_table.show(rows, forest_columns(snapshot.unix, self._line_of), faded=False)
        self.caption.show([_tree_caption(rows)])

    def _line_of(self, row: TreeRow) -> str:
        return "" if row.identity is None else self._command_line(row.identity)

    def action_leave(self) -> None:
        """Return to the tables."""
        self.dismiss()


def _tree_caption(rows: Sequence[TreeRow]) -> Line:
    using = sum(bool(row.rows) for row in rows)
    word = "process uses" if using == 1 else "processes use"
    return ((f"{using} {word} a GPU", "bold"), (", shown below the processes that started them", "dim"))


def _tree_keys() -> Line:
    pairs = (("t", "tables"), ("enter", "details"), ("k", "TERM"), ("K", "KILL"), ("I", "INT"), ("?", "help"))
    return tuple(part for key, word in pairs for part in ((key, "key"), (f" {word}  ", "")))


class SignalScreen(FactScreen):
    """The question whether to send a signal; `send` is called with its name after the confirmation.

    A process of another user, which only root can signal, is confirmed by typing its pid.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "send", show=False),
        *(Binding(keys, f"choose('{name}')", show=False) for keys, name in SIGNAL_KEYS),
    ]

    def __init__(
        self,
        name: str,
        pid: int,
        facts: Sequence[Fact],
        send: Callable[[str], object],
        foreign_user: str = "",
    ) -> None:
        """`foreign_user` is the user of the process if root signals another user's."""
        self._signal, self._pid, self._send, self._foreign = name, pid, send, foreign_user
        self._typed = ""
        super().__init__("send a signal", facts)

    def _text(self) -> RenderableType:
        question = Text.assemble((f"Send SIG{self._signal}", style("bold")), f" to process {self._pid}?")
        question.append(f" {self._signal} {SIGNALS[self._signal]}.", style("dim"))
        parts: list[RenderableType] = [question, Text(""), super()._text(), Text("")]
        if self._foreign:
            warning = f" You are root: this process belongs to {self._foreign}. "
            parts = [Text(warning, style("down")), Text(""), *parts]
            parts.append(Text(f"Type the pid {self._pid} and press enter to send: {self._typed}_"))
        else:
            parts.append(Text.assemble(("y", style("key")), " send    ", ("esc", style("key")), " cancel"))
        keys = Text("another signal: ", style("dim"))
        for key, name in (("T", "TERM"), ("K", "KILL"), ("I", "INT")):
            keys.append(key, style("key")).append(f" {name}  ")
        return Group(*parts, keys)

    def _redraw(self) -> None:
        self.query_one("#facts", Static).update(self._text())

    def on_key(self, event: Key) -> None:
        """Collect the digits of the pid up to enter.

        Enter has no binding: the application runs those after this screen has received the next keys.
        """
        if event.key == "enter":
            event.stop()
            self._submit()
        elif self._foreign and (event.key.isdecimal() or event.key == "backspace"):
            self._typed = self._typed[:-1] if event.key == "backspace" else (self._typed + event.key)[-10:]
            self._redraw()

    def action_choose(self, name: str) -> None:
        """Send this signal instead."""
        self._signal = name
        self._redraw()

    def action_send(self) -> None:
        """Send it, unless the pid must be typed."""
        if not self._foreign:
            self._confirm()

    def _submit(self) -> None:
        """Send it if the pid was typed; a pid that is wrong is typed again."""
        if not self._foreign:
            self.dismiss()
        elif self._typed == str(self._pid):
            self._confirm()
        else:
            self._typed = ""
            self._redraw()

    def _confirm(self) -> None:
        self.dismiss()
        self._send(self._signal)

"""What `top` does with processes of this machine: reads command lines, shows the tree, sends signals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from textual.app import App

from gpuledger.host.process_tree import OsProcess
from gpuledger.model.errors import GpuledgerError
from gpuledger.terminal import number_format
from gpuledger.terminal.layout import Glyphs
from gpuledger.terminal.local_processes import CommandLineReader, LocalProcesses, ProcessId
from gpuledger.terminal.process_forest import TreeRow
from gpuledger.terminal.process_screens import SignalScreen, TreeScreen
from gpuledger.terminal.screens import Fact, FactScreen, ProcessScreen, started_text
from gpuledger.terminal.snapshot import NodeSnapshot, ProcessRow, printable_name

_ELSEWHERE = "only for processes of this machine: run gpuledger top there, without --url"
_NO_GPU = "no GPU; it started processes that use one"
_MESSAGE_SECONDS = 8.0
_LONGEST_COMMAND = 240


class ProcessActions:
    """The actions on local processes; each explains why it is impossible if the processes are elsewhere.

    The methods are called in the app's thread.
    """

    def __init__(
        self,
        app: App[Any],
        local: LocalProcesses | None,
        glyphs: Glyphs,
        on_read: Callable[[], object],
    ) -> None:
        """`on_read` is called, in any thread, when further command lines are known."""
        self._app, self._local, self._glyphs = app, local, glyphs
        self._lines = CommandLineReader((lambda _: "") if local is None else local.command_line, on_read)
        self._snapshot: NodeSnapshot | None = None

    def with_command_lines(self, snapshot: NodeSnapshot) -> NodeSnapshot:
        """The snapshot with the command lines that have been read; those of new processes are requested."""
        if self._local is None:
            return snapshot
        shown = [(row, self._local.identify(row.pid, row.start_unix)) for row in snapshot.processes]
        trees = (screen for screen in self._app.screen_stack if isinstance(screen, TreeScreen))
        parents = (process for screen in trees for process in screen.identities)
        self._lines.request(dict.fromkeys([*(process for _, process in shown if process), *parents]))
        self._snapshot = replace(
            snapshot,
            processes=tuple(
                replace(row, command_line=self._lines.get(process)) if process else row
                for row, process in shown
            ),
        )
        return self._snapshot

    @property
    def possible(self) -> bool:
        """Whether the processes are of this machine."""
        return self._local is not None

    def facts_of(self, row: ProcessRow) -> list[Fact]:
        """What started the process of this row, the nearest parent first."""
        return self._parents(None if self._local is None else self._local.identify(row.pid, row.start_unix))

    def _parents(self, wanted: ProcessId | None) -> list[Fact]:
        process = None if self._local is None or wanted is None else self._local.find(wanted)
        if self._local is None or process is None:
            return []
        parents = [f"{printable_name(one.name)} ({one.pid})" for one in self._local.tree.ancestors(process)]
        return [("started by", ", by ".join(parents))] if parents else []

    def open_tree(self, choose: Callable[[NodeSnapshot], list[ProcessRow]]) -> None:
        """Show the tree of the processes that `choose` returns for a snapshot."""
        if self._local is None:
            self._say(f"The process tree is {_ELSEWHERE}.", failed=True)
            return
        colored = not self._app.no_color
        self._app.push_screen(TreeScreen(self._local, self._lines.get, choose, self._glyphs, colored=colored))

    def open_details(self, row: TreeRow, snapshot: NodeSnapshot) -> None:
        """Show the details of a process of the tree."""
        if row.rows:
            self._app.push_screen(ProcessScreen(row.rows[0], snapshot, self.facts_of))
            return
        line = "" if row.identity is None else self._lines.get(row.identity)
        facts = [("command", line or row.name), ("user", row.user or number_format.ABSENT), ("on", _NO_GPU)]
        self._app.push_screen(FactScreen(f"process {row.pid}", [*facts, *self._parents(row.identity)]))

    def ask_for_signal(self, name: str, row: ProcessRow | None) -> None:
        """Ask whether to send this signal to the process of the open screen, else of this row."""
        try:
            self._ask(name, row)
        except GpuledgerError as error:
            self._say(str(error), failed=True)

    def _ask(self, name: str, row: ProcessRow | None) -> None:
        if self._local is None:
            raise GpuledgerError(f"Signals are {_ELSEWHERE}.")
        local, screen = self._local, self._app.screen
        if isinstance(screen, TreeScreen):
            chosen = screen.current
            pid, rows = (chosen.pid, chosen.rows) if chosen else (None, ())
            wanted = chosen.identity if chosen else None
        else:
            row = screen.row if isinstance(screen, ProcessScreen) else row
            pid, rows = (row.pid, (row,)) if row else (None, ())
            wanted = local.identify(row.pid, row.start_unix) if row else None
        if pid is None:
            raise GpuledgerError(
                "Choose a process with the arrow keys; one that was chosen before may have ended."
            )
        process = local.find(wanted) if wanted else None
        if wanted is None or process is None:
            raise GpuledgerError(f"Process {pid} has ended, or its start is unknown; no signal was sent.")
        local.check_signal(process)
        foreign = "" if local.is_own(process) else local.user_of(process) or "another user"
        facts = self._target_facts(process, wanted, rows)
        if isinstance(screen, ProcessScreen):
            self._app.pop_screen()
        self._app.push_screen(
            SignalScreen(name, wanted.pid, facts, lambda name: self._send(wanted, name), foreign)
        )

    def _target_facts(self, process: OsProcess, wanted: ProcessId, rows: Sequence[ProcessRow]) -> list[Fact]:
        """Facts by which the user recognizes the process."""
        command = self._lines.get(wanted) or (rows[0].command if rows else printable_name(process.name))
        # The question below it must be visible.
        shown = (
            command if len(command) <= _LONGEST_COMMAND else command[:_LONGEST_COMMAND] + self._glyphs.more
        )
        facts = [("command", shown)]
        user = "" if self._local is None else self._local.user_of(process)
        owner = rows[0].owner.text if rows else ""
        facts += [("user", printable_name(user))] if user else []
        facts += [("owner", owner)] if owner not in ("", user) else []
        if not rows or self._snapshot is None:
            return [*facts, ("on", _NO_GPU)]
        same = [row for row in self._snapshot.processes if row.pid == process.pid] or rows
        places = ", ".join(dict.fromkeys(row.place for row in same))
        memory = "; ".join(number_format.size(row.memory_bytes) for row in same)
        return [
            *facts,
            ("on", f"GPU {places}"),
            ("memory", memory),
            ("started", started_text(rows[0], self._snapshot.unix)),
        ]

    def _send(self, wanted: ProcessId, name: str) -> None:
        if self._local is None:
            return
        try:
            self._local.send_signal(wanted, name)
        except GpuledgerError as error:
            self._say(str(error), failed=True)
        else:
            self._say(f"SIG{name} was sent to process {wanted.pid}.", failed=False)

    def _say(self, message: str, *, failed: bool) -> None:
        self._app.notify(
            message, severity="error" if failed else "information", timeout=_MESSAGE_SECONDS, markup=False
        )

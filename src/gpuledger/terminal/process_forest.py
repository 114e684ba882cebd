"""The tree of GPU processes: each below its parents, which are shown as context."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gpuledger.host.process_tree import OsProcess
from gpuledger.terminal import number_format as numbers
from gpuledger.terminal.layout import Glyphs, Line, TableColumn, text_cell
from gpuledger.terminal.local_processes import LocalProcesses, ProcessId
from gpuledger.terminal.snapshot import ProcessRow, printable_name

_WIDEST_INDENT = 80


@dataclass(slots=True)
class _Node:
    """A process, its rows on GPUs (none: only a parent of GPU processes), and its children."""

    process: OsProcess | None
    rows: list[ProcessRow] = field(default_factory=list)
    children: list[_Node] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A line of the tree. `branches` is drawn before the command.

    `identity` is None for a process with an unknown start; `rows` has one row per GPU that it uses, and is
    empty for a parent that uses none.
    """

    pid: int
    identity: ProcessId | None
    branches: str
    name: str
    user: str
    rows: tuple[ProcessRow, ...] = ()

    @property
    def key(self) -> tuple[int, ProcessId | None]:
        """Identifies the process across snapshots."""
        return (self.pid, self.identity)


def build_forest(rows: Iterable[ProcessRow], local: LocalProcesses, glyphs: Glyphs) -> list[TreeRow]:
    """The processes of these rows below their parents, in the order of the rows."""
    nodes: dict[int, _Node] = {}
    roots: list[_Node] = []
    for row in rows:
        if row.pid is not None:
            node = nodes.get(row.pid)
            if node is None:
                wanted = local.identify(row.pid, row.start_unix)
                node = _plant(row.pid, local.find(wanted) if wanted else None, nodes, roots, local)
            node.rows.append(row)
    return list(_lines(roots, local, glyphs))


def _plant(
    pid: int, process: OsProcess | None, nodes: dict[int, _Node], roots: list[_Node], local: LocalProcesses
) -> _Node:
    """Add a process, and those of its parents that are not in the tree."""
    node = nodes[pid] = _Node(process)
    child = node
    for parent in local.tree.ancestors(process) if process is not None else ():
        known = nodes.get(parent.pid)
        if known is not None:
            known.children.append(child)
            return node
        above = nodes[parent.pid] = _Node(parent, children=[child])
        child = above
    roots.append(child)
    return node


def _lines(roots: list[_Node], local: LocalProcesses, glyphs: Glyphs) -> Iterator[TreeRow]:
    # Not recursive, because of deep trees. The texts are drawn before a node and before its children.
    waiting = [(root, "", "") for root in reversed(roots)]
    while waiting:
        node, first, rest = waiting.pop()
        yield _line(node, first, local)
        for child in reversed(node.children):
            last = child is node.children[-1]
            branch, below = (glyphs.branch, " ") if last else (glyphs.fork, glyphs.trunk)
            # Deeper processes are not indented further: a user decides how deep the tree is.
            indent = rest[:_WIDEST_INDENT]
            waiting.append((child, f"{indent}{branch} ", f"{indent}{below} "))


def _line(node: _Node, branches: str, local: LocalProcesses) -> TreeRow:
    process, rows = node.process, tuple(node.rows)
    if process is None:
        return TreeRow(rows[0].pid or 0, None, branches, rows[0].command, rows[0].owner.user, rows)
    name = rows[0].command if rows else printable_name(process.name)
    user = printable_name(local.user_of(process))
    return TreeRow(process.pid, ProcessId(process.pid, process.ticks), branches, name, user, rows)


def forest_columns(now: float, command_line: Callable[[TreeRow], str]) -> Sequence[TableColumn[TreeRow]]:
    """The columns of the tree. Parents that use no GPU are dimmed. `now` is the node's unix time."""

    def cell(
        key: str, heading: str, least: int, rank: int, text: Callable[[TreeRow], str]
    ) -> TableColumn[TreeRow]:
        return TableColumn(
            key, heading, least, rank, lambda row: text_cell(text(row)) if row.rows else (), right=True
        )

    def total(row: TreeRow, value: Callable[[ProcessRow], float | None]) -> float | None:
        values = [value(one) for one in row.rows]
        return None if None in values else sum(part for part in values if part is not None)

    def command(row: TreeRow) -> Line:
        text = command_line(row) or row.name
        return ((row.branches, "dim"), (text, "" if row.rows else "dim"))

    def age(row: TreeRow) -> str:
        start = row.rows[0].start_unix
        return numbers.lasting(None if start is None else now - start, exact=row.rows[0].start_exact)

    def context(text: str, row: TreeRow) -> Line:
        return ((text, "" if row.rows else "dim"),)

    return (
        TableColumn("pid", "PID", 5, 0, lambda row: context(str(row.pid), row), right=True, flexible=True),
        TableColumn(
            "user", "USER", 8, 3, lambda row: context(row.user or numbers.ABSENT, row), flexible=True, most=16
        ),
        TableColumn("gpu", "GPU", 5, 1, lambda row: context(_places(row), row), flexible=True, most=16),
        cell("memory", "MEM", 5, 4, lambda row: numbers.size(total(row, lambda one: one.memory_bytes))),
        cell("watts", "WATTS", 6, 5, lambda row: numbers.watts(total(row, lambda one: one.power_watts))),
        cell("age", "AGE", 6, 6, age),
        TableColumn("command", "COMMAND", 12, 2, command, flexible=True, most=1000),
    )


def _places(row: TreeRow) -> str:
    return ",".join(dict.fromkeys(one.place for one in row.rows))

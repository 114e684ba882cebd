"""The columns of the tables of GPUs and processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from gpuledger.model.devices import partition_word
from gpuledger.terminal import number_format as numbers
from gpuledger.terminal.layout import Glyphs, Line, TableColumn, ratio, text_cell, width_of
from gpuledger.terminal.snapshot import DeviceRow, ProcessRow
from gpuledger.terminal.sort_order import SortOrder

R = TypeVar("R")
_BAR = 6
# The widest problem that is not truncated for other columns.
_PROBLEM = 20
_KNOWN = ("active", "idle", "unknown")


def _text(
    key: str, heading: str, least: int, rank: int, text: Callable[[R], str], **options: Any
) -> TableColumn[R]:
    return TableColumn(key, heading, least, rank, lambda row: text_cell(text(row)), **options)


def _number(
    key: str, heading: str, least: int, rank: int, text: Callable[[R], str], *, extra: bool = False
) -> TableColumn[R]:
    return _text(key, heading, least, rank, text, right=True, extra=extra)


def device_columns(glyphs: Glyphs, rows: Iterable[DeviceRow]) -> Sequence[TableColumn[DeviceRow]]:
    """The columns of the table of GPUs, from left to right. Without problems there is no column for them."""

    def bar(key: str, rank: int, part: Callable[[DeviceRow], float | None]) -> TableColumn[DeviceRow]:
        def drawn(row: DeviceRow) -> Line:
            filled, rest = numbers.bar_parts(part(row), _BAR, full=glyphs.full, rest=glyphs.rest)
            return ((filled, "bar"), (rest, "dim"))

        return TableColumn(key, "", _BAR, rank, drawn, extra=key == "memory_bar")

    def memory(row: DeviceRow) -> str:
        if row.memory_shared_with:
            return f"in {row.memory_shared_with}"
        return numbers.sizes(row.memory_used_bytes, row.memory_total_bytes)

    longest = max((width_of(problem_cell(row, glyphs)) for row in rows), default=0)
    problem: TableColumn[DeviceRow] = TableColumn(
        "problem",
        "PROBLEM",
        max(len("PROBLEM"), min(_PROBLEM, longest)),
        1,
        lambda row: problem_cell(row, glyphs),
        flexible=True,
    )
    return (
        TableColumn("gpu", "GPU", 5, 0, lambda row: _place(row, glyphs), flexible=True),
        TableColumn("name", "NAME", 12, 9, _name, flexible=True, extra=True),
        TableColumn("state", "STATE", 9, 1, lambda row: state_cell(row, glyphs)),
        *((problem,) if longest else ()),
        _number("util", "UTIL", 4, 2, lambda row: numbers.share(row.utilization_ratio)),
        bar("bar", 6, lambda row: row.utilization_ratio),
        _number("memory", "MEMORY", 10, 3, memory),
        bar("memory_bar", 11, lambda row: ratio(row.memory_used_bytes, row.memory_total_bytes)),
        _number("power", "POWER", 8, 4, lambda row: numbers.power(row.power_watts, row.power_limit_watts)),
        _number("temperature", "TEMP", 4, 7, lambda row: numbers.degrees(row.temperature_celsius)),
        _number("processes", "PROC", 4, 8, lambda row: numbers.count(row.processes), extra=True),
        _number("joules", "ENERGY", 7, 10, lambda row: numbers.joules(row.energy_joules), extra=True),
        TableColumn("owner", "OWNER", 14, 5, owner_cell, flexible=True, most=80),
    )


def state_cell(row: DeviceRow, glyphs: Glyphs) -> Line:
    """A symbol and a word; a GPU that is partitioned into instances has no state."""
    if not row.up:
        return ((f"{glyphs.down} DOWN", "down"),)
    if not row.state:
        return text_cell("") if row.holds_processes else ((partition_word(row.vendor), "dim"),)
    if row.state == "held":
        return ((f"{glyphs.held} HELD", "held"),)
    known = row.state if row.state in _KNOWN else "unknown"
    return ((getattr(glyphs, known), known), (f" {row.state}", ""))


def problem_cell(row: DeviceRow, glyphs: Glyphs) -> Line:
    """The worst problem in a few words, and how many more there are. The state says that a GPU is down."""
    found = [problem for problem in row.serious if problem.kind != "down"]
    if not found:
        return ()
    worst = found[0]
    more = f" +{len(found) - 1}" if len(found) > 1 else ""
    return ((f"{glyphs.degraded} {worst.label}", "down" if worst.level == "failure" else "held"), (more, ""))


def owner_cell(row: DeviceRow) -> Line:
    """The owner of a device, each name once, and its time without use so far; else who reserved it."""
    if not row.up:
        return ((row.down_reason or "does not answer", ""),)
    if not row.holds_processes:
        return (("see its instances", "dim"),)
    names = list(dict.fromkeys(holder.owner.text for holder in row.present if holder.owner.text))
    line: Line
    if names:
        more = f" +{len(names) - 1}" if len(names) > 1 else ""
        line = ((names[0], "owner"), (more, ""))
    elif row.present or row.state in ("active", "held"):
        line = (("unknown owner", "dim"),)
    elif row.reserved_by:
        line = (("reserved by ", "dim"), (row.reserved_by, "owner"))
    else:
        line = (("none", "dim"),) if row.state == "idle" else text_cell("")
    held = [holder.held_seconds for holder in row.present if holder.held_seconds is not None]
    if row.state == "held" and held:
        line = (*line, (f", {numbers.lasting(max(held))} idle", ""))
    return line


def _place(row: DeviceRow, glyphs: Glyphs) -> Line:
    if not row.instance:
        return ((row.gpu, "bold"),)
    return ((f" {glyphs.branch}", "dim"), (row.instance, ""))


def _name(row: DeviceRow) -> Line:
    if row.instance:
        return ((f"{partition_word(row.vendor)} {row.profile}".rstrip(), ""),)
    return text_cell(row.name.removeprefix("NVIDIA "))


def process_columns(glyphs: Glyphs, order: SortOrder, now: float) -> Sequence[TableColumn[ProcessRow]]:
    """The columns of the table of processes, from left to right; an arrow marks the sort column.

    `now` is the node's unix time.
    """

    def age(row: ProcessRow) -> str:
        seconds = None if row.start_unix is None else now - row.start_unix
        return numbers.lasting(seconds, exact=row.start_exact)

    def bandwidth(row: ProcessRow) -> str:
        return numbers.share(row.memory_bandwidth_ratio)

    def measured(row: ProcessRow) -> str:
        return numbers.share(ratio(row.measured_joules, row.joules))

    columns: Sequence[TableColumn[ProcessRow]] = (
        _text("gpu", "GPU", 5, 0, lambda row: row.place, flexible=True),
        _text("pid", "PID", 5, 1, lambda row: numbers.count(row.pid), right=True, flexible=True),
        _text("user", "USER", 8, 11, lambda row: row.owner.user, flexible=True, extra=True),
        TableColumn("owner", "OWNER", 12, 2, _owner, flexible=True, most=80),
        _text("container", "CONTAINER", 9, 12, lambda row: row.owner.container, flexible=True, extra=True),
        TableColumn("command", "COMMAND", 9, 3, _command_line, flexible=True, short=_command),
        _text("types", "TYPE", 4, 13, lambda row: row.types, flexible=True, extra=True),
        _number("memory", "MEM", 5, 4, lambda row: numbers.size(row.memory_bytes)),
        _number("sm", "SM", 4, 6, lambda row: numbers.share(row.sm_ratio)),
        _number("bandwidth", "MEMBW", 5, 14, bandwidth, extra=True),
        _number("watts", "WATTS", 6, 5, lambda row: numbers.watts(row.power_watts)),
        _number("joules", "JOULES", 7, 7, lambda row: numbers.joules(row.joules)),
        _number("measured", "MEASURED", 8, 15, measured, extra=True),
        _number("age", "AGE", 6, 8, age),
    )
    arrow = sort_arrow(order, glyphs)
    return [
        replace(column, heading=column.heading + arrow) if column.key == order.by else column
        for column in columns
    ]


def sort_arrow(order: SortOrder, glyphs: Glyphs) -> str:
    """Down when the largest value comes first. Ages are sorted by start time: the oldest started first."""
    return glyphs.falling if order.falling != (order.by == "age") else glyphs.rising


def _owner(row: ProcessRow) -> Line:
    if row.owner.text:
        return ((row.owner.text, "owner"),)
    return ((f"({row.unresolved})" if row.unresolved else numbers.ABSENT, "dim"),)


def _command_line(row: ProcessRow) -> Line:
    return text_cell(row.command_line) if row.command_line else _command(row)


def _command(row: ProcessRow) -> Line:
    return text_cell(row.command) if row.count is None else ((f"{row.count} more", "dim"),)

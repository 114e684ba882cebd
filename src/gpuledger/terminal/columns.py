"""The columns of the tables of GPUs and processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuledger.terminal import number_format
from gpuledger.terminal.layout import Glyphs, Line, TableColumn, ratio, text_cell
from gpuledger.terminal.snapshot import DeviceRow, ProcessRow
from gpuledger.terminal.sort_order import SortOrder

_BAR = 6
_KNOWN = ("active", "idle", "unknown")


def device_columns(glyphs: Glyphs) -> Sequence[TableColumn[DeviceRow]]:
    """The columns of the table of GPUs, from left to right."""

    def number(
        key: str,
        heading: str,
        least: int,
        rank: int,
        text: Callable[[DeviceRow], str],
        *,
        extra: bool = False,
    ) -> TableColumn[DeviceRow]:
        return TableColumn(
            key, heading, least, rank, lambda row: text_cell(text(row)), right=True, extra=extra
        )

    def bar(key: str, rank: int, share: Callable[[DeviceRow], float | None]) -> TableColumn[DeviceRow]:
        def drawn(row: DeviceRow) -> Line:
            filled, rest = number_format.bar(share(row), _BAR, full=glyphs.full, rest=glyphs.rest)
            return ((filled, "bar"), (rest, "dim"))

        return TableColumn(key, "", _BAR, rank, drawn, extra=key == "memory_bar")

    return (
        TableColumn("gpu", "GPU", 5, 0, lambda row: _place(row, glyphs), flexible=True),
        TableColumn("name", "NAME", 12, 9, _name, flexible=True, extra=True),
        TableColumn("state", "STATE", 9, 1, lambda row: state_cell(row, glyphs)),
        number("util", "UTIL", 4, 2, lambda row: number_format.share(row.utilization)),
        bar("bar", 6, lambda row: row.utilization),
        number("memory", "MEMORY", 10, 3, lambda row: number_format.sizes(row.memory_used, row.memory_total)),
        bar("memory_bar", 11, lambda row: ratio(row.memory_used, row.memory_total)),
        number("power", "POWER", 8, 4, lambda row: number_format.power(row.power, row.power_limit)),
        number("temperature", "TEMP", 4, 7, lambda row: number_format.degrees(row.temperature)),
        number("processes", "PROC", 4, 8, lambda row: number_format.count(row.processes), extra=True),
        number("joules", "ENERGY", 7, 10, lambda row: number_format.joules(row.joules), extra=True),
        TableColumn("owner", "OWNER", 14, 5, owner_cell, flexible=True, most=80),
    )


def state_cell(row: DeviceRow, glyphs: Glyphs) -> Line:
    """A symbol and a word; a GPU that is partitioned into MIG instances has no state."""
    if not row.up:
        return ((f"{glyphs.lost} LOST", "lost"),)
    if row.state is None:
        return text_cell(number_format.ABSENT) if row.holds else (("MIG", "dim"),)
    if row.state == "held":
        return ((f"{glyphs.held} HELD", "held"),)
    known = row.state in _KNOWN
    sort_arrow = getattr(glyphs, row.state) if known else glyphs.unknown
    return ((sort_arrow, row.state if known else "unknown"), (f" {row.state}", ""))


def owner_cell(row: DeviceRow) -> Line:
    """The owner of a device, each name once, and how long a held device has been held."""
    if not row.up:
        return (("does not answer", ""),)
    if not row.holds:
        return (("see its instances", "dim"),)
    names = list(dict.fromkeys(holder.owner.text for holder in row.present if holder.owner.known))
    line: Line
    if names:
        more = f" +{len(names) - 1}" if len(names) > 1 else ""
        line = ((names[0], "owner"), (more, ""))
    elif row.present or row.state in ("active", "held"):
        line = (("unknown owner", "dim"),)
    else:
        line = (("none", "dim"),) if row.state == "idle" else text_cell(number_format.ABSENT)
    held = max((holder.held for holder in row.present if holder.held is not None), default=None)
    if row.state == "held" and held is not None:
        line = (*line, (f" for {number_format.lasting(held)}", ""))
    return line


def _place(row: DeviceRow, glyphs: Glyphs) -> Line:
    if not row.instance:
        return ((row.gpu, "bold"),)
    return ((f" {glyphs.branch}", "dim"), (row.instance, ""))


def _name(row: DeviceRow) -> Line:
    if row.instance:
        return ((f"MIG {row.profile}".rstrip(), ""),)
    return text_cell(row.name.removeprefix("NVIDIA ") or number_format.ABSENT)


def process_columns(glyphs: Glyphs, order: SortOrder, now: float) -> Sequence[TableColumn[ProcessRow]]:
    """The columns of the table of processes, from left to right; an arrow marks the sort column.

    `now` is the node's unix time.
    """

    def heading(key: str, text: str) -> str:
        return text + sort_arrow(order, glyphs) if key == order.by else text

    def number(
        key: str,
        text: str,
        least: int,
        rank: int,
        text_of: Callable[[ProcessRow], str],
        *,
        extra: bool = False,
    ) -> TableColumn[ProcessRow]:
        head = heading(key, text)
        return TableColumn(
            key, head, least, rank, lambda row: text_cell(text_of(row)), right=True, extra=extra
        )

    def name(
        key: str, text: str, least: int, rank: int, text_of: Callable[[ProcessRow], str]
    ) -> TableColumn[ProcessRow]:
        def cell(row: ProcessRow) -> Line:
            return text_cell(text_of(row) or number_format.ABSENT)

        return TableColumn(key, text, least, rank, cell, flexible=True, extra=True)

    def age(row: ProcessRow) -> str:
        return number_format.lasting(None if row.start is None else now - row.start, exact=row.exact)

    return (
        TableColumn("gpu", heading("gpu", "GPU"), 5, 0, lambda row: text_cell(row.place), flexible=True),
        TableColumn("pid", heading("pid", "PID"), 5, 1, _pid, right=True, flexible=True),
        name("user", "USER", 8, 11, lambda row: row.owner.user),
        TableColumn("owner", heading("owner", "OWNER"), 12, 2, _owner, flexible=True, most=80),
        name("container", "CONTAINER", 9, 12, lambda row: row.owner.container),
        TableColumn("command", heading("command", "COMMAND"), 9, 3, _command, flexible=True),
        name("types", "TYPE", 4, 13, lambda row: row.types),
        number("memory", "MEM", 5, 4, lambda row: number_format.size(row.memory)),
        number("sm", "SM", 4, 6, lambda row: number_format.share(row.sm)),
        number("bandwidth", "MEMBW", 5, 14, lambda row: number_format.share(row.bandwidth), extra=True),
        number("watts", "WATTS", 6, 5, lambda row: number_format.watts(row.watts)),
        number("joules", "JOULES", 7, 7, lambda row: number_format.joules(row.joules)),
        number(
            "measured",
            "MEASURED",
            8,
            15,
            lambda row: number_format.share(ratio(row.measured, row.joules)),
            extra=True,
        ),
        number("age", "AGE", 6, 8, age),
    )


def sort_arrow(order: SortOrder, glyphs: Glyphs) -> str:
    """Down when the largest value comes first. Ages are sorted by start time: the oldest started first."""
    return glyphs.falling if order.falling != (order.by == "age") else glyphs.rising


def _pid(row: ProcessRow) -> Line:
    return text_cell(number_format.count(row.pid))


def _owner(row: ProcessRow) -> Line:
    if row.owner.known:
        return ((row.owner.text, "owner"),)
    return ((f"({row.unresolved})" if row.unresolved else number_format.ABSENT, "dim"),)


def _command(row: ProcessRow) -> Line:
    return (
        text_cell(row.command or number_format.ABSENT)
        if row.count is None
        else ((f"{row.count} more", "dim"),)
    )

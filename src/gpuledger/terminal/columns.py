"""The columns of the table of GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuledger.terminal import figures
from gpuledger.terminal.line import Column, Glyphs, Line, ratio, told
from gpuledger.terminal.order import Order
from gpuledger.terminal.picture import DeviceRow, ProcessRow

_BAR = 6
_KNOWN = ("active", "idle", "unknown")


def device_columns(glyphs: Glyphs) -> Sequence[Column[DeviceRow]]:
    """In the order shown."""

    def number(
        key: str,
        heading: str,
        least: int,
        rank: int,
        text: Callable[[DeviceRow], str],
        *,
        extra: bool = False,
    ) -> Column[DeviceRow]:
        return Column(key, heading, least, rank, lambda row: told(text(row)), right=True, extra=extra)

    def bar(key: str, rank: int, share: Callable[[DeviceRow], float | None]) -> Column[DeviceRow]:
        def drawn(row: DeviceRow) -> Line:
            filled, rest = figures.bar(share(row), _BAR, full=glyphs.full, rest=glyphs.rest)
            return ((filled, "bar"), (rest, "dim"))

        return Column(key, "", _BAR, rank, drawn, extra=key == "memory_bar")

    return (
        Column("gpu", "GPU", 5, 0, lambda row: _place(row, glyphs), flexible=True),
        Column("name", "NAME", 12, 9, _name, flexible=True, extra=True),
        Column("state", "STATE", 9, 1, lambda row: state_of(row, glyphs)),
        number("util", "UTIL", 4, 2, lambda row: figures.share(row.utilization)),
        bar("bar", 6, lambda row: row.utilization),
        number("memory", "MEMORY", 10, 3, lambda row: figures.sizes(row.memory_used, row.memory_total)),
        bar("memory_bar", 11, lambda row: ratio(row.memory_used, row.memory_total)),
        number("power", "POWER", 8, 4, lambda row: figures.power(row.power, row.power_limit)),
        number("temperature", "TEMP", 4, 7, lambda row: figures.degrees(row.temperature)),
        number("processes", "PROC", 4, 8, lambda row: figures.count(row.processes), extra=True),
        number("joules", "ENERGY", 7, 10, lambda row: figures.joules(row.joules), extra=True),
        Column("owner", "WHO", 14, 5, who, flexible=True, most=80),
    )


def state_of(row: DeviceRow, glyphs: Glyphs) -> Line:
    """A sign and a word; a GPU that is cut in instances has no state of its own."""
    if not row.up:
        return ((f"{glyphs.lost} LOST", "lost"),)
    if row.state is None:
        return told(figures.ABSENT) if row.holds else (("MIG", "dim"),)
    if row.state == "held":
        return ((f"{glyphs.held} HELD", "held"),)
    known = row.state in _KNOWN
    sign = getattr(glyphs, row.state) if known else glyphs.unknown
    return ((sign, row.state if known else "unknown"), (f" {row.state}", ""))


def who(row: DeviceRow) -> Line:
    """Who has it, and of a held one for how long it was held. Equal names once."""
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
        line = (("owner not known", "dim"),)
    else:
        line = (("nobody", "dim"),) if row.state == "idle" else told(figures.ABSENT)
    held = max((holder.held for holder in row.present if holder.held is not None), default=None)
    if row.state == "held" and held is not None:
        line = (*line, (f" for {figures.lasting(held)}", ""))
    return line


def _place(row: DeviceRow, glyphs: Glyphs) -> Line:
    if not row.instance:
        return ((row.gpu, "bold"),)
    return ((f" {glyphs.branch}", "dim"), (row.instance, ""))


def _name(row: DeviceRow) -> Line:
    if row.instance:
        return ((f"MIG {row.profile}".rstrip(), ""),)
    return told(row.name.removeprefix("NVIDIA ") or figures.ABSENT)


def process_columns(glyphs: Glyphs, order: Order, now: float) -> Sequence[Column[ProcessRow]]:
    """In the order shown; the one sorted by bears a sign. `now` is the node's unix time."""

    def heading(key: str, text: str) -> str:
        return text + sign(order, glyphs) if key == order.by else text

    def number(
        key: str,
        text: str,
        least: int,
        rank: int,
        tell: Callable[[ProcessRow], str],
        *,
        extra: bool = False,
    ) -> Column[ProcessRow]:
        head = heading(key, text)
        return Column(key, head, least, rank, lambda row: told(tell(row)), right=True, extra=extra)

    def name(
        key: str, text: str, least: int, rank: int, tell: Callable[[ProcessRow], str]
    ) -> Column[ProcessRow]:
        def cell(row: ProcessRow) -> Line:
            return told(tell(row) or figures.ABSENT)

        return Column(key, text, least, rank, cell, flexible=True, extra=True)

    def age(row: ProcessRow) -> str:
        return figures.lasting(None if row.start is None else now - row.start, exact=row.exact)

    return (
        Column("gpu", heading("gpu", "GPU"), 5, 0, lambda row: told(row.place), flexible=True),
        Column("pid", heading("pid", "PID"), 5, 1, _pid, right=True, flexible=True),
        name("user", "USER", 8, 11, lambda row: row.owner.user),
        Column("owner", heading("owner", "OWNER"), 12, 2, _owner, flexible=True, most=80),
        name("container", "CONTAINER", 9, 12, lambda row: row.owner.container),
        Column("command", heading("command", "COMMAND"), 9, 3, _command, flexible=True),
        name("types", "TYPE", 4, 13, lambda row: row.types),
        number("memory", "MEM", 5, 4, lambda row: figures.size(row.memory)),
        number("sm", "SM", 4, 6, lambda row: figures.share(row.sm)),
        number("bandwidth", "MEMBW", 5, 14, lambda row: figures.share(row.bandwidth), extra=True),
        number("watts", "WATTS", 6, 5, lambda row: figures.watts(row.watts)),
        number("joules", "JOULES", 7, 7, lambda row: figures.joules(row.joules)),
        number(
            "measured",
            "MEASURED",
            8,
            15,
            lambda row: figures.share(ratio(row.measured, row.joules)),
            extra=True,
        ),
        number("age", "AGE", 6, 8, age),
    )


def sign(order: Order, glyphs: Glyphs) -> str:
    """Whether the largest comes first. Ages are sorted by the start: the oldest began first."""
    return glyphs.falling if order.falling != (order.by == "age") else glyphs.rising


def _pid(row: ProcessRow) -> Line:
    return told(figures.count(row.pid))


def _owner(row: ProcessRow) -> Line:
    if row.owner.known:
        return ((row.owner.text, "owner"),)
    return ((f"({row.unresolved})" if row.unresolved else figures.ABSENT, "dim"),)


def _command(row: ProcessRow) -> Line:
    return told(row.command or figures.ABSENT) if row.count is None else ((f"{row.count} more", "dim"),)

"""The columns of the table of processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuledger.terminal import figures
from gpuledger.terminal.line import Column, Glyphs, Line, ratio, told
from gpuledger.terminal.order import Order
from gpuledger.terminal.picture import ProcessRow


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

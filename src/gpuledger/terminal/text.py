"""One picture as lines: for `--once`, for pipes, for terminals that can do no more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich.cells import cell_len

from gpuledger.terminal.columns import device_columns, process_columns
from gpuledger.terminal.line import Glyphs, Line, Placed, Span, cut, place, row_line
from gpuledger.terminal.order import KEYS
from gpuledger.terminal.picture import Picture
from gpuledger.terminal.view import Origin, View, banners, caption, empty, notes, title, totals

R = TypeVar("R")
_WIDE = 120


def gap_for(width: int | None) -> int:
    """Cells between columns: where there is room, the eye is given some."""
    return 1 if width is not None and width < _WIDE else 2


def heading(placed: Sequence[Placed[R]], gap: int, *, letters: bool = False, by: str = "") -> Line:
    """The names of the columns. `letters` marks those that are keys, `by` is the column sorted by."""
    spans: list[Span] = []
    for number, item in enumerate(placed):
        if number:
            spans.append((" " * gap, ""))
        column, text = item.column, item.column.heading
        role = "sorted" if column.key == by else "heading"
        pad = (" " * (item.width - cell_len(text)), "")
        cell: list[Span] = [(text, role)]
        if letters and column.key in KEYS and column.key != by:
            cell = [(text[:1], "letter"), (text[1:], role)]
        spans += [pad, *cell] if column.right else [*cell, pad]
    return tuple(spans)


def lines_of(
    picture: Picture,
    view: View,
    origin: Origin,
    clock: str,
    width: int | None,
    glyphs: Glyphs,
    remarks: Iterable[str] = (),
) -> list[Line]:
    """The whole picture, `clock` its time as text, `width` None without end. `remarks` are told under it."""
    gap = gap_for(width)
    devices, processes = view.devices(picture), view.processes(picture)
    lines = [title(picture, origin, clock, glyphs), *banners(picture)]
    if devices:
        placed = place(device_columns(glyphs), devices, width, gap)
        lines += [totals(devices, glyphs), (), heading(placed, gap)]
        lines += [row_line(placed, row, glyphs, gap) for row in devices]
    if processes:
        columns = place(process_columns(glyphs, view.order, picture.unix), processes, width, gap)
        lines += [(), caption(picture, processes, view, glyphs), heading(columns, gap, by=view.order.by)]
        lines += [row_line(columns, row, glyphs, gap) for row in processes]
    else:
        lines += [(), ((empty(picture), ""),)]
    told = [*notes(picture, origin), *remarks]
    lines += [(), *(((note, "dim"),) for note in told)] if told else []
    # A note is read to its end, also where a line has to be broken for it.
    last = len(lines) - len(told)
    return [
        line if width is None or number >= last else cut(line, width, glyphs)
        for number, line in enumerate(lines)
    ]

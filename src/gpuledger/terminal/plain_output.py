"""Renders one snapshot as lines: for `--once`, pipes and dumb terminals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich.cells import cell_len

from gpuledger.terminal.columns import device_columns, process_columns
from gpuledger.terminal.layout import Glyphs, Line, PlacedColumn, Span, place_columns, row_line, truncate_line
from gpuledger.terminal.snapshot import NodeSnapshot
from gpuledger.terminal.sort_order import SORT_KEYS
from gpuledger.terminal.top_view import (
    SnapshotOrigin,
    TopView,
    banner_lines,
    caption_line,
    data_notes,
    no_process_text,
    title_line,
    totals_line,
)

R = TypeVar("R")
_WIDE = 120


def column_gap(width: int | None) -> int:
    """Cells between columns: 2 in a wide terminal, else 1."""
    return 1 if width is not None and width < _WIDE else 2


def heading_line(placed: Sequence[PlacedColumn[R]], gap: int, *, letters: bool = False, by: str = "") -> Line:
    """The column headings. `letters` marks the sort keys, `by` is the sort column."""
    spans: list[Span] = []
    for number, item in enumerate(placed):
        if number:
            spans.append((" " * gap, ""))
        column, text = item.column, item.column.heading
        role = "sorted" if column.key == by else "heading"
        pad = (" " * (item.width - cell_len(text)), "")
        cell: list[Span] = [(text, role)]
        if letters and column.key in SORT_KEYS and column.key != by:
            cell = [(text[:1], "letter"), (text[1:], role)]
        spans += [pad, *cell] if column.right else [*cell, pad]
    return tuple(spans)


def render_lines(
    snapshot: NodeSnapshot,
    view: TopView,
    origin: SnapshotOrigin,
    clock: str,
    width: int | None,
    glyphs: Glyphs,
    remarks: Iterable[str] = (),
) -> list[Line]:
    """Render the whole snapshot. `clock` is its time as text; a `width` of None is unlimited.

    `remarks` are appended to the notes.
    """
    gap = column_gap(width)
    devices, processes = view.devices(snapshot), view.processes(snapshot)
    lines = [title_line(snapshot, origin, clock, glyphs), *banner_lines(snapshot)]
    if devices:
        placed = place_columns(device_columns(glyphs), devices, width, gap)
        lines += [totals_line(devices, glyphs), (), heading_line(placed, gap)]
        lines += [row_line(placed, row, glyphs, gap) for row in devices]
    if processes:
        columns = place_columns(process_columns(glyphs, view.order, snapshot.unix), processes, width, gap)
        lines += [
            (),
            caption_line(snapshot, processes, view, glyphs),
            heading_line(columns, gap, by=view.order.by),
        ]
        lines += [row_line(columns, row, glyphs, gap) for row in processes]
    else:
        lines += [(), ((no_process_text(snapshot), ""),)]
    shown_notes = [*data_notes(snapshot, origin), *remarks]
    lines += [(), *(((note, "dim"),) for note in shown_notes)] if shown_notes else []
    # Notes are not truncated: the terminal wraps them.
    last = len(lines) - len(shown_notes)
    return [
        line if width is None or number >= last else truncate_line(line, width, glyphs)
        for number, line in enumerate(lines)
    ]

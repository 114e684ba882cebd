"""Renders one snapshot as lines: for `--once`, pipes and dumb terminals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from gpuledger.terminal.columns import device_columns, process_columns
from gpuledger.terminal.layout import (
    Glyphs,
    Line,
    PlacedColumn,
    TableColumn,
    join_cells,
    place_columns,
    row_line,
    truncate_line,
)
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


def heading_line(
    placed: Sequence[PlacedColumn[R]], glyphs: Glyphs, gap: int, *, letters: bool = False, by: str = ""
) -> Line:
    """The column headings. `letters` marks the sort keys, `by` is the sort column."""

    def cell(column: TableColumn[R]) -> Line:
        text = column.heading
        if column.key == by:
            return ((text, "sorted"),)
        if letters and column.key in SORT_KEYS:
            return ((text[:1], "letter"), (text[1:], "heading"))
        return ((text, "heading"),)

    return join_cells(placed, cell, glyphs, gap)


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
        placed = place_columns(device_columns(glyphs, devices), devices, width, gap)
        lines += [totals_line(devices, glyphs), (), heading_line(placed, glyphs, gap)]
        lines += [row_line(placed, row, glyphs, gap) for row in devices]
    if processes:
        columns = place_columns(process_columns(glyphs, view.order, snapshot.unix), processes, width, gap)
        lines += [
            (),
            caption_line(snapshot, processes, view, glyphs),
            heading_line(columns, glyphs, gap, by=view.order.by),
        ]
        lines += [row_line(columns, row, glyphs, gap) for row in processes]
    else:
        lines += [(), ((no_process_text(snapshot), ""),)]
    if width is not None:
        lines = [truncate_line(line, width, glyphs) for line in lines]
    # Notes are not truncated: the terminal wraps them.
    notes = [*data_notes(snapshot, origin), *remarks]
    return [*lines, *([()] if notes else []), *(((note, "dim"),) for note in notes)]

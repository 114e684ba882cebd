"""Which GPUs can be taken, as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Any, Final

from gpuledger.model.availability import DISPLAY, FREE, RESERVED
from gpuledger.model.text import escape_to_one_line, format_duration
from gpuledger.terminal.number_format import sizes

_HEAD: Final = ("GPU", "model", "free memory", "state", "")
_NODE: Final = "node"
_DAY: Final = 86_400.0

Row = Mapping[str, Any]


def free_table(body: Mapping[str, Any], zone: tzinfo | None = None) -> str:
    """The table of an answer to `free`, and a sentence with the number of free GPUs."""
    devices: Sequence[Row] = body["devices"]
    rows = [_HEAD, *(_cells(one, body["unix"], zone) for one in devices)]
    if "nodes" in body:
        names = [_NODE, *(escape_to_one_line(str(one[_NODE])) for one in devices)]
        rows = [(name, *row) for name, row in zip(names, rows, strict=True)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    free = sum(one["availability"] == FREE for one in devices)
    lines += ["", f"{free} of {len(devices)} free" if devices else "no GPU matches"]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _cells(row: Row, unix: float, zone: tzinfo | None) -> tuple[str, ...]:
    place = f"{row['gpu']}/{row['instance']}" if row["instance"] else str(row["gpu"])
    name = " ".join(word for word in (str(row["name"]), str(row["profile"])) if word)
    state = str(row["availability"])
    return (
        place,
        escape_to_one_line(name),
        sizes(row["memory_free_bytes"], row["memory_total_bytes"]),
        state.replace("_", " "),
        escape_to_one_line(_remark(row, state, unix, zone)),
    )


def _remark(row: Row, state: str, unix: float, zone: tzinfo | None) -> str:
    """For how long it is free, by whom it is reserved, or why it cannot be taken."""
    if state == RESERVED:
        who = "by you" if row["is_mine"] else f"by {row['reserved_by']}" if row["reserved_by"] else ""
        until = row["reserved_until"]
        # A fleet does not know it.
        end = "" if until is None else f"until {_clock(until, unix, zone)}"
        if until is None and _NODE not in row:
            end = "until a command ends"
        return " ".join(word for word in (who, end) if word)
    if state in (FREE, DISPLAY):
        seconds = row["free_seconds"]
        since = f"for {format_duration(round(seconds))}" if seconds else ""
        return "; ".join(part for part in (str(row["availability_reason"]), since) if part)
    return str(row["availability_reason"])


def _clock(moment: float, unix: float, zone: tzinfo | None) -> str:
    """A moment as people write it: the time, with the date if it is not within a day."""
    local = datetime.fromtimestamp(moment).astimezone(zone)
    return local.strftime("%H:%M:%S" if abs(moment - unix) < _DAY else "%Y-%m-%d %H:%M")

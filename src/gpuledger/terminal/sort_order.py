"""The sort order of processes. Absent values come last in both directions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # `serve` loads all settings, and the sort order is one: it must not load rich.
    from gpuledger.terminal.snapshot import ProcessRow

_Value = Callable[["ProcessRow"], Any]
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class SortKey:
    """A column to sort by. `letter` is its key in the live view; `falling` its default direction."""

    name: str
    letter: str
    falling: bool
    value: _Value


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that compares digits as numbers: GPU 10 after GPU 2."""
    return tuple(
        (0, int(part), "") if part.isdecimal() and part.isascii() else (1, 0, part.casefold())
        for part in _DIGITS.split(text)
        if part
    )


# In the order of the columns, from left to right.
SORT_KEYS = {
    key.name: key
    for key in (
        SortKey("gpu", "g", False, lambda row: natural_key(row.place)),
        SortKey("pid", "p", False, lambda row: row.pid),
        SortKey("owner", "o", False, lambda row: natural_key(row.owner.text) or None),
        SortKey("command", "c", False, lambda row: natural_key(row.command) or None),
        SortKey("memory", "m", True, lambda row: row.memory_bytes),
        SortKey("sm", "s", True, lambda row: row.sm_ratio),
        SortKey("watts", "w", True, lambda row: row.power_watts),
        SortKey("joules", "j", True, lambda row: row.joules),
        # The oldest first: the lowest start.
        SortKey("age", "a", False, lambda row: row.start_unix),
    )
}


@dataclass(frozen=True, slots=True)
class SortOrder:
    """The key to sort by, and whether its default direction is reversed."""

    by: str = "gpu"
    reversed: bool = False

    @property
    def key(self) -> SortKey:
        """The key of the sort column."""
        return SORT_KEYS[self.by]

    @property
    def falling(self) -> bool:
        """Whether the value is sorted descending; for an age the value is the start time."""
        return self.key.falling != self.reversed

    def __str__(self) -> str:
        """The text that `parse_sort_order` accepts."""
        if not self.reversed:
            return self.by
        # A descending age starts with the oldest: the lowest start time.
        return f"{self.by}:{'desc' if self.falling != (self.by == 'age') else 'asc'}"

    def chosen(self, name: str) -> SortOrder:
        """Sort by this key; by the same key again: reverse the direction."""
        return SortOrder(name, not self.reversed) if name == self.by else SortOrder(name)

    def moved(self, steps: int) -> SortOrder:
        """Sort by the column `steps` further to the right, or the last one."""
        names = list(SORT_KEYS)
        place = min(len(names) - 1, max(0, names.index(self.by) + steps))
        return self if names[place] == self.by else SortOrder(names[place])


def parse_sort_order(text: object) -> SortOrder:
    """Parse `KEY`, `KEY:asc` or `KEY:desc`. Raises ValueError with what is expected."""
    name, colon, way = str(text).strip().lower().partition(":")
    if name not in SORT_KEYS or (colon and way not in ("asc", "desc")):
        raise ValueError(f"expected one of {', '.join(SORT_KEYS)}, optionally followed by :asc or :desc")
    key = SORT_KEYS[name]
    # An ascending age starts with the youngest: the highest start time.
    falling = key.falling if not colon else (way == "desc") != (name == "age")
    return SortOrder(name, falling != key.falling)


def sort_processes(rows: Iterable[ProcessRow], order: SortOrder) -> list[ProcessRow]:
    """Sort processes, ties by GPU, memory and pid. Rows of several processes come last."""
    value = order.key.value
    every = sorted(rows, key=_tie_break)
    single = [row for row in every if row.count is None]
    present = [row for row in single if value(row) is not None]
    absent = [row for row in single if value(row) is None]
    several = [row for row in every if row.count is not None]
    return [*sorted(present, key=value, reverse=order.falling), *absent, *several]


def _tie_break(row: ProcessRow) -> tuple[Any, ...]:
    memory = -1.0 if row.memory_bytes is None else row.memory_bytes
    return (natural_key(row.place), -memory, row.pid or 0)

"""In which order processes are shown. What is absent comes last, whichever way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # `serve` reads all settings, and an order is one: what is drawn stays out of its memory.
    from gpuledger.terminal.picture import ProcessRow

_Value = Callable[["ProcessRow"], Any]
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class SortKey:
    """A column to sort by. `letter` is its key in the live view; `falling` its usual way."""

    name: str
    letter: str
    falling: bool
    value: _Value


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Digits as the numbers they are: GPU 10 after GPU 2."""
    return tuple(
        (0, int(part), "") if part.isdecimal() and part.isascii() else (1, 0, part.casefold())
        for part in _DIGITS.split(text)
        if part
    )


# From the left to the right of the table.
KEYS = {
    key.name: key
    for key in (
        SortKey("gpu", "g", False, lambda row: natural(row.place)),
        SortKey("pid", "p", False, lambda row: row.pid),
        SortKey("owner", "o", False, lambda row: natural(row.owner.text) or None),
        SortKey("command", "c", False, lambda row: natural(row.command) or None),
        SortKey("memory", "m", True, lambda row: row.memory),
        SortKey("sm", "s", True, lambda row: row.sm),
        SortKey("watts", "w", True, lambda row: row.watts),
        SortKey("joules", "j", True, lambda row: row.joules),
        # The oldest first: the lowest start.
        SortKey("age", "a", False, lambda row: row.start),
    )
}


@dataclass(frozen=True, slots=True)
class Order:
    """By which key, and whether against its usual way."""

    by: str = "gpu"
    reversed: bool = False

    @property
    def key(self) -> SortKey:
        """What it sorts by."""
        return KEYS[self.by]

    @property
    def falling(self) -> bool:
        """Whether the largest number, or the end of the alphabet, or the oldest comes first."""
        return self.key.falling != self.reversed

    def __str__(self) -> str:
        """As it can be given."""
        if not self.reversed:
            return self.by
        # Of an age, descending is from the oldest on.
        return f"{self.by}:{'desc' if self.falling != (self.by == 'age') else 'asc'}"

    def chosen(self, name: str) -> Order:
        """By this key; by the same key again: the other way."""
        return Order(name, not self.reversed) if name == self.by else Order(name)

    def moved(self, steps: int) -> Order:
        """By the column so many further to the right, without leaving the table."""
        names = list(KEYS)
        place = min(len(names) - 1, max(0, names.index(self.by) + steps))
        return self if names[place] == self.by else Order(names[place])


def parse_order(text: object) -> Order:
    """`KEY`, `KEY:asc` or `KEY:desc`. Raises ValueError with what is wanted."""
    name, colon, way = str(text).strip().lower().partition(":")
    if name not in KEYS or (colon and way not in ("asc", "desc")):
        raise ValueError(f"one of {', '.join(KEYS)} is wanted, with :asc or :desc after it if you like")
    key = KEYS[name]
    # Of an age, ascending is from the youngest on: against the start.
    falling = key.falling if not colon else (way == "desc") != (name == "age")
    return Order(name, falling != key.falling)


def ordered(rows: Iterable[ProcessRow], order: Order) -> list[ProcessRow]:
    """Sorted; equals by GPU, then memory, then pid, so that they do not dance. Rows of many come last."""
    value = order.key.value
    told: list[tuple[Any, ProcessRow]] = []
    absent: list[ProcessRow] = []
    many: list[ProcessRow] = []
    for row in rows:
        if row.count is not None:
            many.append(row)
        elif (found := value(row)) is None:
            absent.append(row)
        else:
            told.append((found, row))
    told.sort(key=lambda pair: _usual(pair[1]))
    told.sort(key=lambda pair: pair[0], reverse=order.falling)
    return [*(row for _, row in told), *sorted(absent, key=_usual), *sorted(many, key=_usual)]


def _usual(row: ProcessRow) -> tuple[Any, ...]:
    memory = -1.0 if row.memory is None else row.memory
    return (natural(row.place), -memory, row.pid or 0)

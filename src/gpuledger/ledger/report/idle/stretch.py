"""Since when an owner has held a Device without use: a walk back through sets of seconds. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

# Seconds without the owner after which it is another stay: a kernel of a notebook that restarts is no use.
LONGEST_GAP: Final = 300
# Seconds. What was before so long a time without readings says nothing about now.
_LONGEST_UNWATCHED: Final = 86_400

# The seconds that a GPU was watched between two unix times.
Watched = Callable[[int, int], int]


class HeldSeconds(NamedTuple):
    """The seconds of a cell (bit n is second n from its begin) in which the owner had the Device.

    `idle` are those in which it certainly used no engine; in the others it did, or that is not known.
    """

    had: int
    idle: int


@dataclass(slots=True)
class IdleStretch:
    """The time that ends now in which an owner had a Device and used no engine of it.

    Add the cells from the newest to the oldest until `is_complete`. `begins` is in unix seconds: the end of
    the ledger at first. `seconds` are those counted: fewer than the time since `begins` if the Device was not
    watched for a part of it.
    """

    begins: int
    watched: Watched
    seconds: int = 0
    is_complete: bool = False

    def add(self, origin: int, cell: HeldSeconds) -> None:
        """Add the cell that begins at `origin` (unix seconds); its seconds from `begins` on do not count."""
        room = self.begins - origin
        if self.is_complete or room <= 0:
            return
        had, idle = (seconds & ((1 << room) - 1) for seconds in cell)
        while had and not self.is_complete:
            last = had.bit_length() - 1
            if self._has_left(origin + last + 1):
                return
            if not idle >> last & 1:
                # In this second it used an engine, or may have.
                self.is_complete = True
                return
            first = _run_begin(had & idle, last)
            self.seconds += last + 1 - first
            self.begins = origin + first
            had &= (1 << first) - 1
        self._has_left(origin)

    def _has_left(self, ended: int) -> bool:
        """Whether the owner was away from `ended` to the begin so far, as far as the Device was watched."""
        gap = self.begins - ended
        if gap > LONGEST_GAP and (self.watched(ended, self.begins) > LONGEST_GAP or gap > _LONGEST_UNWATCHED):
            self.is_complete = True
        return self.is_complete


def _run_begin(seconds: int, last: int) -> int:
    """The first second of the run of seconds that ends with `last`."""
    missing = ~seconds & ((1 << last) - 1)
    return missing.bit_length()

"""Stretches of wall time in which somebody was watched: what hours on a GPU are counted from.

A stretch ends where nobody looked for long (a stop, a pause, a suspend) and where the wall clock was set:
time that nobody watched is nobody's, and a clock that jumps makes no hours.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuledger.ledger.energy.counter import LONGEST

# Seconds by which the wall clock and the source's may part within one stretch: slewing stays far below.
CLOCK_STEP = 2.0


def seconds_since(before: float | None, now: float) -> float:
    """Seconds of the source's clock from one look at the machine to the next: time that is somebody's.

    0 where nobody knows what happened meanwhile: before the first look (`before` is None), and after more
    than LONGEST (a suspend, a driver that hung).
    """
    if before is None or not 0 <= now - before <= LONGEST:
        return 0.0
    return now - before


def begins_anew(gap: float | None, unix: float, before: float) -> float | None:
    """When another stretch begins, in unix seconds; None where the one before goes on.

    `gap` is seconds of the source's clock since somebody looked (None: nobody did in this run), `before` the
    wall time of then.
    """
    if gap is None or not 0 <= gap <= LONGEST:
        return unix
    return unix - gap if abs(unix - before - gap) > CLOCK_STEP else None


@dataclass(slots=True)
class Stay:
    """The present stretch, in unix seconds; `seen_at` is its end on the source's clock, None after a stop.

    `over` are the earlier ones that the store does not have yet, `count` how many there were, `lowest` and
    `highest` the bounds of all.
    """

    begins: float
    ends: float
    seen_at: float | None = None
    count: int = 0
    over: list[tuple[float, float]] = field(default_factory=list)
    lowest: float = field(init=False)
    highest: float = field(init=False)

    def __post_init__(self) -> None:
        self.lowest, self.highest = self.begins, self.ends

    def go_on(self, unix: float, elapsed: float) -> None:
        """It is there now."""
        gap = None if self.seen_at is None else elapsed - self.seen_at
        begins = begins_anew(gap, unix, self.ends)
        if begins is not None:
            if self.ends > self.begins:
                self.over.append((self.begins, self.ends))
                self.count += 1
            self.begins = begins
            self.lowest = min(self.lowest, begins)
        self.ends, self.seen_at = unix, elapsed
        self.highest = max(self.highest, unix)

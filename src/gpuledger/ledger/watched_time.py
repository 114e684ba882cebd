"""Sets of whole seconds as integers: bit n is the second n of an hour or a minute.

Time on a GPU is counted in whole seconds of unix time, each as what was so when it began. Sets of them are
united without counting a second twice, however the owners are grouped, and a folded hour says exactly what
its sessions said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil
from struct import pack as pack_numbers
from struct import unpack as unpack_numbers

from gpuledger.ledger.energy.counter import LONGEST

HOUR, MINUTE = 3600, 60
_BYTES = HOUR // 8
# Of a store that is away: older ones are let go.
_MOST_UNSAVED = 1440


def seconds_within(begins: float, ends: float, origin: int, size: int) -> int:
    """The seconds from `begins` to before `ends` (unix) among the `size` that follow `origin`."""
    first, last = max(ceil(begins) - origin, 0), min(ceil(ends) - origin, size)
    return ((1 << (last - first)) - 1) << first if last > first else 0


def pack(seconds: int) -> bytes | None:
    """Seconds of an hour for a table; None for none of them.

    Runs as pairs of first second and length (16 bits each, little-endian), or one bit a second where that is
    shorter: that has a length which no pairs have.
    """
    if not seconds:
        return None
    pairs: list[int] = []
    place = 0
    while seconds:
        if len(pairs) >= _BYTES // 2:
            return (seconds << place | _of_pairs(pairs)).to_bytes(_BYTES, "little")
        gap = (seconds & -seconds).bit_length() - 1
        seconds >>= gap
        length = (~seconds & (seconds + 1)).bit_length() - 1
        seconds >>= length
        pairs += [place + gap, length]
        place += gap + length
    return pack_numbers(f"<{len(pairs)}H", *pairs)


@lru_cache(maxsize=4096)
def unpack(packed: bytes | None) -> int:
    """What `pack` made of it. Most hours are whole, or have a stretch that others have, too."""
    if packed is None:
        return 0
    if len(packed) == _BYTES:
        return int.from_bytes(packed, "little")
    return _of_pairs(unpack_numbers(f"<{len(packed) // 2}H", packed))


def _of_pairs(pairs: Sequence[int]) -> int:
    seconds = 0
    for place in range(0, len(pairs), 2):
        seconds |= ((1 << pairs[place + 1]) - 1) << pairs[place]
    return seconds


@dataclass(slots=True)
class Marked:
    """Seconds in which something was so, by unix minute; `unsaved` are those the store does not have yet."""

    minute: int = -1
    bits: int = 0
    unsaved: dict[int, int] = field(default_factory=dict)

    def mark(self, begins: float, ends: float) -> None:
        """It was so from `begins` to before `ends`."""
        for minute, bits in _minutes(begins, ends):
            if minute != self.minute:
                self.minute, self.bits = minute, 0
            self.bits |= bits
            self.unsaved[minute] = self.unsaved.get(minute, 0) | self.bits
        while len(self.unsaved) > _MOST_UNSAVED:
            del self.unsaved[next(iter(self.unsaved))]


def _minutes(begins: float, ends: float) -> Iterator[tuple[int, int]]:
    for minute in range(int(begins // MINUTE), -(-ceil(ends) // MINUTE)):
        bits = seconds_within(begins, ends, minute * MINUTE, MINUTE)
        if bits:
            yield minute, bits


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

"""Sets of whole seconds as integers: bit n is second n of a stretch of at most an hour.

GPU time is counted in whole seconds of unix time; each second has the state in which it began. Unions of
these sets count no second twice, however the owners are grouped, and a folded hour equals the sum of its
sessions exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil
from struct import pack as pack_numbers
from struct import unpack as unpack_numbers

from gpuledger.model.snapshot import LONGEST_INTERVAL

HOUR, QUARTER, MINUTE = 3600, 900, 60
QUARTERS_PER_HOUR = HOUR // QUARTER
# Microseconds in a second.
MICRO = 1_000_000
_BYTES = HOUR // 8
# Limit while the store is unavailable; the oldest minutes are discarded.
_MAX_UNSAVED_MINUTES = 1440


def seconds_within(begins: float, ends: float, origin: int, size: int) -> int:
    """The seconds from `begins` until before `ends` (unix) among the `size` seconds from `origin`."""
    first, last = max(ceil(begins) - origin, 0), min(ceil(ends) - origin, size)
    return ((1 << (last - first)) - 1) << first if last > first else 0


def pack_seconds(seconds: int) -> bytes | None:
    """Encode at most an hour's seconds for a table; None for the empty set.

    Runs are pairs of first second and length (16 bits each, little-endian). If one bit per second is shorter,
    that form is used; its length differs from that of any sequence of pairs.
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
def unpack_seconds(packed: bytes | None) -> int:
    """Decode the result of `pack_seconds`. Cached: most hours are complete or share a pattern with others."""
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
class MarkedSeconds:
    """Seconds with a property (such as held), by unix minute; `unsaved` are not in the store yet."""

    minute: int = -1
    bits: int = 0
    unsaved: dict[int, int] = field(default_factory=dict)

    def mark(self, begins: float, ends: float) -> None:
        """Mark the seconds from `begins` until before `ends`."""
        for minute, bits in _minutes(begins, ends):
            if minute != self.minute:
                self.minute, self.bits = minute, 0
            self.bits |= bits
            self.unsaved[minute] = self.unsaved.get(minute, 0) | self.bits
        while len(self.unsaved) > _MAX_UNSAVED_MINUTES:
            del self.unsaved[next(iter(self.unsaved))]


def _minutes(begins: float, ends: float) -> Iterator[tuple[int, int]]:
    for minute in range(int(begins // MINUTE), -(-ceil(ends) // MINUTE)):
        bits = seconds_within(begins, ends, minute * MINUTE, MINUTE)
        if bits:
            yield minute, bits


# Allowed difference between wall clock and source clock within one stretch, in seconds (above any slewing).
CLOCK_STEP = 2.0


def observed_seconds(before: float | None, now: float) -> float:
    """Seconds of the source's clock between two consecutive readings that count as observed.

    0 if the time between them is unknown: before the first reading (`before` is None), and after more than
    LONGEST_INTERVAL (a suspend, a driver that hung).
    """
    if before is None or not 0 <= now - before <= LONGEST_INTERVAL:
        return 0.0
    return now - before


def new_stretch_start(gap: float | None, unix: float, before: float) -> float | None:
    """Unix time at which a new stretch begins; None if the previous stretch continues.

    `gap` is the seconds of the source's clock since the last reading (None: no reading in this run), `before`
    the wall time of that reading.
    """
    if gap is None or not 0 <= gap <= LONGEST_INTERVAL:
        return unix
    return unix - gap if abs(unix - before - gap) > CLOCK_STEP else None


@dataclass(slots=True)
class WatchedStretch:
    """The current stretch of uninterrupted observation, in unix seconds.

    `seen_at` is its end on the source's clock, None after an interruption. `unsaved` are earlier stretches
    that the store does not have yet, `count` is the number of earlier stretches, and `lowest` and `highest`
    bound all of them.
    """

    begins: float
    ends: float
    seen_at: float | None = None
    count: int = 0
    unsaved: list[tuple[float, float]] = field(default_factory=list)
    lowest: float = field(init=False)
    highest: float = field(init=False)

    def __post_init__(self) -> None:
        self.lowest, self.highest = self.begins, self.ends

    def extend(self, unix: float, elapsed: float) -> float:
        """Extend the stretch to this tick, or begin a new one after a gap; return the new time's begin."""
        gap = None if self.seen_at is None else elapsed - self.seen_at
        before = self.ends
        begins = new_stretch_start(gap, unix, before)
        if begins is not None:
            if self.ends > self.begins:
                self.unsaved.append((self.begins, self.ends))
                self.count += 1
            self.begins = before = begins
            self.lowest = min(self.lowest, begins)
        self.ends, self.seen_at = unix, elapsed
        self.highest = max(self.highest, unix)
        return before

    def skip(self, unix: float, elapsed: float) -> None:
        """Leave out the time since the last tick; the next tick continues from this one."""
        if self.ends > self.begins:
            self.unsaved.append((self.begins, self.ends))
            self.count += 1
        self.begins = self.ends = unix
        self.seen_at = elapsed
        self.lowest, self.highest = min(self.lowest, unix), max(self.highest, unix)

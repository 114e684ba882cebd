"""A picture of utilization over time of fixed size: 15 minutes of a quarter, or 12 stretches of an hour."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from gpuledger.ledger.sessions import RATIO
from gpuledger.ledger.watched_time import MINUTE, QUARTER

# Bars of a quarter and of a folded hour, and the minutes of a bar of an hour.
QUARTER_BARS: Final = QUARTER // MINUTE
HOUR_BARS, HOUR_BAR_MINUTES = 12, 5

# A bar is stored as two numbers of 16 bits: hundredths of a second busy, and seen. Five minutes are 30,000.
_BAR: Final = Struct("<2H")
_STEP: Final = 10_000
_MOST: Final = 0xFFFF
_NO_BAR: Final = -1


@dataclass(slots=True)
class UsageBars:
    """Busy and seen microseconds of each minute of a quarter. Only the bar of one minute is open at a time.

    `packed` holds the closed bars in the form of the store, 4 bytes each. `busy` is in ten-thousandths of a
    microsecond, `seen` in microseconds.
    """

    packed: bytearray = field(default_factory=lambda: bytearray(_BAR.size * QUARTER_BARS))
    place: int = _NO_BAR
    busy: int = 0
    seen: int = 0

    def add(self, place: int, busy: int, seen: int) -> None:
        """Add time to the bar of this place."""
        if place != self.place:
            self._open(place)
        self.busy += busy
        self.seen += seen

    def _open(self, place: int) -> None:
        self._pack()
        self.place = place
        busy, seen = _BAR.unpack_from(self.packed, place * _BAR.size)
        self.busy, self.seen = busy * RATIO * _STEP, seen * _STEP

    def _pack(self) -> None:
        if self.place != _NO_BAR:
            busy, seen = round(self.busy / (RATIO * _STEP)), round(self.seen / _STEP)
            _BAR.pack_into(self.packed, self.place * _BAR.size, min(busy, _MOST), min(seen, _MOST))

    def encoded(self) -> bytes:
        """All bars in the form of the store."""
        self._pack()
        return bytes(self.packed)

    def add_encoded(self, encoded: bytes) -> None:
        """Add stored bars of the same quarter."""
        self._pack()
        self.place = _NO_BAR
        self.packed = bytearray(added_bars(bytes(self.packed), encoded))


def added_bars(one: bytes, other: bytes, place: int = 0, minutes: int = 1) -> bytes:
    """Bars in the form of the store, with those of `other` added.

    The first bar of `other` begins `place` minutes after the first of `one`, with bars of `minutes`.
    """
    found = bytearray(one)
    for number, (busy, seen) in enumerate(_BAR.iter_unpack(other)):
        offset = (place + number) // minutes * _BAR.size
        if seen and 0 <= offset < len(found):
            before = _BAR.unpack_from(found, offset)
            _BAR.pack_into(found, offset, min(before[0] + busy, _MOST), min(before[1] + seen, _MOST))
    return bytes(found)


def no_hour_bars() -> bytes:
    """The bars of a folded hour, empty."""
    return bytes(_BAR.size * HOUR_BARS)


def decoded_bars(encoded: bytes) -> Iterator[tuple[int, int]]:
    """Busy and seen time of each bar, in hundredths of a second."""
    found: Iterator[tuple[int, int]] = _BAR.iter_unpack(encoded)
    return found

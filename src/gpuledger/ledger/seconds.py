"""Sets of whole seconds as integers: bit n is the second n of an hour or a minute.

Time on a GPU is counted in whole seconds of unix time, each as what was so when it began. Sets of them are
united without counting a second twice, however the owners are grouped, and a folded hour says exactly what
its sessions said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil

HOUR, MINUTE = 3600, 60
WHOLE_HOUR = (1 << HOUR) - 1
_BYTES = HOUR // 8
# Of a store that is away: older ones are let go.
_MOST_UNSAVED = 1440


def seconds_within(begins: float, ends: float, origin: int, size: int) -> int:
    """The seconds from `begins` to before `ends` (unix) among the `size` that follow `origin`."""
    first, last = max(ceil(begins) - origin, 0), min(ceil(ends) - origin, size)
    return ((1 << (last - first)) - 1) << first if last > first else 0


def pack(seconds: int) -> bytes | None:
    """Seconds of an hour for a table; None for none of them."""
    import zlib

    if not seconds:
        return None
    if seconds == WHOLE_HOUR:
        return b"\xff"
    return zlib.compress(seconds.to_bytes(_BYTES, "little"))


def unpack(packed: bytes | None) -> int:
    """What `pack` made of it. Raises zlib.error for anything else."""
    import zlib

    if packed is None:
        return 0
    return WHOLE_HOUR if packed == b"\xff" else int.from_bytes(zlib.decompress(packed), "little")


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
    for minute in range(int(begins // MINUTE), ceil(ends / MINUTE)):
        bits = seconds_within(begins, ends, minute * MINUTE, MINUTE)
        if bits:
            yield minute, bits

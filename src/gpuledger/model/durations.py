"""Durations as Prometheus writes them, which knows neither fractions nor bare numbers."""

from __future__ import annotations

from typing import Final

# Milliseconds, and whether the unit is only for what is so many of it and no more.
_UNITS: Final = (
    *(("y", 365 * 86_400_000, True), ("w", 7 * 86_400_000, True), ("d", 86_400_000, False)),
    *(("h", 3_600_000, False), ("m", 60_000, False), ("s", 1000, False), ("ms", 1, False)),
)


def as_prometheus(seconds: float) -> str:
    """`1m30s`, to the millisecond: what `settings.duration` reads, too."""
    left = round(seconds * 1000)
    found = ""
    for unit, size, whole in _UNITS:
        if left >= size and not (whole and left % size):
            found += f"{left // size}{unit}"
            left %= size
    return found or "0s"

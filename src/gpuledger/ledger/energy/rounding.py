"""Whole millijoules out of exact shares, so that what was split still sums to what there was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar


class _Ordered(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


K = TypeVar("K", bound=_Ordered)


def whole(total: int, exact: Mapping[K, int], unit: int = 1) -> dict[K, int]:
    """Round exact shares of `total` to integers that sum to it: largest remainder, ties by key.

    Shares are given in parts of which `unit` make one of `total`, and must sum to it exactly: nothing is lost
    and nothing made up. Raises ValueError when they cannot.
    """
    floors = {key: share // unit for key, share in exact.items()}
    missing = total - sum(floors.values())
    if missing:
        if not 0 < missing < len(exact):
            raise ValueError(f"shares of {total} do not sum to it: {missing} are missing")
        by_remainder = sorted(exact, key=lambda key: (floors[key] * unit - exact[key], key))
        for key in by_remainder[:missing]:
            floors[key] += 1
    return floors

"""How much of a Gpu an Instance is: by multiprocessors, else by the slices of its profile."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Protocol, TypeVar

from gpuledger.model.devices import Device, Gpu, Instance


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


# Compute slices of a Gpu that can be cut (NVIDIA MIG User Guide, supported profiles).
_SLICES = 7
_FEWER_SLICES = (("A30", 4), ("RTX PRO", 4))


def slices_of(gpu: Gpu) -> int:
    """Compute slices of the whole Gpu."""
    return next((slices for name, slices in _FEWER_SLICES if name in gpu.name), _SLICES)


def profile_slices(profile: str) -> int:
    """Compute slices of an Instance of this profile: 3 of `3g.40gb`, 1 of `1c.3g.40gb`."""
    for word in profile.split("."):
        if word[:-1].isdigit() and word.endswith(("g", "c")):
            return int(word[:-1])
    return 1


def share_of(device: Device) -> Fraction:
    """The Device's part of its Gpu: 1 for the Gpu itself."""
    if not isinstance(device, Instance):
        return Fraction(1)
    gpu = device.parent
    if device.sm_count and gpu.sm_count:
        return min(Fraction(device.sm_count, gpu.sm_count), Fraction(1))
    return min(Fraction(profile_slices(device.profile), slices_of(gpu)), Fraction(1))

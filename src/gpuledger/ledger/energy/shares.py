"""The part of a Gpu that an Instance has (by multiprocessors or slices), and exact rounding of shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Protocol, TypeVar

from gpuledger.model.devices import Device, Gpu, Instance


class _Ordered(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


K = TypeVar("K", bound=_Ordered)


def round_parts(total: int, exact: Sequence[int] | Sequence[Fraction], unit: int = 1) -> list[int]:
    """Round exact parts of `total` to integers that sum to it: largest remainder, of equal ones the first.

    Parts are in units of 1/`unit`. `total` is their sum, rounded if that is no integer.
    """
    found = [part // unit for part in exact]
    missing = total - sum(found)
    if missing:
        # Sorting is stable.
        for place in sorted(range(len(exact)), key=lambda place: -(exact[place] % unit))[:missing]:
            found[place] += 1
    return found


def round_shares(total: int, exact: Mapping[K, int], unit: int = 1) -> dict[K, int]:
    """Round exact shares of `total` to integers that sum to it: largest remainder, ties by key.

    Shares are in units of 1/`unit` and must sum exactly to `total`. Raises ValueError if they do not.
    """
    floors = {key: share // unit for key, share in exact.items()}
    missing = total - sum(floors.values())
    if missing:
        if not 0 < missing < len(exact):
            raise ValueError(f"shares do not sum to {total}: {missing} missing")
        by_remainder = sorted(exact, key=lambda key: (floors[key] * unit - exact[key], key))
        for key in by_remainder[:missing]:
            floors[key] += 1
    return floors


# Compute slices of a MIG-capable Gpu (NVIDIA MIG User Guide, supported profiles).
_SLICES = 7
_FEWER_SLICES = (("A30", 4), ("RTX PRO", 4))


def gpu_slices(gpu: Gpu) -> int:
    """Compute slices of the whole Gpu."""
    return next((slices for name, slices in _FEWER_SLICES if name in gpu.name), _SLICES)


def profile_slices(profile: str) -> int:
    """Compute slices of an Instance of this profile: 3 of `3g.40gb`, 1 of `1c.3g.40gb`."""
    for word in profile.split("."):
        if word[:-1].isdigit() and word.endswith(("g", "c")):
            return int(word[:-1])
    return 1


def device_share(device: Device) -> Fraction:
    """The Device's part of its Gpu; 1 for the Gpu itself."""
    if not isinstance(device, Instance):
        return Fraction(1)
    gpu = device.parent
    if device.sm_count and gpu.sm_count:
        return min(Fraction(device.sm_count, gpu.sm_count), Fraction(1))
    return min(Fraction(profile_slices(device.profile), gpu_slices(gpu)), Fraction(1))


def part_sizes(gpu: Gpu, parts: Iterable[Instance]) -> tuple[Mapping[Instance, int], int]:
    """Multiprocessors by Instance and of the whole Gpu (0 if unknown).

    If they are not reported, the slices of the profiles (`3g` is 3) and of the Gpu.
    """
    known = tuple(parts)
    if all(part.sm_count for part in known):
        return {part: part.sm_count or 0 for part in known}, gpu.sm_count or 0
    return {part: profile_slices(part.profile) for part in known}, gpu_slices(gpu)

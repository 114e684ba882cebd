"""MIG profiles and sizes of cards: which smaller device would be enough.

Profiles and fractions of SMs: NVIDIA MIG User Guide, "Supported MIG Profiles" (A30: quarters, others:
sevenths) and "Supported GPUs" (sizes of memory).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

_GIB: Final = 1 << 30
# An instance has a little less memory than its part of the GPU, which also keeps some for itself:
# `nvidia-smi mig -lgip` shows 9.75 GiB of a 1g.10gb, and 79.6 GiB of the GPU.
_USABLE: Final = Fraction(97, 100)
# Memory beyond the highest use that was seen.
MARGIN: Final = Fraction(11, 10)


@dataclass(frozen=True, slots=True)
class SmallerDevice:
    """A MIG profile with its fraction of the GPU's SMs, or a card with `part` None."""

    name: str
    part: Fraction | None = None


@dataclass(frozen=True, slots=True)
class _MigGpu:
    """A model, its memory in GiB as the driver reports it, and its profiles, the smallest first.

    Profiles have their name, fraction of the SMs and fraction of the memory.
    """

    model: re.Pattern[str]
    memory: float
    profiles: tuple[tuple[str, Fraction, Fraction], ...]


def _sevenths(one: str, two: str, four: str) -> tuple[tuple[str, Fraction, Fraction], ...]:
    """The profiles of a GPU of seven slices, by the names of an eighth, a quarter and half of its memory."""
    return (
        (f"1g.{one}gb", Fraction(1, 7), Fraction(1, 8)),
        (f"1g.{two}gb", Fraction(1, 7), Fraction(1, 4)),
        (f"2g.{two}gb", Fraction(2, 7), Fraction(1, 4)),
        (f"3g.{four}gb", Fraction(3, 7), Fraction(1, 2)),
        (f"4g.{four}gb", Fraction(4, 7), Fraction(1, 2)),
    )


def _quarters(one: str, two: str) -> tuple[tuple[str, Fraction, Fraction], ...]:
    return (
        (f"1g.{one}gb", Fraction(1, 4), Fraction(1, 4)),
        (f"2g.{two}gb", Fraction(1, 2), Fraction(1, 2)),
    )


_MIG_GPUS: Final = tuple(
    _MigGpu(re.compile(model), memory, profiles)
    for model, memory, profiles in (
        (r"\b[AH]800\b|\bA100\b|\bH100\b", 79.8, _sevenths("10", "20", "40")),
        (r"\bA100\b", 40.0, _sevenths("5", "10", "20")),
        (r"\bH100\b", 93.6, _sevenths("12", "24", "47")),
        (r"\bGH200\b|\bH20\b|\bH100\b", 95.6, _sevenths("12", "24", "48")),
        (r"\bH200\b", 140.4, _sevenths("18", "35", "71")),
        (r"\bB200\b", 179.1, _sevenths("23", "45", "90")),
        (r"\bA30\b", 24.0, _quarters("6", "12")),
        (r"RTX PRO 6000 Blackwell", 95.6, _quarters("24", "48")),
    )
)
_TOLERANCE: Final = 0.03
# Sizes of cards in GiB.
_CARDS: Final = (8, 12, 16, 24, 32, 48, 80)
# A smaller card is suggested if it has at most this part of the memory.
_MUCH_SMALLER: Final = Fraction(1, 2)


def find_smaller_device(model: str, memory: int, needed: int, utilization: float) -> SmallerDevice | None:
    """The smallest device that would be enough: for this memory in bytes, and this SM utilization (a ratio).

    For a GPU that has no MIG profiles, a card with at most half of its memory. None if there is none.
    """
    for gpu in _MIG_GPUS:
        if gpu.model.search(model) and abs(memory / _GIB / gpu.memory - 1) <= _TOLERANCE:
            return _find_profile(gpu, memory, needed * MARGIN, utilization)
    for size in _CARDS:
        if needed * MARGIN <= size * _GIB * _USABLE and size * _GIB <= memory * _MUCH_SMALLER:
            return SmallerDevice(f"a GPU with {size} GiB")
    return None


def _find_profile(gpu: _MigGpu, memory: int, needed: Fraction, utilization: float) -> SmallerDevice | None:
    for name, part, of_memory in gpu.profiles:
        if needed <= memory * of_memory * _USABLE and utilization <= part:
            return SmallerDevice(f"MIG profile {name}", part)
    return None

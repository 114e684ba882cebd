"""Fractions of Allocations for which only the memory is stated."""

from __future__ import annotations

from fractions import Fraction

import pytest

from builders import gpu, reading
from gpuledger.model import quantities as q
from gpuledger.model.snapshot import Reading
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.memory_fractions import MemoryFractions

CARD, GIB = gpu(0), 1 << 30
POD = Workload(kind="pod", pod="a")
STATED = (Allocation(CARD, POD, memory=20 * GIB),)


def sized(total: float | None) -> list[Reading]:
    return [reading(CARD, values={} if total is None else {q.MEMORY_TOTAL: total})]


@pytest.mark.parametrize(
    ("total", "fraction"),
    [(80 * GIB, Fraction(1, 4)), (20 * GIB, 1), (10 * GIB, 1), (None, None), (0, None)],
)
def test_the_fraction_is_the_part_of_the_memory(total: float | None, fraction: Fraction | None) -> None:
    (found,) = MemoryFractions().complete(STATED, sized(total))
    assert found.fraction == fraction


def test_the_last_known_size_remains_in_force_and_the_result_the_same_object() -> None:
    fractions = MemoryFractions()
    first = fractions.complete(STATED, sized(80 * GIB))
    assert fractions.complete(STATED, sized(None)) is first
    assert fractions.complete(STATED, sized(40 * GIB))[0].fraction == Fraction(1, 2)


def test_allocations_with_a_fraction_are_kept() -> None:
    known = (Allocation(CARD, POD), Allocation(CARD, POD, fraction=Fraction(1, 3), memory=GIB))
    assert MemoryFractions().complete(known, sized(80 * GIB)) is known

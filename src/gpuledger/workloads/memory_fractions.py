"""MemoryFractions: the fractions of Allocations for which only the memory is stated. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

from gpuledger.model.quantities import MEMORY_TOTAL
from gpuledger.model.snapshot import Reading
from gpuledger.model.workload import Allocation
from gpuledger.workloads.device_index import same_objects

# What the source must read for owners.
OWNER_QUANTITIES: Final = frozenset({MEMORY_TOTAL})


class MemoryFractions:
    """Computes the fractions from the memory of the Devices. The last known size remains in force."""

    def __init__(self) -> None:
        # Bytes by the UUID of the Device.
        self._totals: dict[str, int] = {}
        self._inputs: tuple[object, ...] = ()
        self._result: tuple[Allocation, ...] = ()

    def complete(
        self, allocations: tuple[Allocation, ...], readings: Sequence[Reading]
    ) -> tuple[Allocation, ...]:
        """The Allocations with these fractions; the same object while nothing changes."""
        if not any(item.memory is not None and item.fraction is None for item in allocations):
            return allocations
        totals = {reading.device.uuid: reading.get(MEMORY_TOTAL) for reading in readings}
        known = {uuid: int(total) for uuid, total in totals.items() if total}
        if any(self._totals.get(uuid) != total for uuid, total in known.items()):
            self._totals = self._totals | known
        inputs = (allocations, self._totals)
        if not same_objects(inputs, self._inputs):
            self._inputs = inputs
            self._result = tuple([self._with_fraction(item) for item in allocations])
        return self._result

    def _with_fraction(self, item: Allocation) -> Allocation:
        total = self._totals.get(item.device.uuid)
        if item.memory is None or item.fraction is not None or total is None:
            return item
        return replace(item, fraction=min(Fraction(item.memory, total), Fraction(1)))

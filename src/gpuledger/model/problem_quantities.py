"""The quantities that the judgement of a GPU needs: apart from `model.gpu_problems`, which few ticks need."""

from __future__ import annotations

from typing import Final

from gpuledger.model import quantities as q
from gpuledger.model.throttle_reasons import THROTTLE_QUANTITIES

# All slow, or in a batch of fields.
PROBLEM_QUANTITIES: Final = frozenset(
    {
        q.RECOVERY_ACTION,
        q.ROW_REMAP_FAILURE,
        q.ROW_REMAP_PENDING,
        q.RETIRED_PAGES_PENDING,
        q.ECC_UNCORRECTED_VOLATILE,
        q.PCIE_WIDTH,
        q.PCIE_WIDTH_MAX,
        q.PCIE_GENERATION,
        q.PCIE_GENERATION_MAX,
        q.PCIE_LINK_BUSY,
        q.NVLINKS_UP,
        q.NVLINKS_DOWN,
        *THROTTLE_QUANTITIES,
    }
)

"""DCGM_EXP_GPU_HEALTH_STATUS: the verdict on memory, by DCGM's own rules for it.

DCGM watches ten parts of a GPU. What is not read here is not told as passed: only `MEM` has a row.
"""

from __future__ import annotations

from typing import Final

from gpuledger.dialects.dcgm.field import Values
from gpuledger.model import quantities as q

# dcgmHealthWatchResults_t.
_PASS: Final = 0
_WARNING: Final = 10
_FAILURE: Final = 20

Verdict = tuple[int, str, str]

# Worst first: what is above 0, the result, DCGM's name of the error (dcgm_errors.h).
_RULES: Final = (
    (q.ROW_REMAP_FAILURE, _FAILURE, "DCGM_FR_ROW_REMAP_FAILURE"),
    (q.ECC_UNCORRECTED_VOLATILE, _FAILURE, "DCGM_FR_VOLATILE_DBE_DETECTED"),
    (q.ROW_REMAP_PENDING, _WARNING, "DCGM_FR_PENDING_ROW_REMAP"),
    (q.RETIRED_PAGES_PENDING, _WARNING, "DCGM_FR_PENDING_PAGE_RETIREMENTS"),
)


def memory(values: Values) -> Verdict | None:
    """Result, error code and watch; None where the card tells nothing of its memory's errors."""
    for quantity, result, code in _RULES:
        if values.get(quantity):
            return result, code, "MEM"
    if any(quantity in values for quantity, _, _ in _RULES):
        return _PASS, "DCGM_FR_OK", "MEM"
    return None

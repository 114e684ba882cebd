"""NVML's return codes, their names, and groups of codes that callers handle alike.

The numbers are those of nvml.h's nvmlReturn_t, which only grows; a test compares each with nvidia-ml-py.
They are repeated here because importing nvidia-ml-py took 3.4 of 18 MiB resident in `serve` (CPython 3.11).
"""

from __future__ import annotations

from typing import Final

SUCCESS: Final = 0
UNINITIALIZED: Final = 1
INVALID_ARGUMENT: Final = 2
NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
NOT_FOUND: Final = 6
INSUFFICIENT_SIZE: Final = 7
DRIVER_NOT_LOADED: Final = 9
TIMEOUT: Final = 10
FUNCTION_NOT_FOUND: Final = 13
GPU_IS_LOST: Final = 15
RESET_REQUIRED: Final = 16
LIB_RM_VERSION_MISMATCH: Final = 18
NO_DATA: Final = 21
VGPU_ECC_NOT_SUPPORTED: Final = 22
ARGUMENT_VERSION_MISMATCH: Final = 25
DEPRECATED: Final = 26

# The device or the driver does not support the call: retrying soon is pointless.
UNSUPPORTED: Final = frozenset(
    {NOT_SUPPORTED, FUNCTION_NOT_FOUND, VGPU_ECC_NOT_SUPPORTED, ARGUMENT_VERSION_MISMATCH, DEPRECATED}
)
# No data at the moment, which is not a failure.
NOTHING_YET: Final = frozenset({NOT_FOUND, NO_DATA})
# By NVML's definition the whole device is unreachable, whichever call returned the code.
GONE: Final = frozenset({GPU_IS_LOST, RESET_REQUIRED})
# The driver was unloaded or replaced: NVML must be initialized again.
RELOADED: Final = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH})

# Names of nvml.h without NVML_ERROR_.
NAMES: Final = {
    UNINITIALIZED: "UNINITIALIZED",
    INVALID_ARGUMENT: "INVALID_ARGUMENT",
    NOT_SUPPORTED: "NOT_SUPPORTED",
    NO_PERMISSION: "NO_PERMISSION",
    5: "ALREADY_INITIALIZED",
    NOT_FOUND: "NOT_FOUND",
    INSUFFICIENT_SIZE: "INSUFFICIENT_SIZE",
    8: "INSUFFICIENT_POWER",
    DRIVER_NOT_LOADED: "DRIVER_NOT_LOADED",
    TIMEOUT: "TIMEOUT",
    11: "IRQ_ISSUE",
    12: "LIBRARY_NOT_FOUND",
    FUNCTION_NOT_FOUND: "FUNCTION_NOT_FOUND",
    14: "CORRUPTED_INFOROM",
    GPU_IS_LOST: "GPU_IS_LOST",
    RESET_REQUIRED: "RESET_REQUIRED",
    17: "OPERATING_SYSTEM",
    LIB_RM_VERSION_MISMATCH: "LIB_RM_VERSION_MISMATCH",
    19: "IN_USE",
    20: "MEMORY",
    NO_DATA: "NO_DATA",
    VGPU_ECC_NOT_SUPPORTED: "VGPU_ECC_NOT_SUPPORTED",
    23: "INSUFFICIENT_RESOURCES",
    24: "FREQ_NOT_SUPPORTED",
    ARGUMENT_VERSION_MISMATCH: "ARGUMENT_VERSION_MISMATCH",
    DEPRECATED: "DEPRECATED",
    27: "NOT_READY",
    28: "GPU_NOT_FOUND",
    29: "INVALID_STATE",
    30: "RESET_TYPE_NOT_SUPPORTED",
    999: "UNKNOWN",
}


def name_of(code: int) -> str:
    """Return a short, stable name for labels, such as `GPU_IS_LOST`; `NVML_77` for an unknown code."""
    return NAMES.get(code, f"NVML_{code}")

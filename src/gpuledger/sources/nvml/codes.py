"""NVML's return codes: their names, and what each means for the one who asked.

The only module that imports nvidia-ml-py: for the numbers. Calls go through `library`.
"""

from __future__ import annotations

from typing import Final

import pynvml

SUCCESS: Final[int] = pynvml.NVML_SUCCESS
UNINITIALIZED: Final[int] = pynvml.NVML_ERROR_UNINITIALIZED
INVALID_ARGUMENT: Final[int] = pynvml.NVML_ERROR_INVALID_ARGUMENT
NOT_SUPPORTED: Final[int] = pynvml.NVML_ERROR_NOT_SUPPORTED
NO_PERMISSION: Final[int] = pynvml.NVML_ERROR_NO_PERMISSION
NOT_FOUND: Final[int] = pynvml.NVML_ERROR_NOT_FOUND
INSUFFICIENT_SIZE: Final[int] = pynvml.NVML_ERROR_INSUFFICIENT_SIZE
DRIVER_NOT_LOADED: Final[int] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
TIMEOUT: Final[int] = pynvml.NVML_ERROR_TIMEOUT
FUNCTION_NOT_FOUND: Final[int] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
GPU_IS_LOST: Final[int] = pynvml.NVML_ERROR_GPU_IS_LOST
RESET_REQUIRED: Final[int] = pynvml.NVML_ERROR_RESET_REQUIRED
LIB_RM_VERSION_MISMATCH: Final[int] = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
NO_DATA: Final[int] = pynvml.NVML_ERROR_NO_DATA
VGPU_ECC_NOT_SUPPORTED: Final[int] = pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED
ARGUMENT_VERSION_MISMATCH: Final[int] = pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
DEPRECATED: Final[int] = getattr(pynvml, "NVML_ERROR_DEPRECATED", 26)

# This device, or this driver, does not have the thing at all: asking again is pointless.
UNSUPPORTED: Final = frozenset(
    {NOT_SUPPORTED, FUNCTION_NOT_FOUND, VGPU_ECC_NOT_SUPPORTED, ARGUMENT_VERSION_MISMATCH, DEPRECATED}
)
# Nothing to tell just now, which is no failure.
NOTHING_YET: Final = frozenset({NOT_FOUND, NO_DATA})
# By NVML's own definition the whole device is out of reach, whichever call said so.
GONE: Final = frozenset({GPU_IS_LOST, RESET_REQUIRED})
# The driver went away or was replaced under the library: only a new start can help.
RELOADED: Final = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH})

_NAMES: Final[dict[int, str]] = {
    value: name.removeprefix("NVML_ERROR_")
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
}


def name_of(code: int) -> str:
    """Short stable name fit for a label: `GPU_IS_LOST`; a code newer than nvidia-ml-py is `NVML_77`."""
    return _NAMES.get(code, f"NVML_{code}")

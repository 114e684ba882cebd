"""NVML's return codes, their names, and groups of codes that callers handle alike.

The numbers are those of nvml.h's nvmlReturn_t, which only grows; a test compares each with nvidia-ml-py.
They are repeated here because importing nvidia-ml-py took 3.4 of 18 MiB resident in `serve` (CPython 3.11).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Code(IntEnum):
    """The return codes by their names in nvml.h without NVML_ERROR_."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    VGPU_ECC_NOT_SUPPORTED = 22
    INSUFFICIENT_RESOURCES = 23
    FREQ_NOT_SUPPORTED = 24
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    INVALID_STATE = 29
    RESET_TYPE_NOT_SUPPORTED = 30
    UNKNOWN = 999


# The device or the driver does not support the call: retrying soon is pointless.
UNSUPPORTED: Final = frozenset(
    {
        Code.NOT_SUPPORTED,
        Code.FUNCTION_NOT_FOUND,
        Code.VGPU_ECC_NOT_SUPPORTED,
        Code.ARGUMENT_VERSION_MISMATCH,
        Code.DEPRECATED,
    }
)
# No data at the moment, which is not a failure.
NOTHING_YET: Final = frozenset({Code.NOT_FOUND, Code.NO_DATA})
# By NVML's definition the whole device is unreachable, whichever call returned the code.
GONE: Final = frozenset({Code.GPU_IS_LOST, Code.RESET_REQUIRED})
# The driver was unloaded or replaced: NVML must be initialized again.
RELOADED: Final = frozenset({Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED, Code.LIB_RM_VERSION_MISMATCH})


def name_of(code: int) -> str:
    """Return a short, stable name for labels, such as `GPU_IS_LOST`; `NVML_77` for an unknown code."""
    try:
        return Code(code).name
    except ValueError:
        return f"NVML_{code}"


def code_of(name: str) -> int | None:
    """Return the code with a name of `name_of`, None if there is none."""
    try:
        return int(Code[name])
    except KeyError:
        number = name.removeprefix("NVML_")
        return int(number) if number.isdecimal() else None

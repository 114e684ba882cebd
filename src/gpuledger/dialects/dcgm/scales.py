"""From a quantity's base unit to what DCGM says, field by field: unit, and whether it is a whole number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Scale:
    """`to` gives the value told for one in the base unit; None is a value that DCGM has no word for."""

    unit: str
    to: Callable[[float], float | None]


def _as_it_is(value: float) -> float:
    # DCGM prints six decimals of what it holds as double.
    return round(value, 6)


def _compute_mode(value: float) -> float | None:
    # nvmlComputeMode_t 0, 2, 3 are DCGM's 0 default, 1 prohibited, 2 exclusive process (dcgm_structs.h);
    # NVML's 1, exclusive thread, is of CUDA 7 and older.
    return {0: 0, 2: 1, 3: 2}.get(int(value))


# DCGM_FT_INT64, unscaled.
COUNT = Scale("", int)
CELSIUS = Scale("C", int)
NANOSECONDS = Scale("ns", int)
COMPUTE_MODE = Scale("", _compute_mode)
BYTES = Scale("bytes", int)
BYTES_PER_SECOND = Scale("bytes per second", int)
# DCGM_FT_DOUBLE, unscaled.
WATTS = Scale("W", _as_it_is)
RATIO = Scale("0 to 1", _as_it_is)
# DCGM_FT_INT64 in units of its own. NVML tells whole percents: 0.57 must come out as 57.
PERCENT = Scale("%", lambda value: round(value * 100))
MEBIBYTES = Scale("MiB", lambda value: int(value) // _MIB)
MEGAHERTZ = Scale("MHz", lambda value: round(value / 1_000_000))
HERTZ = Scale("Hz", int)
MILLIJOULES = Scale("mJ", int)
JOULES = Scale("J", lambda value: int(value) // 1000)
# Field 449: thousands of KiB a second, which NVIDIA calls MB/s.
NVLINK_MEGABYTES = Scale("thousands of KiB per second", lambda value: int(value / 1_024_000))

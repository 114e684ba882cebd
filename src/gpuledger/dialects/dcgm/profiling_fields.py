"""DCGM's profiling fields, read from NVML GPM on Hopper and newer as means between two ticks.

DCGM reads them the same way there. On Volta to Ada it uses a closed-source module, so gpuledger needs DCGM
for them. The PCIe and NVLink fields are rates and thus gauges, although some published files call them
counters.
"""

from __future__ import annotations

from typing import Final

from gpuledger.dialects.dcgm.field_definition import RATIO, Field, scaled
from gpuledger.model import quantities as q
from gpuledger.model.quantities import Quantity


def _profile(number: int, old: str, new: str, quantity: Quantity, text: str) -> Field:
    return scaled(number, old, f"{new}_RATIO", quantity, text, scale=RATIO, group="PROF_")


def _rate(number: int, name: str, quantity: Quantity, text: str) -> Field:
    return scaled(number, name, "", quantity, text, group="PROF_")


PROFILING: Final = (
    _profile(
        1001,
        "GR_ENGINE_ACTIVE",
        "GR_ENGINE_UTIL",
        q.ENGINE_ACTIVITY,
        "Fraction of time for which the graphics or compute engine was busy",
    ),
    _profile(1002, "SM_ACTIVE", "SM_UTIL", q.SM_ACTIVITY, "Fraction of cycles in which an SM had a warp"),
    _profile(
        1003, "SM_OCCUPANCY", "SM_OCCUPANCY", q.SM_OCCUPANCY, "Resident warps as a fraction of the maximum"
    ),
    _profile(
        1004,
        "PIPE_TENSOR_ACTIVE",
        "TENSOR_UTIL",
        q.TENSOR_ACTIVITY,
        "Fraction of cycles in which the tensor pipes were busy",
    ),
    _profile(
        1005,
        "DRAM_ACTIVE",
        "DRAM_UTIL",
        q.DRAM_ACTIVITY,
        "Fraction of cycles in which device memory was read or written",
    ),
    *(
        _profile(
            number,
            f"PIPE_FP{bits}_ACTIVE",
            f"FP{bits}_UTIL",
            quantity,
            f"Fraction of cycles in which the FP{bits} pipes were busy",
        )
        for number, bits, quantity in (
            (1006, 64, q.FP64_ACTIVITY),
            (1007, 32, q.FP32_ACTIVITY),
            (1008, 16, q.FP16_ACTIVITY),
        )
    ),
    _rate(1009, "PCIE_TX_BYTES", q.PCIE_TX_RATE, "Data rate sent over PCIe, headers and payload"),
    _rate(1010, "PCIE_RX_BYTES", q.PCIE_RX_RATE, "Data rate received over PCIe, headers and payload"),
    _rate(1011, "NVLINK_TX_BYTES", q.NVLINK_TX_RATE, "Data rate sent over NVLink"),
    _rate(1012, "NVLINK_RX_BYTES", q.NVLINK_RX_RATE, "Data rate received over NVLink"),
)

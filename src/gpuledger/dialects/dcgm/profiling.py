"""DCGM's profiling fields: of Hopper and newer from NVML GPM, as means between two ticks.

DCGM itself reads them so there; on Volta to Ada by a closed module, so that gpuledger alone cannot. Those of
PCIe and NVLink are rates, gauges, although files that call them counters are about.
"""

from __future__ import annotations

from typing import Final

from gpuledger.dialects.dcgm import field as s
from gpuledger.dialects.dcgm.field import Field, scaled
from gpuledger.model import quantities as q
from gpuledger.model.quantities import Quantity


def _profile(
    number: int, old: str, new: str, quantity: Quantity, text: str, *, shared: bool = False
) -> Field:
    return scaled(number, f"PROF_{old}", f"PROF_{new}_RATIO", quantity, s.RATIO, text, shared=shared)


def _rate(number: int, name: str, quantity: Quantity, text: str) -> Field:
    return scaled(number, f"PROF_{name}", "", quantity, s.BYTES_PER_SECOND, text)


PROFILING: Final = (
    _profile(
        1001,
        "GR_ENGINE_ACTIVE",
        "GR_ENGINE_UTIL",
        q.ENGINE_ACTIVITY,
        "Share of time in which the graphics or compute engine was busy",
    ),
    _profile(1002, "SM_ACTIVE", "SM_UTIL", q.SM_ACTIVITY, "Share of cycles in which an SM had a warp"),
    _profile(
        1003, "SM_OCCUPANCY", "SM_OCCUPANCY", q.SM_OCCUPANCY, "Resident warps of those that an SM can hold"
    ),
    _profile(
        1004,
        "PIPE_TENSOR_ACTIVE",
        "TENSOR_UTIL",
        q.TENSOR_ACTIVITY,
        "Share of cycles in which the tensor pipes were busy",
    ),
    _profile(
        1005,
        "DRAM_ACTIVE",
        "DRAM_UTIL",
        q.DRAM_ACTIVITY,
        "Share of cycles in which device memory was read or written",
        shared=True,
    ),
    *(
        _profile(
            number,
            f"PIPE_FP{bits}_ACTIVE",
            f"FP{bits}_UTIL",
            quantity,
            f"Share of cycles of busy FP{bits} pipes",
        )
        for number, bits, quantity in (
            (1006, 64, q.FP64_ACTIVITY),
            (1007, 32, q.FP32_ACTIVITY),
            (1008, 16, q.FP16_ACTIVITY),
        )
    ),
    _rate(1009, "PCIE_TX_BYTES", q.PCIE_TX_RATE, "Rate of data sent over PCIe, headers and payload"),
    _rate(1010, "PCIE_RX_BYTES", q.PCIE_RX_RATE, "Rate of data received over PCIe, headers and payload"),
    _rate(1011, "NVLINK_TX_BYTES", q.NVLINK_TX_RATE, "Rate of data sent over NVLink"),
    _rate(1012, "NVLINK_RX_BYTES", q.NVLINK_RX_RATE, "Rate of data received over NVLink"),
)

"""What GPM tells of the engines of a simulated Device: each metric from how busy they were."""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger.model import quantities as q
from gpuledger.model.quantities import Quantity

# The share of busy time that each metric comes to, as a large model in training shows it.
ENGINES: Mapping[Quantity, float] = {
    q.ENGINE_ACTIVITY: 1.0,
    q.SM_ACTIVITY: 0.93,
    q.SM_OCCUPANCY: 0.47,
    q.TENSOR_ACTIVITY: 0.38,
    q.FP64_ACTIVITY: 0.0,
    q.FP32_ACTIVITY: 0.11,
    q.FP16_ACTIVITY: 0.06,
}
_DRAM_PEAK = 0.82

# What GPM tells of a Gpu and of its Instances, and of a whole Gpu alone.
METRICS = frozenset({*ENGINES, q.DRAM_ACTIVITY})
RATES = frozenset({q.PCIE_TX_RATE, q.PCIE_RX_RATE, q.NVLINK_TX_RATE, q.NVLINK_RX_RATE})


def metric(quantity: Quantity, busy: float, memory: float) -> float:
    """A metric from the shares of time in which the engines and the memory of a Device were busy."""
    return memory * _DRAM_PEAK if quantity is q.DRAM_ACTIVITY else busy * ENGINES[quantity]

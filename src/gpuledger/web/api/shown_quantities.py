"""The quantities that page and API show: a tick reads them, whether or not anybody requests the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpuledger.model import quantities as q
from gpuledger.model.devices import Instance
from gpuledger.model.problem_quantities import PROBLEM_QUANTITIES
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import Reading
from gpuledger.web.api.json_values import finite

# By section and key of the JSON of a GPU's health.
HEALTH_COUNTS: Final[Mapping[str, Mapping[str, Quantity]]] = {
    "ecc": {
        "corrected": q.ECC_CORRECTED,
        "uncorrected": q.ECC_UNCORRECTED,
        "corrected_volatile": q.ECC_CORRECTED_VOLATILE,
        "uncorrected_volatile": q.ECC_UNCORRECTED_VOLATILE,
    },
    "memory_repair": {
        "remapped_correctable": q.REMAPPED_ROWS_CORRECTABLE,
        "remapped_uncorrectable": q.REMAPPED_ROWS_UNCORRECTABLE,
        "retired_correctable": q.RETIRED_PAGES_CORRECTABLE,
        "retired_uncorrectable": q.RETIRED_PAGES_UNCORRECTABLE,
    },
    "pcie": {
        "generation": q.PCIE_GENERATION,
        "generation_max": q.PCIE_GENERATION_MAX,
        "generation_gpu_max": q.PCIE_GENERATION_GPU_MAX,
        "width": q.PCIE_WIDTH,
        "width_max": q.PCIE_WIDTH_MAX,
    },
    "nvlink": {
        "speed_bytes_per_second": q.NVLINK_SPEED,
        "crc_flit_errors": q.NVLINK_CRC_FLIT_ERRORS,
        "crc_data_errors": q.NVLINK_CRC_DATA_ERRORS,
        "replay_errors": q.NVLINK_REPLAY_ERRORS,
        "recovery_errors": q.NVLINK_RECOVERY_ERRORS,
    },
}
# The health of a GPU costs few calls: its quantities are slow, or fields of the batch.
SNAPSHOT_QUANTITIES: Final[frozenset[Quantity]] = PROBLEM_QUANTITIES.union(
    *(counts.values() for counts in HEALTH_COUNTS.values()),
    (
        q.ENGINE_ACTIVITY,
        q.MEMORY_TOTAL,
        q.MEMORY_USED,
        q.POWER,
        q.POWER_LIMIT,
        q.TEMPERATURE,
        q.UTILIZATION,
    ),
)


def utilization_of(reading: Reading) -> float | None:
    """The share of time in which the Device was active; an Instance reports only its engine activity."""
    ratio = reading.get(q.UTILIZATION)
    if ratio is None and isinstance(reading.device, Instance):
        ratio = reading.get(q.ENGINE_ACTIVITY)
    return finite(ratio)

"""DCGM fields by what a collectors file may call them, and those that it may name but that are not told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpuledger.dialects.dcgm.field import Field
from gpuledger.dialects.dcgm.fields import FIELDS
from gpuledger.dialects.dcgm.profiling import PROFILING

BY_NAME: Final[Mapping[str, Field]] = {name: field for field in FIELDS for name in field.names}
BY_ID: Final[Mapping[int, Field]] = {number: field for field in FIELDS for number in field.ids}

# The names of dcgm-exporter 1, which its successors take and tell as they are written.
_ONE: Final = {
    "sm_clock": 100,
    "memory_clock": 101,
    "memory_temp": 140,
    "gpu_temp": 150,
    "power_usage": 155,
    "total_energy_consumption": 156,
    "pcie_replay_counter": 202,
    "gpu_utilization": 203,
    "mem_copy_utilization": 204,
    "enc_utilization": 206,
    "dec_utilization": 207,
    "xid_errors": 230,
    "power_violation": 240,
    "thermal_violation": 241,
    "sync_boost_violation": 242,
    "board_limit_violation": 243,
    "low_util_violation": 244,
    "reliability_violation": 245,
    "fb_free": 251,
    "fb_used": 252,
    "ecc_sbe_volatile_total": 310,
    "ecc_dbe_volatile_total": 311,
    "ecc_sbe_aggregate_total": 312,
    "ecc_dbe_aggregate_total": 313,
    "retired_pages_sbe": 390,
    "retired_pages_dbe": 391,
    "retired_pages_pending": 392,
    "nvlink_flit_crc_error_count_total": 409,
    "nvlink_data_crc_error_count_total": 419,
    "nvlink_replay_error_count_total": 429,
    "nvlink_recovery_error_count_total": 439,
    "nvlink_bandwidth_total": 449,
}
OLDEST: Final[Mapping[str, Field]] = {
    **{f"dcgm_{name}": BY_ID[number] for name, number in _ONE.items()},
    **{field.name("4.8").lower(): field for field in PROFILING},
}

_INFOROM: Final = "versions of the inforom are not read"
_CLOCK_EVENTS: Final = (
    "clock events are not counted; DCGM_FI_DEV_CLOCKS_EVENT_REASONS is their state and "
    "DCGM_FI_DEV_*_VIOLATION their time"
)

# What NVIDIA's own collectors files name and gpuledger does not tell, and why not.
UNTOLD: Final[Mapping[str, str]] = {
    "DCGM_FI_DEV_BRAND": "brands are not read",
    "DCGM_FI_DEV_GPU_BRAND": "brands are not read",
    "DCGM_FI_DEV_OEM_INFOROM_VER": _INFOROM,
    "DCGM_FI_DEV_ECC_INFOROM_VER": _INFOROM,
    "DCGM_FI_DEV_POWER_INFOROM_VER": _INFOROM,
    "DCGM_FI_DEV_INFOROM_IMAGE_VER": _INFOROM,
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": "licences of vGPUs are not read",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0": "links are told together, by DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
    "DCGM_EXP_XID_ERRORS_COUNT": "events of a window are not counted; take "
    "increase(DCGM_EXP_XID_ERRORS_TOTAL[5m])",
    "DCGM_EXP_CLOCK_EVENTS_COUNT": _CLOCK_EVENTS,
    "DCGM_EXP_CLOCK_EVENTS_TOTAL": _CLOCK_EVENTS,
    "DCGM_EXP_P2P_STATUS": "links between pairs of GPUs are not read",
}

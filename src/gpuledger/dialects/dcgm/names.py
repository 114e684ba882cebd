"""DCGM fields by what a collectors file may call them, and those that it may name in vain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpuledger.dialects.dcgm.field import Field
from gpuledger.dialects.dcgm.fields import FIELDS

BY_NAME: Final[Mapping[str, Field]] = {name: field for field in FIELDS for name in field.names}
BY_ID: Final[Mapping[int, Field]] = {number: field for field in FIELDS for number in field.ids}

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

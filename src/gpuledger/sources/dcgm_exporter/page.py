"""A dcgm-exporter's metrics page, read for its profiling fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from gpuledger.model import quantities as q
from gpuledger.model.quantities import Quantity

# By uuid of the Gpu and id of the GPU instance, None for the whole.
Told = Mapping[tuple[str, int | None], Mapping[Quantity, float]]

# Names of both schemas of dcgm-exporter, without DCGM_FI_PROF_. All are told in the quantity's own unit.
FIELDS: Final[Mapping[str, Quantity]] = {
    "GR_ENGINE_ACTIVE": q.ENGINE_ACTIVITY,
    "GR_ENGINE_UTIL_RATIO": q.ENGINE_ACTIVITY,
    "SM_ACTIVE": q.SM_ACTIVITY,
    "SM_UTIL_RATIO": q.SM_ACTIVITY,
    "SM_OCCUPANCY": q.SM_OCCUPANCY,
    "SM_OCCUPANCY_RATIO": q.SM_OCCUPANCY,
    "PIPE_TENSOR_ACTIVE": q.TENSOR_ACTIVITY,
    "TENSOR_UTIL_RATIO": q.TENSOR_ACTIVITY,
    "DRAM_ACTIVE": q.DRAM_ACTIVITY,
    "DRAM_UTIL_RATIO": q.DRAM_ACTIVITY,
    "PIPE_FP64_ACTIVE": q.FP64_ACTIVITY,
    "FP64_UTIL_RATIO": q.FP64_ACTIVITY,
    "PIPE_FP32_ACTIVE": q.FP32_ACTIVITY,
    "FP32_UTIL_RATIO": q.FP32_ACTIVITY,
    "PIPE_FP16_ACTIVE": q.FP16_ACTIVITY,
    "FP16_UTIL_RATIO": q.FP16_ACTIVITY,
    "PCIE_TX_BYTES": q.PCIE_TX_RATE,
    "PCIE_RX_BYTES": q.PCIE_RX_RATE,
    "NVLINK_TX_BYTES": q.NVLINK_TX_RATE,
    "NVLINK_RX_BYTES": q.NVLINK_RX_RATE,
}

_PREFIX: Final = "DCGM_FI_PROF_"
# Label values may hold any character, braces too; a timestamp may follow the value.
_SAMPLE: Final = re.compile(
    rf'{_PREFIX}(\w+)\{{((?:[^"}}]|"(?:[^"\\]|\\.)*")*)\}}[ \t]+(\S+)(?:[ \t]+-?\d+)?[ \t]*'
)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def parse(page: str) -> Told:
    """What the page tells of each GPU and GPU instance.

    Other families, and lines that are none, are passed over; a value that cannot be (blanks of DCGM, NaN, a
    ratio of 3) is absent. Of two values of one field the first counts.
    """
    told: dict[tuple[str, int | None], dict[Quantity, float]] = {}
    for name, labels, value in _samples(page):
        quantity = FIELDS.get(name)
        uuid = labels.get("UUID") or labels.get("uuid")
        if quantity is None or not uuid:
            continue
        gi = labels.get("GPU_I_ID", "")
        if quantity.believes(value) and (not gi or _is_id(gi)):
            told.setdefault((uuid, int(gi) if gi else None), {}).setdefault(quantity, value)
    return told


def _is_id(text: str) -> bool:
    return text.isdecimal() and len(text) < 10


def _samples(page: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    for line in page.split("\n"):
        found = _SAMPLE.fullmatch(line.rstrip("\r")) if line.startswith(_PREFIX) else None
        if found is None:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        yield found[1], dict(_LABEL.findall(found[2])), value

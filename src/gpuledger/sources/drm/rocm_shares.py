"""Shares of ROCm processes in the work of a GPU.

ROCm's queues bypass the DRM scheduler, so fdinfo has no engine time of them. Engine time of clients and
compute units in use cannot be added: first the clients get their engine time, and what the GPU was busy
beyond it is the compute part, which is split among the ROCm processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpuledger.sources.drm.kfd import KfdUse

ENGINE_TIME: Final = "engine_time"
OCCUPANCY: Final = "occupancy"
EQUAL: Final = "equal"


@dataclass(frozen=True, slots=True)
class RocmShares:
    """By pid the share of the tick, 0 to 1, and the evidence; `readable` is False if there is none."""

    shares: Mapping[int, float]
    basis: str
    readable: bool = True


def split_compute_part(
    uses: Mapping[int, KfdUse], busy: float | None, engine_time: float, compute_units: int | None
) -> RocmShares:
    """Split what a device was busy beyond the `engine_time` of its DRM clients among ROCm processes.

    By compute units in use at this moment, where the chip reports them and one is in use; else equally among
    the processes with queues. If it is not known how busy the device was, units in use are shares of all.
    """
    if not uses:
        return RocmShares({}, ENGINE_TIME)
    units = {pid: use.occupancy for pid, use in uses.items() if use.occupancy}
    if busy is None:
        if units and compute_units:
            return RocmShares({pid: min(1.0, used / compute_units) for pid, used in units.items()}, OCCUPANCY)
        return RocmShares({}, EQUAL, readable=False)
    part = max(0.0, busy - engine_time)
    if units:
        total = sum(units.values())
        return RocmShares({pid: part * used / total for pid, used in units.items()}, OCCUPANCY)
    working = [pid for pid, use in uses.items() if use.queues] or list(uses)
    return RocmShares({pid: part / len(working) for pid in working}, EQUAL)

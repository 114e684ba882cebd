"""Whether somebody who is on a Device uses it: held is a fact of each tick, and certain or not told."""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger.model.devices import Instance
from gpuledger.model.process import GpuProcess, Usage
from gpuledger.model.quantities import (
    DECODER_UTILIZATION,
    ENCODER_UTILIZATION,
    ENGINE_ACTIVITY,
    UTILIZATION,
)
from gpuledger.model.snapshot import Reading


def is_still(reading: Reading) -> bool:
    """Whether the Device as a whole did nothing, as far as the driver tells: no engine of it. Under MIG it
    tells no process's share, and of an Instance its SMs alone.
    """
    if isinstance(reading.device, Instance):
        return reading.get(ENGINE_ACTIVITY) == 0
    media = reading.get(ENCODER_UTILIZATION) or reading.get(DECODER_UTILIZATION)
    return reading.get(UTILIZATION) == 0 and not media


def holds(process: GpuProcess, *, still: bool) -> bool:
    """Whether a process certainly did nothing; `still` says it of its whole Device (`is_still`)."""
    usage = process.usage
    return not _works(usage) and (still or usage.sm is not None)


def all_hold(processes: Iterable[GpuProcess], reading: Reading) -> bool:
    """Whether they, all of one owner, certainly did nothing; so without any, where the list was read."""
    if reading.processes is None or not reading.up:
        return False
    still = is_still(reading)
    return all(holds(process, still=still) for process in processes)


def _works(usage: Usage) -> bool:
    return bool(usage.sm or usage.encoder or usage.decoder or usage.jpeg or usage.ofa)

"""Whether somebody who is on a Device uses it: held is a fact of each tick, and certain or not told."""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger.model.devices import Instance
from gpuledger.model.process import GpuProcess, Usage
from gpuledger.model.quantities import ENGINE_ACTIVITY, UTILIZATION
from gpuledger.model.snapshot import Reading


def is_still(reading: Reading) -> bool:
    """Whether the Device as a whole certainly did nothing. Under MIG the driver tells no process's share, but
    what the Instance did.
    """
    whole = ENGINE_ACTIVITY if isinstance(reading.device, Instance) else UTILIZATION
    return reading.get(whole) == 0


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

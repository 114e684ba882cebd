"""What each Device did in an interval: active, held, idle or unknown. A fact of each tick, not debounced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuledger.ledger.energy.shares import share_of
from gpuledger.ledger.watched_time import seconds_since
from gpuledger.model.devices import Instance
from gpuledger.model.process import GpuProcess, Usage
from gpuledger.model.quantities import (
    DECODER_UTILIZATION,
    ENCODER_UTILIZATION,
    ENGINE_ACTIVITY,
    UTILIZATION,
)
from gpuledger.model.snapshot import Reading, Snapshot

ACTIVE, HELD, IDLE, UNKNOWN = "active", "held", "idle", "unknown"
# Uuid of the Gpu and `GI_CI`, as in the labels of the native dialect.
Place = tuple[str, str]


class DeviceStates:
    """The state of every Device now, and the seconds spent in each since the program started."""

    def __init__(self) -> None:
        self.now: dict[Place, str] = {}
        self.seconds: dict[tuple[str, str, str], float] = {}
        self._elapsed: float | None = None

    def post(self, snapshot: Snapshot) -> None:
        """Take in one tick."""
        since = seconds_since(self._elapsed, snapshot.elapsed)
        self._elapsed = snapshot.elapsed
        held = {allocation.device.uuid for allocation in snapshot.allocations}
        self.now = {
            _place(reading): _state(reading, allocated=reading.device.uuid in held)
            for reading in snapshot.holders
        }
        if since:
            for (uuid, instance), state in self.now.items():
                key = (uuid, instance, state)
                self.seconds[key] = self.seconds.get(key, 0.0) + since

    def interrupt(self) -> None:
        """Nobody looks until the next tick: the time until then is no state's."""
        self._elapsed = None

    def told(self) -> tuple[Mapping[Place, str], Mapping[tuple[str, str, str], float]]:
        """Both as values of this tick."""
        return dict(self.now), dict(self.seconds)


def sm_ratios(snapshot: Snapshot) -> Mapping[Place, float]:
    """Each Device's part of its Gpu's multiprocessors, 1 for the Gpu."""
    return {_place(reading): float(share_of(reading.device)) for reading in snapshot.readings}


def _place(reading: Reading) -> Place:
    return (reading.device.gpu.uuid, reading.device.instance)


def _state(reading: Reading, *, allocated: bool) -> str:
    processes = reading.processes
    if not reading.up or processes is None:
        return UNKNOWN
    share = reading.get(ENGINE_ACTIVITY if isinstance(reading.device, Instance) else UTILIZATION)
    shares = [process.usage.sm for process in processes]
    if share or any(shares):
        return ACTIVE
    if not processes and not allocated:
        return IDLE
    told = share is not None or (bool(shares) and None not in shares)
    return HELD if told else UNKNOWN


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

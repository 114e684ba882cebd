"""State of each Device in an interval: active, held, idle or unknown. A fact of each tick, not debounced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuledger.ledger.energy.shares import device_share
from gpuledger.ledger.holders import holding_allocations
from gpuledger.ledger.service_processes import NO_PROCESSES
from gpuledger.ledger.time.account import OwnerNames
from gpuledger.ledger.watched_time import observed_seconds
from gpuledger.model import quantities as q
from gpuledger.model.devices import Instance
from gpuledger.model.process import GpuProcess, ProcessKey
from gpuledger.model.snapshot import Reading, Snapshot

ACTIVE, HELD, IDLE, UNKNOWN = "active", "held", "idle", "unknown"
# Gpu uuid and `GI_CI`, as in the labels of the native dialect.
DeviceKey = tuple[str, str]


class DeviceStates:
    """The current state of every Device, and the seconds spent in each state since the program started."""

    def __init__(self) -> None:
        self.now: dict[DeviceKey, str] = {}
        self.seconds: dict[tuple[str, str, str], float] = {}
        # When each Device was first seen, by the source's clock.
        self.born: dict[DeviceKey, float] = {}
        self._elapsed: float | None = None

    def post(self, snapshot: Snapshot, serving: frozenset[ProcessKey] = NO_PROCESSES) -> None:
        """Add one tick. `serving` are processes that hold no Device: they serve others, or only draw."""
        since = observed_seconds(self._elapsed, snapshot.elapsed)
        self._elapsed = snapshot.elapsed
        held = holding_allocations(snapshot)
        states = {
            _device_key(reading): _state(reading, serving, allocated=reading.device.uuid in held)
            for reading in snapshot.process_readings
        }
        # A Device that is down is neither in use nor free: it has no current state.
        down = {_device_key(reading) for reading in snapshot.process_readings if not reading.up}
        self.now = {key: state for key, state in states.items() if key not in down}
        for (uuid, instance), state in states.items():
            key = (uuid, instance, state)
            if key not in self.seconds:
                # Each state begins at 0, so that increase() counts its first seconds.
                for name in (ACTIVE, HELD, IDLE, UNKNOWN):
                    self.seconds.setdefault((uuid, instance, name), 0.0)
                self.born[uuid, instance] = snapshot.elapsed
                # Its time before this tick is not known.
                continue
            self.seconds[key] += since

    def interrupt(self) -> None:
        """Count no time until the next tick: it is not observed."""
        self._elapsed = None


def sm_ratios(snapshot: Snapshot) -> Mapping[DeviceKey, float]:
    """Each Device's part of its Gpu's multiprocessors; 1 for the Gpu itself."""
    return {_device_key(reading): float(device_share(reading.device)) for reading in snapshot.readings}


def _device_key(reading: Reading) -> DeviceKey:
    return (reading.device.gpu.uuid, reading.device.instance)


def _state(reading: Reading, serving: frozenset[ProcessKey], *, allocated: bool) -> str:
    processes = reading.processes
    if not reading.up or processes is None:
        return UNKNOWN
    share = reading.get(q.ENGINE_ACTIVITY if isinstance(reading.device, Instance) else q.UTILIZATION)
    shares = [process.usage.sm for process in processes]
    if share or any(shares):
        return ACTIVE
    if not allocated and all(process.key in serving for process in processes):
        # Nothing says whether what only draws is at work: not the Device, and not the process.
        is_unseen = share is None and any(
            not process.computes and process.usage.sm is None for process in processes
        )
        return UNKNOWN if is_unseen else IDLE
    is_reported = share is not None or (bool(shares) and None not in shares)
    return HELD if is_reported else UNKNOWN


def is_device_inactive(reading: Reading) -> bool:
    """Return whether no engine of the Device was active, as far as the driver reports.

    Under MIG the driver reports no utilization per process, and of an Instance only that of its SMs.
    """
    if isinstance(reading.device, Instance):
        return reading.get(q.ENGINE_ACTIVITY) == 0
    media = reading.get(q.ENCODER_UTILIZATION) or reading.get(q.DECODER_UTILIZATION)
    return reading.get(q.UTILIZATION) == 0 and not media


def is_inactive(process: GpuProcess, *, device_inactive: bool) -> bool:
    """Return whether a process certainly used no engine.

    `device_inactive` is the result of `is_device_inactive` for its Device.
    """
    usage = process.usage
    engines = usage.sm or usage.encoder or usage.decoder or usage.jpeg or usage.ofa
    return not engines and (device_inactive or usage.sm is not None)


class DeviceActivity:
    """Which processes of a Device used an engine in one tick, as far as the driver reports."""

    __slots__ = ("_is_inactive", "_reading", "_serving")

    def __init__(self, reading: Reading, serving: frozenset[ProcessKey] = NO_PROCESSES) -> None:
        self._reading = reading
        self._serving = serving
        self._is_inactive = is_device_inactive(reading)

    def of(self, process: GpuProcess) -> bool | None:
        """Return whether an engine was busy for a process or its owner; None if that is not known."""
        if is_inactive(process, device_inactive=self._is_inactive):
            return False
        usage = process.usage
        if usage.sm is not None or usage.encoder or usage.decoder or usage.jpeg or usage.ofa:
            return True
        return self._is_busy_for_one_owner() or None

    def _is_busy_for_one_owner(self) -> bool:
        """Return whether the Device is active, and all that can have used it belongs to one owner."""
        if not _is_device_active(self._reading):
            return False
        owners = [
            process.workload
            for process in self._reading.processes or ()
            if process.key not in self._serving and not is_inactive(process, device_inactive=False)
        ]
        names = OwnerNames(owners)
        return len({names.key(owner) for owner in owners}) == 1


def _is_device_active(reading: Reading) -> bool:
    """Return whether an engine of the Device was certainly active."""
    if isinstance(reading.device, Instance):
        return bool(reading.get(q.ENGINE_ACTIVITY))
    return any(map(reading.get, (q.UTILIZATION, q.ENCODER_UTILIZATION, q.DECODER_UTILIZATION)))


def are_inactive(processes: Iterable[GpuProcess], reading: Reading) -> bool:
    """Return whether one owner's processes certainly used no engine.

    True without processes if the list was read; False if the list or the Device could not be read.
    """
    if reading.processes is None or not reading.up:
        return False
    device_inactive = is_device_inactive(reading)
    return all(is_inactive(process, device_inactive=device_inactive) for process in processes)

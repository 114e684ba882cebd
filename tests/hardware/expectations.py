"""What an observation must show during a known load: processes, utilization, energy and its split."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

from gpuledger.model import quantities as q
from gpuledger.model.checks import Finding, Subject, fails, skipped, unknown, warning, works
from gpuledger.model.devices import Device, Instance
from gpuledger.model.process import GpuProcess
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.selftest.observation import Observation

SEEN = Subject("hardware.processes", "processes of the load")
UTILIZATION = Subject("hardware.utilization", "utilization of the load")
PROCESS_UTILIZATION = Subject("hardware.process_utilization", "utilization of its processes")
ACTIVITY = Subject("hardware.activity", "profiling metrics of the load")
ENERGY = Subject("hardware.energy", "energy of the load")
SPLIT = Subject("hardware.split", "energy by process")
REPORT = "attach this report to an issue"


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a load does. `utilization` is the range of the GPU's, `activity` the least value of a GPM metric.

    `equal` is True if all its working processes do the same, and `working` is their number.
    """

    processes: int
    mebibytes: int
    utilization: tuple[float, float] | None = None
    activity: tuple[Quantity, float] | None = None
    working: int = 0
    equal: bool = False


def readings_of(observation: Observation, device: Device) -> list[Reading]:
    """The Readings of one Device, without the first: it has no means yet, and a load may have just begun."""
    return [
        reading
        for snapshot in observation.snapshots[1:]
        for reading in snapshot.readings
        if reading.device.uuid == device.uuid
    ]


def judge_load(
    observation: Observation,
    before: Snapshot,
    device: Device,
    pids: Collection[int],
    expected: Expectation,
) -> Iterator[Finding]:
    """Compare the observation with the load; `before` is a Snapshot from before it, `pids` are its own."""
    readings = readings_of(observation, device)
    if not readings or not readings[-1].up:
        yield fails(*SEEN, "the device is not read", "run `gpuledger doctor`")
        return
    found = _new_processes(before, readings[-1])
    yield _judge_processes(readings[-1], found, pids, expected)
    if expected.utilization is not None:
        yield _judge_utilization(readings, device, expected.utilization)
        yield from _judge_process_utilization(readings, found, expected)
    if expected.activity is not None:
        yield _judge_activity(readings, *expected.activity)
    if expected.working:
        yield from _judge_split(observation, device, found, expected)


def _new_processes(before: Snapshot, reading: Reading) -> list[GpuProcess]:
    known = {process.key for process in before.processes}
    return [process for process in reading.processes or () if process.key not in known]


def _judge_processes(
    reading: Reading, found: Sequence[GpuProcess], pids: Collection[int], expected: Expectation
) -> Finding:
    if reading.processes is None:
        return fails(*SEEN, "the process list cannot be read", "run as root")
    types = ", ".join(sorted({process.type_text for process in found})) or "none"
    text = f"{len(found)} of {expected.processes} listed, types {types}"
    if len(found) < expected.processes:
        remedy = f"in a sandbox such as gVisor the driver may list no process; else {REPORT}"
        return fails(*SEEN, text, remedy)
    small = [
        process.memory
        for process in found
        if process.memory is not None and process.memory < expected.mebibytes << 20 and process.computes
    ]
    if len(small) > len(found) - expected.processes:
        return fails(*SEEN, f"{text}; memory {min(small) >> 20} MiB, allocated {expected.mebibytes}", REPORT)
    if not set(pids) <= {process.pid for process in found}:
        why = f"{text}; their pids are those of another pid namespace"
        return warning(*SEEN, why, "share the host's pids with the container (`hostPID`, `--pid=host`)")
    return works(*SEEN, f"{text}, with their pids and memory")


def mean_of(readings: Sequence[Reading], quantity: Quantity) -> float | None:
    """The mean of the values; None without any."""
    values = [value for reading in readings if (value := reading.get(quantity)) is not None]
    # The first second of a load is in the driver's window of the one before.
    values = values[1:] if len(values) > 2 else values
    return mean(values) if values else None


def _judge_utilization(readings: Sequence[Reading], device: Device, bounds: tuple[float, float]) -> Finding:
    value = mean_of(readings, q.UTILIZATION)
    if value is None:
        what = "a MIG instance has none" if isinstance(device, Instance) else "not reported"
        return skipped(*UTILIZATION, what)
    text = f"{value:.0%}, expected {bounds[0]:.0%} to {bounds[1]:.0%}"
    if bounds[0] <= value <= bounds[1]:
        return works(*UTILIZATION, text)
    return warning(*UTILIZATION, text, f"other work on the GPU changes it; else {REPORT}")


def _judge_process_utilization(
    readings: Sequence[Reading], found: Sequence[GpuProcess], expected: Expectation
) -> Iterator[Finding]:
    pids = {process.pid for process in found}
    sums = [
        sum(process.usage.sm or 0.0 for process in reading.processes or () if process.pid in pids)
        for reading in readings
        if any(process.usage.sm is not None for process in reading.processes or ())
    ]
    if not sums:
        yield skipped(*PROCESS_UTILIZATION, "the driver has no utilization of processes here")
        return
    value = mean(sums[1:] if len(sums) > 2 else sums)
    low, high = expected.utilization or (0.0, 1.0)
    # Samples of the first period of a load may be missing, and the sum is of rounded numbers.
    low, high = 0.8 * low, high + 0.05
    text = f"{value:.0%} in sum, expected {low:.0%} to {high:.0%}"
    if low <= value <= high:
        yield works(*PROCESS_UTILIZATION, text)
    else:
        yield warning(*PROCESS_UTILIZATION, text, REPORT)


def _judge_activity(readings: Sequence[Reading], quantity: Quantity, least: float) -> Finding:
    value = mean_of(readings, quantity)
    if value is None:
        return skipped(*ACTIVITY, f"{quantity.key} is not reported (GPM: Hopper and newer)")
    text = f"{quantity.key} is {value:.0%}, expected at least {least:.0%}"
    return works(*ACTIVITY, text) if value >= least else warning(*ACTIVITY, text, REPORT)


def _judge_split(
    observation: Observation, device: Device, found: Sequence[GpuProcess], expected: Expectation
) -> Iterator[Finding]:
    """Its processes must have nearly all energy; equal ones must have equal parts."""
    energy = observation.booked.state.energy
    total = energy.totals.get(device.gpu.uuid, 0)
    if not total:
        yield unknown(*SPLIT, "no energy was booked", "the GPU has no meter, or it did not move")
        return
    keys = {process.key for process in found}
    rows = [row for row in observation.booked.state.sessions if row.process.key in keys]
    parts = sorted((row.measured + row.apportioned for row in rows), reverse=True)[: expected.working]
    share = sum(row.measured + row.apportioned for row in rows) / total
    text = f"{share:.0%} of {total / 1000:.0f} J in {len(rows)} processes"
    if expected.equal and len(parts) > 1:
        text += f", from {min(parts) / 1000:.0f} to {max(parts) / 1000:.0f} J each"
    is_equal = not expected.equal or (parts and max(parts) - min(parts) <= 0.25 * max(parts))
    # The rest of a GPU in MIG mode belongs to its other instances.
    if (share >= 0.9 or isinstance(device, Instance)) and is_equal:
        yield works(*SPLIT, text)
    else:
        yield warning(*SPLIT, text, f"other work on the GPU changes it; else {REPORT}")


def judge_power(idle: Observation, load: Observation, device: Device) -> Finding:
    """Work must cost more energy than idling."""
    watts = [mean_of(readings_of(each, device.gpu), q.POWER) for each in (idle, load)]
    if watts[0] is None or watts[1] is None:
        return skipped(*ENERGY, "power is not reported")
    text = f"{watts[1]:.0f} W under load, {watts[0]:.0f} W before it"
    return works(*ENERGY, text) if watts[1] > 1.2 * watts[0] else warning(*ENERGY, text, REPORT)

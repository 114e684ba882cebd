"""What cannot be: contradictions between parts of a scenario that each look right alone."""

from __future__ import annotations

from itertools import pairwise

from gpuledger.model.errors import UsageError
from gpuledger.model.process import ProcessType
from gpuledger.sources.simulator.scenario import FOREVER, GpuSpec, Layout, Place, ProcessSpec, Scenario


def check(scenario: Scenario) -> None:
    """Raise UsageError for the first contradiction, naming the GPU or process."""
    for index, gpu in enumerate(scenario.gpus):
        _check_power(gpu, f"gpus[{index}]")
        _check_memory(gpu, f"gpus[{index}]")
        for layout in gpu.layouts:
            _check_layout(gpu, layout, f"gpus[{index}]")
    uuids = [gpu.uuid for gpu in scenario.gpus if gpu.uuid]
    if len(set(uuids)) != len(uuids):
        raise UsageError("gpus: two GPUs have the same uuid")
    for process in scenario.processes:
        if process.age > scenario.uptime + process.start:
            raise UsageError(f"process {process.name}: it cannot be older than the node (age, uptime)")
        for place in process.places:
            _check_seat(scenario, process, place)
    _check_pids(scenario.processes)
    for allocation in scenario.allocations:
        if not _exists(scenario, allocation.place, allocation.start):
            raise UsageError(f"allocations: {_told(allocation.place)} does not exist when it is allocated")
    for fault in scenario.faults:
        if fault.gi is not None and not _exists(
            scenario, Place(fault.gpu or 0, fault.gi, fault.ci), fault.at
        ):
            raise UsageError(f"faults: GPU {fault.gpu} has no instance {fault.gi}_{fault.ci} when it fails")


def _check_power(gpu: GpuSpec, path: str) -> None:
    if gpu.resident_power < gpu.empty_power:
        raise UsageError(f"{path}.resident_watts: at least empty_watts is wanted")
    if gpu.power_limit < gpu.resident_power:
        raise UsageError(f"{path}.limit_watts: at least resident_watts is wanted")
    if gpu.power_limit_max < gpu.power_limit:
        raise UsageError(f"{path}.max_limit_watts: at least limit_watts is wanted")
    if gpu.idle_sm_clock > gpu.sm_clock:
        raise UsageError(f"{path}.idle_sm_clock_mhz: at most sm_clock_mhz is wanted")


def _check_memory(gpu: GpuSpec, path: str) -> None:
    if gpu.memory <= 0:
        raise UsageError(f"{path}.memory: a size above 0 is wanted")
    if gpu.reserved_memory >= gpu.memory:
        raise UsageError(f"{path}.reserved_memory: less than memory is wanted")


def _check_layout(gpu: GpuSpec, layout: Layout, path: str) -> None:
    instances = layout.instances or ()
    if sum(instance.sm_count for instance in instances) > gpu.sm_count:
        raise UsageError(f"{path}.instances: together they have more than the {gpu.sm_count} SMs of the GPU")
    by_gi: dict[int, int] = {}
    for instance in instances:
        # Compute instances of one GPU instance share its memory.
        by_gi[instance.gi] = max(by_gi.get(instance.gi, 0), instance.memory)
    if sum(by_gi.values()) > gpu.memory:
        raise UsageError(f"{path}.instances: together they have more than the memory of the GPU")


def _check_seat(scenario: Scenario, process: ProcessSpec, place: Place) -> None:
    if not _exists(scenario, place, process.start):
        raise UsageError(
            f"process {process.name}: {_told(place)} does not exist at its start; a GPU under MIG is used "
            "by its instances (gi, ci)"
        )
    if place.gi is not None and ProcessType.GRAPHICS in process.types:
        raise UsageError(f"process {process.name}: graphics do not run on a MIG instance")
    gpu = scenario.gpus[place.gpu]
    room = gpu.memory - gpu.reserved_memory
    if place.gi is not None:
        layout = _layout(gpu, process.start)
        room = next(i.memory for i in layout.instances or () if (i.gi, i.ci) == (place.gi, place.ci))
    if process.memory > room:
        raise UsageError(f"process {process.name}: holds more memory than {_told(place)} has")


def _layout(gpu: GpuSpec, at: int) -> Layout:
    return [layout for layout in gpu.layouts if layout.at <= at][-1]


def _exists(scenario: Scenario, place: Place, at: int) -> bool:
    instances = _layout(scenario.gpus[place.gpu], at).instances
    if place.gi is None:
        return instances is None
    return (place.gi, place.ci) in {(instance.gi, instance.ci) for instance in instances or ()}


def _told(place: Place) -> str:
    return f"GPU {place.gpu}" if place.gi is None else f"instance {place.gi}_{place.ci} of GPU {place.gpu}"


def _check_pids(processes: tuple[ProcessSpec, ...]) -> None:
    spans: dict[int, list[tuple[int, int]]] = {}
    for process in processes:
        if process.pid is None:
            continue
        stop = process.stop if process.every else min(process.stop, process.start + process.lasting)
        spans.setdefault(process.pid, []).append((process.start, min(stop, FOREVER)))
    for pid, taken in spans.items():
        taken.sort()
        if any(second[0] < first[1] for first, second in pairwise(taken)):
            raise UsageError(f"processes: pid {pid} belongs to two processes at one time")

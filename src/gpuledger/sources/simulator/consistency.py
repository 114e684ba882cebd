"""Consistency checks across the parts of a scenario."""

from __future__ import annotations

from itertools import pairwise

from gpuledger.model.errors import UsageError
from gpuledger.model.process import ProcessType
from gpuledger.sources.simulator.scenario import (
    FOREVER,
    FaultSpec,
    GpuSpec,
    PartitionSpec,
    PlacementSpec,
    ProcessSpec,
    Scenario,
)


def check_consistency(scenario: Scenario) -> None:
    """Raise UsageError for the first contradiction; the message names the GPU or process."""
    for index, gpu in enumerate(scenario.gpus):
        _check_limits(gpu, f"gpus[{index}]")
        for partition in gpu.partitions:
            _check_partition(gpu, partition, f"gpus[{index}]")
    uuids = [gpu.uuid for gpu in scenario.gpus if gpu.uuid]
    if len(set(uuids)) != len(uuids):
        raise UsageError("gpus: two GPUs have the same uuid")
    for process in scenario.processes:
        if process.age > scenario.uptime + process.start:
            raise UsageError(
                f"process {process.name}: age: the process is older than the node; reduce age or raise uptime"
            )
        for placement in process.placements:
            _check_placement(scenario, process, placement)
    _check_pids(scenario.processes)
    for allocation in scenario.allocations:
        if not _exists(scenario, allocation.placement, allocation.start):
            raise UsageError(
                f"allocations: {_describe(allocation.placement)} does not exist when it is allocated"
            )
    for fault in scenario.faults:
        _check_link(scenario, fault)
        if fault.gi is not None and not _exists(
            scenario, PlacementSpec(fault.gpu or 0, fault.gi, fault.ci), fault.at
        ):
            raise UsageError(
                f"faults: GPU {fault.gpu} has no instance {fault.gi}_{fault.ci} when the fault starts"
            )


def _check_link(scenario: Scenario, fault: FaultSpec) -> None:
    for gpu in scenario.gpus if fault.gpu is None else [scenario.gpus[fault.gpu]]:
        if fault.width > gpu.pcie_width or fault.generation > gpu.pcie_generation:
            raise UsageError(
                "faults: a pcie_link must be at most pcie_width and pcie_generation of its GPU: "
                f"{gpu.pcie_width} and {gpu.pcie_generation}"
            )


def _check_limits(gpu: GpuSpec, path: str) -> None:
    contradictions = {
        "resident_watts: expected at least empty_watts": gpu.resident_power < gpu.empty_power,
        "limit_watts: expected at least resident_watts": gpu.power_limit < gpu.resident_power,
        "max_limit_watts: expected at least limit_watts": gpu.power_limit_max < gpu.power_limit,
        "idle_sm_clock_mhz: expected at most sm_clock_mhz": gpu.idle_sm_clock > gpu.sm_clock,
        "memory: expected a size above 0": gpu.memory <= 0,
        "reserved_memory: expected less than memory": gpu.reserved_memory >= gpu.memory,
    }
    for problem, applies in contradictions.items():
        if applies:
            raise UsageError(f"{path}.{problem}")


def _check_partition(gpu: GpuSpec, partition: PartitionSpec, path: str) -> None:
    instances = partition.instances or ()
    if sum(instance.sm_count for instance in instances) > gpu.sm_count:
        raise UsageError(f"{path}.instances: together they have more than the {gpu.sm_count} SMs of the GPU")
    memory_by_gi: dict[int, int] = {}
    for instance in instances:
        # Compute instances of one GPU instance share its memory.
        memory_by_gi[instance.gi] = max(memory_by_gi.get(instance.gi, 0), instance.memory)
    if sum(memory_by_gi.values()) > gpu.memory:
        raise UsageError(f"{path}.instances: together they have more than the memory of the GPU")


def _check_placement(scenario: Scenario, process: ProcessSpec, placement: PlacementSpec) -> None:
    if not _exists(scenario, placement, process.start):
        raise UsageError(
            f"process {process.name}: {_describe(placement)} does not exist when the process starts; with "
            "MIG, name an instance (gi, ci)"
        )
    if placement.gi is not None and ProcessType.GRAPHICS in process.types:
        raise UsageError(f"process {process.name}: a MIG instance cannot run graphics processes")
    gpu = scenario.gpus[placement.gpu]
    available = gpu.memory - gpu.reserved_memory
    if placement.gi is not None:
        partition = _partition_at(gpu, process.start)
        available = next(
            i.memory for i in partition.instances or () if (i.gi, i.ci) == (placement.gi, placement.ci)
        )
    if process.memory > available:
        raise UsageError(f"process {process.name}: uses more memory than {_describe(placement)} has")


def _partition_at(gpu: GpuSpec, at: int) -> PartitionSpec:
    return [partition for partition in gpu.partitions if partition.at <= at][-1]


def _exists(scenario: Scenario, placement: PlacementSpec, at: int) -> bool:
    instances = _partition_at(scenario.gpus[placement.gpu], at).instances
    if placement.gi is None:
        return instances is None
    return (placement.gi, placement.ci) in {(instance.gi, instance.ci) for instance in instances or ()}


def _describe(placement: PlacementSpec) -> str:
    return (
        f"GPU {placement.gpu}"
        if placement.gi is None
        else f"instance {placement.gi}_{placement.ci} of GPU {placement.gpu}"
    )


def _check_pids(processes: tuple[ProcessSpec, ...]) -> None:
    spans: dict[int, list[tuple[int, int]]] = {}
    for process in processes:
        if process.pid is None:
            continue
        stop = process.stop if process.every else min(process.stop, process.start + process.duration)
        spans.setdefault(process.pid, []).append((process.start, min(stop, FOREVER)))
    for pid, taken in spans.items():
        taken.sort()
        if any(second[0] < first[1] for first, second in pairwise(taken)):
            raise UsageError(f"processes: pid {pid} belongs to two processes at the same time")

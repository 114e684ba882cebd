"""Which allocations and processes make their owners holders of a Device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuledger.ledger.service_processes import NO_PROCESSES
from gpuledger.ledger.time.account import OwnerNames
from gpuledger.ledger.time.split import using_processes
from gpuledger.model.process import GpuProcess, ProcessKey
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.model.workload import UNSEEN, Allocation, Workload

# Reasons of a process that is in an unknown pod, or in a container that may be inside a pod.
_UNNAMED = frozenset({"pod_name", "container_name", "container_unnamed"})


def holding_allocations(snapshot: Snapshot) -> dict[str, list[Workload]]:
    """The owners to which each Device is allocated, by its uuid.

    Without allocations that keep nothing: monitoring claims, and pods that reserve the Device for others.
    """
    found: dict[str, list[Workload]] = {}
    for one in snapshot.allocations:
        if keeps_something(one):
            found.setdefault(one.device.uuid, []).append(one.workload)
    return found


def keeps_something(one: Allocation) -> bool:
    """Whether the allocation keeps its Device, or a part of it, from others."""
    return one.fraction is None or one.fraction > 0


def is_same_pod(process: Workload, allocated: Workload) -> bool:
    """Whether a process, with a pod or container that has no name yet, is in the pod with the Device."""
    return process.missing in _UNNAMED and process.pod_uid != "" and process.pod_uid == allocated.pod_uid


def may_be_pod(process: Workload, allocated: Workload) -> bool:
    """Whether a process of an unknown pod or container can be in the pod that the Device is allocated to.

    A process of which nothing could be read can be that of any owner.
    """
    if process.missing in UNSEEN and not process.pod_uid:
        return True
    if allocated.kind != "pod" or process.missing not in _UNNAMED:
        return False
    return process.kind == "container" or (
        process.kind == "pod" and not (process.pod_uid and allocated.pod_uid)
    )


def drawing_processes(snapshot: Snapshot) -> frozenset[ProcessKey]:
    """Graphics-only processes that own nothing: display servers, and what draws on a Device of others.

    The time books decide by the same rule: such a process is an owner only while it uses an engine for more
    than a desktop does, and nobody else has the Device. Those of owners that have the Device are theirs.
    """
    readings = [one for one in snapshot.process_readings if _draws(one)]
    if not readings:
        return NO_PROCESSES
    allocated = holding_allocations(snapshot)
    return frozenset(
        process.key
        for reading in readings
        for process in _drawing(reading.processes or (), allocated.get(reading.device.uuid, []))
    )


def _draws(reading: Reading) -> bool:
    return any(not process.computes for process in reading.processes or ())


def _drawing(processes: Sequence[GpuProcess], allocated: list[Workload]) -> Iterator[GpuProcess]:
    names = OwnerNames([*allocated, *(process.workload for process in processes)])
    having = {names.key(owner) for owner in allocated}
    using = {process.key for process in using_processes(processes, names, having)}
    for process in processes:
        if process.key not in using and names.key(process.workload) not in having:
            yield process

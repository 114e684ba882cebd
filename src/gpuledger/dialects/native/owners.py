"""Native families of owners: current owners of each device, allocations, and pods with their labels."""

from __future__ import annotations

from collections.abc import Iterator

from gpuledger.dialects.native.devices import DEVICE_LABELS, device_labels
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.node_state import NodeState
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.workload import Workload

OWNER_LABELS = ("owner_kind", "namespace", "pod", "container", "user", "slurm_job")
_POD = ("namespace", "pod", "pod_uid")

INFO = FamilySpec(
    "gpuledger_device_owner_info",
    "info",
    "1 for each owner of the device now: it is allocated to the owner or runs processes of the owner; user "
    "is empty for pods.",
    (*DEVICE_LABELS, *OWNER_LABELS),
    source="process lists and cgroups; kubelet, DRA, Slurm",
)
PROCESSES = FamilySpec(
    "gpuledger_device_owner_processes",
    "gauge",
    "Processes of the owner on the device; 0 if it is allocated but runs none.",
    (*DEVICE_LABELS, *OWNER_LABELS),
    source="process lists and cgroups",
)
ALLOCATED = FamilySpec(
    "gpuledger_owner_allocated_seconds_total",
    "counter",
    "Time for which the device was allocated to the owner, since the program started.",
    (*DEVICE_LABELS, *OWNER_LABELS),
    unit="seconds",
    source="ledger; kubelet, DRA, Slurm",
)
HELD = FamilySpec(
    "gpuledger_owner_held_seconds_total",
    "counter",
    "Time for which the owner had the device (allocated or with a process on it) while no engine was busy "
    "for the owner, since the program started.",
    (*DEVICE_LABELS, *OWNER_LABELS),
    unit="seconds",
    source="ledger",
)
RESIDENT = FamilySpec(
    "gpuledger_owner_resident_seconds_total",
    "counter",
    "Time for which the owner had a process on the device, since the program started; multiply by "
    "gpuledger_device_sm_ratio for GPU time.",
    (*DEVICE_LABELS, *OWNER_LABELS),
    unit="seconds",
    source="ledger; process lists and cgroups",
)
ALLOCATION = FamilySpec(
    "gpuledger_device_allocation_info",
    "info",
    "1 for each allocation of the device, with its resource name and its origin in found_by (checkpoint is "
    "the kubelet's file, read if its socket does not respond).",
    (*DEVICE_LABELS, "namespace", "pod", "container", "slurm_job", "resource", "found_by"),
    source="kubelet pod-resources v1, DRA, Slurm",
)
POD = FamilySpec(
    "gpuledger_pod_info",
    "info",
    "1 for each pod that owns a device, with the controller that created the pod.",
    (*_POD, "controller_kind", "controller"),
    source="API server: metadata.ownerReferences",
)
POD_LABEL = FamilySpec(
    "gpuledger_pod_label_info",
    "info",
    "1 for each label in --pod-label-allowlist of a pod that owns a device; join on namespace and pod with "
    "group_left(value).",
    (*_POD, "label", "value"),
    source="API server: metadata.labels",
)

SPECS = (INFO, PROCESSES, ALLOCATED, HELD, RESIDENT, ALLOCATION, POD, POD_LABEL)


def owner_families(state: NodeState) -> Iterator[Family]:
    """Yields the families of owners; without a Snapshot only counters have samples."""
    info, processes, allocated = Family(INFO), Family(PROCESSES), Family(ALLOCATED)
    held, resident = Family(HELD), Family(RESIDENT)
    for row in state.ledger.owners:
        labels = (*device_labels(row.device), *row.labels)
        if row.present and state.snapshot is not None:
            info.add(1, *labels)
            processes.add(row.processes, *labels)
        allocated.add(row.allocated, *labels)
        held.add(row.held, *labels)
        resident.add(row.resident, *labels)
    yield from (info, processes, allocated, held, resident)
    if state.snapshot is not None:
        yield _allocations(state.snapshot)
        yield from _pods(state.snapshot)


def _allocations(snapshot: Snapshot) -> Family:
    family = Family(ALLOCATION)
    rows = {
        (
            *device_labels(item.device),
            item.workload.namespace,
            item.workload.pod,
            item.workload.container,
            item.workload.job,
            item.resource,
            item.found_by,
        )
        for item in snapshot.allocations
    }
    for row in sorted(rows):
        family.add(1, *row)
    return family


def _pods(snapshot: Snapshot) -> tuple[Family, Family]:
    pods, pod_labels = Family(POD), Family(POD_LABEL)
    for (namespace, name, uid), workload in sorted(_named_pods(snapshot).items()):
        pods.add(1, namespace, name, uid, workload.controller_kind, workload.controller)
        for label, value in workload.labels:
            pod_labels.add(1, namespace, name, uid, label, value)
    return pods, pod_labels


def _named_pods(snapshot: Snapshot) -> dict[tuple[str, str, str], Workload]:
    """Returns the owners that are pods with a known name, by namespace, name and UID."""
    owners = [item.workload for item in snapshot.allocations]
    owners += [process.workload for process in snapshot.processes]
    return {(owner.namespace, owner.pod, owner.pod_uid): owner for owner in owners if owner.pod}

"""Native families of owners: who has each device, who was handed it, and what Kubernetes says of pods."""

from __future__ import annotations

from collections.abc import Iterator

from gpuledger.dialects.native.devices import DEVICE, labels
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.node_state import NodeState
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.workload import Workload

OWNER = ("owner_kind", "namespace", "pod", "container", "user", "slurm_job")
_POD = ("namespace", "pod", "pod_uid")

INFO = FamilySpec(
    "gpuledger_device_owner_info",
    "info",
    "Who has the device now: it was handed to the owner, or the owner has processes on it. A shared device "
    "has several rows: join with group_right on the side of this family. A pod's rows bear no user.",
    (*DEVICE, *OWNER),
    source="process lists and cgroups; kubelet, DRA, Slurm",
)
PROCESSES = FamilySpec(
    "gpuledger_device_owner_processes",
    "gauge",
    "Processes of the owner on the device; 0 when it was handed over and nothing runs there.",
    (*DEVICE, *OWNER),
    source="process lists and cgroups",
)
ALLOCATED = FamilySpec(
    "gpuledger_owner_allocated_seconds_total",
    "counter",
    "Time for which the device has been handed to the owner, since the program started.",
    (*DEVICE, *OWNER),
    unit="seconds",
    source="ledger; kubelet, DRA, Slurm",
)
HELD = FamilySpec(
    "gpuledger_owner_held_seconds_total",
    "counter",
    "Time for which the owner had the device, handed over or by a process on it, and no engine worked for "
    "it, since the program started.",
    (*DEVICE, *OWNER),
    unit="seconds",
    source="ledger",
)
RESIDENT = FamilySpec(
    "gpuledger_owner_resident_seconds_total",
    "counter",
    "Time for which the owner had a process on the device, since the program started. GPU-hours are its sum "
    "over owners times gpuledger_device_sm_ratio.",
    (*DEVICE, *OWNER),
    unit="seconds",
    source="ledger; process lists and cgroups",
)
ALLOCATION = FamilySpec(
    "gpuledger_device_allocation_info",
    "info",
    "A device as it was handed out, by which name and who says so; checkpoint is the kubelet's file, read "
    "when its socket does not answer.",
    (*DEVICE, "namespace", "pod", "container", "slurm_job", "resource", "found_by"),
    source="kubelet pod-resources v1, DRA, Slurm",
)
POD = FamilySpec(
    "gpuledger_pod_info",
    "info",
    "A pod that has a device, and what made it.",
    (*_POD, "controller_kind", "controller"),
    source="API server: metadata.ownerReferences",
)
POD_LABEL = FamilySpec(
    "gpuledger_pod_label_info",
    "info",
    "One row per label of --pod-label-allowlist that a pod bears which has a device; join on namespace and "
    "pod with group_left(value).",
    (*_POD, "label", "value"),
    source="API server: metadata.labels",
)

SPECS = (INFO, PROCESSES, ALLOCATED, HELD, RESIDENT, ALLOCATION, POD, POD_LABEL)


def owner_families(page: NodeState) -> Iterator[Family]:
    """Families of one Page; only counters remain while there is no Snapshot."""
    info, processes, allocated = Family(INFO), Family(PROCESSES), Family(ALLOCATED)
    held, resident = Family(HELD), Family(RESIDENT)
    for row in page.ledger.owners:
        who = (*labels(row.device), *row.labels)
        if row.present and page.snapshot is not None:
            info.add(1, *who)
            processes.add(row.processes, *who)
        allocated.add(row.allocated, *who)
        held.add(row.held, *who)
        resident.add(row.resident, *who)
    yield from (info, processes, allocated, held, resident)
    if page.snapshot is not None:
        yield _allocations(page.snapshot)
        yield from _pods(page.snapshot)


def _allocations(snapshot: Snapshot) -> Family:
    family = Family(ALLOCATION)
    rows = {
        (
            *labels(item.device),
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
    """By namespace, name and UID, those that are known by name."""
    owners = [item.workload for item in snapshot.allocations]
    owners += [process.workload for process in snapshot.processes]
    return {(one.namespace, one.pod, one.pod_uid): one for one in owners if one.pod}

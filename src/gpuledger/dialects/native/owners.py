"""Native families of owners: current owners of each device, allocations, and pods with their labels."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from gpuledger.dialects.native.devices import DEVICE_LABELS, device_labels
from gpuledger.model.family import Family, declare_family
from gpuledger.model.node_state import NodeState
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.workload import JOB_FACTS, POD_FACTS, Workload

OWNER_LABELS = ("owner_kind", "namespace", "pod", "container", "user", "slurm_job")
_POD = ("namespace", "pod", "pod_uid")
# Labels of a job, and the fields of its Workload.
_JOB_LABELS = (*JOB_FACTS, "user")

INFO = declare_family(
    "gpuledger_device_owner_info",
    "1 for each owner of the device now: it is allocated to the owner or runs processes of the owner; user "
    "is empty for pods.",
    (*DEVICE_LABELS, *OWNER_LABELS),
    "process lists and cgroups; kubelet, DRA, Slurm",
)
PROCESSES = declare_family(
    "gpuledger_device_owner_processes",
    "Processes of the owner on the device; 0 if it is allocated but runs none.",
    (*DEVICE_LABELS, *OWNER_LABELS),
    "process lists and cgroups",
)
ALLOCATED = declare_family(
    "gpuledger_owner_allocated_seconds_total",
    "Time for which the device was allocated to the owner, since the program started; 0 for a new owner "
    "until energy.zero_hold has passed.",
    (*DEVICE_LABELS, *OWNER_LABELS),
    "ledger; kubelet, DRA, Slurm",
)
HELD = declare_family(
    "gpuledger_owner_held_seconds_total",
    "Time for which the owner had the device (allocated or with a process on it) while no engine was busy "
    "for the owner, since the program started; 0 for a new owner until energy.zero_hold has passed.",
    (*DEVICE_LABELS, *OWNER_LABELS),
    "ledger",
)
RESIDENT = declare_family(
    "gpuledger_owner_resident_seconds_total",
    "Time for which the owner had a process on the device, since the program started; multiply by "
    "gpuledger_device_sm_ratio for GPU time; 0 for a new owner until energy.zero_hold has passed.",
    (*DEVICE_LABELS, *OWNER_LABELS),
    "ledger; process lists and cgroups",
)
ALLOCATION = declare_family(
    "gpuledger_device_allocation_info",
    "1 for each allocation of the device, with its resource name and its origin in found_by (checkpoint is "
    "the kubelet's file, read if its socket does not respond).",
    (*DEVICE_LABELS, "namespace", "pod", "container", "slurm_job", "resource", "found_by"),
    "kubelet pod-resources v1, DRA, Slurm",
)
FRACTION = declare_family(
    "gpuledger_device_allocated_ratio",
    "Fraction of the device that an allocation keeps from other owners, for all containers of a pod "
    "together: 1 for a whole device, 0 for a pod that only reserves it for others; absent if not known.",
    (*DEVICE_LABELS, "owner_kind", "namespace", "pod", "slurm_job", "resource"),
    "kubelet pod-resources v1, annotations of pods, DRA, Slurm",
)
POD = declare_family(
    "gpuledger_pod_info",
    "1 for each pod that owns a device, with the controller that created the pod, and its queue (Kueue, "
    "Volcano and others).",
    (*_POD, *POD_FACTS),
    "API server: metadata.ownerReferences, metadata.labels",
)
POD_LABEL = declare_family(
    "gpuledger_pod_label_info",
    "1 for each label in --pod-label-allowlist of a pod that owns a device; join on namespace and pod with "
    "group_left(value).",
    (*_POD, "label", "value"),
    "API server: metadata.labels",
)
JOB = declare_family(
    "gpuledger_job_info",
    "1 for each batch job that owns a device, with its account, partition, name, array and user as far as "
    "they are known; join on slurm_job with group_left(slurm_account).",
    ("slurm_job", *_JOB_LABELS),
    "Slurm",
)

_PER_OWNER = (INFO, PROCESSES, ALLOCATED, HELD, RESIDENT)
SPECS = (*_PER_OWNER, ALLOCATION, FRACTION, POD, POD_LABEL, JOB)


def owner_families(state: NodeState) -> Iterator[Family]:
    """Yields the families of owners; without a Snapshot only counters have samples."""
    families = [Family(spec) for spec in _PER_OWNER]
    info, processes, allocated, held, resident = families
    for row in state.ledger.owners:
        labels = (*device_labels(row.device), *row.labels)
        if row.present and state.snapshot is not None:
            info.add(1, *labels)
            processes.add(row.processes, *labels)
        allocated.add(0.0 if row.held_at_zero else row.allocated, *labels)
        held.add(0.0 if row.held_at_zero else row.held, *labels)
        resident.add(0.0 if row.held_at_zero else row.resident, *labels)
    yield from families
    if state.snapshot is not None:
        yield _allocations(state.snapshot)
        yield _fractions(state.snapshot)
        yield from _pods(state.snapshot)
        yield _jobs(state.snapshot)


def _allocations(snapshot: Snapshot) -> Family:
    rows = set()
    for item in snapshot.allocations:
        owner = item.workload
        labels = (owner.namespace, owner.pod, owner.container, owner.job, item.resource, item.found_by)
        rows.add((*device_labels(item.device), *labels))
    return Family(ALLOCATION, dict.fromkeys(sorted(rows), 1))


def _fractions(snapshot: Snapshot) -> Family:
    parts: dict[tuple[str, ...], float] = {}
    for item in snapshot.allocations:
        if item.fraction is not None:
            owner = item.workload
            labels = (owner.kind, owner.namespace, owner.pod, owner.job, item.resource)
            parts[*device_labels(item.device), *labels] = float(item.fraction)
    return Family(FRACTION, dict(sorted(parts.items())))


def _jobs(snapshot: Snapshot) -> Family:
    jobs: dict[str, list[str]] = {}
    for owner in _owners(snapshot):
        if owner.job:
            # Each fact from the first owner of the job that has it: that of a process may know less.
            known = jobs.setdefault(owner.job, [""] * len(_JOB_LABELS))
            jobs[owner.job] = [
                fact or getattr(owner, name, "") for fact, name in zip(known, _JOB_LABELS, strict=True)
            ]
    return Family(JOB, {(job, *facts): 1 for job, facts in sorted(jobs.items())})


def _owners(snapshot: Snapshot) -> Iterator[Workload]:
    """Owners by allocation, then those of processes."""
    for item in snapshot.allocations:
        yield item.workload
    for process in snapshot.processes:
        yield process.workload


_pod_facts = attrgetter(*POD_FACTS)


def _pods(snapshot: Snapshot) -> tuple[Family, Family]:
    named = {(owner.namespace, owner.pod, owner.pod_uid): owner for owner in _owners(snapshot) if owner.pod}
    pods, pod_labels = Family(POD), Family(POD_LABEL)
    for pod, owner in sorted(named.items()):
        pods.add(1, *pod, *_pod_facts(owner))
        for label, value in owner.labels:
            pod_labels.add(1, *pod, label, value)
    return pods, pod_labels

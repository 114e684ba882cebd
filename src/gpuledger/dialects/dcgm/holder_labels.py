"""Labels of the pod or job that holds a device, only for devices with exactly one holder.

The readings of a shared GPU belong to no single pod: with a pod label, each pod would be billed for the
whole. As with dcgm-exporter, the holder is the one that the device is allocated to, whatever else has a
process there. Processes of pods and jobs decide only on a device without an allocation. A process of the host
never does: the labels of a pod would come and go with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from re import sub

from gpuledger.dialects.settings import DcgmSettings
from gpuledger.model.node_state import NodeState
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.workload import Workload

HolderLabels = Mapping[str, str]

_NEW = ("container", "namespace", "pod")
_OLD = ("container_name", "pod_namespace", "pod_name")
_JOBS = frozenset({"slurm", "job"})
_HOLDERS = _JOBS | {"pod"}


def holder_label_names(settings: DcgmSettings) -> tuple[str, ...]:
    """Returns the names of the holder labels, except labels taken from pods."""
    pod = _OLD if settings.old_namespace else _NEW
    more = (("pod_uid",) if settings.pod_uid else ()) + (("hpc_job",) if settings.job_label else ())
    return tuple(sorted((*pod, *more)))


def holder_labels(state: NodeState, snapshot: Snapshot, settings: DcgmSettings) -> dict[str, HolderLabels]:
    """Returns the holder labels by uuid of each Device that has exactly one holder.

    An owner that is not known yet does not count: usually it is the holder before its name is resolved.
    """
    present: dict[str, list[tuple[str, ...]]] = {}
    for item in snapshot.allocations:
        if item.fraction is None or item.fraction > 0:
            owner = item.workload
            names = (owner.kind, owner.namespace, owner.pod, owner.container, "", owner.job)
            present.setdefault(item.device.uuid, []).append(names)
    allocated = frozenset(present)
    for row in state.ledger.owners:
        if row.present and row.labels[0] in _HOLDERS and row.device.uuid not in allocated:
            present.setdefault(row.device.uuid, []).append(row.labels)
    found = {}
    for uuid, owners in present.items():
        labels = _of_pod(uuid, owners, snapshot, settings) or (_of_job(owners) if settings.job_label else {})
        if labels:
            found[uuid] = labels
    return found


def _of_pod(
    uuid: str, owners: list[tuple[str, ...]], snapshot: Snapshot, settings: DcgmSettings
) -> HolderLabels:
    pods = {labels[:3] for labels in owners}
    if len(pods) != 1:
        return {}
    ((kind, namespace, pod),) = pods
    if kind != "pod" or not pod:
        return {}
    container = _single({labels[3] for labels in owners})
    names = _OLD if settings.old_namespace else _NEW
    labels = dict(zip(names, (container, namespace, pod), strict=True))
    if not (settings.pod_uid or settings.pod_labels):
        return labels
    known = [
        owner for owner in _workloads(uuid, snapshot) if (owner.namespace, owner.pod) == (namespace, pod)
    ]
    if settings.pod_uid:
        labels["pod_uid"] = _single({owner.pod_uid for owner in known if owner.pod_uid})
    if settings.pod_labels:
        for key, value in next((owner.labels for owner in known if owner.labels), ()):
            labels.setdefault(_label_name(key), value)
    return labels


def _of_job(owners: list[tuple[str, ...]]) -> HolderLabels:
    jobs = {(labels[0], labels[5]) for labels in owners}
    if len(jobs) != 1:
        return {}
    ((kind, job),) = jobs
    return {"hpc_job": job} if kind in _JOBS and job else {}


def _workloads(uuid: str, snapshot: Snapshot) -> Iterable[Workload]:
    for allocation in snapshot.allocations:
        if allocation.device.uuid == uuid:
            yield allocation.workload
    for process in snapshot.processes:
        if process.device.uuid == uuid:
            yield process.workload


def _single(values: set[str]) -> str:
    return next(iter(values)) if len(values) == 1 else ""


def _label_name(key: str) -> str:
    name = sub(r"[^a-zA-Z0-9_]", "_", key)
    # A label name must not begin with a digit or with two underscores.
    return sub(r"^(?=\d)|^__+", "_", name)

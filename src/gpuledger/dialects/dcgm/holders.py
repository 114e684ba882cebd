"""Whose device it is, told as labels of the device: only when exactly one pod, or job, holds it.

What a shared GPU reads is nobody's alone: a pod's name on it would bill each pod the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from re import sub

from gpuledger.dialects.settings import DcgmSettings
from gpuledger.model.node_state import NodeState
from gpuledger.model.session import OwnerRow
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.workload import Workload

Attributes = Mapping[str, str]

_NEW = ("container", "namespace", "pod")
_OLD = ("container_name", "pod_namespace", "pod_name")
_JOBS = frozenset({"slurm", "job"})


def attribute_names(settings: DcgmSettings) -> tuple[str, ...]:
    """Names of the labels that a holder gives, without those of pods' own labels."""
    pod = _OLD if settings.old_namespace else _NEW
    more = (("pod_uid",) if settings.pod_uid else ()) + (("hpc_job",) if settings.job_label else ())
    return tuple(sorted((*pod, *more)))


def holders(page: NodeState, snapshot: Snapshot, settings: DcgmSettings) -> dict[str, Attributes]:
    """Labels by the uuid of each Device that has exactly one holder.

    An owner who is not known yet does not count: it is most often the holder, before its name has come.
    """
    present: dict[str, list[OwnerRow]] = {}
    for row in page.ledger.owners:
        if row.present and row.labels[0] != "unknown":
            present.setdefault(row.device.uuid, []).append(row)
    found = {}
    for uuid, rows in present.items():
        labels = _of_pod(uuid, rows, snapshot, settings) or (_of_job(rows) if settings.job_label else {})
        if labels:
            found[uuid] = labels
    return found


def _of_pod(uuid: str, rows: list[OwnerRow], snapshot: Snapshot, settings: DcgmSettings) -> Attributes:
    pods = {row.labels[:3] for row in rows}
    if len(pods) != 1:
        return {}
    ((kind, namespace, pod),) = pods
    if kind != "pod" or not pod:
        return {}
    handed = {
        item.workload.container
        for item in snapshot.allocations
        if item.device.uuid == uuid and (item.workload.namespace, item.workload.pod) == (namespace, pod)
    }
    # Another container of the pod may have come to the device without being given it.
    container = _only(handed) or _only({row.labels[3] for row in rows})
    names = _OLD if settings.old_namespace else _NEW
    labels = dict(zip(names, (container, namespace, pod), strict=True))
    if not (settings.pod_uid or settings.pod_labels):
        return labels
    owners = [
        owner for owner in _workloads(uuid, snapshot) if (owner.namespace, owner.pod) == (namespace, pod)
    ]
    if settings.pod_uid:
        labels["pod_uid"] = _only({owner.pod_uid for owner in owners if owner.pod_uid})
    if settings.pod_labels:
        for key, value in next((owner.labels for owner in owners if owner.labels), ()):
            labels.setdefault(_label_name(key), value)
    return labels


def _of_job(rows: list[OwnerRow]) -> Attributes:
    jobs = {(row.labels[0], row.labels[5]) for row in rows}
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


def _only(found: set[str]) -> str:
    return next(iter(found)) if len(found) == 1 else ""


def _label_name(key: str) -> str:
    name = sub(r"[^a-zA-Z0-9_]", "_", key)
    # Neither a digit nor two underscores may begin a label's name.
    return sub(r"^(?=\d)|^__+", "_", name)

"""Completes an owner found by cgroup with facts from Kubernetes, Slurm and container runtimes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.containers.container import Containers, find_container_name
from gpuledger.workloads.pods.pod import Pod, Pods
from gpuledger.workloads.slurm.jobs import NO_JOBS, SlurmJobs

# Reasons why the cgroup gives no evidence at all. The allocations of the Device may still name the owner.
_NO_CGROUP_EVIDENCE = frozenset(
    {
        "no_cgroup",
        "cgroup_namespace",
        "unknown_cgroup",
        "pid_namespace",
        "permission",
        "not_found",
        "exited",
    }
)


def resolve_owner(
    found: Workload, pods: Pods, allocations: Sequence[Allocation], *, computes: bool
) -> Workload:
    """The owner of a process, from its cgroup (`found`) and the allocations of its Device.

    Evidence about the process comes first. A pod is found by UID, or by container id if the cgroup path has
    no UID (in a cgroup namespace, and under a kubelet with `--cgroups-per-qos=false`). If the pod is not
    known (yet), or a compute process has no cgroup evidence, the owner is the one pod to which the Device is
    allocated, and `found_by` says so. With several such pods the owner is not guessed.
    """
    if found.kind in ("pod", "container"):
        pod = pods.by_uid(found.pod_uid) if found.pod_uid else pods.by_container(found.container_id)
        if pod is not None:
            return _with_pod(found, pod, allocations)
    if found.kind == "pod":
        # With the same UID, or without a UID.
        possible = [item for item in allocations if item.workload.pod_uid in ("", found.pod_uid)]
        return _from_allocations(found, possible)
    if found.missing in _NO_CGROUP_EVIDENCE and computes:
        return _from_allocations(found, allocations)
    return found


def _with_pod(found: Workload, pod: Pod, allocations: Sequence[Allocation]) -> Workload:
    container = pod.containers.get(found.container_id) or _only_container(
        item
        for item in allocations
        if (item.workload.namespace, item.workload.pod) == (pod.namespace, pod.name)
    )
    return replace(
        found,
        kind="pod",
        namespace=pod.namespace,
        pod=pod.name,
        container=container,
        pod_uid=pod.uid,
        labels=pod.labels,
        controller_kind=pod.controller_kind,
        controller=pod.controller,
        missing="" if container else "container_name",
    )


def _only_container(allocations: Iterable[Allocation]) -> str:
    """The container of these allocations; empty if there is not exactly one."""
    containers = {item.workload.container for item in allocations}
    return containers.pop() if len(containers) == 1 else ""


def _from_allocations(found: Workload, allocations: Sequence[Allocation]) -> Workload:
    """The pod to which the Device is allocated; `found` if there is not exactly one."""
    pods = {(item.workload.kind, item.workload.namespace, item.workload.pod) for item in allocations}
    if len(pods) != 1:
        return found
    holder = allocations[0].workload
    if holder.kind != "pod" or not holder.pod:
        return found
    container = _only_container(allocations)
    return replace(
        holder,
        container=container,
        pod_uid=found.pod_uid or holder.pod_uid,
        container_id=found.container_id,
        runtime=found.runtime,
        user=found.user,
        found_by=allocations[0].found_by,
        missing="" if container else "container_name",
    )


def enrich_owner(
    workload: Workload, jobs: SlurmJobs = NO_JOBS, containers: Iterable[Containers] = ()
) -> Workload:
    """The Workload with what is known of its Slurm job, or with the name of its container.

    Returns the same object if there is nothing to add. A process or allocation of a job belongs to the user
    of the job, whatever uid the process has. A pod keeps its own user. The name of a container is the
    container's, not that of its image or compose project.
    """
    if workload.job and workload.kind in ("slurm", "pod"):
        found = jobs.get(workload.job)
        if found is None:
            return workload
        user = found.user if workload.kind == "slurm" and found.user else workload.user
        known = replace(
            workload, job=found.job, user=user, slurm_account=found.account, partition=found.partition
        )
        return workload if known == workload else known
    if workload.kind == "container" and workload.container_id and not workload.container:
        names = (find_container_name(known, workload.container_id) for known in containers)
        if name := next(filter(None, names), ""):
            missing = "" if workload.missing == "container_name" else workload.missing
            return replace(workload, container=name, missing=missing)
    return workload

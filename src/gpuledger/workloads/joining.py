"""What a cgroup told, joined with what Kubernetes says: the process first, its Device second. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.containers.container import Containers
from gpuledger.workloads.pods.pod import Pod, Pods
from gpuledger.workloads.slurm.job import SlurmJobs

# The evidence of a cgroup is missing altogether: the Device may still tell.
_NO_EVIDENCE = frozenset(
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


def join(found: Workload, pods: Pods, handed: Sequence[Allocation], *, computes: bool) -> Workload:
    """The owner of a process on a Device that was handed to `handed`, from what its cgroup told (`found`).

    A pod is found by its UID, or by the id of the container where the path has no UID: in a cgroup namespace,
    and under a kubelet with `--cgroups-per-qos=false`. Where the pod is not known (yet), or a process that
    computes has no evidence of its own, the one pod to which the Device was handed is its owner, and
    `found_by` says so; with several, nobody is guessed.
    """
    if found.kind in ("pod", "container"):
        pod = pods.uid(found.pod_uid) if found.pod_uid else pods.container(found.container_id)
        if pod is not None:
            return _named(found, pod, handed)
    if found.kind == "pod":
        return _by_device(found, _of_pod(found, handed)) or found
    if found.missing in _NO_EVIDENCE and computes:
        return _by_device(found, handed) or found
    return found


def _named(found: Workload, pod: Pod, handed: Sequence[Allocation]) -> Workload:
    container = pod.container(found.container_id)
    if not container:
        mine = {
            item.workload.container
            for item in handed
            if (item.workload.namespace, item.workload.pod) == (pod.namespace, pod.name)
        }
        container = mine.pop() if len(mine) == 1 else ""
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


def _of_pod(found: Workload, handed: Sequence[Allocation]) -> list[Allocation]:
    """Allocations that can be this pod's: of the same UID, or of none told."""
    return [item for item in handed if item.workload.pod_uid in ("", found.pod_uid)]


def _by_device(found: Workload, handed: Sequence[Allocation]) -> Workload | None:
    """The owner to whom the Device was handed, if it is one."""
    if {item.workload.kind for item in handed} != {"pod"}:
        return None
    pods = {(item.workload.namespace, item.workload.pod) for item in handed}
    if len(pods) != 1:
        return None
    holder = handed[0].workload
    if not holder.pod:
        return None
    containers = {item.workload.container for item in handed}
    container = containers.pop() if len(containers) == 1 else ""
    return replace(
        holder,
        container=container,
        pod_uid=found.pod_uid or holder.pod_uid,
        container_id=found.container_id,
        runtime=found.runtime,
        user=found.user,
        found_by=handed[0].found_by,
        missing="" if container else "container_name",
    )


def enrich(
    workload: Workload, jobs: SlurmJobs | None = None, containers: Iterable[Containers] = ()
) -> Workload:
    """The Workload with the number and user of its Slurm job, or the name of its container.

    Itself when nothing is to be added. What runs in a job is its user's, whatever the process runs as, and
    the same is said of what is allocated to the job. A pod keeps its own user. The name of a container is
    its own, not that of its image or compose project.
    """
    if workload.job and workload.kind in ("slurm", "pod"):
        return _with_job(workload, jobs)
    if workload.kind == "container" and workload.container_id and not workload.container:
        return _with_name(workload, containers)
    return workload


def _with_job(workload: Workload, jobs: SlurmJobs | None) -> Workload:
    found = jobs.get(workload.job) if jobs is not None else None
    if found is None:
        return workload
    user = found.user if workload.kind == "slurm" and found.user else workload.user
    if (found.job, user) == (workload.job, workload.user):
        return workload
    return replace(workload, job=found.job, user=user)


def _with_name(workload: Workload, containers: Iterable[Containers]) -> Workload:
    for known in containers:
        if found := known.get(workload.container_id):
            missing = "" if workload.missing == "container_name" else workload.missing
            return replace(workload, container=found.name, missing=missing)
    return workload

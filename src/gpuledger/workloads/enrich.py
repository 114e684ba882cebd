"""What other maps than the cgroup's know of an owner, filled in: pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpuledger.model.workload import Workload
from gpuledger.workloads.containers.container import Containers
from gpuledger.workloads.slurm.job import SlurmJobs


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

"""What a cgroup told, joined with what Kubernetes says: the process first, its Device second. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.pods.index import Pods
from gpuledger.workloads.pods.pod import Pod

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

"""Completes an owner found by cgroup with facts from Kubernetes, Slurm and container runtimes. Pure.

Evidence about the process (pod UID, container id) comes before evidence about the Device. No owner is
guessed, and the names of one pod never stand beside the ids of another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from gpuledger.model.process import GpuProcess
from gpuledger.model.workload import UNSEEN, Allocation, Workload
from gpuledger.workloads.containers.container import (
    LISTED_RUNTIMES,
    Listing,
    RuntimeList,
    find_container_name,
    find_listing,
    listing_runtimes,
    short_id,
)
from gpuledger.workloads.pods.placeholder import is_placeholder

if TYPE_CHECKING:
    from gpuledger.workloads.pods.pod import Pod, Pods
    from gpuledger.workloads.slurm.jobs import SlurmJobs


class OwnerFacts(NamedTuple):
    """What the indexes know about owners at one moment; the same objects while nothing changes.

    `pods` and `jobs` are None on machines without Kubernetes or Slurm, which do not load their modules.
    `names_pods` is True if an index reads the names of pods, even if it has not read any yet.
    """

    pods: Pods | None = None
    jobs: SlurmJobs | None = None
    runtimes: tuple[RuntimeList, ...] = ()
    names_pods: bool = False

    @property
    def awaits_pods(self) -> bool:
        """Whether names of pods are read, and none has been yet."""
        return self.names_pods and not self.pods

    @property
    def objects(self) -> tuple[object, ...]:
        """All objects in it: results change only when one of these does."""
        return (self.pods, self.jobs, *[value for one in self.runtimes for value in one])


# Owners that a pod caches. Only a pod with a container runtime inside has more: its containers come and go.
_MOST_NAMED = 64

# UID of a pod (of the outermost one if pods are nested), else its container id; then that container id.
PodAtWork = tuple[str, str]


class DeviceEvidence(NamedTuple):
    """Evidence about the owners of a Device: its Allocations, and the containers of pods that work there."""

    allocations: Sequence[Allocation] = ()
    working: frozenset[PodAtWork] = frozenset()

    @property
    def pods(self) -> frozenset[str]:
        """The pods that have a process on the Device."""
        return frozenset([pod for pod, _ in self.working])

    def only_pod(self) -> Workload | None:
        """The pod that alone has the Device, with its container if only one has it.

        None if there is no such pod, if its name is unknown, or if it only holds the Device for other pods.
        """
        holders = [one.workload for one in self.allocations]
        uids = {one.pod_uid for one in holders} - {""}
        if len({(one.kind, one.namespace, one.pod) for one in holders}) != 1 or len(uids) > 1:
            return None
        # With a UID, if any of its allocations has it.
        holder = max(holders, key=lambda one: bool(one.pod_uid))
        if holder.kind != "pod" or not holder.pod or is_placeholder(holder):
            return None
        container = _only_container(self.allocations)
        found_by = self.allocations[0].found_by
        missing = "" if container else "container_name"
        return replace(holder, container=container, container_id="", found_by=found_by, missing=missing)

    def may_have_named(self, owner: Workload) -> bool:
        """Whether an owner that Allocations named can still be right after one of them is gone.

        It can be wrong if other pods work on the Device, or if only other pods have it.
        """
        holders = {(one.workload.namespace, one.workload.pod) for one in self.allocations}
        return len(self.pods) < 2 and (not holders or (owner.namespace, owner.pod) in holders)

    def has_one_container(self, pod: str) -> bool:
        """Whether a single container of this pod works on the Device: it is then the allocated one."""
        return sum(one == pod for one, _ in self.working) == 1

    def identified(self, pods: Pods | None) -> DeviceEvidence:
        """With the UIDs of `pods`: cgroups have hashes of static pods, or only container ids."""
        if not pods:
            return self
        known = [(pods.by_uid(pod) or pods.by_container(container), pod) for pod, container in self.working]
        uids = [pod if found is None else found.uid for found, pod in known]
        working = zip(uids, (container for _, container in self.working), strict=True)
        return self._replace(working=frozenset(working))


def pod_at_work(found: Sequence[Workload]) -> PodAtWork | None:
    """The pod and container that a process runs in, as DeviceEvidence counts them; None outside of pods."""
    outermost = next((one for one in reversed(found) if one.kind == "pod"), None)
    if outermost is None:
        return None
    return (outermost.pod_uid or outermost.container_id, outermost.container_id)


def resolve_owner(
    found: Sequence[Workload],
    facts: OwnerFacts,
    device: DeviceEvidence,
    process: GpuProcess,
) -> Workload:
    """The owner of a process.

    `found` are the owners that its cgroup names, from the innermost out. The first one that an index knows is
    the owner, or the outermost one that the same index knows: pods of one cluster do not contain each other,
    but a pod can name a cgroup below its own after another. If none is known, the Device may name the owner:
    an Allocation with the same pod UID; the pod that alone has the Device, if no other pod has a process
    there. That pod also owns a compute process of which the host knows nothing, if it works there or nobody
    can be seen, and a container that its runtime on this machine does not know: it runs inside the pod.
    """
    innermost = found[0]
    in_login = len(found) > 1 and found[-1].kind == "user"
    found = found[:-1] if in_login else found
    known = [(one, named) for one in found if (named := _by_index(one, facts, in_login=in_login)) is not None]
    if known:
        kind = known[0][1].kind
        one, named = next(item for item in reversed(known) if item[1].kind == kind)
        # Until pods are listed, the name of a pod in a container or job can still arrive.
        if not (innermost.kind == "pod" != one.kind and facts.awaits_pods):
            if named.has_bare_number:
                named = _with_job_id(named, device)
            if named.kind == "pod" and not named.container:
                named = _with_container(named, device.identified(facts.pods))
            return named if one is innermost else _outside(named, innermost)
    device = device.identified(facts.pods)
    if innermost.kind == "pod" and (facts.names_pods or found[-1].kind == "pod"):
        return _unknown_pod(found, device)
    if _is_unnamed_container(found[-1]):
        outer = _unnamed_container(found[-1], facts, device, process.host.start.unix, in_login=in_login)
        return outer if len(found) == 1 else _outside(outer, innermost)
    # In its own pid namespace the program sees nobody at work: the Allocation is all that is known.
    is_blind = innermost.missing == "pid_namespace"
    if innermost.missing in UNSEEN and process.computes and (device.pods or is_blind):
        only = device.only_pod()
        if only is not None and _works_alone(device, only):
            return replace(only, user=innermost.user)
    return innermost


def _works_alone(device: DeviceEvidence, pod: Workload) -> bool:
    """Whether no other pod has a process on the Device, as far as UIDs are known."""
    return len(device.pods | ({pod.pod_uid} - {""})) <= 1


def _is_unnamed_container(found: Workload) -> bool:
    return found.kind == "container" and not found.container


def _by_index(found: Workload, facts: OwnerFacts, *, in_login: bool) -> Workload | None:
    """The owner with its names; None if no index knows it. A job is known by its number.

    A container of a login is known only to the socket of that login: its user can give it any id.
    """
    pods = facts.pods
    if pods is not None and found.kind in ("pod", "container") and not in_login:
        pod = pods.by_uid(found.pod_uid) if found.pod_uid else pods.by_container(found.container_id)
        if pod is not None:
            return _with_pod(found, pod)
    if _is_unnamed_container(found):
        runtimes = listing_runtimes(facts.runtimes, in_login=in_login)
        names = (find_container_name(one.names, found.container_id) for one in runtimes)
        name = next(filter(None, names), "")
        return replace(found, container=name, missing="") if name else None
    return found if found.kind in ("slurm", "job", "container") else None


def _with_pod(found: Workload, pod: Pod) -> Workload:
    """The owner with the names of the pod: computed once for all processes and all changes of other pods."""
    named = pod.named.get(found)
    if named is None:
        if len(pod.named) >= _MOST_NAMED:
            pod.named.clear()
        named = pod.named[found] = _name_from_pod(found, pod)
    return named


def _name_from_pod(found: Workload, pod: Pod) -> Workload:
    container = pod.containers.get(found.container_id, "")
    return replace(
        found,
        kind="pod",
        namespace=pod.namespace,
        pod=pod.name,
        container=container,
        pod_uid=pod.uid,
        labels=pod.labels,
        **pod.facts,
        missing="" if container else "container_name",
    )


def _with_container(owner: Workload, device: DeviceEvidence) -> Workload:
    """The pod with the container that alone has the Device, if the pod list has no name for its id."""
    if not device.has_one_container(owner.pod_uid):
        return owner
    mine = (
        item
        for item in device.allocations
        if (item.workload.namespace, item.workload.pod) == (owner.namespace, owner.pod)
    )
    container = _only_container(mine)
    return replace(owner, container=container, missing="") if container else owner


def _with_job_id(owner: Workload, device: DeviceEvidence) -> Workload:
    """The job by its id, if a single job of its number has the Device: its path has only the number."""
    number = owner.job.partition(".")[0]
    holders = {item.workload.job for item in device.allocations if item.workload.kind == "job"}
    ids = [job for job in holders if re.split(r"\D", job, maxsplit=1)[0] == number]
    return replace(owner, job=ids[0]) if len(ids) == 1 else owner


def _only_container(allocations: Iterable[Allocation]) -> str:
    """The container of these allocations; empty if there is not exactly one."""
    containers = {item.workload.container for item in allocations}
    return containers.pop() if len(containers) == 1 else ""


def _outside(owner: Workload, innermost: Workload) -> Workload:
    """The outer owner of a process, with the ids of the pod or container inside it and the reason."""
    return replace(
        owner,
        inner_pod_uid=innermost.pod_uid if innermost.pod_uid != owner.pod_uid else "",
        inner_container_id=innermost.container_id,
        missing=owner.missing or "inner_name",
    )


def _unknown_pod(found: Sequence[Workload], device: DeviceEvidence) -> Workload:
    """A pod that no index knows: the pod of an Allocation, else only an id.

    An Allocation with the same UID names it, even if others have the Device, too. One without a UID names the
    outermost pod, and only if no other pod has the Device or a process there.
    """
    innermost = found[0]
    pods = [one for one in found if one.kind == "pod"]
    for one in pods:
        same = [item for item in device.allocations if one.pod_uid and item.workload.pod_uid == one.pod_uid]
        only = DeviceEvidence(same).only_pod()
        if only is None and one is pods[-1] and len(device.pods) == 1:
            only = device.only_pod()
        if only is not None and only.pod_uid in ("", one.pod_uid):
            return _name_pod(one, only, innermost, device)
    return innermost


def _name_pod(found: Workload, holder: Workload, innermost: Workload, device: DeviceEvidence) -> Workload:
    """The pod `found` with the names of the Allocation's pod: names of one pod, ids of the same."""
    container = holder.container if device.has_one_container(found.pod_uid or found.container_id) else ""
    named = replace(
        holder,
        container=container,
        pod_uid=found.pod_uid,
        container_id=found.container_id,
        runtime=found.runtime,
        user=found.user,
        inner_container_id=found.inner_container_id,
        missing="" if container else "container_name",
    )
    return named if found is innermost else _outside(named, innermost)


def _unnamed_container(
    found: Workload, facts: OwnerFacts, device: DeviceEvidence, started: float, *, in_login: bool
) -> Workload:
    """A container that no index names: inside the pod that alone has the Device, else its short id.

    It is inside a pod only if all that could know it do not: the sockets of its runtime, and, where no
    runtime has a socket, the list of pods. A container of a login, or of a runtime without a socket
    (containerd), runs on the machine.
    """
    named = replace(found, container=short_id(found.container_id))
    runtimes = listing_runtimes(facts.runtimes, in_login=in_login)
    if found.runtime in LISTED_RUNTIMES:
        runtimes = [one for one in runtimes if one.runtime == found.runtime]
    listing = find_listing(runtimes, started)
    can_be_inside = found.runtime in LISTED_RUNTIMES and not in_login
    has_no_socket = can_be_inside and not facts.runtimes
    if listing is Listing.PENDING or (has_no_socket and facts.awaits_pods):
        return named
    if can_be_inside and (listing is Listing.UNLISTED or (has_no_socket and facts.pods)):
        only = device.only_pod()
        if only is not None and _works_alone(device, only):
            return replace(only, user=found.user, inner_container_id=found.container_id)
    return replace(named, missing="container_unnamed")


def enrich_owner(workload: Workload, facts: OwnerFacts) -> Workload:
    """The Workload with what is known of its Slurm job.

    Returns the same object if there is nothing to add. A process or allocation of a job belongs to the user
    of the job, whatever uid the process has. A pod keeps its own user.
    """
    jobs = facts.jobs
    if jobs is not None and workload.job and workload.kind in ("slurm", "pod"):
        found = jobs.get(workload.job)
        if found is None:
            return workload
        user = found.user if workload.kind == "slurm" and found.user else workload.user
        known = replace(workload, job=found.job, user=user, **found.facts)
        return workload if known == workload else known
    return workload

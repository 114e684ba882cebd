"""Owners of processes (Workload) and assignments of Devices to owners (Allocation)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from fractions import Fraction

from gpuledger.model.devices import Device

# What has a fact: pods or jobs.
POD, JOB = "pod", "job"


def _fact(of: str) -> str:
    """A field that describes an owner but does not identify it.

    The store, reports, teams, masks of recordings and the info families take these fields from here.
    """
    found: str = field(default="", metadata={"of": of})
    return found


@dataclass(frozen=True, slots=True)
class Workload:
    """The owner of a process. Unknown fields are empty: an owner is never guessed.

    `kind` is the most specific known kind: pod, container (Docker, Podman or containerd outside Kubernetes),
    slurm, job (of another batch system, named by `runtime`), unit (systemd), user, or unknown. `found_by`
    names the evidence (`cgroup`, `simulator`, ...). `missing` is a short reason why the owner could not be
    resolved further, a label value of `gpuledger_unresolved_processes`. `labels` are the pod labels that the
    user allowed, sorted. `controller_kind` and `controller` name the object that created the pod (Job,
    Deployment, RayCluster, ...), `queue` is the pod's queue (Kueue, Volcano, ...). `slurm_account`,
    `partition` and `job_name` are those of a Slurm job; `array_job` is the id of its array, `array_task` its
    number there. `inner_pod_uid` and `inner_container_id` are those of a pod or container that runs inside
    the owner and has the process: not parts of its identity, and not stored.
    """

    kind: str = "unknown"
    namespace: str = ""
    pod: str = ""
    container: str = ""
    pod_uid: str = ""
    container_id: str = ""
    runtime: str = ""
    job: str = ""
    step: str = ""
    unit: str = ""
    user: str = ""
    found_by: str = ""
    missing: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    controller_kind: str = _fact(POD)
    controller: str = _fact(POD)
    slurm_account: str = _fact(JOB)
    partition: str = _fact(JOB)
    job_name: str = _fact(JOB)
    array_job: str = _fact(JOB)
    array_task: str = _fact(JOB)
    queue: str = _fact(POD)
    inner_pod_uid: str = field(default="", metadata={"stored": False})
    inner_container_id: str = field(default="", metadata={"stored": False})

    @property
    def ids(self) -> tuple[str, str]:
        """The container id, else the pod UID, as its cgroup has them: the owner waits for names under it.

        The UID is "" beside a container id: with the name, that of a static pod becomes another one, and some
        cgroups have none.
        """
        pod_uid, container_id = self.pod_uid, self.container_id
        if self.inner_pod_uid or (self.inner_container_id and not self.container_id):
            pod_uid, container_id = self.inner_pod_uid, self.inner_container_id
        return ("", container_id) if container_id else (pod_uid, "")

    @property
    def has_sluid(self) -> bool:
        """Whether `job` is the SLUID of a Slurm job: the number of the job can still become known."""
        return self.kind == "slurm" and self.job.startswith("s")

    @property
    def has_bare_number(self) -> bool:
        """Whether `job` is a number from a path in place of an id.

        PBS on cgroup v2: 1234 or 1234.1, not 1234.server. LSF: 1234 for each job 1234[7] of an array.
        """
        return self.runtime in ("pbs", "lsf") and all(part.isdigit() for part in self.job.split(".", 1))

    @property
    def earlier_ids(self) -> tuple[tuple[str, str], ...]:
        """The `ids` under which it may have waited: without names, an Allocation has no container id."""
        return (self.ids, (self.pod_uid, "")) if self.pod_uid else (self.ids,)


def _facts_of(*kinds: str) -> tuple[str, ...]:
    return tuple(item.name for item in fields(Workload) if item.metadata.get("of") in kinds)


FACTS = _facts_of(POD, JOB)
POD_FACTS, JOB_FACTS = _facts_of(POD), _facts_of(JOB)
# Facts that are keys of reports and teams. The controller is a key with its kind, and each task of an array
# is a job.
KEY_FACTS = tuple(name for name in FACTS if name not in ("controller_kind", "controller", "array_task"))

# The fields that the store keeps.
STORED_FIELDS = tuple(item.name for item in fields(Workload) if item.metadata.get("stored", True))

UNKNOWN = Workload()

# Values of `missing` for an owner with a known id: an owner index may still supply the name.
PENDING_NAMES = frozenset({"pod_name", "container_name"})
# Values of `missing` for an owner that is known, of which an owner index could still supply a better name.
BETTER_NAMES = frozenset({"container_unnamed", "inner_name"})
# Values of `missing` for a process of which the host could read nothing: it can be anybody's.
UNSEEN = frozenset({"pid_namespace", "permission", "not_found", "exited"})


def best_known(owner: Workload) -> Workload:
    """The owner if a name or a container's short id identifies it; UNKNOWN for a pod known by UID alone."""
    return UNKNOWN if owner.missing in PENDING_NAMES and not (owner.pod or owner.container) else owner


def merge_owner(before: Workload, now: Workload) -> Workload:
    """The newer owner, without losing known names.

    A pod that is deleted before its process exits, or an owner index that starts empty again, removes no
    name. Two names of a pod are those of two pods: the name that an index has for the ids in a cgroup counts
    more than the one of an Allocation, else the newer one.
    """
    if before.kind in ("unknown", "user") or (before.missing in PENDING_NAMES and not before.pod):
        return now
    if now.kind in ("unknown", "user"):
        return before
    is_named = before.pod or (before.kind == "container" and not before.missing)
    if is_named and now.pod and (before.namespace, before.pod) != (now.namespace, now.pod):
        is_certain = before.found_by == "cgroup" != now.found_by and _is_same_process(before, now)
        return before if is_certain else now
    if _has_lost_name(before, now):
        # An index that has no name for the container can have the one of the pod.
        is_indexed = now.pod and now.found_by == "cgroup" != before.found_by
        return replace(before, found_by=now.found_by) if is_indexed else before
    if not is_same_owner(before, now) or before.job != now.job:
        return now
    lost = {name: getattr(before, name) for name in _KEPT if getattr(before, name) and not getattr(now, name)}
    if before.pod and before.found_by == "cgroup" != now.found_by:
        # What an index has once named remains certain.
        lost["found_by"] = before.found_by
    return replace(now, **lost) if lost else now


def _has_lost_name(before: Workload, now: Workload) -> bool:
    """Whether the newer owner is the same one without a name."""
    if now.missing in PENDING_NAMES or now.missing == "container_unnamed":
        if now.pod and not before.container:
            return False
        # After a restart, the ids of what runs inside an owner are not known.
        return _is_same_process(before, now) or before.missing == "inner_name"
    if now.has_bare_number and not before.has_bare_number:
        return before.runtime == now.runtime
    return now.has_sluid and before.kind == now.kind and not before.has_sluid


def _is_same_process(before: Workload, now: Workload) -> bool:
    """Whether both are owners of a process with the same ids in its cgroup.

    With its name, a static pod has another UID, and a pod inside a pod has that of the outer one.
    """
    return is_same_owner(before, now) or (before.ids == now.ids and any(now.ids))


# Names that are kept when an owner index no longer has them.
_KEPT = ("namespace", "pod", "container", "labels", *FACTS)


def is_same_owner(one: Workload, other: Workload) -> bool:
    """Whether two owners are the same pod, container or other kind, whatever their names."""
    return one.kind == other.kind and one.pod_uid == other.pod_uid and one.container_id == other.container_id


@dataclass(frozen=True, slots=True)
class Allocation:
    """A Device allocated to a Workload by the kubelet, DRA or Slurm, even if no process runs on it.

    `resource` is the name under which it was allocated (`nvidia.com/gpu`, the name of a DRA claim), empty if
    there is none. Two Allocations of one Device mean sharing (time-slicing, MPS), or that two sources
    disagree. `fraction` is the part of the Device that `resource` keeps from other owners, for all containers
    of the Workload together: 1 for a whole Device, 1/4 for one of four replicas. None if it is unknown; 0 if
    it keeps nothing from anyone. `memory` is the part in bytes, if only that is stated: the fraction follows
    from the memory of the Device.
    """

    device: Device
    workload: Workload
    found_by: str = ""
    resource: str = ""
    fraction: Fraction | None = None
    memory: int | None = None

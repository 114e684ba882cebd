"""Owners of processes (Workload) and assignments of Devices to owners (Allocation)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from gpuledger.model.devices import Device


@dataclass(frozen=True, slots=True)
class Workload:
    """The owner of a process. Unknown fields are empty: an owner is never guessed.

    `kind` is the most specific known kind: pod, container (Docker, Podman or containerd outside Kubernetes),
    slurm, job (of another batch system, named by `runtime`), unit (systemd), user, or unknown. `found_by`
    names the evidence (`cgroup`, `simulator`, ...). `missing` is a short reason why the owner could not be
    resolved further, a label value of `gpuledger_unresolved_processes`. `labels` are the pod labels that the
    user allowed, sorted. `controller_kind` and `controller` name the object that created the pod (Job,
    ReplicaSet, ...). `slurm_account` and `partition` are those of a Slurm job, not parts of its identity.
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
    controller_kind: str = ""
    controller: str = ""
    slurm_account: str = ""
    partition: str = ""


UNKNOWN = Workload()

# Values of `missing` for an owner with a known id: an owner index may still supply the name.
PENDING_NAMES = frozenset({"pod_name", "container_name"})


@dataclass(frozen=True, slots=True)
class Allocation:
    """A Device allocated to a Workload by the kubelet, DRA or Slurm, even if no process runs on it.

    `resource` is the name under which it was allocated (`nvidia.com/gpu`, the name of a DRA claim), empty if
    there is none. Two Allocations of one Device mean sharing (time-slicing, MPS), or that two sources
    disagree. `fraction` is the part of the Device that `resource` keeps from other owners, for all containers
    of the Workload together: 1 for a whole Device, 1/4 for one of four replicas. None if it is unknown; 0 if
    it keeps nothing from anyone (a DRA claim with `adminAccess`).
    """

    device: Device
    workload: Workload
    found_by: str = ""
    resource: str = ""
    fraction: Fraction | None = None

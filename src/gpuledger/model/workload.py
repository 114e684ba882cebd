"""Whose process it is, and what has been handed to whom."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.model.devices import Device


@dataclass(frozen=True, slots=True)
class Workload:
    """The owner of a process. Unknown text is empty: an owner is never invented.

    `kind` is what the deepest known answer is: pod, container (Docker, Podman or containerd outside
    Kubernetes), slurm, job (of another batch system, which `runtime` names), unit (systemd), user, or
    unknown. `found_by` names the evidence (`cgroup`, `simulator`, ...); `missing` says why the process could
    not be resolved further, as a short reason that is the label value of `gpuledger_unresolved_processes`.
    `labels` are the pod labels that the user allowed, sorted; `controller_kind` and `controller` name what
    made the pod (Job, ReplicaSet, ...).
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


UNKNOWN = Workload()

# What is missing of an owner whose id is known: a name that a map may still bring.
AWAITED = frozenset({"pod_name", "container_name"})


@dataclass(frozen=True, slots=True)
class Allocation:
    """A Device handed to a Workload (kubelet, DRA, Slurm), whether or not it runs anything.

    `resource` is the name under which it was handed out (`nvidia.com/gpu`, a DRA claim's), empty where there
    is none. Two Allocations of one Device are sharing (time-slicing, MPS), or a disagreement of two sources.
    """

    device: Device
    workload: Workload
    found_by: str = ""
    resource: str = ""

"""The command that would release a GPU, by its owner: shown to people, never run."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import Final, NamedTuple

from gpuledger.model.workload import Workload


class Release(NamedTuple):
    """A shell command, empty if none is known, and what to know before it is run."""

    command: str = ""
    note: str = ""


# Controllers that replace a deleted pod, by kind, with the name in kubectl.
_SCALED: Final = {"Deployment": "deployment", "ReplicaSet": "replicaset", "StatefulSet": "statefulset"}
_ENDED: Final = {"Job": "job"}
_CONTAINERS: Final = {"docker": "docker stop", "podman": "podman stop", "containerd": "nerdctl stop"}
_CRIO: Final = ("cri-o", "crio")
# The command of each batch system that ends a job.
_BATCH: Final = {
    "slurm": "scancel",
    "pbs": "qdel",
    "torque": "qdel",
    "sge": "qdel",
    "gridengine": "qdel",
    "lsf": "bkill",
    "htcondor": "condor_rm",
    "flux": "flux cancel",
}
_LONG_ID: Final = 12


def find_release(owner: Workload, pids: Sequence[int] = ()) -> Release:
    """The command for this owner, which has these processes on the GPU."""
    match owner.kind:
        case "pod":
            return _release_pod(owner)
        case "slurm" | "job":
            return _release_job(owner)
        case "container":
            return _release_container(owner, pids)
        case "unit":
            return _release_unit(owner, pids)
    return _kill(pids)


def _release_pod(owner: Workload) -> Release:
    if not owner.pod:
        return Release("", "the name of the pod is not known")
    namespace, kind = f"-n {quote(owner.namespace)}", owner.controller_kind
    if kind in _SCALED:
        target = f"{_SCALED[kind]}/{quote(owner.controller)}"
        note = f"ends all pods of the {kind}, which would replace a deleted one"
        return Release(f"kubectl {namespace} scale {target} --replicas=0", note)
    if kind in _ENDED:
        return Release(f"kubectl {namespace} delete {_ENDED[kind]} {quote(owner.controller)}")
    note = f"its {kind} {owner.controller} may create it again" if owner.controller else ""
    return Release(f"kubectl {namespace} delete pod {quote(owner.pod)}", note)


def _release_job(owner: Workload) -> Release:
    system = "slurm" if owner.kind == "slurm" else owner.runtime.lower()
    if system not in _BATCH:
        return Release("", f"end job {owner.job} in its batch system")
    # Only so does it end one task: the last one of an array has the array's own id.
    is_task = bool(owner.array_job and owner.array_task)
    job = f"{owner.array_job}_{owner.array_task}" if is_task else owner.job
    return Release(f"{_BATCH[system]} {quote(job)}")


def _release_container(owner: Workload, pids: Sequence[int]) -> Release:
    runtime = owner.runtime.lower()
    name = owner.container or owner.container_id[:_LONG_ID]
    if runtime in _CRIO:
        return Release(f"crictl stop {quote(owner.container_id[:_LONG_ID] or name)}")
    if runtime not in _CONTAINERS or not name:
        return _kill(pids)
    note = f"as user {owner.user}" if runtime == "podman" and owner.user not in ("", "root") else ""
    return Release(f"{_CONTAINERS[runtime]} {quote(name)}", note)


def _release_unit(owner: Workload, pids: Sequence[int]) -> Release:
    if not owner.unit.endswith((".service", ".scope")):
        return _kill(pids)
    if owner.user and owner.user != "root":
        # The unit may be one of the user's own service manager: its processes are ended in any case.
        return _kill(pids)._replace(note=f"they belong to {owner.unit} of {owner.user}")
    return Release(f"systemctl stop {quote(owner.unit)}")


def _kill(pids: Sequence[int]) -> Release:
    if not pids:
        return Release("", "no process of this owner is known")
    return Release(f"kill {' '.join(map(str, sorted(set(pids))))}")

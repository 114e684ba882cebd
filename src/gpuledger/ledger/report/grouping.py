"""Report groupings: the columns that name a row, and the row key of each party."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gpuledger.ledger.owners import user_of
from gpuledger.ledger.ownership import owner_fields, owner_from_fields
from gpuledger.model.devices import Device
from gpuledger.model.errors import UsageError, unknown_name_error
from gpuledger.model.workload import Workload


@dataclass(frozen=True, slots=True)
class Party:
    """The Device, owner and command of Sessions or allocations. Unknown text is empty.

    `owner` omits what differs between starts of the same workload (ids of pod and container, step) and how it
    was found.
    """

    device: str
    owner: Workload
    command: str = ""
    # Cached: it is used for each hour of a report, up to a year.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.device, self.owner, self.command)))

    def __hash__(self) -> int:
        return self._hash


def party_of(device: str, owner: Workload, command: str = "") -> Party:
    """The party of a Session (its Device's uuid, owner and command) or, without command, of an allocation."""
    lasting = replace(owner, pod_uid="", container_id="", step="", found_by="", missing="")
    return Party(device, lasting, command)


def party_text(party: Party) -> str:
    """The party as text; equal parties have equal texts."""
    values = [party.device, party.command, owner_fields(party.owner)]
    # No ASCII escapes: parties are searched by substrings of their names.
    return json.dumps(values, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def party_from_text(text: str) -> Party:
    """The inverse of `party_text`."""
    device, command, words = json.loads(text)
    return Party(device, owner_from_fields(words), command)


Key = tuple[str, ...]
LABEL = "label:"
# Only for fleet reports: a ledger holds one node.
NODE = "node"


@dataclass(frozen=True, slots=True)
class Grouping:
    """`columns` name the parts of a key. Its texts are empty for parties without such a name."""

    name: str
    columns: tuple[str, ...]
    key: Callable[[Party], Key]


def find_grouping(by: str, devices: Mapping[str, Device]) -> Grouping:
    """The grouping of this name: one of GROUPINGS, or `label:NAME` for a pod label.

    Raises UsageError for an unknown name, with the nearest valid one.
    """
    if by.startswith(LABEL):
        name = by.removeprefix(LABEL)
        if not name:
            raise UsageError("--by label: requires a pod label's name, such as --by label:team")
        return Grouping(by, (name,), lambda party: (dict(party.owner.labels).get(name, ""),))
    if by == "gpu":
        return Grouping(by, ("uuid", "gpu", "model"), lambda party: gpu_key(party.device, devices))
    if by not in _BY_OWNER and by != "command":
        raise unknown_name_error("--by", by, (*GROUPINGS, "label:NAME"))
    if by == "command":
        return Grouping(by, ("command",), lambda party: (party.command,))
    columns, of_owner = _BY_OWNER[by]
    return Grouping(by, columns, lambda party: of_owner(party.owner))


def gpu_key(uuid: str, devices: Mapping[str, Device]) -> tuple[str, str, str]:
    """Uuid, index and model of a Device's Gpu."""
    device = devices.get(uuid)
    if device is None:
        return (uuid, "", "")
    gpu = device.gpu
    return (gpu.uuid, str(gpu.index), gpu.name)


def _name(owner: Workload) -> Key:
    """Kind, namespace and the most specific known name."""
    names = {
        "pod": owner.pod or owner.pod_uid,
        "container": owner.container or owner.container_id,
        "slurm": owner.job,
        "job": owner.job,
        "unit": owner.unit,
        "user": owner.user,
    }
    return (owner.kind, owner.namespace, names.get(owner.kind, ""))


def _job(owner: Workload) -> Key:
    """The job of a batch system, or the Kubernetes Job that created the pod."""
    job = kubernetes_job(owner)
    return (owner.namespace if job else "", owner.job or job)


def kubernetes_job(owner: Workload) -> str:
    """The Kubernetes Job that created the pod; empty if there is none."""
    return owner.controller if owner.controller_kind == "Job" else ""


_BY_OWNER: dict[str, tuple[tuple[str, ...], Callable[[Workload], Key]]] = {
    "owner": (("kind", "namespace", "owner"), _name),
    "namespace": (("namespace",), lambda owner: (owner.namespace,)),
    "pod": (("namespace", "pod"), lambda owner: (owner.namespace, owner.pod)),
    "container": (
        ("namespace", "pod", "container"),
        lambda owner: (owner.namespace, owner.pod, owner.container),
    ),
    "user": (("user",), lambda owner: (user_of(owner),)),
    "job": (("namespace", "job"), _job),
    "unit": (("unit",), lambda owner: (owner.unit,)),
}
GROUPINGS = (*_BY_OWNER, "gpu", "command")

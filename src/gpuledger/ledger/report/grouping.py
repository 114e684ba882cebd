"""By what a report adds up: the columns that name a row, and how a party is put into one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gpuledger.ledger.owners import user_of
from gpuledger.ledger.ownership import owner_from, owner_words
from gpuledger.model.devices import Device
from gpuledger.model.errors import UsageError, unknown
from gpuledger.model.workload import Workload


@dataclass(frozen=True, slots=True)
class Party:
    """Whose a Session or a handover was, without which one it was. Unknown text is empty.

    `owner` is without what differs from one start of the same thing to the next (ids of pod and container,
    step) and without how it was found.
    """

    device: str
    owner: Workload
    command: str = ""
    # Looked up for each hour of a year.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.device, self.owner, self.command)))

    def __hash__(self) -> int:
        return self._hash


def party_of(device: str, owner: Workload, command: str = "") -> Party:
    """The party of a Session (its Device's uuid, owner and command) or, without command, of a handover."""
    lasting = replace(owner, pod_uid="", container_id="", step="", found_by="", missing="")
    return Party(device, lasting, command)


def party_text(party: Party) -> str:
    """Equal parties have equal texts."""
    told = [party.device, party.command, owner_words(party.owner)]
    # As it is written: parties are looked for by parts of their names.
    return json.dumps(told, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def party_from(text: str) -> Party:
    """What `party_text` made a text of."""
    device, command, words = json.loads(text)
    return Party(device, owner_from(words), command)


Key = tuple[str, ...]
LABEL = "label:"
# Of a fleet's report alone: books are of one node.
NODE = "node"


@dataclass(frozen=True, slots=True)
class Grouping:
    """`columns` name the parts of a key; a key of empty texts holds what the grouping has no word for."""

    name: str
    columns: tuple[str, ...]
    key: Callable[[Party], Key]


def grouping(by: str, devices: Mapping[str, Device]) -> Grouping:
    """The grouping of this name: one of GROUPINGS, or `label:NAME` for a pod label.

    Raises UsageError for another one, with the nearest name.
    """
    if by.startswith(LABEL):
        name = by.removeprefix(LABEL)
        if not name:
            raise UsageError("--by label: wants the pod label's name, as in --by label:team")
        return Grouping(by, (name,), lambda party: (dict(party.owner.labels).get(name, ""),))
    if by == "gpu":
        return Grouping(by, ("uuid", "gpu", "model"), lambda party: gpu_key(party.device, devices))
    if by not in _BY_OWNER and by != "command":
        raise unknown("--by", by, (*GROUPINGS, "label:NAME"))
    if by == "command":
        return Grouping(by, ("command",), lambda party: (party.command,))
    columns, of_owner = _BY_OWNER[by]
    return Grouping(by, columns, lambda party: of_owner(party.owner))


def gpu_key(uuid: str, devices: Mapping[str, Device]) -> Key:
    """Uuid, index and model of the Gpu that a Device is or is part of."""
    device = devices.get(uuid)
    if device is None:
        return (uuid, "", "")
    gpu = device.gpu
    return (gpu.uuid, str(gpu.index), gpu.name)


def _name(owner: Workload) -> Key:
    """The deepest name that there is, and what kind it is of."""
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
    """A batch system's job, or the Kubernetes Job that made the pod."""
    made = kubernetes_job(owner)
    return (owner.namespace if made else "", owner.job or made)


def kubernetes_job(owner: Workload) -> str:
    """The Job that made the pod; empty where none did."""
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
}
GROUPINGS = (*_BY_OWNER, "gpu", "command")

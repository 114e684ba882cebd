"""The party of Sessions and allocations: a Device, an owner and a command. Its text is a key of the store."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import lru_cache

from gpuledger.ledger.ownership import owner_fields, owner_from_fields
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


@lru_cache(1024)
def shared(text: str) -> str:
    """The same object for equal texts: each row that is read has copies of those that most rows share."""
    return text


def party_of(device: str, owner: Workload, command: str = "") -> Party:
    """The party of a Session (its Device's uuid, owner and command) or, without command, of an allocation."""
    lasting = owner
    if owner.pod_uid or owner.container_id or owner.step or owner.found_by or owner.missing:
        lasting = replace(
            owner,
            kind=shared(owner.kind),
            namespace=shared(owner.namespace),
            container=shared(owner.container),
            runtime=shared(owner.runtime),
            user=shared(owner.user),
            pod_uid="",
            container_id="",
            step="",
            found_by="",
            missing="",
        )
    if lasting.inner_pod_uid or lasting.inner_container_id:
        lasting = replace(lasting, inner_pod_uid="", inner_container_id="")
    return Party(shared(device), lasting, shared(command))


def party_text(party: Party) -> str:
    """The party as text; equal parties have equal texts."""
    values = [party.device, party.command, owner_fields(party.owner)]
    # No ASCII escapes: parties are searched by substrings of their names.
    return json.dumps(values, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def party_from_text(text: str) -> Party:
    """The inverse of `party_text`."""
    device, command, words = json.loads(text)
    return Party(device, owner_from_fields(words), command)

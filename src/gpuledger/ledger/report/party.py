"""Parties: what a report can tell apart. A Device, an owner on it, and a command of his."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from gpuledger.ledger.owner_words import owner_from, owner_words
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

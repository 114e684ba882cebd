"""Who holds which device, in the kubelet's own words: values only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SOCKET = "pod_resources"
CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Claimed:
    """A device handed out by Dynamic Resource Allocation: `driver`, `pool` and `device` name it on a node."""

    driver: str
    pool: str
    device: str
    claim: str = ""


@dataclass(frozen=True, slots=True)
class Grant:
    """One device in the hands of one container. Unknown text is empty.

    Either `resource` and `device_id` are told, as the device plugin named them, or `claimed`. The socket
    tells namespace and name of the pod, the checkpoint its UID.
    """

    namespace: str = ""
    pod: str = ""
    container: str = ""
    resource: str = ""
    device_id: str = ""
    claimed: Claimed | None = None
    pod_uid: str = ""


@dataclass(frozen=True, slots=True)
class PodResources:
    """All grants of a node at one moment; `len` is their number.

    `found_by` is `pod_resources` (the socket) or `checkpoint`; `detour` says why the checkpoint was read.
    """

    grants: tuple[Grant, ...] = ()
    found_by: str = SOCKET
    detour: str = ""

    def __len__(self) -> int:
        return len(self.grants)

    def __iter__(self) -> Iterator[Grant]:
        return iter(self.grants)


NOTHING = PodResources()

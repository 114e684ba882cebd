"""What the ResourceClaims say about the devices that pods have by DRA. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuledger.kubernetes.fields import mapping_at, mappings_at, name_at
from gpuledger.workloads.pods.capacities import Capacities, parse_capacities


class ClaimedPart(NamedTuple):
    """What a claim has of one device. `is_admin`: access for monitoring, which keeps nothing from others."""

    is_admin: bool
    consumed: Capacities


# Namespace and name of a claim.
ClaimName = tuple[str, str]


class ClaimUse(NamedTuple):
    """One pod that uses a claim: with a new pod, a claim of the same name may be another.

    `pod` is its UID, or its name as long as that is not known. No pod uses a claim that is deleted meanwhile.
    """

    claim: ClaimName
    pod: str


# By driver, pool, device, and the id of the share.
ClaimedParts = Mapping[tuple[str, str, str, str], ClaimedPart]


@dataclass(frozen=True, slots=True)
class ResourceClaims:
    """The claims that were read; None for a claim that could not be read. `len` is their number.

    While it `waits`, a claim without an entry is about to be read; it does not after a read that failed.
    """

    parts: Mapping[ClaimName, ClaimedParts | None] = field(default_factory=dict, hash=False)
    waits: bool = False

    def __len__(self) -> int:
        return len(self.parts)

    def is_pending(self, claim: ClaimName) -> bool:
        """Whether nothing is known of the claim yet, because it is about to be read."""
        return self.waits and claim not in self.parts

    def find(self, claim: ClaimName, device: tuple[str, str, str], share: str) -> ClaimedPart | None:
        """What the claim has of this device or of this share of it; None if it is not known."""
        return (self.parts.get(claim) or {}).get((*device, share))


NO_CLAIMS = ResourceClaims()


def parse_claim(data: object) -> ClaimedParts:
    """The devices that are allocated to a ResourceClaim, in all API versions from v1beta1 on.

    A claim can have a device by two requests, one of which is for monitoring: then the other counts.
    """
    found: dict[tuple[str, str, str, str], ClaimedPart] = {}
    allocation = mapping_at(mapping_at(data, "status"), "allocation")
    for result in mappings_at(mapping_at(allocation, "devices"), "results"):
        driver, pool, device, share = (
            name_at(result, key) for key in ("driver", "pool", "device", "shareID")
        )
        part = ClaimedPart(
            result.get("adminAccess") is True, parse_capacities(mapping_at(result, "consumedCapacity"))
        )
        key = (driver, pool, device, share)
        if driver and device and (key not in found or found[key].is_admin):
            found[key] = part
    return found

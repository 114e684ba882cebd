"""Which DRA claims are for monitoring only, and hold nothing. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from gpuledger.model.devices import Device, Gpu
from gpuledger.workloads.pod_resources.device_names import (
    DeviceNames,
    KubeletAllocation,
    NoMatch,
    find_claimed_device,
)
from gpuledger.workloads.pods.claims import ClaimName, ResourceClaims
from gpuledger.workloads.pods.pod import Pod, ResourceSlices

# An allocation of a pod that has not ended, and the pod if it is known.
LiveAllocation = tuple[KubeletAllocation, Pod | None]


class HoldingClaims(NamedTuple):
    """The allocations that keep a device from others, and why the others do not.

    `monitoring` counts the devices of each claim that is for monitoring, or may be: those that may be are
    `unknown`, too. `is_pending` is whether a claim is about to be read, and left out until then.
    """

    kept: tuple[LiveAllocation, ...]
    monitoring: Counter[ClaimName]
    unknown: frozenset[ClaimName]
    is_pending: bool


def without_monitoring(
    live: Iterable[LiveAllocation],
    devices: tuple[Device, ...],
    claims: ResourceClaims,
    names: DeviceNames,
    slices: ResourceSlices,
) -> HoldingClaims:
    """The allocations without those that are for monitoring, may be, or are about to be read."""
    kept: list[LiveAllocation] = []
    monitoring: Counter[ClaimName] = Counter()
    # The GPUs of each claim, and the claims that could not be read.
    had: dict[ClaimName, set[Gpu]] = {}
    unread: set[ClaimName] = set()
    is_pending = False
    for item, pod in live:
        claimed, name = item.claimed_device, item.claim_name
        if claimed is None:
            kept.append((item, pod))
            continue
        if claims.is_pending(name):
            is_pending = True
            continue
        part = claims.find(name, (claimed.driver, claimed.pool, claimed.device), claimed.share)
        if part is not None and part.is_admin:
            monitoring[name] += 1
            continue
        kept.append((item, pod))
        if part is None and not claimed.share:
            unread.add(name)
        device, _ = find_claimed_device(names, claimed, slices)
        if not isinstance(device, NoMatch):
            had.setdefault(name, set()).add(device.gpu)
    unknown = _likely_monitors(had, unread, {device.gpu for device in devices})
    monitoring.update(item.claim_name for item, _ in kept if item.claim_name in unknown)
    holding = tuple(one for one in kept if one[0].claim_name not in unknown)
    return HoldingClaims(holding, monitoring, unknown, is_pending)


def _likely_monitors(
    had: Mapping[ClaimName, set[Gpu]], unread: Collection[ClaimName], gpus: Collection[Gpu]
) -> frozenset[ClaimName]:
    """Claims that may be for monitoring, and cannot be read: they have every GPU of the machine.

    On a machine with one GPU that says nothing, unless another claim has it, too: only monitors share one.
    """
    every = frozenset(name for name in unread if had.get(name) == gpus)
    return every if len(gpus) > 1 or len(had) > 1 else frozenset()


def unknown_claim_problem(claim: ClaimName) -> str:
    """The line for the log."""
    return (
        f"ResourceClaim {'/'.join(claim)} has every GPU and cannot be read: it may be for monitoring, and "
        "does not count; GPU time that nothing else holds is unobserved; see `gpuledger doctor`"
    )

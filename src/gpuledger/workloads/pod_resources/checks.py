"""Checks of `doctor` for the kubelet's device allocations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

from gpuledger.model.checks import (
    Check,
    Finding,
    Subject,
    caused_by,
    skipped,
    split_remedy,
    unknown,
    warning,
    works,
)
from gpuledger.model.devices import Device
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import list_some
from gpuledger.workloads.pod_resources.allocation_matching import (
    MatchResult,
    claim_uses,
    match_allocations,
)
from gpuledger.workloads.pod_resources.device_names import KubeletAllocation, PodResources
from gpuledger.workloads.pod_resources.kubelet_index import read_checkpoint
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings
from gpuledger.workloads.pods.claims import NO_CLAIMS, ClaimName, ClaimUse, ResourceClaims
from gpuledger.workloads.pods.pod import NO_PODS, NO_SLICES, ResourceSlices

_SOCKET: Final = Subject("kubernetes.pod_resources", "pod-resources socket")
_ALLOCATABLE: Final = Subject(_SOCKET.check, "allocatable devices")
_CHECKPOINT: Final = Subject("kubernetes.checkpoint", "device plugin checkpoint")
_DEVICES: Final = Subject("kubernetes.devices", "allocated devices")
_OTHERS: Final = Subject(_DEVICES.check, "other resources")
_DRA: Final = Subject("kubernetes.dra", "DRA devices")
_CLAIMS: Final = Subject(_DRA.check, "ResourceClaims")
_SHOWN: Final = 3


# The claims in use, and why some of them could not be read.
ReadClaims = Callable[[tuple[ClaimUse, ...]], tuple[ResourceClaims, GpuledgerError | None]]


def pod_resources_checks(
    settings: PodResourcesSettings,
    devices: Callable[[], tuple[Device, ...] | None] = lambda: None,
    slices: Callable[[], ResourceSlices] = lambda: NO_SLICES,
    claims: ReadClaims = lambda _: (NO_CLAIMS, None),
    *,
    enabled: bool = True,
    needs: tuple[str, ...] = (),
) -> tuple[Check, ...]:
    """Checks of the socket, of the checkpoint as its fallback, and of the matching to Devices.

    `devices` returns the Devices of this machine, or None if they are not known: then resource names are
    listed but not matched. `needs` are the checks that must not fail before it is called. `slices` returns
    the UUIDs of DRA devices, `claims` what the ResourceClaims in use say. `enabled` is whether Kubernetes is
    on.
    """
    if not enabled:
        return (Check(*_SOCKET, lambda: [skipped(*_SOCKET, "Kubernetes is off")]),)
    checks = _PodResourcesChecks(settings, devices, slices, claims)
    return (
        Check(*_SOCKET, checks.socket, limit=20.0),
        Check(*_CHECKPOINT, checks.checkpoint),
        Check(*_DEVICES, checks.allocated_devices, needs, limit=30.0),
    )


class _PodResourcesChecks:
    """The checks in order; each stores what the next one needs."""

    def __init__(
        self,
        settings: PodResourcesSettings,
        devices: Callable[[], tuple[Device, ...] | None],
        slices: Callable[[], ResourceSlices],
        claims: ReadClaims,
    ) -> None:
        self._settings = settings
        self._devices = devices
        self._slices = slices
        self._claims = claims
        self._resources: PodResources | None = None
        self._reached = True

    def socket(self) -> Iterator[Finding]:
        from gpuledger.workloads.pod_resources.client import PodResourcesClient
        from gpuledger.workloads.pod_resources.grpc_call import KubeletUnreachable

        client = PodResourcesClient(self._settings.socket)
        try:
            self._resources = client.list_allocations()
        except KubeletUnreachable:
            self._reached = False
            raise
        yield works(*_SOCKET, f"{self._settings.socket} lists {len(self._resources)} allocated devices")
        try:
            yield _allocatable(client.list_allocatable())
        except GpuledgerError as error:
            yield warning(*_ALLOCATABLE, *split_remedy(error))

    def checkpoint(self) -> Iterator[Finding]:
        if self._resources is not None or self._reached:
            yield skipped(*_CHECKPOINT, "not used: the socket exists")
            return
        self._resources = read_checkpoint(Path(self._settings.checkpoint))
        yield warning(
            *_CHECKPOINT,
            f"used instead of the socket, {len(self._resources)} allocated devices: it has no pod names and "
            "no devices allocated by DRA",
            "mount /var/lib/kubelet/pod-resources of the node",
        )

    def allocated_devices(self) -> Iterator[Finding]:
        resources = self._resources
        if resources is None:
            yield skipped(*_DEVICES, caused_by(_SOCKET.what))
            return
        devices = self._devices()
        if devices is None:
            names = {
                item.claimed_device.driver if item.claimed_device else item.resource for item in resources
            }
            listed = ", ".join(sorted(names)) or "nothing"
            yield unknown(*_DEVICES, f"the GPUs are not known; the kubelet lists {listed}")
            return
        by_dra = any(allocation.claimed_device for allocation in resources)
        slices = self._slices() if by_dra else NO_SLICES
        claims, error = self._claims(claim_uses(resources, self._settings))
        if error is not None:
            why, remedy = split_remedy(error)
            yield warning(
                *_CLAIMS,
                f"{why}: claims with adminAccess hold their devices, unless they have every GPU",
                remedy,
            )
        yield from _matched(
            match_allocations(resources, devices, NO_PODS, slices, claims, settings=self._settings)
        )


def _matched(outcome: MatchResult) -> Iterator[Finding]:
    matched = len(outcome.allocations) + outcome.repeated
    if matched or not outcome.unmatched:
        yield works(*_DEVICES, f"{matched} are GPUs of this machine")
    unmatched = sorted(outcome.unmatched, key=lambda item: item[1].form)
    for form, group in groupby(unmatched, key=lambda item: item[1].form):
        items = list(group)
        ids = list_some((_device_id(allocation) for allocation, _ in items), _SHOWN)
        yield warning(
            *_DEVICES,
            f"{len(items)} match no GPU here, parsed as {form}: {ids} ({items[0][1].why})",
            "check that gpuledger sees all GPUs and MIG instances of the node; if it does, please report "
            "the form",
        )
    if outcome.skipped:
        names = ", ".join(sorted(outcome.skipped))
        yield skipped(*_OTHERS, f"not GPUs by --kubernetes-resources and --kubernetes-dra-drivers: {names}")
    if known := outcome.monitoring.keys() - outcome.unknown_claims:
        yield works(*_CLAIMS, f"for monitoring, hold nothing: {_listed(known)}")
    if outcome.unknown_claims:
        yield warning(
            *_CLAIMS,
            f"have every GPU, and may be for monitoring: {_listed(outcome.unknown_claims)}: GPU time that "
            "nothing else holds is unobserved",
            "`kubectl apply -f deploy/rbac.yaml`, which lets gpuledger get resourceclaims",
        )
    if any(item.found_by == "dra_name" for item in outcome.allocations):
        yield warning(
            *_DRA,
            "matched by the minor number in their names: no ResourceSlice has their UUIDs",
            "`kubectl apply -f deploy/rbac.yaml`, which lets gpuledger list resourceslices",
        )


def _listed(claims: Iterable[ClaimName]) -> str:
    return ", ".join(sorted(map("/".join, claims)))


def _allocatable(devices: tuple[tuple[str, str], ...] | None) -> Finding:
    if devices is None:
        return skipped(*_ALLOCATABLE, "not served by this kubelet (older than Kubernetes 1.23)")
    counts = Counter(resource for resource, _ in devices)
    listed = ", ".join(f"{count} {resource}" for resource, count in sorted(counts.items()))
    return works(*_ALLOCATABLE, listed or "none: no device plugin is registered")


def _device_id(allocation: KubeletAllocation) -> str:
    claimed = allocation.claimed_device
    return (claimed.device if claimed else allocation.device_id) or "(empty)"

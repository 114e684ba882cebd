"""Checks of `doctor` for the kubelet's device allocations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from gpuledger.model.checks import (
    Check,
    Finding,
    caused_by,
    fails,
    skipped,
    split_remedy,
    unknown,
    warning,
    works,
)
from gpuledger.model.devices import Device
from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.pod_resources.allocation_matching import NO_UUIDS, MatchResult, match_allocations
from gpuledger.workloads.pod_resources.device_names import DraUuids, KubeletAllocation, PodResources
from gpuledger.workloads.pod_resources.kubelet_index import read_checkpoint
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings

SOCKET: Final = "kubernetes.pod_resources"
CHECKPOINT: Final = "kubernetes.checkpoint"
DEVICES: Final = "kubernetes.devices"
DRA: Final = "kubernetes.dra"

_SOCKET: Final = "pod-resources socket"
_CHECKPOINT: Final = "device plugin checkpoint"
_DEVICES: Final = "allocated devices"
_SHOWN: Final = 3


def pod_resources_checks(
    settings: PodResourcesSettings,
    devices: Callable[[], tuple[Device, ...] | None] = lambda: None,
    uuids: Callable[[], tuple[DraUuids, DraUuids]] = lambda: (NO_UUIDS, NO_UUIDS),
    *,
    enabled: bool = True,
    needs: tuple[str, ...] = (),
) -> tuple[Check, ...]:
    """Checks of the socket, of the checkpoint as its fallback, and of the matching to Devices.

    `devices` returns the Devices of this machine, or None if they are not known: then resource names are
    listed but not matched. `needs` are the checks that must not fail before it is called. `uuids` returns the
    UUIDs of DRA devices and of their parents. `enabled` is whether Kubernetes is on.
    """
    if not enabled:
        return (Check(SOCKET, _SOCKET, lambda: (skipped(SOCKET, _SOCKET, "Kubernetes is off"),)),)
    checks = _PodResourcesChecks(settings, devices, uuids)
    return (
        Check(SOCKET, _SOCKET, checks.socket, limit=20.0),
        Check(CHECKPOINT, _CHECKPOINT, checks.checkpoint),
        Check(DEVICES, _DEVICES, checks.allocated_devices, needs, limit=30.0),
    )


class _PodResourcesChecks:
    """The checks in order; each stores what the next one needs."""

    def __init__(
        self,
        settings: PodResourcesSettings,
        devices: Callable[[], tuple[Device, ...] | None],
        uuids: Callable[[], tuple[DraUuids, DraUuids]],
    ) -> None:
        self._settings = settings
        self._devices = devices
        self._uuids = uuids
        self._resources: PodResources | None = None
        self._reached = True

    def socket(self) -> Iterator[Finding]:
        from gpuledger.workloads.pod_resources.client import PodResourcesClient
        from gpuledger.workloads.pod_resources.grpc_call import KubeletUnreachable

        client = PodResourcesClient(self._settings.socket)
        try:
            self._resources = client.list_allocations()
        except GpuledgerError as error:
            self._reached = not isinstance(error, KubeletUnreachable)
            yield fails(SOCKET, _SOCKET, *split_remedy(error))
            return
        yield works(
            SOCKET, _SOCKET, f"{self._settings.socket} lists {len(self._resources)} allocated devices"
        )
        try:
            allocatable = client.list_allocatable()
        except GpuledgerError as error:
            yield warning(SOCKET, "allocatable devices", *split_remedy(error))
            return
        yield _allocatable(allocatable)

    def checkpoint(self) -> Iterator[Finding]:
        if self._resources is not None or self._reached:
            yield skipped(CHECKPOINT, _CHECKPOINT, "not used: the socket exists")
            return
        try:
            self._resources = read_checkpoint(Path(self._settings.checkpoint))
        except GpuledgerError as error:
            yield fails(CHECKPOINT, _CHECKPOINT, *split_remedy(error))
            return
        yield warning(
            CHECKPOINT,
            _CHECKPOINT,
            f"used instead of the socket, {len(self._resources)} allocated devices: it has no pod names and "
            "no devices allocated by DRA",
            "mount /var/lib/kubelet/pod-resources of the node",
        )

    def allocated_devices(self) -> Iterator[Finding]:
        if self._resources is None:
            yield skipped(DEVICES, _DEVICES, caused_by(_SOCKET))
            return
        devices = self._devices()
        if devices is None:
            yield unknown(
                DEVICES,
                _DEVICES,
                f"the GPUs are not known; the kubelet lists {_resource_names(self._resources)}",
            )
            return
        by_dra = any(allocation.claimed_device for allocation in self._resources)
        uuids, parents = self._uuids() if by_dra else (NO_UUIDS, NO_UUIDS)
        outcome = match_allocations(
            self._resources,
            devices,
            uuids=uuids,
            parents=parents,
            resources=self._settings.resources,
            drivers=self._settings.drivers,
        )
        yield from self._matched(outcome)

    def _matched(self, outcome: MatchResult) -> Iterator[Finding]:
        matched = len(outcome.allocations) + outcome.repeated
        if matched or not outcome.unmatched:
            yield works(DEVICES, _DEVICES, f"{matched} are GPUs of this machine")
        for form, count in sorted(outcome.unmatched_by_form.items()):
            first = [item for item in outcome.unmatched if item.form == form][:_SHOWN]
            ids = ", ".join(_device_id(item.allocation) for item in first)
            yield warning(
                DEVICES,
                _DEVICES,
                f"{count} match no GPU here, parsed as {form}: {ids} ({first[0].why})",
                "check that gpuledger sees all GPUs and MIG instances of the node; if it does, please report "
                "the form",
            )
        if outcome.skipped:
            yield skipped(
                DEVICES,
                "other resources",
                f"not GPUs by --kubernetes-resources and --kubernetes-dra-drivers: "
                f"{', '.join(sorted(outcome.skipped))}",
            )
        if any(item.found_by == "dra_name" for item in outcome.allocations):
            yield warning(
                DRA,
                "DRA devices",
                "matched by the minor number in their names: no ResourceSlice has their UUIDs",
                "`kubectl apply -f deploy/rbac.yaml`, which lets gpuledger list resourceslices",
            )


def _allocatable(devices: tuple[tuple[str, str], ...] | None) -> Finding:
    what = "allocatable devices"
    if devices is None:
        return skipped(SOCKET, what, "not served by this kubelet (older than Kubernetes 1.23)")
    counts = Counter(resource for resource, _ in devices)
    listed = ", ".join(f"{count} {resource}" for resource, count in sorted(counts.items()))
    return works(SOCKET, what, listed or "none: no device plugin is registered")


def _resource_names(resources: PodResources) -> str:
    names = {item.claimed_device.driver if item.claimed_device else item.resource for item in resources}
    return ", ".join(sorted(names)) or "nothing"


def _device_id(allocation: KubeletAllocation) -> str:
    return (
        allocation.claimed_device.device if allocation.claimed_device else allocation.device_id
    ) or "(empty)"

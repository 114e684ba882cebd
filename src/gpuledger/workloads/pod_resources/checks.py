"""What `doctor` says of the kubelet's word on who holds which device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from gpuledger.model.checks import Check, Finding, because, fails, parted, skipped, unknown, warning, works
from gpuledger.model.devices import Device
from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.pod_resources.allocations import NO_UUIDS, Allocated, allocate
from gpuledger.workloads.pod_resources.devices import Grant, PodResources, Uuids
from gpuledger.workloads.pod_resources.map import read_checkpoint
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings

SOCKET: Final = "kubernetes.pod_resources"
CHECKPOINT: Final = "kubernetes.checkpoint"
DEVICES: Final = "kubernetes.devices"
DRA: Final = "kubernetes.dra"

_SOCKET: Final = "pod-resources socket"
_CHECKPOINT: Final = "device plugin checkpoint"
_DEVICES: Final = "devices handed out"
_SHOWN: Final = 3


def pod_resources_checks(
    settings: PodResourcesSettings,
    devices: Callable[[], tuple[Device, ...] | None] = lambda: None,
    uuids: Callable[[], tuple[Uuids, Uuids]] = lambda: (NO_UUIDS, NO_UUIDS),
    *,
    enabled: bool = True,
    needs: tuple[str, ...] = (),
) -> tuple[Check, ...]:
    """Checks of the socket, of the checkpoint in its stead, and of what they tell.

    `devices` gives the Devices of this machine, for which there must be no failure of what it `needs`; None
    where they are not known, and then ids are told but not matched. `uuids` gives what ResourceSlices tell
    (UUIDs, and UUIDs of parents). `enabled` is whether Kubernetes is on.
    """
    if not enabled:
        return (Check(SOCKET, _SOCKET, lambda: (skipped(SOCKET, _SOCKET, "Kubernetes is off"),)),)
    looked = _Looked(settings, devices, uuids)
    return (
        Check(SOCKET, _SOCKET, looked.socket, limit=20.0),
        Check(CHECKPOINT, _CHECKPOINT, looked.checkpoint),
        Check(DEVICES, _DEVICES, looked.handed, needs, limit=30.0),
    )


class _Looked:
    """The looks, each of which remembers what the next one needs to know."""

    def __init__(
        self,
        settings: PodResourcesSettings,
        devices: Callable[[], tuple[Device, ...] | None],
        uuids: Callable[[], tuple[Uuids, Uuids]],
    ) -> None:
        self._settings = settings
        self._devices = devices
        self._uuids = uuids
        self._told: PodResources | None = None
        self._reached = True

    def socket(self) -> Iterator[Finding]:
        from gpuledger.workloads.pod_resources.client import PodResourcesClient
        from gpuledger.workloads.pod_resources.unary import Unreachable

        client = PodResourcesClient(self._settings.socket)
        try:
            self._told = client.list()
        except GpuledgerError as error:
            self._reached = not isinstance(error, Unreachable)
            yield fails(SOCKET, _SOCKET, *parted(error))
            return
        yield works(SOCKET, _SOCKET, f"{self._settings.socket} tells {len(self._told)} devices handed out")
        try:
            allocatable = client.allocatable()
        except GpuledgerError as error:
            yield warning(SOCKET, "allocatable devices", *parted(error))
            return
        yield _allocatable(allocatable)

    def checkpoint(self) -> Iterator[Finding]:
        if self._told is not None or self._reached:
            yield skipped(CHECKPOINT, _CHECKPOINT, "not used: the socket is there")
            return
        try:
            self._told = read_checkpoint(Path(self._settings.checkpoint))
        except GpuledgerError as error:
            yield fails(CHECKPOINT, _CHECKPOINT, *parted(error))
            return
        yield warning(
            CHECKPOINT,
            _CHECKPOINT,
            f"used in the socket's stead, {len(self._told)} devices handed out: names of pods must come from "
            "elsewhere, and what DRA handed out is not in it",
            "mount /var/lib/kubelet/pod-resources of the node",
        )

    def handed(self) -> Iterator[Finding]:
        if self._told is None:
            yield skipped(DEVICES, _DEVICES, because(_SOCKET))
            return
        devices = self._devices()
        if devices is None:
            yield unknown(
                DEVICES, _DEVICES, f"the GPUs are not known; the kubelet tells {_names(self._told)}"
            )
            return
        by_dra = any(grant.claimed for grant in self._told)
        uuids, parents = self._uuids() if by_dra else (NO_UUIDS, NO_UUIDS)
        outcome = allocate(
            self._told,
            devices,
            uuids=uuids,
            parents=parents,
            resources=self._settings.resources,
            drivers=self._settings.drivers,
        )
        yield from self._matched(outcome)

    def _matched(self, outcome: Allocated) -> Iterator[Finding]:
        matched = len(outcome.allocations) + outcome.repeated
        if matched or not outcome.unmatched:
            yield works(DEVICES, _DEVICES, f"{matched} are GPUs of this machine")
        for form, count in sorted(outcome.forms.items()):
            first = [one for one in outcome.unmatched if one.form == form][:_SHOWN]
            ids = ", ".join(_id(one.grant) for one in first)
            yield warning(
                DEVICES,
                _DEVICES,
                f"{count} match no GPU here, read as {form}: {ids} ({first[0].why})",
                "see that gpuledger sees all GPUs of the node, MIG instances among them; if it does, please "
                "report the form",
            )
        if outcome.others:
            yield skipped(
                DEVICES,
                "other resources",
                f"not taken for GPUs: {', '.join(sorted(outcome.others))} (--kubernetes-resources and "
                "--kubernetes-dra-drivers tell which are)",
            )
        if any(one.found_by == "dra_name" for one in outcome.allocations):
            yield warning(
                DRA,
                "DRA devices",
                "found by name alone, which holds the minor number: no ResourceSlice tells their UUIDs",
                "`kubectl apply -f deploy/rbac.yaml`, which lets gpuledger list resourceslices",
            )


def _allocatable(told: tuple[tuple[str, str], ...] | None) -> Finding:
    what = "allocatable devices"
    if told is None:
        return skipped(SOCKET, what, "not told by this kubelet (older than Kubernetes 1.23)")
    counts = Counter(resource for resource, _ in told)
    listed = ", ".join(f"{count} {resource}" for resource, count in sorted(counts.items()))
    return works(SOCKET, what, listed or "none: no device plugin is registered")


def _names(told: PodResources) -> str:
    names = {one.claimed.driver if one.claimed else one.resource for one in told}
    return ", ".join(sorted(names)) or "nothing"


def _id(grant: Grant) -> str:
    return (grant.claimed.device if grant.claimed else grant.device_id) or "(empty)"

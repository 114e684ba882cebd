"""KubeletIndex: the kubelet's device allocations, from its socket or else from its checkpoint file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpuledger.host.files import read_at_most
from gpuledger.host.owner_index import PolledIndex
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.node_state import IndexHealth
from gpuledger.model.source import Clock
from gpuledger.model.text import clean_name, matches_any
from gpuledger.workloads.pod_resources.device_names import (
    FOUND_BY_CHECKPOINT,
    NO_POD_RESOURCES,
    KubeletAllocation,
    PodResources,
)
from gpuledger.workloads.pod_resources.replicas import ReplicaCounts, count_replicas
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings

if TYPE_CHECKING:
    from gpuledger.workloads.pod_resources.client import PodResourcesClient

log = logging.getLogger("gpuledger.workloads")

_MAX_BYTES: Final = 64 * 1024 * 1024
# Seconds for which the last claims of a socket that is away stand.
_CLAIMS_GOOD_FOR: Final = 300.0


def read_checkpoint(path: Path) -> PodResources:
    """The allocations in `kubelet_internal_checkpoint`. Raises GpuledgerError with a one-line remedy.

    The checksum is not verified, because it covers Go's own formatting of the value. A half-written file is
    not valid JSON and is rejected anyway.
    """
    # Imported lazily: the checkpoint is only the fallback of the socket.
    import json

    try:
        content = read_at_most(path, _MAX_BYTES)
    except FileNotFoundError:
        raise GpuledgerError(
            f"no checkpoint at {path}; mount the node's /var/lib/kubelet/device-plugins"
        ) from None
    except PermissionError as error:
        raise GpuledgerError(f"{path} is not readable: {error.strerror}; run as root") from None
    except OSError as error:
        why = f"{path} is not readable: {error.strerror}"
        raise GpuledgerError(f"{why}; check that it is the kubelet's checkpoint file") from None
    try:
        checkpoint = json.loads(content)
    except (ValueError, RecursionError):
        raise GpuledgerError(f"{path} is not valid JSON, perhaps half-written; retrying") from None
    data = checkpoint.get("Data") if isinstance(checkpoint, dict) else None
    if not isinstance(data, dict) or "PodDeviceEntries" not in data:
        raise GpuledgerError(
            f"{path} is not a device plugin checkpoint; set --device-plugin-checkpoint to the kubelet's file"
        )
    # Go writes an empty list as null.
    entries = data["PodDeviceEntries"] or []
    if not isinstance(entries, list):
        raise GpuledgerError(
            f"PodDeviceEntries in {path} is not a list; set --device-plugin-checkpoint to the kubelet's file"
        )
    parsed = [tuple(_parse_entry(entry)) for entry in entries]
    return PodResources(
        tuple(allocation for allocations in parsed for allocation in allocations),
        found_by=FOUND_BY_CHECKPOINT,
        replicas=count_replicas(_registered(data.get("RegisteredDevices"))),
        ignored=tuple(
            f"the checkpoint's entry of pod {_pod_name(entry)} is ignored: it lacks UID, resource or devices"
            for entry, allocations in zip(entries, parsed, strict=True)
            if not allocations
        ),
    )


def _registered(by_resource: Any) -> Iterator[tuple[str, str]]:
    """(resource, device id) of all devices that plugins registered."""
    for resource, ids in by_resource.items() if isinstance(by_resource, dict) else ():
        for device_id in _ids(ids):
            yield _text(resource), device_id


def _parse_entry(entry: object) -> Iterator[KubeletAllocation]:
    if not isinstance(entry, dict):
        return
    uid, container, resource = (_text(entry.get(key)) for key in ("PodUID", "ContainerName", "ResourceName"))
    if not uid or not resource:
        return
    for device in dict.fromkeys(_ids(entry.get("DeviceIDs"))):
        yield KubeletAllocation(container=container, resource=resource, device_id=device, pod_uid=uid)


def _pod_name(entry: object) -> str:
    fields = entry if isinstance(entry, dict) else {}
    return (
        f"{_text(fields.get('PodUID')) or '(no UID)'}, container {_text(fields.get('ContainerName')) or '-'},"
    )


def _ids(by_numa_node: Any) -> Iterator[str]:
    """Device ids from a mapping by NUMA node, or from one list (before Kubernetes 1.20)."""
    parts = by_numa_node.values() if isinstance(by_numa_node, dict) else (by_numa_node,)
    for part in parts:
        for value in part if isinstance(part, list) else ():
            if device_id := _text(value):
                yield device_id


def _text(value: object) -> str:
    return clean_name(value, 253) if isinstance(value, str) else ""


class KubeletIndex(PolledIndex[PodResources]):
    """The index of the kubelet's device allocations.

    If the kubelet hangs or breaks off, the last value is kept. If its socket is absent, refused or not
    permitted, the checkpoint is read: `value.found_by` is `checkpoint`, and `health.error` says why although
    the read succeeded. The checkpoint has no GPUs allocated by DRA (by `drivers`): the last ones of the
    socket stand for five minutes beside it. If the checkpoint fails too, the read fails with the error of the
    socket.
    """

    def __init__(
        self,
        list_allocations: Callable[[], PodResources],
        read_checkpoint: Callable[[], PodResources],
        *,
        clock: Clock,
        period: float = 10.0,
        drivers: tuple[str, ...] = ("*",),
    ) -> None:
        self._list_allocations = list_allocations
        self._read_checkpoint = read_checkpoint
        self._replicas: ReplicaCounts = {}
        self._ignored: tuple[str, ...] = ()
        self._drivers = drivers
        # The last GPUs allocated by DRA that the socket listed, and until when they stand.
        self._claimed: tuple[KubeletAllocation, ...] = ()
        self._claimed_until = 0.0
        read = self._read_allocations
        super().__init__("pod_resources", read, NO_POD_RESOURCES, period=period, clock=clock)

    @property
    def health(self) -> IndexHealth:
        """The outcome of the last read."""
        health, socket_error = super().health, self.value.socket_error
        return replace(health, error=socket_error) if health.success and socket_error else health

    def _read_allocations(self) -> PodResources:
        found = self._read_socket_or_checkpoint()
        for ignored in sorted({*found.ignored} - {*self._ignored}):
            log.warning("%s", ignored)
        self._ignored = found.ignored
        # A number that is not known at the moment, because a plugin restarts, remains in force.
        self._replicas = {**self._replicas, **found.replicas}
        return found if found.replicas == self._replicas else replace(found, replicas=self._replicas)

    def _read_socket_or_checkpoint(self) -> PodResources:
        # Imported lazily: h2 and protobuf are loaded by the first read, and only on Kubernetes nodes.
        from gpuledger.workloads.pod_resources.grpc_call import KubeletUnreachable

        try:
            listed = self._list_allocations()
            self._claimed = tuple(
                one
                for one in listed
                if one.claimed_device and matches_any(one.claimed_device.driver, self._drivers)
            )
            self._claimed_until = self._clock.elapsed() + _CLAIMS_GOOD_FOR
            return listed
        except KubeletUnreachable as unreachable:
            try:
                checkpoint = self._read_checkpoint()
            except GpuledgerError:
                raise unreachable from None
            stand = self._clock.elapsed() < self._claimed_until
            return replace(
                checkpoint,
                allocations=checkpoint.allocations + (self._claimed if stand else ()),
                socket_error=f"{unreachable} (the checkpoint is read instead)",
                lacks_claims=bool(self._claimed) and not stand,
            )


def _replicas(client: PodResourcesClient) -> ReplicaCounts:
    """The numbers of replicas; empty if the kubelet does not serve them or fails."""
    try:
        return count_replicas(client.list_allocatable() or ())
    except GpuledgerError as error:
        log.debug("the number of replicas is unknown: %s", error)
        return {}


def open_kubelet_index(
    settings: PodResourcesSettings, *, clock: Clock, before_read: Callable[[], object] = lambda: None
) -> KubeletIndex:
    """The index by the settings, not started. `before_read` is called before each read."""

    def list_allocations() -> PodResources:
        from gpuledger.workloads.pod_resources.client import PodResourcesClient

        before_read()
        client = PodResourcesClient(settings.socket)
        return replace(client.list_allocations(), replicas=_replicas(client))

    path = Path(settings.checkpoint)
    return KubeletIndex(
        list_allocations,
        lambda: read_checkpoint(path),
        clock=clock,
        period=settings.period,
        drivers=settings.drivers,
    )

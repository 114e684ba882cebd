"""The map of what the kubelet handed out, kept beside the tick: its socket first, its checkpoint second."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

from gpuledger.host.background import PolledIndex
from gpuledger.host.files import read_at_most
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.node_state import IndexHealth
from gpuledger.model.source import Clock
from gpuledger.model.text import clean_name
from gpuledger.workloads.pod_resources.devices import CHECKPOINT, NOTHING, Grant, PodResources
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings

_LONGEST: Final = 64 * 1024 * 1024


def read_checkpoint(path: Path) -> PodResources:
    """The grants in `kubelet_internal_checkpoint`. Raises GpuledgerError with one line.

    Its checksum is of Go's own printing of the value, and is not checked: a file that was half written is no
    JSON.
    """
    try:
        content = read_at_most(path, _LONGEST)
    except FileNotFoundError:
        raise GpuledgerError(
            f"no checkpoint at {path}; mount the node's /var/lib/kubelet/device-plugins"
        ) from None
    except PermissionError as error:
        raise GpuledgerError(f"{path} is not readable: {error.strerror}; run as root") from None
    except OSError as error:
        why = f"{path} is not readable: {error.strerror}"
        raise GpuledgerError(f"{why}; see that it is the kubelet's") from None
    try:
        told = json.loads(content)
    except (ValueError, RecursionError):
        raise GpuledgerError(f"{path} is not whole JSON, half written perhaps; it is read again") from None
    data = told.get("Data") if isinstance(told, dict) else None
    if not isinstance(data, dict) or "PodDeviceEntries" not in data:
        raise GpuledgerError(f"{path} is no checkpoint of device plugins; name the kubelet's")
    # Go writes an empty list as null.
    entries = data["PodDeviceEntries"] or []
    if not isinstance(entries, list):
        raise GpuledgerError(f"{path} has PodDeviceEntries that are no list; name the kubelet's")
    return PodResources(tuple(grant for entry in entries for grant in _grants(entry)), found_by=CHECKPOINT)


def _grants(entry: object) -> Iterator[Grant]:
    if not isinstance(entry, dict):
        return
    uid, container, resource = (_text(entry.get(key)) for key in ("PodUID", "ContainerName", "ResourceName"))
    if not uid or not resource:
        return
    for device in dict.fromkeys(_ids(entry.get("DeviceIDs"))):
        yield Grant(container=container, resource=resource, device_id=device, pod_uid=uid)


def _ids(told: Any) -> Iterator[str]:
    """Ids by NUMA node; before Kubernetes 1.20 one list."""
    parts = told.values() if isinstance(told, dict) else (told,)
    for part in parts:
        for one in part if isinstance(part, list) else ():
            if name := _text(one):
                yield name


def _text(value: object) -> str:
    return clean_name(value, 253) if isinstance(value, str) else ""


NAME: Final = "pod_resources"


class PodResourcesMap:
    """An OwnerMap. `value` is a PodResources, a new object with every reading: what else tells that a pod is
    gone, its cgroup, is looked at again with it.

    A kubelet that hangs or breaks off keeps the last value; where its socket is absent, refused or not
    permitted the checkpoint is read, `value.found_by` is `checkpoint` and `health.error` says why, although
    the reading is a success. With neither, the reading fails with what is wrong with the socket.
    """

    def __init__(
        self,
        ask: Callable[[], PodResources],
        checkpoint: Callable[[], PodResources],
        *,
        clock: Clock,
        period: float = 10.0,
        random: Random | None = None,
    ) -> None:
        self._ask = ask
        self._checkpoint = checkpoint
        self._polled = PolledIndex(NAME, self._read, NOTHING, period=period, clock=clock, random=random)
        self.start = self._polled.start
        self.stop = self._polled.stop
        self.nudge = self._polled.nudge
        self.refresh = self._polled.refresh

    @property
    def value(self) -> PodResources:
        """The last that was told."""
        return self._polled.value

    @property
    def health(self) -> IndexHealth:
        """How the last reading went."""
        health = self._polled.health
        detour = self._polled.value.detour
        return replace(health, error=detour) if health.success and detour else health

    def _read(self) -> PodResources:
        # gRPC and protobuf are loaded by the first reading, and only where there is Kubernetes.
        from gpuledger.workloads.pod_resources.unary import Unreachable

        try:
            return self._ask()
        except Unreachable as unreachable:
            return self._instead(unreachable)

    def _instead(self, unreachable: GpuledgerError) -> PodResources:
        try:
            told = self._checkpoint()
        except GpuledgerError:
            raise unreachable from None
        return replace(told, detour=f"{unreachable} (the checkpoint is read instead)")


def pod_resources_map(
    settings: PodResourcesSettings, *, clock: Clock, before: Callable[[], object] = lambda: None
) -> PodResourcesMap:
    """The map that the settings ask for, not begun. `before` is called before each reading."""

    def ask() -> PodResources:
        from gpuledger.workloads.pod_resources.client import PodResourcesClient

        before()
        return PodResourcesClient(settings.socket).list()

    path = Path(settings.checkpoint)
    return PodResourcesMap(ask, lambda: read_checkpoint(path), clock=clock, period=settings.period)

"""The map of what the kubelet handed out, kept beside the tick: its socket first, its checkpoint second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

from gpuledger.model.errors import GpuledgerError
from gpuledger.model.page import MapHealth
from gpuledger.model.source import Clock
from gpuledger.workloads.maps import Polled
from gpuledger.workloads.pod_resources.checkpoint import read_checkpoint
from gpuledger.workloads.pod_resources.grants import NOTHING, PodResources
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings

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
        self._polled = Polled(NAME, self._read, NOTHING, period=period, clock=clock, random=random)
        self.start = self._polled.start
        self.stop = self._polled.stop
        self.nudge = self._polled.nudge
        self.refresh = self._polled.refresh

    @property
    def value(self) -> PodResources:
        """The last that was told."""
        return self._polled.value

    @property
    def health(self) -> MapHealth:
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

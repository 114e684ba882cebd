"""The pods of this node, kept up to date by listing them once and watching what changes."""

from __future__ import annotations

import logging
from random import Random
from typing import Final

from gpuledger.kubernetes.client import ApiClient, on_node
from gpuledger.kubernetes.listing import ListWatch
from gpuledger.model.source import Clock
from gpuledger.workloads.pods.labels import LabelAllowlist
from gpuledger.workloads.pods.pod import NO_PODS, Pod, Pods, read_pod

log = logging.getLogger("gpuledger.workloads")

PODS_PATH: Final = "/api/v1/pods"
# The kubelet's own limit is 110 unless raised; a selector that is ignored must not fill the memory.
MOST_PODS: Final = 2000


class PodWatch(ListWatch[Pod]):
    """An OwnerMap of this node's pods from the API server; as a ListWatch."""

    def __init__(
        self,
        client: ApiClient,
        node: str,
        *,
        clock: Clock,
        allowed: LabelAllowlist | None = None,
        random: Random | None = None,
        jitter: float = 3.0,
        watch_seconds: float = 300.0,
        grace: float = 15.0,
        name: str = "pods",
    ) -> None:
        super().__init__(
            client,
            PODS_PATH,
            on_node(node),
            clock=clock,
            random=random,
            jitter=jitter,
            watch_seconds=watch_seconds,
            grace=grace,
            name=name,
        )
        self.value: Pods = NO_PODS
        self._node = node
        self._allowed = allowed or LabelAllowlist()
        self._overfull = False

    def _read(self, told: object) -> Pod | None:
        return read_pod(told, self._allowed)

    def _key(self, about: Pod) -> str:
        return about.uid

    def _put(self, objects: dict[str, Pod], about: Pod) -> None:
        if len(objects) < MOST_PODS or about.uid in objects:
            objects[about.uid] = about
        elif not self._overfull:
            self._overfull = True
            log.warning(
                "%s: over %d pods on node %s, the rest has no names; see that --node-name is this node's",
                self.name,
                MOST_PODS,
                self._node,
            )

    def _publish(self) -> None:
        self.value = Pods(self._objects.values())

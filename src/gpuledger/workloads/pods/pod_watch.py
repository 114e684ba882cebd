"""PodWatch: the pods of this node, kept up to date by a list and watch on the API server."""

from __future__ import annotations

import logging
from typing import Final

from gpuledger.host.owner_index import Jitter
from gpuledger.kubernetes.api_client import ApiClient, node_selector_query
from gpuledger.kubernetes.list_watch import ListWatch
from gpuledger.model.source import Clock
from gpuledger.workloads.pods.pod import NO_PODS, Pod, Pods, parse_pod

log = logging.getLogger("gpuledger.workloads")

PODS_PATH: Final = "/api/v1/pods"
# The kubelet's default limit is 110. This bounds memory if a server ignores the field selector.
MAX_PODS: Final = 2000


class PodWatch(ListWatch[Pod]):
    """The index of this node's pods, from the API server. Parameters as in ListWatch."""

    def __init__(
        self,
        client: ApiClient,
        node: str,
        *,
        clock: Clock,
        allowed_labels: tuple[str, ...] = (),
        random: Jitter | None = None,
        jitter: float = 3.0,
        watch_seconds: float = 300.0,
        grace: float = 15.0,
    ) -> None:
        super().__init__(
            client,
            PODS_PATH,
            node_selector_query(node),
            clock=clock,
            random=random,
            jitter=jitter,
            watch_seconds=watch_seconds,
            grace=grace,
            name="pods",
        )
        self.value: Pods = NO_PODS
        self._node = node
        self._allowed_labels = allowed_labels
        self._overfull = False

    def _parse_object(self, data: object) -> Pod | None:
        return parse_pod(data, self._allowed_labels)

    def _object_key(self, item: Pod) -> str:
        return item.uid

    def _store(self, objects: dict[str, Pod], item: Pod) -> None:
        if len(objects) < MAX_PODS or item.uid in objects:
            objects[item.uid] = item
        elif not self._overfull:
            self._overfull = True
            log.warning(
                "%s: more than %d pods on node %s, the others have no names; check that --node-name is right",
                self.name,
                MAX_PODS,
                self._node,
            )

    def _publish(self) -> None:
        self.value = Pods(self._objects.values())

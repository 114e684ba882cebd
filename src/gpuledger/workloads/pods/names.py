"""Who names the pods: the API server, the log files, or the first with the second behind it."""

from __future__ import annotations

from pathlib import Path

from gpuledger.model.source import Clock
from gpuledger.workloads.maps import OwnerMap, Polled, is_tried
from gpuledger.workloads.pods.index import NO_PODS, Pods
from gpuledger.workloads.pods.logs import pod_logs
from gpuledger.workloads.pods.watch import PodWatch


class PodNames:
    """The pods out of one or two `maps`, or none.

    What the API server said stands for as long as it is told; only for pods that it did not tell while it
    fails are the log files asked.
    """

    def __init__(self, watch: PodWatch | None = None, logs: Polled[Pods] | None = None) -> None:
        self._watch = watch
        self._logs = logs
        self.maps: tuple[OwnerMap, ...] = tuple(one for one in (watch, logs) if one is not None)
        self._joined: tuple[Pods, Pods, Pods] = (NO_PODS, NO_PODS, NO_PODS)

    @property
    def value(self) -> Pods:
        """The pods known now: the same object for as long as nothing has changed."""
        if self._watch is None or self._logs is None:
            only = self._watch or self._logs
            return only.value if only is not None else NO_PODS
        told, files = self._watch.value, self._logs.value
        if self._watch.health.success or not len(files):
            return told
        if self._joined[0] is not told or self._joined[1] is not files:
            self._joined = (told, files, told.backed_by(files))
        return self._joined[2]


def spare_logs(watch: PodWatch, root: Path, *, clock: Clock) -> Polled[Pods]:
    """The map of the log files that reads them only while the watch fails."""

    def failing() -> bool:
        health = watch.health
        return is_tried(health) and not health.success

    return pod_logs(root, clock=clock, needed=failing)

"""Who names the pods: the API server, the log files, or the first with the second behind it."""

from __future__ import annotations

from pathlib import Path

from gpuledger.model.page import MapHealth
from gpuledger.model.source import Clock
from gpuledger.workloads.maps import OwnerMap, Polled, is_tried
from gpuledger.workloads.pods.index import NO_PODS, Pods
from gpuledger.workloads.pods.logs import read_pod_logs
from gpuledger.workloads.pods.watch import PodWatch


class PodNames:
    """An OwnerMap of pods out of one or two others. Without any it is empty, and well.

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
            return (self._watch or self._logs or _EMPTY).value
        told, files = self._watch.value, self._logs.value
        if self._watch.health.success or not len(files):
            return told
        if self._joined[0] is not told or self._joined[1] is not files:
            self._joined = (told, files, told.backed_by(files))
        return self._joined[2]

    @property
    def health(self) -> MapHealth:
        """That of the first map, which is the one that tells most."""
        return self.maps[0].health if self.maps else MapHealth("pods", success=True)

    def start(self) -> None:
        """Begin to keep all of them up to date."""
        for one in self.maps:
            one.start()

    def stop(self, patience: float = 2.0) -> None:
        """End their threads."""
        for one in self.maps:
            one.stop(patience)

    def nudge(self) -> None:
        """Somebody is not known yet."""
        for one in self.maps:
            one.nudge()


class _Empty:
    value = NO_PODS


_EMPTY = _Empty()


def spare_logs(watch: PodWatch, root: Path, *, clock: Clock) -> Polled[Pods]:
    """The map of the log files that reads them only while the watch fails."""

    def read() -> Pods:
        health = watch.health
        failing = is_tried(health) and not health.success
        return read_pod_logs(root) if failing else NO_PODS

    return Polled("pod_logs", read, NO_PODS, period=10.0, clock=clock)

"""The pods of this node, kept up to date by listing them once and watching what changes."""

from __future__ import annotations

import logging
from random import Random
from typing import Final

from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.workloads.maps import BesideTick
from gpuledger.workloads.pods.api import ApiClient, Interrupted
from gpuledger.workloads.pods.events import Gone, PodEvent, WatchFailed, read_event
from gpuledger.workloads.pods.index import NO_PODS, Pods
from gpuledger.workloads.pods.labels import LabelAllowlist
from gpuledger.workloads.pods.pod import Pod, read_pod
from gpuledger.workloads.pods.refusals import Refused
from gpuledger.workloads.pods.stream import ListReader, NotJson, lines

log = logging.getLogger("gpuledger.workloads")

PODS_PATH: Final = "/api/v1/pods"
# The kubelet's own limit is 110 unless raised; a selector that is ignored must not fill the memory.
MOST_PODS: Final = 2000
_PAGE: Final = "500"
_SHORTEST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
# A watch that broke off after this many seconds was a good one.
_LONG_ENOUGH: Final = 10.0


class PodWatch(BesideTick):
    """An OwnerMap of this node's pods from the API server, in a thread of its own.

    The list is answered from the server's cache (resourceVersion=0), the watch lasts about `watch_seconds`
    and then goes on from where it stood. `jitter` seconds at most are waited before the first list and after
    each watch, so that many nodes do not ask at once. Silence for `grace` seconds longer than a watch means
    that the server hangs. While the server is gone the last known pods stay; `health.last_success` is when it
    last said anything.
    """

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
        super().__init__(name, clock, random)
        self.value: Pods = NO_PODS
        self._client = client
        self._node = node
        self._allowed = allowed or LabelAllowlist()
        self._jitter = jitter
        self._watch_seconds = watch_seconds
        self._grace = grace
        self._pods: dict[str, Pod] = {}
        # Where the watch goes on; empty before the first list and when that is too long ago.
        self._version = ""
        # Whether nothing was heard since a list from the cache: when that expires, the cache was too old.
        self._stale_list = False
        self._began = 0.0
        # The error that the log has, until a watch works again: not only begins.
        self._complaint = ""
        self._overfull = False

    def _let_go(self) -> None:
        self._client.abort()

    def nudge(self) -> None:
        """Nothing: the server tells by itself, and while it fails it is not asked more often."""

    def _run(self) -> None:
        self._wait(self._random.uniform(0.0, self._jitter))
        while not self._stopping:
            self._wait(self._turn())

    def _wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, seconds)

    def _turn(self) -> float:
        """List where that is needed, and watch once; answers how long to wait then."""
        try:
            if not self._version:
                self._list()
            self._watch()
        except Interrupted as error:
            return self._interrupted(error)
        except Gone:
            return self._forgotten()
        except Refused as error:
            if error.gone:
                return self._forgotten()
            if error.status == 403:
                # Who may list and not watch is still told the truth, if late.
                self._version = ""
            return max(self._fail(str(error)), error.retry_after)
        except (NotJson, WatchFailed) as error:
            # An event may be lost.
            self._version = ""
            return self._fail(str(error))
        except (GpuledgerError, OSError) as error:
            return self._fail(str(error))
        except Exception as error:
            log.exception("%s could not be read", self.name)
            self._version = ""
            return self._fail(
                f"internal error in gpuledger, please report it: {type(error).__name__}: {error}"
            )
        return self._random.uniform(0.0, self._jitter)

    def _list(self) -> None:
        cached = not self._stale_list
        query = {"limit": _PAGE, "resourceVersion": "0"} if cached else {"limit": _PAGE}
        found: dict[str, Pod] = {}
        while True:
            with self._client.get(PODS_PATH, self._selected(query)) as answer:
                reader = ListReader(answer.pieces())
                for told in reader.items():
                    if (pod := read_pod(told, self._allowed)) is not None:
                        self._put(found, pod)
                metadata = reader.metadata
            token = metadata.get("continue")
            if not isinstance(token, str) or not token:
                break
            # The token stands for a version; naming one beside it is an error.
            query = {"limit": _PAGE, "continue": token}
        version = metadata.get("resourceVersion")
        if not isinstance(version, str) or not version:
            raise NotJson("a list without a version")
        self._pods, self._version = found, version
        self._stale_list = cached
        self._publish()
        self._heard()

    def _watch(self) -> None:
        seconds = max(1, round(self._watch_seconds * self._random.uniform(0.8, 1.0)))
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            "resourceVersion": self._version,
        }
        self._began = self._clock.elapsed()
        with self._client.get(PODS_PATH, self._selected(query), timeout=seconds + self._grace) as answer:
            self._began = self._clock.elapsed()
            self._heard()
            for line in lines(answer.pieces()):
                if self._stopping:
                    return
                self._take(read_event(line, self._allowed))
                self._well()
        self._heard()
        self._well()

    def _selected(self, query: dict[str, str]) -> dict[str, str]:
        return {"fieldSelector": f"spec.nodeName={self._node}", **query}

    def _take(self, event: PodEvent) -> None:
        if event.version:
            self._version = event.version
            self._stale_list = False
        pod = event.pod
        if pod is not None and self._changes(event.kind, pod):
            self._publish()
        self._heard()

    def _changes(self, kind: str, pod: Pod) -> bool:
        if kind == "DELETED":
            return self._pods.pop(pod.uid, None) is not None
        before = self._pods.get(pod.uid)
        self._put(self._pods, pod)
        return before != pod

    def _put(self, pods: dict[str, Pod], pod: Pod) -> None:
        if len(pods) < MOST_PODS or pod.uid in pods:
            pods[pod.uid] = pod
        elif not self._overfull:
            self._overfull = True
            log.warning(
                "%s: over %d pods on node %s, the rest has no names; see that --node-name is this node's",
                self.name,
                MOST_PODS,
                self._node,
            )

    def _publish(self) -> None:
        self.value = Pods(self._pods.values())

    def _heard(self) -> None:
        self._succeeded(len(self._pods))

    def _well(self) -> None:
        if self._complaint:
            log.info("%s can be read again", self.name)
        self._complaint = ""
        self._failures = 0

    def _interrupted(self, error: Interrupted) -> float:
        """Balancers end what lasts too long for them: that is no failure, unless it is all that happens."""
        if self._clock.elapsed() - self._began >= _LONG_ENOUGH:
            self._failures = 0
        if self._failures:
            return self._fail(str(error))
        self._failures = 1
        log.debug("%s: %s", self.name, error)
        return self._pause()

    def _forgotten(self) -> float:
        log.debug("%s: the watch has expired, all is listed anew", self.name)
        self._version = ""
        self._failures += 1
        return self._pause()

    def _fail(self, error: str) -> float:
        if self._stopping:
            return 0.0
        if error != self._complaint:
            self._complaint = error
            log.warning("%s: %s", self.name, error)
        self._failed(error)
        return self._pause()

    def _pause(self) -> float:
        longest = min(_SHORTEST_PAUSE * (1 << min(self._failures - 1, 10)), _LONGEST_PAUSE)
        return longest * self._random.uniform(0.5, 1.0)

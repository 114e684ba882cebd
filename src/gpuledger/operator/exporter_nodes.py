"""The exporters of each node: lists their pods when their numbers change, and queries the exporters."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import inf
from typing import Any, Final

from gpuledger.http.addresses import Address
from gpuledger.kubernetes.fields import mapping_at, mappings_at
from gpuledger.kubernetes.object_client import Json, ObjectClient
from gpuledger.model.errors import GpuledgerError
from gpuledger.operator.kinds import POD_KIND, uid_of
from gpuledger.operator.render.naming import JOB_PREFIX
from gpuledger.operator.rollout import is_suspended, rollout_of
from gpuledger.operator.status import ExporterNode
from gpuledger.operator.targets import FetchPage

# Pods in one response: a pod has some 8 KB.
_PAGE_SIZE: Final = 100
# Seconds between two lists while the numbers of pods change, and while they do not.
_CHANGE_PAUSE: Final = 30.0
_REFRESH_PAUSE: Final = 600.0
_CONCURRENCY: Final = 8
# Exporters that do not answer one after the other: the operator cannot reach any, because of a NetworkPolicy.
_MOST_FAILURES: Final = 3 * _CONCURRENCY
# Bounded, because any pod with the labels of the exporters may answer.
_DEVICES: Final = re.compile(r"^([0-9]{1,6}) GPUs?(?:, driver (.{1,64}))?$", re.MULTILINE)
_PROBLEM: Final = re.compile(r"^GPU [0-9].*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _ExporterPod:
    """A pod of an exporter; `page` is the URL of its health, empty if it cannot be queried."""

    node: ExporterNode
    created: str
    page: str = ""
    # Whether the pod of a Job has a result, or an error so far: then it counts more than newer pods.
    decided: bool = False


@dataclass(eq=False, slots=True)
class NodeObserver:
    """Observes the exporters of one monitor.

    It lists their pods and sends one small request to each, only if the numbers of pods have changed or ten
    minutes have passed; sooner, with growing pauses, while a ready exporter has not named its GPUs. Pods of
    Jobs are listed when a Job starts or ends, because they are deleted some time afterwards.
    """

    api: ObjectClient
    fetch: FetchPage
    _observed: tuple[str, object] | None = field(default=None, init=False)
    _observed_at: float = field(default=-_REFRESH_PAUSE, init=False)
    _pause: float = field(default=_CHANGE_PAUSE, init=False)
    nodes: tuple[ExporterNode, ...] | None = field(default=None, init=False)

    async def observe(self, workload: Json | None) -> tuple[ExporterNode, ...] | None:
        """The nodes of a DaemonSet or CronJob, those with problems first; None without exporters, or if pods
        cannot be listed.
        """
        progress = None if workload is None else _progress_of(workload)
        if workload is None or progress is None:
            self._observed, self.nodes = None, None
            return None
        state = (uid_of(workload), progress)
        now = asyncio.get_running_loop().time()
        is_change = state != self._observed
        if now - self._observed_at < (_CHANGE_PAUSE if is_change else self._pause):
            return self.nodes
        self._observed, self._observed_at = state, now
        try:
            pods = [pod async for pod in self._list_pods(workload)]
        except GpuledgerError:
            # Try again after the shorter pause.
            self._observed, self.nodes = None, None
            return None
        # While a pod is replaced, a node has two.
        newest = {pod.node.name: pod for pod in sorted(pods, key=lambda pod: (pod.decided, pod.created))}
        nodes = await self._query_all(tuple(newest.values()))
        self.nodes = tuple(sorted(nodes, key=lambda node: (node.ready and not node.error, node.name)))
        is_complete = all(node.gpus is not None for node in nodes if node.ready)
        longer = _CHANGE_PAUSE if is_change else 2 * self._pause
        self._pause = _REFRESH_PAUSE if is_complete else min(longer, _REFRESH_PAUSE)
        if workload["kind"] == "CronJob" and not (workload["status"].get("active") or ()):
            self._pause = inf
        return self.nodes

    async def _list_pods(self, workload: Json) -> AsyncIterator[_ExporterPod]:
        query = {"labelSelector": _pod_selector(workload)}
        path = POD_KIND.path(workload["metadata"]["namespace"])
        parse = _job_pod if workload["kind"] == "CronJob" else _exporter_pod
        token = ""
        while True:
            found = await self.api.get(
                path, limit=str(_PAGE_SIZE), **query, **({"continue": token} if token else {})
            )
            for pod in mappings_at(found, "items"):
                if name := _node_name(pod):
                    yield parse(pod, name)
            token = str(mapping_at(found, "metadata").get("continue") or "")
            if not token:
                return

    async def _query_all(self, pods: Sequence[_ExporterPod]) -> list[ExporterNode]:
        slots, failures = asyncio.Semaphore(_CONCURRENCY), 0

        async def query(pod: _ExporterPod) -> ExporterNode:
            nonlocal failures
            async with slots:
                if not pod.page or failures >= _MOST_FAILURES:
                    return pod.node
                try:
                    text = (await self.fetch(pod.page)).decode("utf-8", "replace")
                except (GpuledgerError, OSError):
                    # Not an error of the node: the kubelet reaches the exporter.
                    failures += 1
                    return pod.node
                failures = 0
                return _with_health(pod.node, text)

        return list(await asyncio.gather(*map(query, pods)))


def _progress_of(workload: Json) -> object:
    """A value that changes with the pods; None if there are none yet."""
    if workload["kind"] == "CronJob":
        status = workload.get("status") or {}
        times = status.get("lastScheduleTime"), status.get("lastSuccessfulTime")
        return (times, len(status.get("active") or ())) if times[0] and not is_suspended(workload) else None
    rollout = rollout_of([workload])
    return rollout if rollout is not None and rollout.observed and rollout.desired else None


def _pod_selector(workload: Json) -> str:
    if workload["kind"] == "CronJob":
        return f"{JOB_PREFIX}={workload['metadata']['name']}"
    labels = workload["spec"]["selector"]["matchLabels"]
    return ",".join([*(f"{name}={value}" for name, value in labels.items()), f"!{JOB_PREFIX}"])


def _node_name(pod: Json) -> str:
    """The node of a DaemonSet's pod, which has an affinity to its node before it is scheduled."""
    spec = mapping_at(pod, "spec")
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    keys = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    for term in mappings_at(reduce(mapping_at, keys, spec), "nodeSelectorTerms"):
        for one in mappings_at(term, "matchFields"):
            if one.get("key") == "metadata.name" and one.get("values"):
                return str(one["values"][0])
    return ""


def _exporter_pod(pod: Json, name: str) -> _ExporterPod:
    status = mapping_at(pod, "status")
    conditions = {str(one.get("type")): one for one in mappings_at(status, "conditions")}
    ready = conditions.get("Ready", {}).get("status") == "True"
    node = ExporterNode(name, ready, error="" if ready else next(_reasons(status, conditions), ""))
    address = str(status.get("podIP") or "")
    port = next(
        (
            port["containerPort"]
            for container in mappings_at(mapping_at(pod, "spec"), "containers")
            for port in mappings_at(container, "ports")
            if port.get("name") == "metrics" and not _uses_tls(container)
        ),
        0,
    )
    page = f"http://{Address(address, port)}/health?verbose" if ready and address and port else ""
    return _ExporterPod(node, str(pod["metadata"].get("creationTimestamp") or ""), page)


def _job_pod(pod: Json, name: str) -> _ExporterPod:
    """A pod of a Job, which is ready if it has ended with success."""
    status = mapping_at(pod, "status")
    conditions = {str(one.get("type")): one for one in mappings_at(status, "conditions")}
    succeeded = status.get("phase") == "Succeeded"
    error = "" if succeeded else next(_reasons(status, conditions), "")
    if error == "ContainerCreating":
        error = ""
    created = str(pod["metadata"].get("creationTimestamp") or "")
    ended = status.get("phase") in ("Succeeded", "Failed")
    return _ExporterPod(ExporterNode(name, succeeded, error=error), created, decided=ended or bool(error))


def _uses_tls(container: Mapping[str, Any]) -> bool:
    return mapping_at(mapping_at(container, "readinessProbe"), "httpGet").get("scheme") == "HTTPS"


def _reasons(status: Mapping[str, Any], conditions: Mapping[str, Json]) -> Iterator[str]:
    """Why a pod is not ready, the most exact reason first."""
    for key in ("initContainerStatuses", "containerStatuses"):
        for container in mappings_at(status, key):
            state = mapping_at(container, "state")
            waiting, last = mapping_at(state, "waiting"), mapping_at(container, "lastState")
            ended = mapping_at(state, "terminated") or mapping_at(last, "terminated")
            code = ended.get("exitCode")
            ended_text = f"exited with {code}" if code else ""
            words = (waiting.get("reason"), waiting.get("message"), ended_text, ended.get("message"))
            if text := ": ".join(str(word) for word in words if word and word != "PodInitializing"):
                yield text
    for kind in ("PodScheduled", "Ready"):
        if conditions.get(kind, {}).get("message"):
            yield str(conditions[kind]["message"])
    if status.get("message") or status.get("reason"):
        yield str(status.get("message") or status.get("reason"))


def _with_health(node: ExporterNode, text: str) -> ExporterNode:
    """The node with what `/health` of its exporter has."""
    verdict = text.partition("\n")[0]
    problem = _PROBLEM.search(text)
    devices = _DEVICES.search(text)
    return replace(
        node,
        gpus=int(devices[1]) if devices else None,
        driver=(devices[2] or "") if devices else "",
        error=verdict if verdict != "OK" else problem[0] if problem else "",
    )

"""Observing the exporters of each node."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import pytest

from gpuledger.kubernetes.object_client import ApiRequest, ObjectClient
from gpuledger.operator import exporter_nodes
from gpuledger.operator.exporter_nodes import NodeObserver
from gpuledger.operator.status import ExporterNode, MonitorConditions, build_status

Json = dict[str, Any]
HEALTHY = "OK\n7 ticks, one every 1 s\n8 GPUs, driver 550.54.15"


def daemon_set(desired: int = 1, ready: int = 1) -> Json:
    return {
        "kind": "DaemonSet",
        "metadata": {"name": "exporter", "namespace": "n", "uid": "u", "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": "exporter"}}},
        "status": {
            "observedGeneration": 1,
            "desiredNumberScheduled": desired,
            "currentNumberScheduled": desired,
            "updatedNumberScheduled": desired,
            "numberReady": ready,
        },
    }


def pod(node: str, address: str = "10.0.0.1", ready: bool = True, **more: Any) -> Json:
    """A pod of an exporter; `more` are keys of its status."""
    port = {"name": "metrics", "containerPort": 9400}
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "metadata": {"name": f"exporter-{node}", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": node, "containers": [{"ports": [port]}]},
        "status": {"podIP": address, "conditions": conditions, **more},
    }


class Pods:
    """An API server that lists pods in pages, and records the queries."""

    def __init__(self, *pods: Json) -> None:
        self.pods = list(pods)
        self.queries: list[Json] = []

    async def send(self, request: ApiRequest) -> tuple[int, bytes]:
        self.queries.append(dict(request.query))
        assert request.path == "/api/v1/namespaces/n/pods"
        first, size = int(request.query.get("continue", 0)), int(request.query["limit"])
        metadata = {"continue": str(first + size)} if first + size < len(self.pods) else {}
        found = {"metadata": metadata, "items": self.pods[first : first + size]}
        return 200, json.dumps(found).encode()

    async def close(self) -> None:
        """Nothing."""


def observe(*pods: Json, **pages: str) -> list[ExporterNode]:
    """The nodes; `pages` are the exporters' answers by address, with underscores in place of dots."""

    async def fetch(url: str) -> bytes:
        parts = urlsplit(url)
        assert (parts.port, parts.path, parts.query) == (9400, "/health", "verbose")
        text = pages.get(f"_{str(parts.hostname).replace('.', '_')}")
        if text is None:
            raise ConnectionRefusedError("refused")
        return text.encode()

    observer = NodeObserver(ObjectClient(Pods(*pods)), fetch)
    return list(asyncio.run(observer.observe(daemon_set(len(pods)))) or ())


def test_a_node_has_its_gpus_and_driver() -> None:
    assert observe(pod("a"), _10_0_0_1=HEALTHY) == [ExporterNode("a", True, 8, "550.54.15")]


def test_one_gpu_and_an_unknown_driver() -> None:
    assert observe(pod("a"), _10_0_0_1="OK\n1 tick, one every 1 s\n1 GPU") == [ExporterNode("a", True, 1)]


@pytest.mark.parametrize("line", ["9" * 5000 + " GPUs", "\u0663 GPUs", f"8 GPUs, driver {'x' * 9000}"])
def test_a_page_with_an_absurd_number_or_driver_is_not_used(line: str) -> None:
    assert observe(pod("a"), _10_0_0_1=f"OK\n1 tick\n{line}") == [ExporterNode("a", True)]


def test_what_is_wrong_with_a_gpu_is_the_error_of_its_node() -> None:
    text = "OK\n7 ticks\nGPU 0 (GPU-1) reported Xid 79: fell off the bus; power-cycle\n8 GPUs, driver 550"
    (found,) = observe(pod("a"), _10_0_0_1=text)
    assert found.error == "GPU 0 (GPU-1) reported Xid 79: fell off the bus; power-cycle"


def test_an_exporter_without_a_driver_is_an_error() -> None:
    (found,) = observe(pod("a"), _10_0_0_1="STALE: no driver; install it\n0 ticks")
    assert found == ExporterNode("a", True, error="STALE: no driver; install it")


def test_an_exporter_that_the_operator_cannot_reach_is_no_error() -> None:
    """The kubelet reaches it; a NetworkPolicy may keep the operator away."""
    assert observe(pod("a")) == [ExporterNode("a", True)]


WAITING = {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}
NOT_READY: dict[str, tuple[Json, str]] = {
    "an image that cannot be pulled": (
        {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}]},
        "ErrImagePull: not found",
    ),
    "a crash": (
        {
            "containerStatuses": [
                {"state": {"waiting": WAITING}, "lastState": {"terminated": {"exitCode": 2, "message": "x"}}}
            ]
        },
        "CrashLoopBackOff: back-off 5m0s restarting failed container: exited with 2: x",
    ),
    "an init container": (
        {
            "initContainerStatuses": [{"state": {"terminated": {"exitCode": 1}}}],
            "containerStatuses": [{"state": {"waiting": {"reason": "PodInitializing"}}}],
        },
        "exited with 1",
    ),
    "no place": (
        {"conditions": [{"type": "PodScheduled", "status": "False", "message": "Insufficient memory"}]},
        "Insufficient memory",
    ),
    "an eviction": ({"reason": "Evicted"}, "Evicted"),
    "a start": ({}, ""),
}


@pytest.mark.parametrize("case", NOT_READY)
def test_a_pod_that_is_not_ready_has_its_reason(case: str) -> None:
    status, error = NOT_READY[case]
    assert observe(pod("a", ready=False, **status)) == [ExporterNode("a", False, error=error)]


def test_a_pod_that_is_not_scheduled_is_of_the_node_of_its_affinity() -> None:
    pending = pod("", ready=False)
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pending["spec"] = {"affinity": {"nodeAffinity": required}}
    assert [node.name for node in observe(pending)] == ["b"]


def test_nodes_with_problems_come_first() -> None:
    found = observe(pod("a"), pod("b", ready=False), pod("c"), pod("d", "10.0.0.2"), _10_0_0_2="STALE: x")
    assert [node.name for node in found] == ["b", "d", "a", "c"]


def test_of_two_pods_of_a_node_the_newer_counts() -> None:
    older = pod("a", ready=False)
    older["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
    assert observe(pod("a"), older) == [ExporterNode("a", True)]


def test_exporters_with_tls_or_without_a_page_are_not_queried() -> None:
    secure = pod("a")
    secure["spec"]["containers"][0]["readinessProbe"] = {"httpGet": {"scheme": "HTTPS"}}
    collecting = pod("b")
    collecting["spec"]["containers"] = [{}]
    assert [node.gpus for node in observe(secure, collecting, _10_0_0_1=HEALTHY)] == [None, None]


def test_pods_are_listed_in_pages_and_again_only_after_a_change() -> None:
    async def work() -> None:
        server = Pods(*(pod(f"node-{number}") for number in range(250)))

        async def fetch(_: str) -> bytes:
            return HEALTHY.encode()

        observer = NodeObserver(ObjectClient(server), fetch)
        found = await observer.observe(daemon_set(250, 250))
        assert found is not None
        assert len(found) == 250
        assert [query.get("continue") for query in server.queries] == [None, "100", "200"]
        assert {query["labelSelector"] for query in server.queries} == {"app=exporter,!job-name-prefix"}
        assert await observer.observe(daemon_set(250, 250)) == found
        # A change within the pause.
        assert await observer.observe(daemon_set(250, 249)) == found
        assert len(server.queries) == 3

    asyncio.run(work())


def test_a_change_is_observed_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_nodes, "_CHANGE_PAUSE", 0.0)

    async def work() -> None:
        server = Pods(pod("a", ready=False))

        async def fetch(_: str) -> bytes:
            return HEALTHY.encode()

        observer = NodeObserver(ObjectClient(server), fetch)
        assert await observer.observe(daemon_set(1, 0)) == (ExporterNode("a", False),)
        server.pods = [pod("a")]
        assert await observer.observe(daemon_set(1, 1)) == (ExporterNode("a", True, 8, "550.54.15"),)
        assert await observer.observe(None) is None

    asyncio.run(work())


def test_an_exporter_without_gpus_is_queried_again_before_the_longer_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exporter_nodes, "_CHANGE_PAUSE", 0.0)
    answers = iter([b"starting\n", HEALTHY.encode()])

    async def fetch(_: str) -> bytes:
        return next(answers)

    async def work() -> None:
        observer = NodeObserver(ObjectClient(Pods(pod("a"))), fetch)
        assert await observer.observe(daemon_set()) == (ExporterNode("a", True, error="starting"),)
        for _ in range(2):
            # The second time, the longer pause has begun.
            assert await observer.observe(daemon_set()) == (ExporterNode("a", True, 8, "550.54.15"),)

    asyncio.run(work())


def test_pods_that_could_not_be_listed_are_listed_again_after_the_shorter_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exporter_nodes, "_CHANGE_PAUSE", 0.0)

    class Restarting(Pods):
        async def send(self, request: ApiRequest) -> tuple[int, bytes]:
            found = await super().send(request)
            return found if len(self.queries) > 1 else (503, b"")

    async def fetch(_: str) -> bytes:
        return HEALTHY.encode()

    async def work() -> None:
        observer = NodeObserver(ObjectClient(Restarting(pod("a"))), fetch)
        assert await observer.observe(daemon_set()) is None
        assert await observer.observe(daemon_set()) == (ExporterNode("a", True, 8, "550.54.15"),)

    asyncio.run(work())


def cron_job(**status: Any) -> Json:
    return {
        "kind": "CronJob",
        "metadata": {"name": "exporter", "namespace": "n", "uid": "u"},
        "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"completions": 2}}},
        "status": status,
    }


def job_pod(node: str, phase: str, created: int, **more: Any) -> Json:
    return {
        "metadata": {"name": f"job-{node}-{created}", "creationTimestamp": f"2026-01-01T00:0{created}:00Z"},
        "spec": {"nodeName": node},
        "status": {"phase": phase, **more},
    }


async def no_page(_: str) -> bytes:
    raise AssertionError


CRASHED = {"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}
CREATING = {"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}
JOB_PODS: dict[str, tuple[list[Json], list[ExporterNode]]] = {
    "the newest result": (
        [job_pod("a", "Failed", 1, reason="Evicted"), job_pod("a", "Succeeded", 2)],
        [ExporterNode("a", True)],
    ),
    "a Job that runs has no result": (
        [job_pod("a", "Succeeded", 1), job_pod("a", "Running", 2)],
        [ExporterNode("a", True)],
    ),
    "nor one that starts": (
        [job_pod("a", "Succeeded", 1), job_pod("a", "Pending", 2, **CREATING)],
        [ExporterNode("a", True)],
    ),
    "the first one": ([job_pod("a", "Pending", 1, **CREATING)], [ExporterNode("a", False)]),
    "a pod that restarts": (
        [job_pod("a", "Succeeded", 1), job_pod("a", "Running", 2, **CRASHED)],
        [ExporterNode("a", False, error="CrashLoopBackOff")],
    ),
    "nodes with problems first": (
        [job_pod("a", "Succeeded", 1), job_pod("b", "Failed", 1, message="disk full")],
        [ExporterNode("b", False, error="disk full"), ExporterNode("a", True)],
    ),
}


@pytest.mark.parametrize("case", JOB_PODS)
def test_the_nodes_of_a_cron_job_have_the_results_of_its_pods(case: str) -> None:
    pods, expected = JOB_PODS[case]
    server = Pods(*pods)
    observer = NodeObserver(ObjectClient(server), no_page)
    found = asyncio.run(observer.observe(cron_job(lastScheduleTime="2026-01-01T00:02:00Z")))
    assert list(found or ()) == expected
    assert server.queries[0]["labelSelector"] == "job-name-prefix=exporter"


def test_pods_of_jobs_are_listed_when_a_job_starts_or_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards they are deleted, and the results are kept."""
    monkeypatch.setattr(exporter_nodes, "_CHANGE_PAUSE", 0.0)
    monkeypatch.setattr(exporter_nodes, "_REFRESH_PAUSE", 0.0)

    async def work() -> None:
        server = Pods(job_pod("a", "Succeeded", 1))
        observer = NodeObserver(ObjectClient(server), no_page)
        started = "2026-01-01T00:01:00Z"
        assert await observer.observe(cron_job()) is None
        assert server.queries == []
        await observer.observe(cron_job(lastScheduleTime=started, active=[{"name": "job"}]))
        ended = cron_job(lastScheduleTime=started)
        assert await observer.observe(ended) == (ExporterNode("a", True),)
        server.pods = []
        assert await observer.observe(ended) == (ExporterNode("a", True),)
        assert len(server.queries) == 2

    asyncio.run(work())


def test_exporters_out_of_reach_are_not_all_tried() -> None:
    tried = []

    async def fetch(url: str) -> bytes:
        tried.append(url)
        raise TimeoutError

    pods = Pods(*(pod(f"node-{number}") for number in range(200)))
    found = asyncio.run(NodeObserver(ObjectClient(pods), fetch).observe(daemon_set(200, 200)))
    assert found is not None
    assert len(found) == 200
    assert len(tried) < 40


def test_without_the_permission_to_list_pods_the_nodes_are_unknown() -> None:
    class Forbidding(Pods):
        async def send(self, request: ApiRequest) -> tuple[int, bytes]:
            return 403, b'{"reason": "Forbidden", "message": "no"}'

    async def fetch(_: str) -> bytes:
        raise AssertionError

    assert asyncio.run(NodeObserver(ObjectClient(Forbidding()), fetch).observe(daemon_set())) is None


def test_the_status_of_a_fleet_is_bounded() -> None:
    bad = [ExporterNode(f"bad-{number}", False, error="x" * 1000) for number in range(99)]
    good = [ExporterNode(f"good-{number}", True, 8, "550.54.15") for number in range(901)]
    status = build_status(MonitorConditions(1, nodes=(*bad, *good)), {}, 0.0)
    assert len(status["nodes"]) == 100
    assert status["nodes"][99] == {"name": "good-0", "ready": True, "gpus": 8, "driver": "550.54.15"}
    assert status["nodesOmitted"] == 900
    assert len(json.dumps(status["nodes"])) < 40_000
    assert status["lastError"].startswith("node bad-0: x")


def test_a_node_without_gpus_says_so() -> None:
    status = build_status(MonitorConditions(1, nodes=(ExporterNode("a", True, 0),)), {}, 0.0)
    assert (status["nodes"], status["nodesOmitted"]) == ([{"name": "a", "ready": True, "gpus": 0}], None)

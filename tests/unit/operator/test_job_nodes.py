"""The nodes for Jobs are found by the labels by which a DaemonSet finds them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gpuledger.kubernetes.object_client import ApiRequest, ObjectClient, WriteRefused
from gpuledger.operator.job_nodes import JobNodes, node_queries
from gpuledger.operator.object_lists import find_cron_job_version
from gpuledger.operator.spec import ExporterSpec
from unit.operator.support import Json, gpu_monitor, valid_monitor


def exporter(**fields: Any) -> ExporterSpec:
    return valid_monitor(gpu_monitor({"exporter": {"mode": "cronjob", **fields}})).exporter


class Nodes:
    """An API server that lists nodes by label selector."""

    def __init__(self, **names: list[str]) -> None:
        self.names = names
        self.queries: list[Json] = []
        self.status = 200

    async def send(self, request: ApiRequest) -> tuple[int, bytes]:
        assert (request.method, request.path) == ("GET", "/api/v1/nodes")
        self.queries.append(dict(request.query))
        if self.status != 200:
            return self.status, b'{"reason": "Forbidden", "message": "User \\"operator\\" cannot list nodes"}'
        found = self.names.get(request.query.get("labelSelector", "").replace("=", "_"), [])
        nodes = [{"metadata": {"name": name, "labels": self._labels(name)}} for name in found]
        return 200, json.dumps({"metadata": {"resourceVersion": "1"}, "items": nodes}).encode()

    def _labels(self, name: str) -> Json:
        return {"kubernetes.io/hostname": name.removeprefix("ip-")} if name.startswith("ip-") else {}

    async def close(self) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    ("fields", "queries"),
    [
        ({"nodeSelector": {"pool": "b", "gpu": "yes"}}, ["gpu=yes,pool=b"]),
        ({"source": "simulator"}, [""]),
        (
            {"nodeSelector": {"pool": "b"}, "followGpuOperator": {"enabled": True}},
            ["nvidia.com/gpu.deploy.dcgm-exporter=true,pool=b"],
        ),
        # Named, or only known to the scheduler.
        ({"cronJob": {"nodes": ["a"]}}, []),
        ({"affinity": {"nodeAffinity": {}}}, []),
        ({"mode": "collect"}, []),
    ],
)
def test_nodes_are_selected_as_a_daemon_set_selects_them(fields: Json, queries: list[str]) -> None:
    assert [*node_queries(exporter(**fields))] == queries


def test_by_default_each_label_of_gpu_nodes_counts() -> None:
    queries = [*node_queries(exporter())]
    assert len(queries) == 11
    assert {"nvidia.com/gpu.present in (true)", "cloud.google.com/gke-accelerator"} <= {*queries}
    followed = [*node_queries(exporter(followGpuOperator={"enabled": True}))]
    assert followed == [f"nvidia.com/gpu.deploy.dcgm-exporter=true,{query}" for query in queries]


def test_a_node_with_several_labels_is_one_node() -> None:
    async def work() -> None:
        nodes = JobNodes(
            ObjectClient(Nodes(accelerator=["ip-a", "b"], **{"nvidia.com/gpu in (true)": ["b"]}))
        )
        assert nodes.names(exporter()) is None
        assert await nodes.look_up()
        # The label kubernetes.io/hostname, by which the pods are placed.
        assert nodes.names(exporter()) == ("a", "b")
        assert not await nodes.look_up()

    asyncio.run(work())


def test_each_selector_is_listed_once_and_in_one_bounded_response() -> None:
    async def work() -> None:
        server = Nodes(pool_a=["a"])
        nodes = JobNodes(ObjectClient(server))
        for _ in range(3):
            nodes.names(exporter(nodeSelector={"pool": "a"}))
            await nodes.look_up()
        assert server.queries == [{"labelSelector": "pool=a", "limit": "101"}]

    asyncio.run(work())


def test_new_nodes_are_found_by_a_refresh() -> None:
    async def work() -> None:
        server = Nodes(pool_a=["a"])
        nodes = JobNodes(ObjectClient(server))
        pool = exporter(nodeSelector={"pool": "a"})
        nodes.names(pool)
        await nodes.look_up()
        assert not await nodes.refresh([pool])
        server.names["pool_a"] = ["a", "b"]
        assert await nodes.refresh([pool])
        assert nodes.names(pool) == ("a", "b")
        # Known nodes are kept while the server fails.
        server.status = 503
        assert not await nodes.refresh([pool])
        assert nodes.names(pool) == ("a", "b")
        # Without a CronJob, nothing is listed.
        server.queries.clear()
        assert not await nodes.refresh([exporter(mode="collect")])
        assert server.queries == []

    asyncio.run(work())


def test_without_the_permission_to_list_nodes_they_are_not_known() -> None:
    async def work() -> None:
        server = Nodes()
        server.status = 403
        nodes = JobNodes(ObjectClient(server))
        assert nodes.names(exporter()) is None
        assert await nodes.look_up()
        assert nodes.names(exporter()) is None
        assert not await nodes.look_up()

    asyncio.run(work())


def test_a_server_that_fails_is_not_a_cluster_without_nodes() -> None:
    async def work() -> None:
        server = Nodes()
        server.status = 503
        nodes = JobNodes(ObjectClient(server))
        nodes.names(exporter())
        with pytest.raises(WriteRefused):
            await nodes.look_up()

    asyncio.run(work())


@pytest.mark.parametrize(
    ("status", "resources", "version"),
    [
        (200, ["jobs"], "batch/v1beta1"),
        (200, ["jobs", "cronjobs", "cronjobs/status"], "batch/v1"),
        # A cluster that lets nobody see its API groups.
        (403, [], "batch/v1"),
    ],
)
def test_cron_jobs_have_the_newest_version_that_the_server_has(
    status: int, resources: list[str], version: str
) -> None:
    class Discovery(Nodes):
        async def send(self, request: ApiRequest) -> tuple[int, bytes]:
            assert request.path == "/apis/batch/v1"
            return status, json.dumps({"resources": [{"name": name} for name in resources]}).encode()

    assert asyncio.run(find_cron_job_version(ObjectClient(Discovery()))) == version

"""Slurm's and Kubernetes's nodes."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from gpuledger.fleet.lists.node_list import AddressDefaults, InvalidEntries, UnreadableList
from gpuledger.fleet.lists.scheduler_nodes import PodNodes, SlurmNodes, parse_sinfo
from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.kubernetes.object_client import ApiRequest
from gpuledger.model.errors import UsageError

DEFAULTS = AddressDefaults("http", 9400)
ACCESS = ApiServerAccess("https://api")
SINFO = """\
gpu-1|gpu-1|gpu:h100:8(S:0-1)
gpu-2|10.0.0.2|shard:32,gpu:a100:4
cpu-1|cpu-1|(null)
gpu-1|gpu-1|gpu:h100:8(S:0-1)
cpu-2|cpu-2|gpus_license:2
"""


def test_nodes_of_slurm_are_those_with_gpus_once() -> None:
    found = parse_sinfo(SINFO, DEFAULTS)
    assert [(one.name, one.url) for one in found] == [
        ("gpu-1", "http://gpu-1:9400"),
        ("gpu-2", "http://10.0.0.2:9400"),
    ]


def test_a_node_of_slurm_without_a_valid_address_costs_no_other() -> None:
    with pytest.raises(InvalidEntries, match="--slurm, node gpu-3") as refused:
        parse_sinfo(f"gpu-3|10.0.0.3/24 eth0|gpu:4\n{SINFO}", DEFAULTS)
    assert [one.name for one in refused.value.nodes] == ["gpu-1", "gpu-2"]


def test_sinfo_is_run_and_its_failure_is_one_line() -> None:
    script = [sys.executable, "-c"]
    found = SlurmNodes(DEFAULTS, [*script, f"print({SINFO!r})"])
    assert len(asyncio.run(found.read_nodes())) == 2
    failing = SlurmNodes(DEFAULTS, [*script, "import sys; sys.exit('no\\ncontroller')"])
    with pytest.raises(UnreadableList, match=r"^--slurm: .* failed: no controller$"):
        asyncio.run(failing.read_nodes())
    endless = SlurmNodes(DEFAULTS, [*script, "import os\nwhile True: os.write(1, b'x' * 65536)"])
    with pytest.raises(UnreadableList, match="writes more than 4 MiB"):
        asyncio.run(endless.read_nodes())
    with pytest.raises(UnreadableList, match="cannot run /no/sinfo"):
        asyncio.run(SlurmNodes(DEFAULTS, ["/no/sinfo"]).read_nodes())


def pod(ip: str | None, phase: str = "Running", node: str = "gpu-1") -> dict[str, Any]:
    return {"status": {"phase": phase, "podIP": ip}, "spec": {"nodeName": node}}


class ApiServer:
    """An API server with scripted answers."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        self.answers, self.requests = list(answers), []

    async def send(self, request: ApiRequest) -> tuple[int, bytes]:
        self.requests.append((request.path, dict(request.query)))
        status, content = self.answers.pop(0)
        return status, json.dumps(content).encode()

    async def close(self) -> None:
        pass


def test_pods_are_those_that_run_and_have_an_address() -> None:
    first = {"items": [pod("10.0.0.1"), pod(None), pod("10.0.0.9", "Failed")], "metadata": {"continue": "x"}}
    server = ApiServer((200, first), (200, {"items": [pod("fd00::2", node="gpu-2")]}))
    nodes = PodNodes("monitoring/app=gpuledger", DEFAULTS, ACCESS, server)
    found = asyncio.run(nodes.read_nodes())
    assert [(one.name, one.url) for one in found] == [
        ("gpu-1", "http://10.0.0.1:9400"),
        ("gpu-2", "http://[fd00::2]:9400"),
    ]
    path, query = server.requests[1]
    assert path == "/api/v1/namespaces/monitoring/pods"
    assert query == {"labelSelector": "app=gpuledger", "limit": "500", "continue": "x"}


@pytest.mark.parametrize(
    ("selector", "path", "labels"),
    [
        ("app.kubernetes.io/name=gpuledger", "/api/v1/pods", "app.kubernetes.io/name=gpuledger"),
        ("app=gpuledger", "/api/v1/pods", "app=gpuledger"),
        ("gpu/app.kubernetes.io/name=x", "/api/v1/namespaces/gpu/pods", "app.kubernetes.io/name=x"),
    ],
)
def test_a_namespace_is_distinguished_from_the_prefix_of_a_label(
    selector: str, path: str, labels: str
) -> None:
    server = ApiServer((200, {"items": []}))
    asyncio.run(PodNodes(selector, DEFAULTS, ACCESS, server).read_nodes())
    assert server.requests == [(path, {"labelSelector": labels, "limit": "500"})]


def test_a_missing_permission_is_named() -> None:
    server = ApiServer((403, {"message": "pods is forbidden"}))
    with pytest.raises(UnreadableList, match="pods is forbidden; it needs a Role that may list pods"):
        asyncio.run(PodNodes("app=x", DEFAULTS, ACCESS, server).read_nodes())


def test_labels_are_needed() -> None:
    with pytest.raises(UsageError, match="expected labels"):
        PodNodes("monitoring/", DEFAULTS, ACCESS)

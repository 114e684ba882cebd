"""Every client against every faulty server: one clear line, in time, with bounded memory.

`report` and `doctor` with --prometheus, `top --url`, `top --fleet`, `report --fleet`, `receipt`, `report`,
`explain` and `idle` with --url, `slurm update --from`, `migrate`, the reading of nodes and lists by `fleet`,
the control socket, Docker's API and dcgm-exporter.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from io import BytesIO
from pathlib import Path

import pytest

from faulty_http import FAULTS, faulty_server
from fuzzing import check_line
from gpuledger.app import fleet_api, node_requests, prometheus_api
from gpuledger.app.control_socket import exchange_with
from gpuledger.app.fleet_api import FleetApiClient
from gpuledger.app.metrics_page_source import MetricsPageClient
from gpuledger.app.prometheus_api import PrometheusClient
from gpuledger.app.slurm_receipts.accounting import JobRow
from gpuledger.app.slurm_receipts.node_receipts import NodeReceipts
from gpuledger.app.top_feeds import RemoteFeed
from gpuledger.fleet import node_events
from gpuledger.fleet.lists import http_nodes
from gpuledger.fleet.lists.http_nodes import HttpNodes
from gpuledger.fleet.lists.node_list import AddressDefaults
from gpuledger.fleet.node_address import NodeAddress
from gpuledger.fleet.node_client import NodeClient, NodeCredentials
from gpuledger.fleet.node_events import follow_sessions
from gpuledger.http.client_access import ClientAccessSettings
from gpuledger.model.errors import GpuledgerError
from gpuledger.sources.dcgm_exporter.profiling import fetch_profiling_values
from gpuledger.terminal.settings import NodeAccessSettings, NodeUrlSettings
from gpuledger.workloads.containers.docker_api import list_containers

# Seconds of a whole answer, in place of 2 to 120.
LIMIT = 0.4
ACCESS = NodeAccessSettings()
CREDENTIALS = NodeCredentials(ClientAccessSettings())


@pytest.fixture(autouse=True)
def _short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_api, "_GRACE", 0.0)
    monkeypatch.setattr(node_requests, "_TIMEOUT", LIMIT)
    monkeypatch.setattr(fleet_api, "_PATIENCE", LIMIT)
    # Fast loopback data reaches the limit of size, not that of time.
    monkeypatch.setattr(fleet_api, "_LARGEST", 1 << 20)
    monkeypatch.setattr(http_nodes, "_TIMEOUT", LIMIT)
    monkeypatch.setattr(node_events, "_ANSWER", LIMIT)
    monkeypatch.setattr(node_events, "_SILENCE", LIMIT)


def node_client(port: int) -> NodeClient:
    return NodeClient(NodeAddress("http", "127.0.0.1", port), CREDENTIALS, LIMIT)


def read_page(port: int) -> None:
    with closing(MetricsPageClient(f"http://127.0.0.1:{port}/metrics", "--old", ACCESS)) as client:
        client._timeout = LIMIT
        if client.read() in (b"<html>", b"[" * 100_000):
            # A page is judged by its parser.
            raise GpuledgerError("not JSON")


def read_top(port: int) -> None:
    with closing(RemoteFeed(f"http://127.0.0.1:{port}", ACCESS, LIMIT)) as client:
        client.snapshot()


def read_fleet(port: int) -> None:
    with closing(FleetApiClient(f"http://127.0.0.1:{port}", ACCESS, LIMIT)) as client:
        client.fleet()


def read_slurm(port: int) -> None:
    job = JobRow("1", "1", "COMPLETED", 0.0, 1.0, ("127.0.0.1",), 1, 1, None, "")
    NodeReceipts(f"http://{{node}}:{port}", ACCESS, LIMIT).read(job)


def ask_node(port: int) -> None:
    access = NodeUrlSettings(url=f"http://127.0.0.1:{port}")
    node_requests.fetch_node_answer({}, access, "receipt", {"of": "job:1"})


def download(port: int) -> None:
    with closing(FleetApiClient(f"http://127.0.0.1:{port}", ACCESS)) as client:
        client.download_books("a", 0.0, None, BytesIO())
    # What is no archive is found by its reader.
    raise GpuledgerError("not JSON, and not within the limit")


def run(coroutine: Callable[[NodeClient], object], port: int) -> None:
    async def use() -> None:
        client = node_client(port)
        try:
            await coroutine(client)  # type: ignore[misc]
        finally:
            client.close()

    asyncio.run(use())


def read_list(port: int) -> None:
    async def use() -> None:
        made: list[NodeClient] = []

        def client_of(address: NodeAddress) -> NodeClient:
            made.append(NodeClient(address, CREDENTIALS, LIMIT))
            return made[0]

        try:
            await HttpNodes(f"http://127.0.0.1:{port}/list", AddressDefaults(), client_of).read_nodes()
        finally:
            made[0].close()

    asyncio.run(use())


CLIENTS: dict[str, Callable[[int], object]] = {
    "report --prometheus": lambda port: PrometheusClient(
        f"http://127.0.0.1:{port}", timeout=LIMIT, max_body=1 << 20
    ).query_vector("up", 0),
    "top --url": read_top,
    "top --fleet": read_fleet,
    "report --fleet": download,
    "receipt --url": ask_node,
    "slurm update": read_slurm,
    "migrate": read_page,
    "a node of fleet": lambda port: run(lambda client: client.request_json("/api/v1/snapshot"), port),
    "events of a node": lambda port: run(lambda client: follow_sessions(client, lambda: None), port),
    "http_sd": read_list,
    "dcgm-exporter": lambda port: fetch_profiling_values(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT),
}
SLOW = "within|no events: the node did not send one in time"
# What each line must say.
EXPECTED = {
    "is silent": SLOW,
    "stops in its body": SLOW,
    "redirects to itself": "redirects to /again|302",
    "sends no JSON": "not JSON|not a gpuledger|not a Prometheus|DCGM_FI|ended|expected a list",
    "closes in its body": "closed the connection|broke the connection .received 7 of|ended",
}
# Of other faults any: several limits can be the first that is reached.


def fail(client: Callable[[int], object], fault: str) -> str:
    """The error of a client."""
    with faulty_server(fault) as (server, port):
        try:
            client(port)
        except GpuledgerError as error:
            check_line(error)
            assert not server.outlasted, "the client waited for the server"
            return str(error)
    raise AssertionError("no error")


def outcomes(client: Callable[[int], object]) -> Iterator[tuple[str, str]]:
    """Every fault with the error that it causes, or what is wrong with that."""
    with ThreadPoolExecutor(len(FAULTS)) as threads:
        running = {fault: threads.submit(fail, client, fault) for fault in FAULTS}
        for fault, future in running.items():
            error = future.exception()
            yield fault, repr(error) if error else future.result()


@pytest.mark.parametrize("name", CLIENTS)
def test_every_fault_of_a_server_is_one_line_in_time(name: str) -> None:
    found = dict(outcomes(CLIENTS[name]))
    wrong = {
        fault: line
        for fault, line in found.items()
        if line.startswith(("AssertionError", "Timeout")) or not re.search(EXPECTED.get(fault, "."), line)
    }
    assert not wrong


def test_a_socket_that_drips_is_left_in_time(tmp_path: Path) -> None:
    """The control socket of a hung program, and that of Docker."""
    path = tmp_path / "s"
    with faulty_server("drips its body", path) as (server, _):
        with pytest.raises(GpuledgerError, match=r"no answer on .* within 0\.4 s"):
            exchange_with([path], {"do": "status"}, LIMIT)
        with pytest.raises(GpuledgerError, match="no response within 0 s"):
            list_containers(str(path), "--docker-socket", timeout=LIMIT)
        assert not server.outlasted

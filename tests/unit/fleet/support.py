"""Stand-ins for nodes: what their API answers, and clients that need no network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from builders import FakeClock
from gpuledger.fleet.fleet import NodeFleet, ReadingPace
from gpuledger.fleet.lists.node_list import NodeList
from gpuledger.fleet.membership import Membership
from gpuledger.fleet.node_address import NodeAddress
from gpuledger.fleet.node_client import NodeClient, NodeCredentials, NodeRequestFailed
from gpuledger.http.client_access import ClientAccessSettings
from gpuledger.http.client_messages import HttpResponse
from unit.terminal.support import NOW, device, snapshot

PACE = ReadingPace(5.0, 5.0, 30.0)


def body(node: str = "gpu-1", *devices: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A snapshot of a node with these devices."""
    made = snapshot(devices=list(devices) or [device("0"), device("1", state="active")])
    return {**made, "node": node, "gpuledger": "0.2.0", "devices_complete": True, **changes}


Answer = Mapping[str, Any] | Exception | HttpResponse


class ScriptedNodes:
    """The answers of nodes by URL; each request is recorded. An absent node refuses connections."""

    def __init__(self, answers: Mapping[str, Answer] | None = None) -> None:
        self.answers: dict[str, Answer] = dict(answers or {})
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.closed: list[str] = []

    def client(self, address: NodeAddress, credentials: NodeCredentials, timeout: float) -> NodeClient:
        """A client that answers from the script."""
        return ScriptedClient(self, address, credentials, timeout)


class ScriptedClient(NodeClient):
    """A NodeClient without a network."""

    def __init__(self, nodes: ScriptedNodes, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._nodes = nodes

    async def request(
        self, path: str, headers: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> HttpResponse:
        self._nodes.requests.append((self.address.url, path, dict(headers or {})))
        refused = NodeRequestFailed("cannot connect: connection refused", "connect")
        places = (f"{self.address.url}{path}", f"{self.address.url}{path.partition('?')[0]}")
        found = next((self._nodes.answers[place] for place in places if place in self._nodes.answers), None)
        found = self._nodes.answers.get(self.address.url, refused) if found is None else found
        if isinstance(found, Exception):
            raise found
        return found if isinstance(found, HttpResponse) else answer(found)

    def close(self) -> None:
        self._nodes.closed.append(self.address.url)
        super().close()


def answer(content: object, etag: str = 'W/"18c-7"', status: int = 200) -> HttpResponse:
    """A response with JSON."""
    return HttpResponse(status, {"etag": etag}, json.dumps(content).encode())


class ListedNodes:
    """A list that a test changes; an error is raised."""

    name = "the list"

    def __init__(self, *addresses: NodeAddress) -> None:
        self.addresses: list[NodeAddress] = list(addresses)
        self.error: Exception | None = None

    async def read_nodes(self) -> list[NodeAddress]:
        if self.error is not None:
            raise self.error
        return self.addresses


def address(host: str, **more: Any) -> NodeAddress:
    return NodeAddress("http", host, 9400, **more)


def a_fleet(
    nodes: ScriptedNodes, *lists: NodeList, clock: FakeClock | None = None
) -> tuple[NodeFleet, FakeClock]:
    """A fleet of these nodes that is not started: tests read it."""
    clock = clock or FakeClock(NOW)
    credentials = NodeCredentials(ClientAccessSettings())
    return NodeFleet(Membership(lists, clock), credentials, clock, PACE, nodes.client), clock


async def read_all(fleet: NodeFleet) -> None:
    """Read the lists, then each node once."""
    await fleet.refresh()
    for node in fleet.nodes:
        await node.read_once()


def json_of(fleet: NodeFleet, since: int = 0) -> dict[str, dict[str, Any]]:
    """The JSON of the changed nodes by host."""
    return {
        key.split("/")[2].partition(":")[0]: json.loads(encoded)
        for key, encoded in fleet.encoded_nodes(since)
    }

"""The fleet: all nodes of the lists, each read by a task, and the JSON of each, made when it changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from gpuledger.fleet.fleet_json import encode_node
from gpuledger.fleet.fleet_node import FleetNode
from gpuledger.fleet.membership import Membership
from gpuledger.fleet.node_address import NodeAddress
from gpuledger.fleet.node_client import NodeClient, NodeCredentials
from gpuledger.model.source import Clock

_LOG = logging.getLogger("gpuledger.fleet")


@dataclass(frozen=True, slots=True)
class ReadingPace:
    """Seconds: between two readings of a node, for one answer, and between two readings of the lists."""

    interval: float = 5.0
    timeout: float = 5.0
    refresh: float = 30.0


@dataclass(slots=True)
class _Member:
    """A node with its tasks, its JSON, and the revision of the fleet in which that changed."""

    node: FleetNode
    tasks: tuple[asyncio.Task[None], ...] = ()
    encoded: bytes = b""
    revision: int = 0


class NodeFleet:
    """All nodes, on the event loop's thread. `revision` rises with each change that clients can see."""

    def __init__(
        self,
        membership: Membership,
        credentials: NodeCredentials,
        clock: Clock,
        pace: ReadingPace,
        client_of: Callable[[NodeAddress, NodeCredentials, float], NodeClient] = NodeClient,
    ) -> None:
        self.membership = membership
        self.clock = clock
        self.pace = pace
        self.revision = 1
        # Distinguishes this run's revisions from those of an earlier run.
        self.run = f"{int(clock.unix() * 1000):x}"
        self._credentials = credentials
        self._client_of = client_of
        self._members: dict[str, _Member] = {}
        self._task: asyncio.Task[None] | None = None
        self._requested = asyncio.Event()
        self._claims: tuple[int, dict[str, frozenset[str]]] = (0, {})

    def start(self) -> None:
        """Begin to read the lists and the nodes."""
        self._task = asyncio.create_task(self._keep_reading_lists())

    async def stop(self) -> None:
        """End all tasks, and close all connections."""
        ending = [task for member in self._members.values() for task in member.tasks]
        if self._task is not None:
            ending.append(self._task)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for member in self._members.values():
            member.node.client.close()

    @property
    def nodes(self) -> list[FleetNode]:
        """The nodes, in the order of the lists."""
        return [member.node for member in self._members.values()]

    def find_node(self, key: str) -> FleetNode | None:
        """The node with this URL, or with this name if only one has it."""
        if key in self._members:
            return self._members[key].node
        named = [node for node in self.nodes if node.name == key]
        return named[0] if len(named) == 1 else None

    @property
    def unready_reason(self) -> str:
        """Why the fleet is not ready: its lists have not been read yet. Empty when it is."""
        return "" if all(state.is_tried for state in self.membership.states) else "lists are not read yet"

    def encoded_nodes(self, since: int) -> Iterator[tuple[str, bytes]]:
        """URL and JSON of each node that changed after the revision `since`; all for 0."""
        claims = self._current_claims()
        for key, member in self._members.items():
            if member.revision > since:
                yield key, self._encode(member, claims)

    @property
    def listed_twice(self) -> frozenset[str]:
        """The URLs of nodes of which all GPUs count as those of others."""
        claims = self._current_claims()
        return frozenset(
            key
            for key, member in self._members.items()
            if (report := member.node.report) is not None
            and report.cells
            and claims.get(key, frozenset()) >= {cell.uuid for cell in report.cells}
        )

    @property
    def keys(self) -> list[str]:
        """The URLs of all nodes, in the order of the lists."""
        return list(self._members)

    async def refresh(self) -> None:
        """Read the lists once; begin with new nodes, and end with those that are gone."""
        before = [replace(state) for state in self.membership.states]
        found = await self.membership.refresh()
        self._credentials.reload()
        ordered: dict[str, _Member] = {}
        for key, address in found.items():
            known = self._members.get(key)
            if known is not None and known.node.address != address:
                self._end(known)
                known = None
            ordered[key] = self._begin(address) if known is None else known
        for key, member in self._members.items():
            if key not in ordered:
                _LOG.info("%s is not listed any more", key)
                self._end(member)
        if list(ordered) != list(self._members) or before != self.membership.states:
            self.revision += 1
        self._members = ordered

    def refresh_soon(self) -> None:
        """Read the lists now, or directly after they are read."""
        self._requested.set()

    def note_change(self) -> None:
        """Count a change that is not of a node."""
        self.revision += 1

    async def _keep_reading_lists(self) -> None:
        while True:
            self._requested.clear()
            try:
                await self.refresh()
            except Exception:  # noqa: BLE001  (see the log)
                _LOG.exception("the lists of nodes cannot be applied")
            with suppress(TimeoutError):
                async with asyncio.timeout(self.pace.refresh):
                    await self._requested.wait()

    def _begin(self, address: NodeAddress) -> _Member:
        client = self._client_of(address, self._credentials, self.pace.timeout)
        node = FleetNode(address, client, self.clock, self.pace.interval, self._changed)
        member = _Member(node)
        self.revision += 1
        member.revision = self.revision
        if self._task is not None:
            member.tasks = (
                asyncio.create_task(node.keep_reading()),
                asyncio.create_task(node.keep_following()),
            )
        return member

    def _end(self, member: _Member) -> None:
        for task in member.tasks:
            task.cancel()
        member.node.client.close()

    def _changed(self, node: FleetNode) -> None:
        member = self._members.get(node.address.url)
        if member is None or member.node is not node:
            return
        encoded = encode_node(node, frozenset())
        if encoded != member.encoded:
            member.encoded = encoded
            self.revision += 1
            member.revision = self.revision

    def _encode(self, member: _Member, claims: dict[str, frozenset[str]]) -> bytes:
        claimed = claims.get(member.node.address.url)
        if claimed or not member.encoded:
            return encode_node(member.node, claimed or frozenset())
        return member.encoded

    def _current_claims(self) -> dict[str, frozenset[str]]:
        revision, claims = self._claims
        if revision != self.revision:
            before, claims = claims, claimed_elsewhere(self.nodes)
            self._claims = (self.revision, claims)
            changed = [key for key in self._members if claims.get(key) != before.get(key)]
            if changed:
                self.revision += 1
                for key in changed:
                    self._members[key].revision = self.revision
                self._claims = (self.revision, claims)
        return claims


def claimed_elsewhere(nodes: list[FleetNode]) -> dict[str, frozenset[str]]:
    """The GPUs of each node (by its URL) that count as those of an earlier one in the list.

    Two addresses with the same run of one program are one node. Hardware has unique UUIDs, so that two
    programs on one machine have the same GPUs; simulated nodes can have equal ones.
    """
    runs: dict[tuple[str, str], str] = {}
    owners: dict[str, str] = {}
    found: dict[str, frozenset[str]] = {}
    for node in sorted(nodes, key=lambda one: not one.is_up):
        if node.report is None:
            continue
        key, report = node.address.url, node.report
        uuids = frozenset(cell.uuid for cell in report.cells)
        first = runs.setdefault((node.run, report.node), key) if node.run else key
        if first != key:
            found[key] = uuids
        elif not report.simulated:
            taken = frozenset(uuid for uuid in uuids if owners.setdefault(uuid, key) != key)
            if taken:
                found[key] = taken
    return found

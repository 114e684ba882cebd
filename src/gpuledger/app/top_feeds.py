"""The two data feeds of `top`: this machine, read in this process, and a serving node, read over HTTP."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, count
from os import environ
from socket import gethostname
from threading import Condition
from typing import Any

from gpuledger.app.node_api import NodeApiClient
from gpuledger.app.node_assembly import assemble_parts
from gpuledger.app.node_parts import COMMAND_READING_TIMEOUT, READING_TIMEOUT, NodeParts, no_reading_error
from gpuledger.app.node_requests import UNIX, fetch_node_answer
from gpuledger.host.process_tree import ProcessTree
from gpuledger.http.client_access import ClientAccessSettings
from gpuledger.kubernetes.settings import node_name
from gpuledger.model.errors import GpuledgerError, SourceUnavailable
from gpuledger.terminal.local_processes import LocalProcesses
from gpuledger.terminal.settings import NodeUrlSettings
from gpuledger.terminal.top_view import SnapshotOrigin, format_clock
from gpuledger.web.api.responses import run_of_etag
from gpuledger.web.api.shown_quantities import SNAPSHOT_QUANTITIES
from gpuledger.web.api.snapshot import build_snapshot

# Ticks until the power of processes is known. It is booked energy: the first reading opens the accounts, the
# second sees the energy counter move, the third closes an interval.
_SETTLED_TICKS = 3


class LocalFeed:
    """This machine, read in this process, without a ledger on disk and without a server."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Raises as `node_assembly.assemble_parts` does."""
        self._changed = Condition()
        self._parts: NodeParts = assemble_parts(
            values,
            {},
            (),
            on_publish=self._published,
            extra_quantities=SNAPSHOT_QUANTITIES,
            keep_ledger=False,
        )
        self._node = node_name("", environ, gethostname())
        self.origin = SnapshotOrigin("this machine", began=format_clock(self._parts.clock.unix()))
        # The starts of the processes of the newest snapshot, in clock ticks, by pid and unix time.
        self._starts: Mapping[tuple[int, float], int] = {}
        self._closed = False

    def start(self) -> None:
        """Start reading, and wait for the first reading. Raises SourceUnavailable when there is none."""
        self._parts.owner_indexes.read_once()
        self._parts.start()
        self._wait(1)
        state = self._parts.pages.state
        if state.snapshot is None:
            self.close()
            raise SourceUnavailable(state.health.status)

    def settle(self) -> None:
        """Wait until values that need several readings, such as power by process, are known."""
        self._wait(_SETTLED_TICKS)

    def snapshot(self) -> Mapping[str, Any]:
        """The snapshot of the last reading."""
        state = self._parts.pages.state
        readings = () if state.snapshot is None else state.snapshot.process_readings
        self._starts = {
            (process.pid, process.host.start.unix): process.host.start.ticks
            for reading in readings
            for process in reading.processes or ()
            if process.host.start.ticks is not None and process.host.missing != "exited"
        }
        return build_snapshot(state, self._node)

    def local_processes(self, command_lines: str) -> LocalProcesses | None:
        """The processes of the snapshots; None if they are not of this machine, as those of a simulator.

        `command_lines` is the value of the setting.
        """
        if not self._parts.source.has_local_pids:
            return None
        context = self._parts.host_context
        tree = ProcessTree(context.procfs.root)
        return LocalProcesses(tree, self._start_ticks, context.users.name, command_lines)

    def _start_ticks(self, pid: int, start_unix: float | None) -> int | None:
        return None if start_unix is None else self._starts.get((pid, start_unix))

    def remarks(self) -> list[str]:
        """The errors of the owner indexes, each with its remedy."""
        indexes = self._parts.pages.state.health.owner_indexes
        return [f"{index.name}: {index.error}" for index in indexes if index.error and not index.success]

    def close(self) -> None:
        """Stop reading. Idempotent."""
        if not self._closed:
            self._closed = True
            self._parts.stop()

    def _published(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait(self, ticks: int) -> None:
        def ready() -> bool:
            health = self._parts.pages.state.health
            return health.attempted and (health.ticks >= ticks or self._parts.pages.state.snapshot is None)

        info = self._parts.source.info
        limit = COMMAND_READING_TIMEOUT if "smi" in info.name.split("+") else READING_TIMEOUT
        with self._changed:
            if not self._changed.wait_for(ready, limit):
                raise no_reading_error(info, limit)


class SocketFeed:
    """What this user may read of the gpuledger that runs on this machine, over its control socket."""

    def __init__(self, values: Mapping[str, Any], url: str = UNIX) -> None:
        """`url` is UNIX and the path of the socket, if it is not the default one."""
        self._values = values
        self._access = NodeUrlSettings(url=url)
        self.origin = SnapshotOrigin("gpuledger serve", remote=True)

    def snapshot(self) -> Mapping[str, Any]:
        """The node's current snapshot, with the rows of this user. Raises GpuledgerError."""
        answer = fetch_node_answer(self._values, self._access, "snapshot", {})
        user = str(answer.get("user", ""))
        self.origin = SnapshotOrigin(f"gpuledger serve, what {user} may read", remote=True)
        found: Mapping[str, Any] = answer["snapshot"]
        return found

    def remarks(self) -> list[str]:
        """None: the node's snapshot is complete."""
        return []

    def close(self) -> None:
        """Nothing is open between two snapshots."""


class RemoteFeed(NodeApiClient):
    """A node that serves its API at a URL. Raises UsageError as `NodeApiClient` does."""

    @property
    def origin(self) -> SnapshotOrigin:
        """The URL, without credentials."""
        return SnapshotOrigin(self.url, remote=True)

    @property
    def run(self) -> str:
        """Identifies the run of the node's program; empty if it does not say."""
        return run_of_etag(self._etag)

    def remarks(self) -> list[str]:
        """None: the node's snapshot is complete."""
        return []


# Nodes that are read at the same time.
_TOGETHER = 16


class SeveralNodesFeed:
    """Several nodes as one table: the GPU 3 of the node gpu-1 is `gpu-1:3`.

    A node that cannot be read costs only its own rows; a node with two URLs counts once. Raises UsageError
    as `NodeApiClient` does.
    """

    def __init__(self, urls: Sequence[str], access: ClientAccessSettings) -> None:
        self._feeds = [RemoteFeed(url, access) for url in urls]
        self.origin = SnapshotOrigin(f"{len(self._feeds)} nodes", remote=True)
        self._errors: list[str] = []
        # By the node's own name, and by URL or run.
        self._names: dict[tuple[str, str], str] = {}

    def snapshot(self) -> Mapping[str, Any]:
        """The snapshots of all nodes that could be read, as one. Raises GpuledgerError if there is none."""
        with ThreadPoolExecutor(_TOGETHER, "top") as threads:
            results = list(threads.map(_snapshot_or_error, self._feeds))
        self._errors = [str(found) for found in results if isinstance(found, GpuledgerError)]
        read = {
            (feed.run or feed.url): (feed, found)
            for feed, found in reversed(list(zip(self._feeds, results, strict=True)))
            if not isinstance(found, GpuledgerError)
        }
        if not read:
            raise GpuledgerError(self._errors[0])
        ordered = list(reversed(read.values()))
        named = [(self._name_of(feed, found), found) for feed, found in ordered]
        return merge_snapshots(named)

    def _name_of(self, feed: RemoteFeed, snapshot: Mapping[str, Any]) -> str:
        """The name of a node. Of nodes with equal names, those that are read later get a number.

        A node keeps its number: while another one cannot be read, its rows must not get that one's name.
        """
        own = str(snapshot.get("node") or feed.host)
        keys = [(own, place) for place in (feed.url, feed.run) if place]
        name = next((self._names[key] for key in keys if key in self._names), "")
        if not name:
            name = _unused_name(own, self._names.values())
        self._names |= dict.fromkeys(keys, name)
        return name

    def remarks(self) -> list[str]:
        """Why nodes could not be read, one line each."""
        return list(self._errors)

    def close(self) -> None:
        """Close all connections. Idempotent."""
        for feed in self._feeds:
            feed.close()


def _snapshot_or_error(feed: RemoteFeed) -> Mapping[str, Any] | GpuledgerError:
    try:
        return feed.snapshot()
    except GpuledgerError as error:
        return error


def merge_snapshots(snapshots: Sequence[tuple[str, Mapping[str, Any]]]) -> Mapping[str, Any]:
    """One snapshot of several nodes, each with its unique name, which its GPUs get.

    Malformed parts are left to the parser of snapshots.
    """
    names = [name for name, _ in snapshots]
    bodies = [body for _, body in snapshots]
    parts = [part if isinstance(part := body.get("status"), Mapping) else {} for body in bodies]
    sources = [part if isinstance(part := body.get("source"), Mapping) else {} for body in bodies]
    texts = [
        f"{name}: {part.get('text')}"
        for name, part in zip(names, parts, strict=True)
        if not part.get("healthy")
    ]
    return {
        **bodies[0],
        "node": ", ".join(names),
        "unix": max((body.get("unix") or 0.0 for body in bodies), default=0.0),
        "source": {
            **sources[0],
            **{key: _joined(sources, key) for key in ("name", "driver_version", "cuda_version")},
            "simulated": any(one.get("simulated") for one in sources),
            "detail": _joined([one for one in sources if one.get("simulated")], "detail"),
        },
        "status": {
            **parts[0],
            "text": "; ".join(texts) or "ok",
            "healthy": not texts,
            "readings": any(part.get("readings") for part in parts),
            "paused": all(part.get("paused") for part in parts),
        },
        "devices_complete": all(body.get("devices_complete") for body in bodies),
        **{
            key: [
                _on_node(row, name)
                for name, body in zip(names, bodies, strict=True)
                for row in body.get(key) or ()
            ]
            for key in ("devices", "processes")
        },
    }


def _joined(sources: Sequence[Mapping[str, Any]], key: str) -> str:
    """The different texts of the nodes."""
    return ", ".join(dict.fromkeys(str(one[key]) for one in sources if one.get(key)))


def _unused_name(name: str, used: Collection[str]) -> str:
    """The name, with the first number that makes it another one than those that are used."""
    numbered = (f"{name}#{number}" for number in count(2))
    return next(one for one in chain((name,), numbered) if one not in used)


def _on_node(row: Any, name: str) -> Any:
    """A GPU or process with the name of its node. Simulated nodes can have equal UUIDs."""
    if not isinstance(row, Mapping):
        return row
    return {**row, "gpu": f"{name}:{row.get('gpu', '')}", "uuid": f"{name}/{row.get('uuid', '')}"}

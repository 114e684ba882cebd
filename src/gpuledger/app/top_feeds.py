"""The two data feeds of `top`: this machine, read in this process, and a serving node, read over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from os import environ
from socket import gethostname
from threading import Condition
from typing import Any

from gpuledger.app.node_api import NodeApiClient
from gpuledger.app.node_assembly import (
    COMMAND_READING_TIMEOUT,
    READING_TIMEOUT,
    NodeParts,
    assemble_parts,
    no_reading_error,
)
from gpuledger.host.process_tree import ProcessTree
from gpuledger.kubernetes.settings import node_name
from gpuledger.model.errors import SourceUnavailable
from gpuledger.terminal.local_processes import LocalProcesses
from gpuledger.terminal.top_view import SnapshotOrigin, format_clock
from gpuledger.web.api.snapshot import SNAPSHOT_QUANTITIES, build_snapshot

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
        limit = COMMAND_READING_TIMEOUT if info.name == "smi" else READING_TIMEOUT
        with self._changed:
            if not self._changed.wait_for(ready, limit):
                raise no_reading_error(info, limit)


class RemoteFeed(NodeApiClient):
    """A node that serves its API at a URL. Raises UsageError as `NodeApiClient` does."""

    @property
    def origin(self) -> SnapshotOrigin:
        """The URL, without credentials."""
        return SnapshotOrigin(self.url, remote=True)

    def remarks(self) -> list[str]:
        """None: the node's snapshot is complete."""
        return []

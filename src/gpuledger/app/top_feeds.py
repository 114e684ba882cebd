"""The two nodes that `top` can look at: one made in this process, and one that serves somewhere."""

from __future__ import annotations

from collections.abc import Mapping
from os import environ
from socket import gethostname
from threading import Condition
from typing import Any

from gpuledger.app.node_api import Access, NodeApi
from gpuledger.app.wiring import PATIENCE, Parts, assemble_parts, does_not_answer
from gpuledger.kubernetes.settings import node_name
from gpuledger.model.errors import SourceUnavailable
from gpuledger.terminal.view import Origin, clock_text
from gpuledger.web.api.snapshot import WANTS, snapshot_of

# Power of a process is booked energy: the first reading opens the books, the second sees the counter move,
# the third closes an interval.
_ENOUGH = 3


class LocalFeed:
    """This machine, read in this process: without books, without a server."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Raises as `wiring.assemble_parts` does."""
        self._changed = Condition()
        self._parts: Parts = assemble_parts(
            values, {}, (), published=self._published, beside=WANTS, keeps_books=False
        )
        self._node = node_name("", environ, gethostname())
        self._origin = Origin("this machine", began=clock_text(self._parts.clock.unix()))
        self._closed = False

    @property
    def origin(self) -> Origin:
        """This machine, since now."""
        return self._origin

    def start(self) -> None:
        """Begin to read, and wait for the first reading. Raises SourceUnavailable when there is none."""
        self._parts.maps.read_once()
        self._parts.start()
        self._wait(1)
        page = self._parts.pages.page
        if page.snapshot is None:
            self.close()
            raise SourceUnavailable(page.health.status)

    def settle(self) -> None:
        """Wait until what needs several readings, such as power by process, is known as well as it can be."""
        self._wait(_ENOUGH)

    def snapshot(self) -> Mapping[str, Any]:
        """What the last reading said."""
        return snapshot_of(self._parts.pages.page, self._node)

    def remarks(self) -> list[str]:
        """Who cannot be asked for owners, and what to do about it."""
        maps = self._parts.pages.page.health.maps
        return [f"{one.name}: {one.error}" for one in maps if one.error and not one.success]

    def close(self) -> None:
        """End the readings. Idempotent."""
        if not self._closed:
            self._closed = True
            self._parts.stop()

    def _published(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait(self, ticks: int) -> None:
        def ready() -> bool:
            health = self._parts.pages.page.health
            return health.tried and (health.ticks >= ticks or self._parts.pages.page.snapshot is None)

        with self._changed:
            if not self._changed.wait_for(ready, PATIENCE):
                raise does_not_answer(self._parts.source.info, PATIENCE)


class RemoteFeed:
    """A node that serves its API at a URL."""

    def __init__(self, url: str, access: Access) -> None:
        """Raises UsageError as `NodeApi` does."""
        self._api = NodeApi(url, access)
        self._origin = Origin(self._api.url, remote=True)

    @property
    def origin(self) -> Origin:
        """Its URL, without who asks."""
        return self._origin

    def snapshot(self) -> Mapping[str, Any]:
        """What the node says now. Raises GpuledgerError."""
        return self._api.snapshot()

    def remarks(self) -> list[str]:
        """Nothing more than it says."""
        return []

    def close(self) -> None:
        """End the connection."""
        self._api.close()

"""One node of the fleet: reads it again and again, and keeps what it said last."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from gpuledger.fleet.gpu_cells import NodeCells, parse_node_report
from gpuledger.fleet.node_address import NodeAddress
from gpuledger.fleet.node_client import NodeClient, NodeRequestFailed, decode_json
from gpuledger.fleet.node_events import follow_sessions
from gpuledger.model.source import Clock
from gpuledger.web.api.responses import run_of_etag

_LOG = logging.getLogger("gpuledger.fleet")

SNAPSHOT: Final = "/api/v1/snapshot"
# Seconds between two attempts at a node that fails: it doubles up to this.
_LONGEST_PAUSE: Final = 60.0
# Seconds between two readings at least, and until the events of a node are requested again.
_LEAST_PAUSE: Final = 1.0
_EVENTS_AGAIN: Final = 5.0
_EVENTS_REFUSED: Final = 600.0
# A clock that is wrong by more seconds is worth a word.
_SKEW: Final = 60.0


class NodeStatus:
    """Whether a node can be read. `kind` is empty while it can; `since` is when the kind began, in unix
    seconds of the fleet's clock, None before the first attempt.
    """

    __slots__ = ("kind", "since", "text")

    def __init__(self, kind: str = "wait", text: str = "not read yet", since: float | None = None) -> None:
        self.kind, self.text, self.since = kind, text, since


class FleetNode:
    """A node, on the event loop's thread. `changed` is called after each attempt that may have changed it.

    `report` is the last one that could be read, and `read_at` its time by the fleet's clock. `run`
    identifies the run of the node's program, empty if it does not say.
    """

    def __init__(
        self,
        address: NodeAddress,
        client: NodeClient,
        clock: Clock,
        interval: float,
        changed: Callable[[FleetNode], None],
    ) -> None:
        self.address = address
        self.client = client
        self.report: NodeCells | None = None
        self.read_at: float | None = None
        self.run = ""
        self.status = NodeStatus()
        self._clock = clock
        self._interval = interval
        self._changed = changed
        self._etag = ""
        # When the report was new, by the fleet's clock: a node that does not read its GPUs has an old one.
        self._reported_at = 0.0
        self._failures = 0
        self._hurry = asyncio.Event()

    @property
    def name(self) -> str:
        """The name of the list, else that of the node, else its host (see NodeAddress)."""
        return self.address.name or (self.report.node if self.report else "") or self.address.place

    @property
    def is_up(self) -> bool:
        """Whether the last attempt read the node's GPUs."""
        return not self.status.kind

    @property
    def skew(self) -> float | None:
        """Seconds by which the node's clock is ahead of the fleet's; None if it is right, or not known."""
        if self.report is None or self.report.simulated or self.report.trouble or not self.report.unix:
            return None
        ahead = self.report.unix - self._reported_at
        return ahead if abs(ahead) > _SKEW + self._interval else None

    async def keep_reading(self) -> None:
        """Read the node once per interval, forever. No failure of a node ends it."""
        # Spread over the interval by address: two hundred nodes are not read in the same moment.
        await asyncio.sleep(self._interval * (zlib.crc32(self.address.url.encode()) % 1000) / 1000)
        while True:
            self._hurry.clear()
            await self.read_once()
            # Not at once: a job of many processes begins many sessions.
            await asyncio.sleep(min(_LEAST_PAUSE, self.pause))
            with suppress(TimeoutError):
                async with asyncio.timeout(self.pause - _LEAST_PAUSE):
                    await self._hurry.wait()

    async def keep_following(self) -> None:
        """Follow the node's events while it is up, forever: a session that begins or ends is read soon."""
        pause = _EVENTS_AGAIN
        while True:
            await asyncio.sleep(pause)
            if not self.is_up:
                continue
            try:
                await follow_sessions(self.client, self._hurry.set)
            except NodeRequestFailed as error:
                # A node that has no events, or refuses them, is tried again rarely.
                pause = _EVENTS_AGAIN if error.kind in ("connect", "broken", "ended") else _EVENTS_REFUSED
            except Exception:  # noqa: BLE001  (see the log)
                _LOG.exception("the events of %s cannot be followed", self.address.url)
                pause = _EVENTS_REFUSED

    @property
    def pause(self) -> float:
        """Seconds until the next attempt."""
        return max(min(self._interval * float(2 ** min(self._failures, 10)), _LONGEST_PAUSE), self._interval)

    async def read_once(self) -> None:
        """Read the node, and keep what it said or why it could not be read."""
        try:
            response = await self.client.request(
                SNAPSHOT, {"If-None-Match": self._etag} if self._etag else None
            )
            if response.status == 304 and self.report is not None:
                self._accept(self.report)
                return
            report = parse_node_report(decode_json(response))
            self._etag = response.headers.get("etag", "")
            self.run = run_of_etag(self._etag)
            self._reported_at = self._clock.unix()
            self._accept(report)
        except NodeRequestFailed as error:
            self._fail(error.kind, str(error))
        except Exception as error:  # noqa: BLE001  (see the log)
            # A surprise of one node must not stop the reading of it.
            _LOG.exception("%s cannot be read", self.address.url)
            self._fail("broken", f"{type(error).__name__}; the log of gpuledger fleet has the reason")

    def _accept(self, report: NodeCells) -> None:
        now = self._clock.unix()
        self._failures = 0
        kind = "stale" if report.trouble else ""
        self.report, self.read_at = report, now
        if kind != self.status.kind or report.trouble != self.status.text:
            since = self.status.since if kind and kind == self.status.kind else now
            self.status = NodeStatus(kind, report.trouble, since)
        self._changed(self)

    def _fail(self, kind: str, text: str) -> None:
        self._failures += 1
        self.client.close()
        if kind == self.status.kind and text == self.status.text:
            return
        # What it is does not begin again with another word for it.
        since = self._clock.unix() if not self.status.kind or self.status.since is None else self.status.since
        self.status = NodeStatus(kind, text, since)
        self._changed(self)

"""`/api/v1/events`: server-sent events for each new NodeState, and when sessions begin or end.

At most one event is pending per client: a slow client skips ticks and gets the newest one.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gpuledger.model.node_state import NodeState
from gpuledger.model.source import Clock

_LOG = logging.getLogger(__name__)

# Proxies and browsers close idle connections.
QUIET_SECONDS: Final = 15.0
_RETRY: Final = b"retry: 2000\n\n"
_COMMENT: Final = b": still here\n\n"


@dataclass(frozen=True)
class _LatestState:
    """The newest NodeState as an event. `sessions` counts the sessions begun and ended so far."""

    number: int
    event: bytes
    sessions: tuple[int, int]


class EventHub:
    """Sends events to all streams. `publish` runs in the publishing thread, streams in the event loop.

    Without streams a tick costs almost nothing, with streams one call into the loop.
    """

    def __init__(self, clock: Clock, quiet: float = QUIET_SECONDS) -> None:
        self._clock = clock
        self._quiet = quiet
        # The newest state, and the number of calls of `close_all` so far.
        self.latest = _LatestState(0, b"", (0, 0))
        self.generation = 0
        self._streams: set[EventStream] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._streams)

    def publish(self, state: NodeState) -> None:
        """Take a new NodeState and wake the streams."""
        closed = sum(state.ledger.sessions_closed.values())
        opened = closed + len(state.ledger.sessions)
        event = _tick_event(state, self._clock.unix())
        self.latest = _LatestState(self.latest.number + 1, event, (opened, closed))
        self._schedule_wake()

    def close_all(self) -> None:
        """End all streams of clients that were admitted before this call. Thread-safe."""
        self.generation += 1
        self._schedule_wake()

    def add(self, stream: EventStream) -> None:
        """Send events to this stream."""
        self._loop = asyncio.get_running_loop()
        self._streams.add(stream)
        if self._timer is None:
            self._restart_timer()

    def remove(self, stream: EventStream) -> None:
        """Stop sending events to this stream."""
        self._streams.discard(stream)
        if not self._streams and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule_wake(self) -> None:
        loop = self._loop
        if loop is not None and self._streams:
            try:
                loop.call_soon_threadsafe(self._wake_all)
            except RuntimeError:
                # The loop has ended before the node.
                self._loop = None

    def _restart_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._quiet, self._keep_alive)

    def _wake_all(self) -> None:
        if self._timer is not None:
            self._restart_timer()
        for stream in tuple(self._streams):
            stream.wake()

    def _keep_alive(self) -> None:
        self._restart_timer()
        for stream in tuple(self._streams):
            stream.comment()


class EventStream:
    """The event stream of one client; implements `http.routes.ResponseStream`.

    It starts with the newest state and ends after `limit` events, or when the hub closes the clients that
    were admitted in this `generation`. With `ticks_only` it has no numbers of sessions.
    """

    def __init__(
        self, events: EventHub, limit: int | None, generation: int, *, ticks_only: bool = False
    ) -> None:
        self._events = events
        self._generation = generation
        self._remaining = limit
        self._ticks_only = ticks_only
        self._wake: Callable[[], None] = lambda: None
        self._begun = False
        self._quiet = False
        self._sent = 0
        self._sessions = events.latest.sessions

    def begin(self, wake: Callable[[], None]) -> None:
        """See `ResponseStream.begin`."""
        self._wake = wake
        self._events.add(self)

    def wake(self) -> None:
        """Wake the client's connection; its failure must not affect the other streams."""
        try:
            self._wake()
        except Exception:  # noqa: BLE001  (see above)
            _LOG.exception("an event stream failed")
            self._events.remove(self)

    def comment(self) -> None:
        """Send a comment to keep the connection open, unless an event is pending."""
        self._quiet = True
        self.wake()

    def take(self) -> bytes | None:
        """See `ResponseStream.take`."""
        if self._generation != self._events.generation:
            return None
        if not self._begun:
            self._begun = True
            return _RETRY
        if self._remaining == 0:
            return None
        latest = self._events.latest
        if latest.number == self._sent:
            quiet, self._quiet = self._quiet, False
            return _COMMENT if quiet else b""
        self._sent, self._quiet = latest.number, False
        data = latest.event + self._sessions_since(latest)
        if self._remaining is not None:
            events = data.split(b"\n\n")[:-1][: self._remaining]
            self._remaining -= len(events)
            data = b"".join(event + b"\n\n" for event in events)
        return data

    def _sessions_since(self, latest: _LatestState) -> bytes:
        opened, closed = (now - before for now, before in zip(latest.sessions, self._sessions, strict=True))
        self._sessions = latest.sessions
        if self._ticks_only or (not opened and not closed):
            return b""
        return _encode_event("session", {"opened": opened, "closed": closed})

    def end(self) -> None:
        """See `ResponseStream.end`."""
        self._events.remove(self)


def _tick_event(state: NodeState, now: float) -> bytes:
    health = state.health
    data = {
        "tick": health.ticks,
        "unix": state.unix,
        "now": now,
        "healthy": health.healthy,
        "readings": state.snapshot is not None,
    }
    return b"id: %d\n" % health.ticks + _encode_event("tick", data)


def _encode_event(event: str, data: Mapping[str, object]) -> bytes:
    # ASCII JSON has no line breaks, so the data is one line.
    return b"event: %s\ndata: %s\n\n" % (event.encode(), json.dumps(data, separators=(",", ":")).encode())

"""Server-sent events: that there is a new Page, and that sessions began or ended.

One event waits for each client at most: who is slow is told of the newest Page when he is ready for it.
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

# Proxies and browsers give up on a connection in which nothing moves.
QUIET_SECONDS: Final = 15.0
_RETRY: Final = b"retry: 2000\n\n"
_COMMENT: Final = b": still here\n\n"


@dataclass(frozen=True, slots=True)
class _News:
    """A Page in the words of an event. `sessions` are those that began, and those that ended, so far."""

    number: int
    event: bytes
    sessions: tuple[int, int]


class Events:
    """Told of each Page from the thread that publishes it; streams live in the event loop's.

    Costs next to nothing while nobody listens, and one call into the loop a tick when somebody does.
    """

    def __init__(self, clock: Clock, quiet: float = QUIET_SECONDS) -> None:
        self._clock = clock
        self._quiet = quiet
        self._news = _News(0, b"", (0, 0))
        self._era = 0
        self._listeners: set[Listener] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._listeners)

    @property
    def news(self) -> _News:
        """The newest."""
        return self._news

    def publish(self, page: NodeState) -> None:
        """There is a new Page."""
        closed = sum(page.ledger.sessions_closed.values())
        opened = closed + len(page.ledger.sessions)
        event = _event(page, self._clock.unix())
        self._news = _News(self._news.number + 1, event, (opened, closed))
        self._tell_soon()

    @property
    def era(self) -> int:
        """How often all streams were ended so far."""
        return self._era

    def end_all(self) -> None:
        """Nobody who was let in until now may hear any more. From any thread."""
        self._era += 1
        self._tell_soon()

    def of(self, client: bytes) -> int:
        """How many of its streams this client has."""
        return sum(listener.client == client for listener in self._listeners)

    def listen(self, limit: int | None, era: int | None = None, client: bytes = b"") -> Listener:
        """A stream of what comes from here on, the newest Page first; at most `limit` events. `era` is the
        one in which it was let in, None for the present.
        """
        return Listener(self, limit, self._era if era is None else era, client)

    def join(self, listener: Listener) -> None:
        """Tell this one, too."""
        self._loop = asyncio.get_running_loop()
        self._listeners.add(listener)
        if self._timer is None:
            self._timer = self._loop.call_later(self._quiet, self._keep_alive)

    def leave(self, listener: Listener) -> None:
        """Tell this one no more."""
        self._listeners.discard(listener)
        if not self._listeners and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell_soon(self) -> None:
        loop = self._loop
        if loop is not None and self._listeners:
            try:
                loop.call_soon_threadsafe(self._tell)
            except RuntimeError:
                # The loop has ended before the node.
                self._loop = None

    def _tell(self) -> None:
        if self._timer is not None and self._loop is not None:
            self._timer.cancel()
            self._timer = self._loop.call_later(self._quiet, self._keep_alive)
        for listener in tuple(self._listeners):
            listener.wake()

    def _keep_alive(self) -> None:
        if self._loop is not None:
            self._timer = self._loop.call_later(self._quiet, self._keep_alive)
        for listener in tuple(self._listeners):
            listener.comment()


class Listener:
    """The stream of one client (`routes.Stream`)."""

    def __init__(self, events: Events, limit: int | None, era: int, client: bytes) -> None:
        self.client = client
        self._events = events
        self._era = era
        self._left = limit
        self._wake: Callable[[], None] = lambda: None
        self._begun = False
        self._quiet = False
        self._told = 0
        self._sessions = events.news.sessions

    def begin(self, wake: Callable[[], None]) -> None:
        """See `Stream.begin`."""
        self._wake = wake
        self._events.join(self)

    def wake(self) -> None:
        """There is news. Whatever this client's connection stumbles over, the others must hear it."""
        try:
            self._wake()
        except Exception:  # noqa: BLE001  (see above)
            _LOG.exception("a stream of events failed")
            self._events.leave(self)

    def comment(self) -> None:
        """Nothing was said for a while: say so, unless something waits to be taken."""
        self._quiet = True
        self.wake()

    def take(self) -> bytes | None:
        """See `Stream.take`."""
        if self._era != self._events.era:
            return None
        if not self._begun:
            self._begun = True
            return _RETRY
        if self._left == 0:
            return None
        news = self._events.news
        if news.number == self._told:
            quiet, self._quiet = self._quiet, False
            return _COMMENT if quiet else b""
        self._told, self._quiet = news.number, False
        told = news.event + self._sessions_since(news)
        if self._left is not None:
            events = told.split(b"\n\n")[:-1][: self._left]
            self._left -= len(events)
            told = b"".join(event + b"\n\n" for event in events)
        return told

    def _sessions_since(self, news: _News) -> bytes:
        opened, closed = (now - before for now, before in zip(news.sessions, self._sessions, strict=True))
        self._sessions = news.sessions
        if not opened and not closed:
            return b""
        return _written("session", {"opened": opened, "closed": closed})

    def end(self) -> None:
        """See `Stream.end`."""
        self._events.leave(self)


def _event(page: NodeState, now: float) -> bytes:
    health = page.health
    data = {
        "tick": health.ticks,
        "unix": page.unix,
        "now": now,
        "healthy": health.healthy,
        "readings": page.snapshot is not None,
    }
    return b"id: %d\n" % health.ticks + _written("tick", data)


def _written(event: str, data: Mapping[str, object]) -> bytes:
    # JSON in ASCII has no line break: it is one line of data.
    return b"event: %s\ndata: %s\n\n" % (event.encode(), json.dumps(data, separators=(",", ":")).encode())

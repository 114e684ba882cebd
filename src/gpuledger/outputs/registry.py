"""The open connections of a server: how many there may be, and when each has taken too long."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final, Protocol

from gpuledger.outputs.backlog import Backlog
from gpuledger.outputs.clients import Clients
from gpuledger.outputs.health import PROBES
from gpuledger.outputs.limits import RESERVE, Limits
from gpuledger.outputs.routes import Response, plain

# How many connections there are says nothing of how often one client asks: 503 (RFC 9110, 15.6.4), and 429
# (RFC 6585, 4) for its rate alone.
_TOO_MANY: Final = plain("too many connections; try again", 503, (("Retry-After", "1"),))
_TOO_OFTEN: Final = plain("too many requests of this client; ask less often", 429, (("Retry-After", "1"),))


class Guarded(Protocol):
    """What the registry needs of a connection."""

    deadline: float

    @property
    def client(self) -> bytes:
        """Whom limits count it for."""

    @property
    def idle(self) -> bool:
        """Between two requests, with nothing received of the next one."""

    def expire(self) -> None:
        """The deadline has passed."""

    def finish(self) -> None:
        """End after the running request, at once when there is none."""

    def close(self) -> None:
        """End when what was written has been sent."""

    def abort(self) -> None:
        """End now."""


class Registry:
    """Keeps the connections of one server. Used by the event loop's thread alone.

    A connection has a seat, as many as the limits allow, or waits in the reserve: then it is answered
    about health, and about all else if there is a seat for it by then. So a probe gets through however many
    connections are held open by others.

    One sweep looks at all deadlines, instead of a timer for each: a scrape then costs two assignments. It
    runs only while something is open.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.stopping = False
        # All connections read into it by turns: what was received is consumed before the next one reads.
        self.buffer = bytearray(16 * 1024)
        self.clients = Clients(limits.client_requests)
        self.backlog = Backlog(limits.held_bytes)
        self._open: set[Guarded] = set()
        self._seated: set[Guarded] = set()
        # The oldest first.
        self._reserve: dict[Guarded, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop that the connections will live in."""
        self._loop = loop

    @property
    def now(self) -> float:
        """The loop's clock in seconds."""
        return self.loop.time()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of `attach`."""
        if self._loop is None:
            raise RuntimeError("the server was not started")
        return self._loop

    def admit(self, connection: Guarded) -> None:
        """Take it in: on a seat, or in the reserve, which has room for so many that the oldest one is
        dropped, of the client that has most there.
        """
        self._open.add(connection)
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(self.limits.sweep_seconds, self._sweep)
        if self._seat(connection):
            return
        self._reserve[connection] = None
        if len(self._reserve) > RESERVE:
            greediest = Counter(one.client for one in self._reserve).most_common(1)[0][0]
            oldest = next(one for one in self._reserve if one.client == greediest)
            del self._reserve[oldest]
            oldest.abort()

    def refusal(self, connection: Guarded, path: str) -> Response | None:
        """What a request gets in place of its answer, None when nothing is in the way; both before it is
        known who asks. Health is in nobody's way.
        """
        if path in PROBES:
            return None
        if connection not in self._seated:
            if not self._seat(connection):
                return _TOO_MANY
            self._reserve.pop(connection, None)
        return None if self.clients.take(connection.client, self.now) else _TOO_OFTEN

    def forget(self, connection: Guarded) -> None:
        """It is closed."""
        self._open.discard(connection)
        self._reserve.pop(connection, None)
        self.backlog.release(connection)
        if connection in self._seated:
            self._seated.discard(connection)
            self.clients.leave(connection.client)
        if self._open:
            return
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def _seat(self, connection: Guarded) -> bool:
        """Whether there is a seat for it. One that idles between two scrapes makes room, of the client that
        has most: its owner opens another one unharmed.
        """
        client = connection.client
        rivals: set[Guarded] | None = None
        if self.clients.connections(client) >= self.limits.client_connections:
            rivals = {other for other in self._seated if other.client == client}
        elif len(self._seated) >= self.limits.connections:
            rivals = self._seated
        if rivals is not None:
            idle = [other for other in rivals if other.idle]
            if not idle:
                return False
            min(idle, key=lambda one: (-self.clients.connections(one.client), one.deadline)).close()
        self._seated.add(connection)
        self.clients.join(client, self.now)
        return True

    async def drain(self, grace: float) -> None:
        """Close what is idle, let running requests end within `grace` seconds, cut off what is left."""
        self.stopping = True
        for connection in tuple(self._open):
            connection.finish()
        if not self._open:
            return
        if self._emptied is None:
            self._emptied = self.loop.create_future()
        cut = self.loop.call_later(grace, self._abort_all)
        await self._emptied
        cut.cancel()

    def _abort_all(self) -> None:
        for connection in tuple(self._open):
            connection.abort()

    def _sweep(self) -> None:
        now = self.now
        for connection in tuple(self._open):
            if now >= connection.deadline:
                connection.expire()
        self.clients.tidy(now)
        self._sweeper = None
        if self._open:
            self._sweeper = self.loop.call_later(self.limits.sweep_seconds, self._sweep)

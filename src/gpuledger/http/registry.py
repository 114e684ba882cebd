"""The open connections of a server: enforces limits on their number, requests, memory and time."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final, Protocol

from gpuledger.http.limits import RESERVE_CONNECTIONS, HttpLimits
from gpuledger.http.routes import PROBES, Response, text_response


class RegisteredConnection(Protocol):
    """The methods of a connection that the registry calls."""

    deadline: float

    @property
    def idle(self) -> bool:
        """Between two requests, without a byte of the next one."""

    def expire(self) -> None:
        """The deadline has passed."""

    def finish(self) -> None:
        """Close after the current request, immediately without one."""

    def close(self) -> None:
        """Close when the written bytes have been sent."""

    def abort(self) -> None:
        """Close immediately."""


class ResponseBacklog:
    """The response bodies that some client has not fully read. A body that several clients share counts once.

    The next tick replaces a metrics page, but slow clients keep the old body in memory. When these bodies
    exceed `most` bytes, the connections that have been reading for the longest time are aborted until they
    fit. Fast and new clients are unaffected. The last body is kept, however large it is.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # In the order in which they began to read.
        self._readers: dict[RegisteredConnection, bytes] = {}
        # By id() of the body, which `_readers` keeps alive.
        self._shared: Counter[int] = Counter()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._readers)

    def hold(self, reader: RegisteredConnection, body: bytes) -> None:
        """Count a body that the reader has not fully received."""
        self.release(reader)
        self._readers[reader] = body
        self._shared[id(body)] += 1
        if self._shared[id(body)] == 1:
            self.bytes += len(body)
        while self.bytes > self._most and len(self._readers) > 1:
            slowest = next(iter(self._readers))
            self.release(slowest)
            slowest.abort()

    def release(self, reader: RegisteredConnection) -> None:
        """The reader has received its body, or has closed. Idempotent."""
        body = self._readers.pop(reader, None)
        if body is None:
            return
        self._shared[id(body)] -= 1
        if not self._shared[id(body)]:
            del self._shared[id(body)]
            self.bytes -= len(body)


_TOO_MANY: Final = text_response("too many connections; try again", 503, (("Retry-After", "1"),))


class ConnectionRegistry:
    """The connections of one server. Used by the event loop's thread only.

    A connection has a seat, of which there are as many as the limits allow, or waits in the reserve. In the
    reserve it may query health; any other request needs a free seat. So a probe is answered, however many
    connections other clients hold open.

    One periodic sweep checks all deadlines, instead of a timer per connection: a scrape costs two
    assignments. It runs only while connections are open.
    """

    def __init__(self, limits: HttpLimits) -> None:
        self.limits = limits
        self.stopping = False
        # Shared by all connections: received bytes are consumed before the next connection reads.
        self.buffer = memoryview(bytearray(16 * 1024))
        self.backlog = ResponseBacklog(limits.held_bytes)
        self._open: set[RegisteredConnection] = set()
        self._seated: set[RegisteredConnection] = set()
        # In order of arrival.
        self._reserve: dict[RegisteredConnection, None] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def now(self) -> float:
        """The time of the loop's clock in seconds."""
        return asyncio.get_running_loop().time()

    def admit(self, connection: RegisteredConnection) -> None:
        """Register a connection on a seat or in the reserve. A full reserve aborts its oldest connection."""
        self._open.add(connection)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(self.limits.sweep_seconds, self._sweep)
        if self._seat(connection):
            return
        self._reserve[connection] = None
        if len(self._reserve) > RESERVE_CONNECTIONS:
            oldest = next(iter(self._reserve))
            del self._reserve[oldest]
            oldest.abort()

    def rejection_for(self, connection: RegisteredConnection, path: str) -> Response | None:
        """The error response if a limit rejects the request, before authentication; None to accept it.

        Health queries are always accepted.
        """
        if path in PROBES or connection in self._seated:
            return None
        if not self._seat(connection):
            return _TOO_MANY
        self._reserve.pop(connection, None)
        return None

    def forget(self, connection: RegisteredConnection) -> None:
        """Unregister a closed connection."""
        self._open.discard(connection)
        self._reserve.pop(connection, None)
        self.backlog.release(connection)
        self._seated.discard(connection)
        if self._open:
            return
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def _seat(self, connection: RegisteredConnection) -> bool:
        """Give the connection a seat; returns whether it got one. If all are taken, the connection that has
        been idle for the longest time is closed; its client reconnects for the next request.
        """
        if len(self._seated) >= self.limits.connections:
            idle = [other for other in self._seated if other.idle]
            if not idle:
                return False
            oldest = min(idle, key=lambda other: other.deadline)
            self._seated.discard(oldest)
            # Everything is sent. With TLS, `close` would wait for the client.
            oldest.abort()
        self._seated.add(connection)
        return True

    async def drain(self, grace: float) -> None:
        """Close idle connections, let running requests end within `grace` seconds, abort the rest."""
        self.stopping = True
        for connection in tuple(self._open):
            connection.finish()
        if not self._open:
            return
        if self._emptied is None:
            self._emptied = asyncio.get_running_loop().create_future()
        cut = asyncio.get_running_loop().call_later(grace, self._abort_all)
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
        self._sweeper = None
        if self._open:
            self._sweeper = asyncio.get_running_loop().call_later(self.limits.sweep_seconds, self._sweep)

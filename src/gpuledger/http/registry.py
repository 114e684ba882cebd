"""The open connections of a server: how many there may be, and when each has taken too long."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from gpuledger.http.limits import RESERVE, Limits
from gpuledger.http.routes import PROBES, Response, plain

# So many clients without a connection are remembered; then all of these are forgotten, their rates too.
_MOST: Final = 4096

_MAPPED: Final = bytes(10) + b"\xff\xff"

NOBODY: Final = b""


def client_of(peer: object) -> bytes:
    """Whom limits count a connection for, out of its socket's peer name; NOBODY where that says nothing.

    An IPv4 address, also where IPv6 carries it. Of IPv6 the first 64 bits: who has one address of such a
    network has all of it (RFC 4291, 2.5.4). Link-local addresses share theirs, so they count as a whole.
    """
    if not (isinstance(peer, tuple) and peer and isinstance(peer[0], str)):
        return NOBODY
    host = peer[0].partition("%")[0]
    try:
        if ":" not in host:
            return socket.inet_pton(socket.AF_INET, host)
        packed = socket.inet_pton(socket.AF_INET6, host)
    except OSError:
        return NOBODY
    if packed.startswith(_MAPPED):
        return packed[12:]
    link_local = packed[0] == 0xFE and packed[1] & 0xC0 == 0x80
    return packed if link_local else packed[:8]


class _Share:
    __slots__ = ("at", "connections", "tokens")

    def __init__(self, tokens: float, at: float) -> None:
        self.connections = 0
        self.tokens = tokens
        self.at = at


class Clients:
    """The clients of one server: their open connections, and how many requests each may make at once.

    `rate` tokens come a second for each, twice as many can lie there, a request takes one. `now` is
    any clock's seconds. Who has no connection is remembered until his tokens are all there again.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._burst = 2.0 * rate
        self._shares: dict[bytes, _Share] = {}

    def __len__(self) -> int:
        return len(self._shares)

    def connections(self, client: bytes) -> int:
        """How many of its connections are open."""
        share = self._shares.get(client)
        return 0 if share is None else share.connections

    def join(self, client: bytes, now: float) -> None:
        """It has one more connection."""
        if client not in self._shares and len(self._shares) >= _MOST:
            self._keep(lambda share: share.connections > 0)
        self._share(client, now).connections += 1

    def leave(self, client: bytes) -> None:
        """It has one connection less."""
        share = self._shares.get(client)
        if share is not None:
            share.connections -= 1

    def take(self, client: bytes, now: float) -> bool:
        """Whether it may make one more request now."""
        share = self._share(client, now)
        share.tokens = min(self._burst, share.tokens + (now - share.at) * self._rate)
        share.at = now
        if share.tokens < 1.0:
            return False
        share.tokens -= 1.0
        return True

    def tidy(self, now: float) -> None:
        """Forget those of whom nothing is left to know."""
        self._keep(
            lambda share: share.connections > 0 or share.tokens + (now - share.at) * self._rate < self._burst
        )

    def _share(self, client: bytes, now: float) -> _Share:
        share = self._shares.get(client)
        if share is None:
            share = self._shares[client] = _Share(self._burst, now)
        return share

    def _keep(self, wanted: Callable[[_Share], bool]) -> None:
        self._shares = {client: share for client, share in self._shares.items() if wanted(share)}


class Reader(Protocol):
    """Who takes an answer."""

    @property
    def client(self) -> bytes:
        """Whom limits count it for."""

    def abort(self) -> None:
        """End now, without the rest."""


class Backlog:
    """The bodies that some client has not taken in full, each counted once, however many share it.

    A page is let go of at the next tick; who is slow keeps it. When more than `most` bytes are kept so, the
    client that waits to take most is cut off, its oldest answer first, until they are fewer: whoever is
    quick, and a newcomer, are not asked to pay for the slow ones. The last one is left alone: an answer may
    be as big as it is.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._readers: dict[Reader, bytes] = {}
        # By the identity of a body that is kept alive by its readers here.
        self._shared: Counter[int] = Counter()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._readers)

    def hold(self, reader: Reader, body: bytes) -> None:
        """This reader has yet to take the end of this body."""
        self.release(reader)
        self._readers[reader] = body
        self._shared[id(body)] += 1
        if self._shared[id(body)] == 1:
            self.bytes += len(body)
        while self.bytes > self._most and len(self._readers) > 1:
            slowest = self._slowest()
            self.release(slowest)
            slowest.abort()

    def release(self, reader: Reader) -> None:
        """It has taken all, or has gone. Idempotent."""
        body = self._readers.pop(reader, None)
        if body is None:
            return
        self._shared[id(body)] -= 1
        if not self._shared[id(body)]:
            del self._shared[id(body)]
            self.bytes -= len(body)

    def _slowest(self) -> Reader:
        waiting: Counter[bytes] = Counter()
        for reader, body in self._readers.items():
            waiting[reader.client] += len(body)
        greediest = waiting.most_common(1)[0][0]
        return next(reader for reader in self._readers if reader.client == greediest)


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

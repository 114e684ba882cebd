"""One HTTP/1.1 connection to a receiver: a request, its answer, and the next request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import Final, NamedTuple

import h11

# Of an answer's body so many bytes are kept to be shown, and so many are read for the connection's sake.
_SHOWN: Final = 512
_READ: Final = 64 << 10


class Answer(NamedTuple):
    """Status, what `Retry-After` and `Location` said (empty: nothing), the beginning of the body."""

    status: int
    retry_after: str
    location: str
    body: bytes


class BrokenOff(Exception):
    """The connection ended, or what came was not HTTP. `unanswered`: not a byte of an answer had come."""

    def __init__(self, why: str, *, unanswered: bool) -> None:
        super().__init__(why)
        self.unanswered = unanswered


class Connection(asyncio.Protocol):
    """Made by the loop's `create_connection`. `usable` tells whether another request may be sent on it.

    An answer that comes before the request was read is taken as one: receivers refuse what is too large so.
    """

    def __init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=64 << 10)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Answer] | None = None
        self._head: h11.Response | None = None
        self._body = b""
        self._read = 0
        self._got_bytes = False
        self.requests = 0

    @property
    def usable(self) -> bool:
        """Whether the other side has not hung up, as far as we were told."""
        transport = self._transport
        return transport is not None and not transport.is_closing() and self._http.our_state is h11.IDLE

    async def ask(self, target: str, headers: Iterable[tuple[str, str]], body: bytes) -> Answer:
        """POST the body. Raises BrokenOff."""
        assert self._transport is not None
        self.requests += 1
        self._head, self._body, self._read, self._got_bytes = None, b"", 0, False
        try:
            request = h11.Request(method="POST", target=target, headers=list(headers))
            head = self._http.send(request) or b""
        except h11.LocalProtocolError as error:
            raise BrokenOff(f"a request that cannot be: {error}", unanswered=False) from None
        content = self._http.send(h11.Data(body)) or b""
        self._http.send(h11.EndOfMessage())
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        self._transport.write(head + content)
        try:
            answer: Answer = await waiter
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._waiter = None
        return answer

    def close(self) -> None:
        """Hang up. Idempotent."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio says."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        """As asyncio says."""
        if self._waiter is None:
            # Nothing was asked: a proxy that gives up on an idle client may say so before it hangs up.
            self.close()
            return
        self._got_bytes = True
        self._take(data)

    def eof_received(self) -> bool:
        """The other side sends no more: nothing can be asked here any longer."""
        self._take(b"")
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """As asyncio says."""
        self._transport = None
        why = error.strerror or str(error) if isinstance(error, OSError) else "the receiver hung up"
        self._fail(why or "the connection was lost")

    def _take(self, data: bytes) -> None:
        try:
            self._http.receive_data(data)
            while self._waiter is not None:
                event = self._http.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    return
                self._see(event)
        except h11.RemoteProtocolError as error:
            if data:
                self._fail(f"what it answers is not HTTP/1.1: {error}")
            self.close()

    def _see(self, event: object) -> None:
        if isinstance(event, h11.Response):
            self._head = event
        elif isinstance(event, h11.Data):
            self._body += bytes(event.data[: max(0, _SHOWN - len(self._body))])
            self._read += len(event.data)
            if self._read > _READ:
                self._finish(reuse=False)
        elif isinstance(event, h11.EndOfMessage):
            self._finish(reuse=True)
        elif isinstance(event, h11.ConnectionClosed):
            self._fail("the receiver hung up")

    def _finish(self, *, reuse: bool) -> None:
        waiter, head = self._waiter, self._head
        assert waiter is not None and head is not None
        self._waiter = None
        told = {name.lower(): value.decode("latin-1") for name, value in head.headers}
        if not waiter.done():
            waiter.set_result(
                Answer(head.status_code, told.get(b"retry-after", ""), told.get(b"location", ""), self._body)
            )
        if reuse and self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        else:
            self.close()

    def _fail(self, why: str) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(BrokenOff(why, unanswered=not self._got_bytes))

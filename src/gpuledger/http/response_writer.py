"""Write responses as fast as the client reads them: bodies in pieces, streams chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import h11

from gpuledger.http.messages import response_head
from gpuledger.http.routes import Response, ResponseStream

# Bytes passed to the transport at a time. The rest remains a view of the body that all clients share, so that
# at most one piece is copied for a slow client.
_PIECE = 32 * 1024


def _ignore(*_: object) -> None:
    """The connection is closed."""


@dataclass(eq=False, slots=True)
class ResponseWriter:
    """Writes one response after the other. `write` passes bytes to the transport; `woken` is called when a
    stream has more data.

    While the client does not read (`blocked`), nothing is written and a stream is not queried, so that it can
    skip data that are outdated by then.
    """

    http: h11.Connection
    write: Callable[[bytes | memoryview], None]
    woken: Callable[[], None]
    blocked: bool = field(default=False, init=False)
    _unsent: memoryview | None = field(default=None, init=False)
    _stream: ResponseStream | None = field(default=None, init=False)

    @property
    def busy(self) -> bool:
        """Whether a response is not fully passed to the transport."""
        return self._unsent is not None or self._stream is not None

    @property
    def streaming(self) -> bool:
        """Whether the response is a stream."""
        return self._stream is not None

    def begin(self, response: Response, *, close: bool, head_only: bool) -> bool:
        """Start to write a response; True when all of it was passed to the transport."""
        head = self.http.send(response_head(response, close=close)) or b""
        if response.stream is not None and not head_only:
            self.write(head)
            self._stream = response.stream()
            self._stream.begin(self.woken)
            return self.continue_writing()
        body = b"" if head_only else response.body
        if body:
            self.http.send(h11.Data(data=body))
        self.http.send(h11.EndOfMessage())
        first = _PIECE - len(head)
        self.write(head + body[:first])
        self._unsent = memoryview(body)[first:]
        return self.continue_writing()

    def continue_writing(self) -> bool:
        """Write until the client is blocked or there are no more data; True when the response is complete."""
        if self._stream is not None:
            return self._pump(self._stream)
        unsent = self._unsent
        if unsent is None:
            return False
        while unsent and not self.blocked:
            self.write(unsent[:_PIECE])
            unsent = unsent[_PIECE:]
        self._unsent = unsent if self.blocked else None
        return not self.blocked

    def end_stream(self) -> bool:
        """End a running stream regularly; True when there was one."""
        stream, self._stream = self._stream, None
        if stream is None:
            return False
        stream.end()
        self.write(self.http.send(h11.EndOfMessage()) or b"")
        return True

    def discard(self) -> None:
        """Drop the response and both callbacks: the client has closed the connection.

        Methods of a connection that refers to this writer are a cycle, which Python frees at some later time.
        """
        self._unsent = None
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.end()
        self.write = self.woken = _ignore

    def _pump(self, stream: ResponseStream) -> bool:
        while not self.blocked:
            chunk = stream.take()
            if chunk is None:
                return self.end_stream()
            if not chunk:
                break
            self.write(self.http.send(h11.Data(data=chunk)) or b"")
        return False

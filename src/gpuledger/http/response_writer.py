"""Answers written at the pace that the client takes them: whole ones in pieces, streams as they come."""

from __future__ import annotations

from collections.abc import Callable

import h11

from gpuledger.http.messages import head_of
from gpuledger.http.routes import Response, Stream

# Bytes given to the transport at a time. What a slow client has not taken stays behind as a view of the
# page that all clients share; only one such piece is ever copied for it.
_PIECE = 32 * 1024


class Sender:
    """Writes one answer after the other. `write` hands bytes to the transport; `woken` is called when a
    stream has more to say.

    While the client is behind (`behind`), nothing is handed over: a stream is not even asked, so that it can
    leave out what is old by the time it is.
    """

    def __init__(
        self,
        http: h11.Connection,
        write: Callable[[bytes | memoryview], None],
        woken: Callable[[], None],
    ) -> None:
        self.behind = False
        self._http = http
        self._write = write
        self._woken = woken
        self._unsent: memoryview | None = None
        self._stream: Stream | None = None

    @property
    def busy(self) -> bool:
        """An answer is not handed over in full."""
        return self._unsent is not None or self._stream is not None

    @property
    def streaming(self) -> bool:
        """The answer has no known end."""
        return self._stream is not None

    def begin(self, response: Response, *, close: bool, head_only: bool) -> bool:
        """Write an answer; True when all of it was handed over."""
        head = self._http.send(head_of(response, close=close)) or b""
        if response.stream is not None and not head_only:
            self._write(head)
            self._stream = response.stream()
            self._stream.begin(self._woken)
            return self.go_on()
        body = b"" if head_only else response.body
        if body:
            self._http.send(h11.Data(data=body))
        self._http.send(h11.EndOfMessage())
        first = _PIECE - len(head)
        self._write(head + body[:first])
        self._unsent = memoryview(body)[first:]
        return self.go_on()

    def go_on(self) -> bool:
        """Hand over until the client is behind or there is no more for now; True when that ended it."""
        if self._stream is not None:
            return self._pump(self._stream)
        unsent = self._unsent
        if unsent is None:
            return False
        while unsent and not self.behind:
            self._write(unsent[:_PIECE])
            unsent = unsent[_PIECE:]
        self._unsent = unsent if self.behind else None
        return not self.behind

    def end_stream(self) -> bool:
        """End a stream in the midst of it, as if it had no more to say; True when there was one."""
        stream, self._stream = self._stream, None
        if stream is None:
            return False
        stream.end()
        self._write(self._http.send(h11.EndOfMessage()) or b"")
        return True

    def drop(self) -> None:
        """The client has gone: let go of the answer."""
        self._unsent = None
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.end()

    def _pump(self, stream: Stream) -> bool:
        while not self.behind:
            told = stream.take()
            if told is None:
                return self.end_stream()
            if not told:
                break
            self._write(self._http.send(h11.Data(data=told)) or b"")
        return False

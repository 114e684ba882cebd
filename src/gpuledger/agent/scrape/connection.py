"""A connection to a target: one request at a time, kept open between scrapes, TLS on memory buffers.

asyncio's own TLS keeps 256 KiB for each connection, and a thousand targets are a thousand connections.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import cast

from gpuledger.agent.deliver.credentials import why_no_tls
from gpuledger.agent.scrape.answer import Answer, AnswerReader, ScrapeFailed


class ConnectionClosed(ScrapeFailed):
    """It ended before a byte of the answer came: where it had been kept open, that is worth another try."""


class Connection(asyncio.Protocol):
    """Used by the event loop's thread alone. `context` makes it TLS, with `name` as the server's."""

    def __init__(self, context: ssl.SSLContext | None, name: str) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Answer] | None = None
        self._reader = AnswerReader()
        self._request = b""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._established = context is None
        self._tls: ssl.SSLObject | None = None
        if context is not None:
            self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name or None)
        self.usable = True

    async def ask(self, request: bytes, limit: int) -> Answer:
        """Send a request and answer what comes back. Raises ScrapeFailed; the connection is then closed.

        `limit` bounds the body as it is sent; 0 is no limit.
        """
        if not self.usable or self._transport is None:
            raise ConnectionClosed("the connection is closed")
        self._reader = AnswerReader(limit)
        self._waiting = asyncio.get_running_loop().create_future()
        self._request = request
        try:
            self._send()
            answer = await self._waiting
        except BaseException:
            self.close()
            raise
        finally:
            self._waiting = None
            keeps_open = self._reader.keeps_open
            # It holds the answer, which a connection at rest has no use for.
            self._reader = AnswerReader()
        if not keeps_open:
            self.close()
        return answer

    def close(self) -> None:
        """Let go of it. Idempotent."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake begins with the first request."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer, or of the handshake."""
        try:
            if self._tls is not None:
                self._incoming.write(data)
                data = self._decrypted(self._tls)
            if not data:
                return
            if self._waiting is None:
                # Nobody asked: what comes is not an answer to the next request.
                self.close()
            elif self._reader.feed(data):
                self._finish()
        except ssl.SSLCertVerificationError as error:
            self._fail(ScrapeFailed(f"the target's certificate is not accepted: {error.verify_message}"))
        except ssl.SSLError as error:
            self._fail(ScrapeFailed(f"TLS with the target failed: {why_no_tls(error)}"))
        except ScrapeFailed as error:
            self._fail(error)

    def eof_received(self) -> None:
        """The target sends no more; the transport closes."""
        self._ended()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._ended(exc)
        self._transport = None

    def _ended(self, why: Exception | None = None) -> None:
        self.usable = False
        if self._waiting is None or self._waiting.done():
            return
        if self._reader.close():
            self._finish()
        elif self._reader.started:
            self._fail(ScrapeFailed("the target closed the connection in the middle of its answer"))
        else:
            self._fail(ConnectionClosed(_words(why) or "the target closed the connection without an answer"))

    def _finish(self) -> None:
        if self._waiting is not None and not self._waiting.done() and self._reader.answer is not None:
            self._waiting.set_result(self._reader.answer)

    def _fail(self, error: ScrapeFailed) -> None:
        self.usable = False
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    def _send(self) -> None:
        transport = cast("asyncio.Transport", self._transport)
        if self._tls is None:
            transport.write(self._request)
            self._request = b""
            return
        try:
            self._handshake(self._tls)
        except ssl.SSLError as error:
            self._fail(ScrapeFailed(f"TLS with the target failed: {why_no_tls(error)}"))

    def _decrypted(self, tls: ssl.SSLObject) -> bytes:
        """What the target wrote; the handshake goes on, and the request follows it."""
        if not self._established:
            self._handshake(tls)
            if not self._established:
                return b""
        parts = []
        try:
            while True:
                part = tls.read(256 * 1024)
                if not part:
                    break
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            parts_so_far = b"".join(parts)
            self.usable = False
            return parts_so_far
        self._flush()
        return b"".join(parts)

    def _handshake(self, tls: ssl.SSLObject) -> None:
        try:
            if not self._established:
                tls.do_handshake()
                self._established = True
            if self._request:
                tls.write(self._request)
                self._request = b""
        except ssl.SSLWantReadError:
            pass
        finally:
            # An alert, too: the target's log should say why it was turned down.
            self._flush()

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and self._transport is not None:
            self._transport.write(data)


def _words(error: Exception | None) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"the connection broke: {error.strerror}"
    return ""

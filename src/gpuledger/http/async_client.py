"""Asynchronous HTTP/1.1 client: keep-alive connections to one server, TLS on memory buffers.

asyncio's TLS transport allocates 256 KiB per connection, which is too much for a thousand targets.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from dataclasses import KW_ONLY, dataclass, field
from typing import cast

from gpuledger.http.client_messages import ConnectionClosed, HttpRequestFailed, HttpResponse, ResponseParser
from gpuledger.http.hosts import connection_attempt_delay
from gpuledger.http.openssl import NOT_TLS, ssl_reason


@dataclass(eq=False, slots=True)
class HttpClient:
    """Client of one server, on one event loop. Each request uses an idle connection or opens another.

    `context` enables TLS; the certificate must match `server_name` (empty: the host). `body_limit` bounds a
    response's body as sent, in bytes (0: no limit); a longer one is an error, or cut with `truncate`.
    `connect_timeout` is in seconds, as is `max_idle`: connections that were idle longer are not reused.
    """

    host: str
    port: int
    context: ssl.SSLContext | None = None
    _: KW_ONLY
    server_name: str = ""
    body_limit: int = 0
    truncate: bool = False
    connect_timeout: float | None = None
    max_idle: float = float("inf")
    _idle: list[HttpClientConnection] = field(default_factory=list, init=False)

    async def exchange(self, request: bytes, *, retry: bool = True) -> HttpResponse:
        """Send an encoded request and return its response. Raises HttpRequestFailed.

        Servers close idle connections: with `retry`, a request that gets no byte of a response on a reused
        connection is sent once more on a new one. The server may then execute it twice.
        """
        idle = self._idle
        reused = self._reusable_connection()
        if reused is not None:
            try:
                return await self._send(reused, idle, request)
            except ConnectionClosed:
                if not retry:
                    raise
        return await self._send(await self._connect(), idle, request)

    def close(self) -> None:
        """Close the idle connections now, and those in use after their response. Idempotent."""
        closing, self._idle = self._idle, []
        for connection in closing:
            connection.close()

    def _reusable_connection(self) -> HttpClientConnection | None:
        while self._idle:
            # The oldest first: connections that are not needed any more reach `max_idle`.
            connection = self._idle.pop(0)
            if connection.usable and connection.idle_seconds() < self.max_idle:
                return connection
            connection.close()
        return None

    async def _send(
        self, connection: HttpClientConnection, idle: list[HttpClientConnection], request: bytes
    ) -> HttpResponse:
        response = await connection.send_request(request, self.body_limit, truncate=self.truncate)
        if idle is self._idle and connection.usable:
            idle.append(connection)
        else:
            # After close_notify of TLS, the TCP connection can still be open.
            connection.close()
        return response

    async def _connect(self) -> HttpClientConnection:
        host = self.host
        try:
            async with asyncio.timeout(self.connect_timeout):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: HttpClientConnection(self.context, self.server_name or host),
                    host,
                    self.port,
                    happy_eyeballs_delay=connection_attempt_delay(host),
                )
        except (OSError, UnicodeError) as error:
            raise connect_failure(host, error) from None
        return connection


def connect_failure(host: str, error: OSError | UnicodeError) -> HttpRequestFailed:
    """The failure of a connection to a host, in words without Python's."""
    # UnicodeError: a label of the name is empty or too long.
    if isinstance(error, socket.gaierror | UnicodeError):
        return HttpRequestFailed(f"cannot resolve the host {host}", "connect")
    if isinstance(error, ssl.SSLError):
        return _tls_failure(error)
    # asyncio joins failures of several addresses into one without errno.
    reason = os.strerror(error.errno).lower() if error.errno else str(error)
    if isinstance(error, TimeoutError) and not error.errno:
        reason = "timed out"
    return HttpRequestFailed(f"cannot connect: {reason}", "connect")


def _tls_failure(error: ssl.SSLError) -> HttpRequestFailed:
    """The failure with OpenSSL's reason, and a hint when the server does not speak TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return HttpRequestFailed(f"cannot verify the server's certificate: {error.verify_message}", "tls")
    reason = ssl_reason(error, str(error))
    if reason in NOT_TLS:
        reason = f"the server does not speak TLS ({reason}); does it use http?"
    return HttpRequestFailed(f"TLS with the server failed: {reason}", "tls")


class HttpClientConnection(asyncio.Protocol):
    """One connection, used on the event loop's thread only. `context` enables TLS with server name `name`."""

    def __init__(self, context: ssl.SSLContext | None, name: str) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[HttpResponse] | None = None
        self._reader = ResponseParser()
        self._request = b""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._established = context is None
        self._tls: ssl.SSLObject | None = None
        if context is not None:
            self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name or None)
        self.usable = True
        self._idle_since = 0.0

    async def send_request(self, request: bytes, limit: int, *, truncate: bool = False) -> HttpResponse:
        """Send a request and return the response. Raises HttpRequestFailed and closes the connection then.

        `limit` bounds the body as sent (0: no limit): a longer one is an error, or cut with `truncate`. A
        response that arrives before the request is sent completely is accepted: servers reject oversized
        requests this way.
        """
        if not self.usable or self._transport is None:
            raise ConnectionClosed("the connection is closed")
        loop = asyncio.get_running_loop()
        self._reader = ResponseParser(limit, truncate=truncate)
        self._waiting = loop.create_future()
        self._request = request
        try:
            self._send()
            response = await self._waiting
        except BaseException:
            self.close()
            raise
        finally:
            self._waiting = None
            keep_alive = self._reader.keep_alive
            # Frees the response while the connection is idle.
            self._reader = ResponseParser()
        self._idle_since = loop.time()
        if not keep_alive:
            self.close()
        return response

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def idle_seconds(self) -> float:
        """Return the seconds since the last response."""
        return asyncio.get_running_loop().time() - self._idle_since

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport and enable TCP keep-alive. The TLS handshake starts with the first request."""
        self._transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        """Handle bytes of a response or of the TLS handshake."""
        try:
            if self._tls is not None:
                self._incoming.write(data)
                data = self._decrypt(self._tls)
            if not data:
                return
            if self._waiting is None:
                # Unsolicited bytes would be mistaken for the response to the next request.
                self.close()
            elif self._reader.feed(data):
                self._finish()
        except ssl.SSLError as error:
            self._fail(_tls_failure(error))
        except HttpRequestFailed as error:
            self._fail(error)

    def eof_received(self) -> None:
        """Handle the server's EOF; the transport closes."""
        self._handle_close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the loss of the connection."""
        self._handle_close(exc)
        self._transport = None

    def _handle_close(self, why: Exception | None = None) -> None:
        self.usable = False
        if self._waiting is None or self._waiting.done():
            return
        if self._reader.close():
            self._finish()
        else:
            self._fail(self._reader.end_error(_close_reason(why)))

    def _finish(self) -> None:
        if self._waiting is not None and not self._waiting.done() and self._reader.response is not None:
            self._waiting.set_result(self._reader.response)

    def _fail(self, error: HttpRequestFailed) -> None:
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
            self._fail(_tls_failure(error))

    def _decrypt(self, tls: ssl.SSLObject) -> bytes:
        """Return the decrypted bytes. Continues the handshake, after which the request is sent."""
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
            self.usable = False
            return b"".join(parts)
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
            # Also sends a TLS alert, so that the server's log shows the reason.
            self._flush()

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and self._transport is not None:
            self._transport.write(data)


def _close_reason(error: Exception | None) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"the connection failed: {error.strerror}"
    return ""

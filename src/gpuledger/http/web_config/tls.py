"""TLS of accepted connections, by asyncio's SSLProtocol. Import it only with a TLS configuration."""

from __future__ import annotations

import asyncio
import importlib
import logging
import ssl
from asyncio import sslproto
from typing import Final, cast

from gpuledger.http.connection import ClientConnection, RequestGate
from gpuledger.http.openssl import ssl_reason
from gpuledger.http.registry import ConnectionRegistry
from gpuledger.http.routes import Routes
from gpuledger.http.web_config.current_config import CurrentWebConfig
from gpuledger.http.web_config.tls_contexts import TlsContexts

if getattr(sslproto, "ssl", None) is None:
    # `cli.main.load_asyncio_without_tls` has imported it without ssl.
    importlib.reload(sslproto)

_LOG = logging.getLogger(__name__)

# Distinct reasons of failed handshakes that are logged as warnings once: a scanner must not fill the log.
_MOST_REASONS: Final = 32
# Bytes that are read at a time, and kept while a response is written: one TLS record, and two.
_RECORD: Final = 16 * 1024
_MOST_UNREAD: Final = 2 * _RECORD
# Encrypted bytes that wait for a client that does not read. A piece of a response has at most 32 KiB.
_MOST_UNSENT: Final = 64 * 1024


class TlsHandshakes:
    """State shared by a server's connections: the TLS contexts in force, and the logged failures."""

    def __init__(self, current: CurrentWebConfig) -> None:
        self._current = current
        self._logged: set[str] = set()

    def contexts(self) -> TlsContexts:
        """The TLS contexts for a new connection; checks for changed files."""
        self._current.refresh()
        if self._current.contexts is None:
            raise RuntimeError("the server has no TLS configuration")
        return self._current.contexts

    def failed(self, peer: object, reason: str) -> None:
        """Log a failed handshake."""
        level = logging.DEBUG
        if reason not in self._logged and len(self._logged) < _MOST_REASONS:
            self._logged.add(reason)
            level = logging.WARNING
        host = peer[0] if isinstance(peer, tuple) else peer
        _LOG.log(level, "TLS handshake with %s failed: %s (logged once)", host, reason)


class TlsClientConnection(ClientConnection):
    """A ClientConnection within TLS. It is registered at the accept, so that its limits apply to the
    handshake, too. Its transport is the socket's until the handshake is complete, then that of TLS.
    """

    def __init__(
        self, registry: ConnectionRegistry, routes: Routes, gate: RequestGate, handshakes: TlsHandshakes
    ) -> None:
        super().__init__(registry, routes, gate)
        self.handshakes = handshakes
        self.contexts = handshakes.contexts()
        self.established = False
        self._socket_transport: asyncio.Transport | None = None

    def accept(self, transport: asyncio.Transport) -> None:
        """See ClientConnection."""
        self._socket_transport = transport
        super().accept(transport)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is complete."""
        self.established = True
        self._transport = tls = cast("sslproto._SSLProtocolTransport", transport)
        tls.set_read_buffer_limits(high=_MOST_UNREAD)
        certificate = transport.get_extra_info("peercert")
        self._certificate_name = self.contexts.client_name(certificate)
        if not self.contexts.allows_certificate(certificate):
            peer = transport.get_extra_info("peername")
            self.handshakes.failed(peer, "the client certificate has none of client_allowed_sans")
            self.abort()

    def limit_unsent(self) -> None:
        """Abort a client that makes OpenSSL answer, but does not read the answers."""
        if self._transport is not None and self._transport.get_write_buffer_size() > _MOST_UNSENT:
            self.abort()

    @property
    def _closing(self) -> bool:
        # The transport of TLS does not notice that the client has closed or reset the connection.
        return super()._closing or self._socket_transport is None or self._socket_transport.is_closing()


class TlsProtocol(sslproto.SSLProtocol):
    """The protocol of an encrypted socket: asyncio's, with small buffers.

    asyncio itself uses 256 KiB per connection, and reports a connection only after its handshake.
    """

    max_size = _RECORD

    def __init__(self, connection: TlsClientConnection, registry: ConnectionRegistry) -> None:
        # typeshed has the types of Python 3.10.
        super().__init__(
            asyncio.get_running_loop(),
            connection,
            connection.contexts.context,
            waiter=None,  # type: ignore[arg-type]
            server_side=True,
            ssl_handshake_timeout=registry.limits.request_seconds,  # type: ignore[arg-type]
            ssl_shutdown_timeout=registry.limits.linger_seconds,
        )
        self._connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, then begin the handshake."""
        self._socket_transport = cast("asyncio.Transport", transport)
        self._connection.accept(self._socket_transport)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Report a connection without a complete handshake, too."""
        super().connection_lost(exc)
        if self._connection.established:
            return
        if isinstance(exc, ssl.SSLError):
            reason = ssl_reason(exc)
            if isinstance(exc, ssl.SSLCertVerificationError):
                reason = f"client certificate: {exc.verify_message}"
            peer = self._socket_transport.get_extra_info("peername")
            self._connection.handshakes.failed(peer, reason)
        self._connection.connection_lost(None)

    def buffer_updated(self, nbytes: int) -> None:
        """Handle received bytes. OpenSSL answers some (RFC 8446, 4.6.3: each KeyUpdate)."""
        super().buffer_updated(nbytes)
        self._connection.limit_unsent()

    def eof_received(self) -> None:
        """The client sends no more: close once everything is sent, whether or not a response is complete."""
        # asyncio answers True for a paused reader, which would keep the socket open: drop that answer.
        super().eof_received()

    def pause_writing(self) -> None:
        """The kernel's buffer for this client is full."""
        super().pause_writing()
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """The kernel's buffer has room again."""
        super().resume_writing()
        if not self._socket_transport.get_write_buffer_size():
            self._connection.resume_writing()

    def _on_handshake_complete(self, handshake_exc: BaseException | None) -> None:
        # asyncio does not send the alert with the reason of a failed handshake.
        self._process_outgoing()  # type: ignore[attr-defined]
        super()._on_handshake_complete(handshake_exc)

"""Apply a web config file to the HTTP server."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gpuledger.http.connection import ClientConnection
from gpuledger.http.registry import ConnectionRegistry
from gpuledger.http.routes import Routes
from gpuledger.http.server import ProtocolFactory
from gpuledger.http.web_config.current_config import CurrentWebConfig
from gpuledger.http.web_config.gate import WebGate
from gpuledger.http.web_config.model import ClientAuth
from gpuledger.http.web_config.passwords import PasswordChecker
from gpuledger.model.source import Clock


class WebSecurity:
    """TLS, authentication and rate limit of a web config file. Raises UsageError for an invalid file.

    `ssl` is imported only if the file configures TLS, `bcrypt` only if it has users.
    """

    def __init__(
        self, file: Path, clock: Clock, passwords: PasswordChecker | None = None, every: float = 1.0
    ) -> None:
        self._current = CurrentWebConfig(file, clock, every)
        self._gate = WebGate(self._current, clock, passwords)
        self.protocol_factory: ProtocolFactory = self._encrypted() if self._current.tls else self._plain

    @property
    def authenticates(self) -> bool:
        """Whether clients need a password or a certificate."""
        tls = self._current.config.tls
        needs_certificate = tls is not None and tls.client_auth is ClientAuth.REQUIRE_AND_VERIFY
        return bool(self._current.config.users) or needs_certificate

    @property
    def scheme(self) -> str:
        """`http` or `https`."""
        return "https" if self._current.tls else "http"

    def _plain(self, registry: ConnectionRegistry, routes: Routes) -> asyncio.BaseProtocol:
        return ClientConnection(registry, routes, self._gate)

    def _encrypted(self) -> ProtocolFactory:
        from gpuledger.http.web_config.tls import TlsClientConnection, TlsHandshakes, TlsProtocol

        handshakes = TlsHandshakes(self._current)

        def protocol_factory(registry: ConnectionRegistry, routes: Routes) -> asyncio.BaseProtocol:
            return TlsProtocol(TlsClientConnection(registry, routes, self._gate, handshakes), registry)

        return protocol_factory

"""What a web config file makes of the HTTP server."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gpuledger.http.connection import Connection
from gpuledger.http.registry import Registry
from gpuledger.http.routes import Routes
from gpuledger.http.server import Speaker
from gpuledger.http.web_config.current import CurrentWebConfig
from gpuledger.http.web_config.gate import WebGate
from gpuledger.http.web_config.passwords import Passwords
from gpuledger.model.source import Clock


class Web:
    """A web config file in force. Raises UsageError with one line when it cannot be used.

    `ssl` is loaded only when the file asks for TLS, `bcrypt` only when it has users.
    """

    def __init__(
        self, file: Path, clock: Clock, passwords: Passwords | None = None, every: float = 1.0
    ) -> None:
        self._current = CurrentWebConfig(file, clock, every)
        self._gate = WebGate(self._current, clock, passwords)
        self.speaker: Speaker = self._encrypted() if self._current.tls else self._plain

    @property
    def scheme(self) -> str:
        """`http` or `https`."""
        return "https" if self._current.tls else "http"

    def _plain(self, registry: Registry, routes: Routes) -> asyncio.BaseProtocol:
        return Connection(registry, routes, self._gate)

    def _encrypted(self) -> Speaker:
        from gpuledger.http.web_config.tls import Handshakes, TlsTransport

        handshakes = Handshakes(self._current)

        def speaker(registry: Registry, routes: Routes) -> asyncio.BaseProtocol:
            return TlsTransport(Connection(registry, routes, self._gate), registry, handshakes)

        return speaker

"""The HTTP server: listens on addresses and creates a protocol with routes for each connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gpuledger.http.addresses import (
    BACKLOG,
    Address,
    bound_address,
    open_listening_sockets,
    with_bound_port,
)
from gpuledger.http.connection import ClientConnection
from gpuledger.http.limits import RESERVE_CONNECTIONS, HttpLimits
from gpuledger.http.registry import ConnectionRegistry
from gpuledger.http.routes import Routes
from gpuledger.model.errors import UsageError

# Connections accepted per loop iteration. A flood of new connections must not starve the open ones, and each
# connection in the reserve must survive until it was read once, two iterations later. asyncio of Python 3.14
# accepts one more than this.
_AT_A_TIME: Final = RESERVE_CONNECTIONS // 2 - 1

# Creates the protocol of a new connection with these routes.
ProtocolFactory = Callable[[ConnectionRegistry, Routes], asyncio.BaseProtocol]


@dataclass(eq=False)
class HttpServer:
    """HTTP/1.1 on one or more addresses, each with its own routes, in the running event loop.

    `grace` is the seconds that running responses get when the server stops. The limit on connections applies
    to all addresses together. `protocol_factory` creates the protocol of a connection: ClientConnection, or
    `WebSecurity.protocol_factory` with a web config.
    """

    listeners: Sequence[tuple[Address, Routes]]
    limits: HttpLimits = field(default_factory=HttpLimits)
    grace: float = 5.0
    protocol_factory: ProtocolFactory = ClientConnection
    # Sockets that listen already, of socket activation: served in place of the addresses, each with the
    # routes of the address with its port, else of the first address.
    inherited: Sequence[socket.socket] = ()
    # The listen addresses in the given order, with the real port instead of 0.
    addresses: tuple[Address, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self._registry = ConnectionRegistry(self.limits)
        self._servers: list[asyncio.Server] = []

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._registry)

    @property
    def held_bytes(self) -> int:
        """Bytes of partly read response bodies; a shared body counts once."""
        return self._registry.backlog.bytes

    async def start(self) -> None:
        """Listen. Raises GpuledgerError, and closes all sockets, when one address cannot be opened."""
        self._check_distinct()
        loop = asyncio.get_running_loop()
        opened: list[tuple[socket.socket, Routes]] = []
        bound: list[Address] = []
        try:
            for listening in self.inherited:
                bound.append(bound_address(listening))
                opened.append((listening, self._routes_of_port(bound[-1].port)))
            for address, routes in () if self.inherited else self.listeners:
                sockets = open_listening_sockets(address)
                opened += [(listening, routes) for listening in sockets]
                bound.append(with_bound_port(address, sockets[0]))
        except BaseException:
            for listening, _ in opened:
                listening.close()
            raise
        self.addresses = tuple(bound)
        for listening, routes in opened:
            factory = partial(self.protocol_factory, self._registry, routes)
            self._servers.append(await loop.create_server(factory, sock=listening, backlog=_AT_A_TIME))
            # asyncio uses `backlog` for accepts per iteration and as the listen backlog: reset the latter.
            listening.listen(BACKLOG)

    async def stop(self) -> None:
        """Stop listening, let running responses end, close the rest. Idempotent."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        await self._registry.drain(self.grace)

    def _routes_of_port(self, port: int) -> Routes:
        matching = (routes for address, routes in self.listeners if address.port == port)
        return next(matching, self.listeners[0][1])

    def _check_distinct(self) -> None:
        addresses = [address for address, _ in self.listeners]
        for address in addresses:
            if address.port and addresses.count(address) > 1:
                raise UsageError(f"the address {address} is given twice with --listen-address")

"""The HTTP server: listens, and hands each connection its routes. It knows no page itself."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from gpuledger.http.addresses import BACKLOG, Address, bound_address, listening_sockets
from gpuledger.http.connection import Connection
from gpuledger.http.limits import RESERVE, Limits
from gpuledger.http.registry import Registry
from gpuledger.http.routes import Routes
from gpuledger.model.errors import UsageError

# Connections accepted before others have their turn. A flood of them must not keep those that are there
# waiting; and in the reserve each one is to stay until it was read once, which is in the turn after the next.
_AT_A_TIME: Final = RESERVE // 2

# Makes the protocol for one more client of these routes.
Speaker = Callable[[Registry, Routes], asyncio.BaseProtocol]


class HttpServer:
    """HTTP/1.1 on one or more addresses, each with routes of its own, in the running event loop.

    `grace` is how many seconds running answers get when the server stops. The limit on connections is for
    all addresses together. `speaker` makes what talks to one client: a Connection as it is, or one
    behind a web config (`Web.speaker`).
    """

    def __init__(
        self,
        listeners: Sequence[tuple[Address, Routes]],
        limits: Limits | None = None,
        grace: float = 5.0,
        speaker: Speaker = Connection,
    ) -> None:
        self._listeners = tuple(listeners)
        self._speaker = speaker
        self._grace = grace
        self._registry = Registry(limits or Limits())
        self._servers: list[asyncio.Server] = []
        self._addresses: list[Address] = []

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where it listens, in the order given, with the real port where 0 was asked for."""
        return tuple(self._addresses)

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._registry)

    @property
    def held_bytes(self) -> int:
        """Memory of answers that clients have taken in part, a body that several share counted once."""
        return self._registry.backlog.bytes

    async def start(self) -> None:
        """Listen. Raises GpuledgerError, with nothing left open, when one address cannot be listened on."""
        self._check_distinct()
        loop = asyncio.get_running_loop()
        self._registry.attach(loop)
        opened: list[tuple[socket.socket, Routes]] = []
        try:
            for address, routes in self._listeners:
                sockets = listening_sockets(address)
                opened += [(listening, routes) for listening in sockets]
                self._addresses.append(bound_address(address, sockets[0]))
        except BaseException:
            for listening, _ in opened:
                listening.close()
            self._addresses.clear()
            raise
        for listening, routes in opened:
            factory = partial(self._speaker, self._registry, routes)
            self._servers.append(await loop.create_server(factory, sock=listening, backlog=_AT_A_TIME))
            # asyncio took the one number for both: how many it accepts in a row, and how many may wait.
            listening.listen(BACKLOG)

    async def stop(self) -> None:
        """Stop listening, let running answers end, close the rest. Idempotent."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        await self._registry.drain(self._grace)

    def _check_distinct(self) -> None:
        asked = [address for address, _ in self._listeners]
        for address in asked:
            if address.port and asked.count(address) > 1:
                raise UsageError(f"the address {address} is given twice with --listen-address")

"""Who asks, and what each of them has of the server now."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

# So many clients without a connection are remembered; then all of these are forgotten, their rates too.
_MOST: Final = 4096

_MAPPED: Final = bytes(10) + b"\xff\xff"

NOBODY: Final = b""


def client_of(peer: object) -> bytes:
    """Whom limits count a connection for, out of its socket's peer name; NOBODY where that says nothing.

    An IPv4 address, also where IPv6 carries it. Of IPv6 the first 64 bits: who has one address of such a
    network has all of it (RFC 4291, 2.5.4). Link-local addresses share theirs, so they count as a whole.
    """
    if not (isinstance(peer, tuple) and peer and isinstance(peer[0], str)):
        return NOBODY
    host = peer[0].partition("%")[0]
    try:
        if ":" not in host:
            return socket.inet_pton(socket.AF_INET, host)
        packed = socket.inet_pton(socket.AF_INET6, host)
    except OSError:
        return NOBODY
    if packed.startswith(_MAPPED):
        return packed[12:]
    link_local = packed[0] == 0xFE and packed[1] & 0xC0 == 0x80
    return packed if link_local else packed[:8]


class _Share:
    __slots__ = ("at", "connections", "tokens")

    def __init__(self, tokens: float, at: float) -> None:
        self.connections = 0
        self.tokens = tokens
        self.at = at


class Clients:
    """The clients of one server: their open connections, and how many requests each may make at once.

    `rate` tokens come a second for each, twice as many can lie there, a request takes one. `now` is
    any clock's seconds. Who has no connection is remembered until his tokens are all there again.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._burst = 2.0 * rate
        self._shares: dict[bytes, _Share] = {}

    def __len__(self) -> int:
        return len(self._shares)

    def connections(self, client: bytes) -> int:
        """How many of its connections are open."""
        share = self._shares.get(client)
        return 0 if share is None else share.connections

    def join(self, client: bytes, now: float) -> None:
        """It has one more connection."""
        if client not in self._shares and len(self._shares) >= _MOST:
            self._keep(lambda share: share.connections > 0)
        self._share(client, now).connections += 1

    def leave(self, client: bytes) -> None:
        """It has one connection less."""
        share = self._shares.get(client)
        if share is not None:
            share.connections -= 1

    def take(self, client: bytes, now: float) -> bool:
        """Whether it may make one more request now."""
        share = self._share(client, now)
        share.tokens = min(self._burst, share.tokens + (now - share.at) * self._rate)
        share.at = now
        if share.tokens < 1.0:
            return False
        share.tokens -= 1.0
        return True

    def tidy(self, now: float) -> None:
        """Forget those of whom nothing is left to know."""
        self._keep(
            lambda share: share.connections > 0 or share.tokens + (now - share.at) * self._rate < self._burst
        )

    def _share(self, client: bytes, now: float) -> _Share:
        share = self._shares.get(client)
        if share is None:
            share = self._shares[client] = _Share(self._burst, now)
        return share

    def _keep(self, wanted: Callable[[_Share], bool]) -> None:
        self._shares = {client: share for client, share in self._shares.items() if wanted(share)}

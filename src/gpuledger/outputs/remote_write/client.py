"""Asking one receiver to take samples: where, with which credentials, and what went wrong in one line."""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import Final
from urllib.parse import urlsplit

from gpuledger import __version__
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.model.text import clean_name
from gpuledger.outputs.hosts import host_field, next_address_after
from gpuledger.outputs.remote_write.access import Access
from gpuledger.outputs.remote_write.connection import Answer, BrokenOff, Connection
from gpuledger.outputs.remote_write.settings import ReceiverSettings
from gpuledger.outputs.remote_write.tls import why_no_tls

_PORTS: Final = {"http": 80, "https": 443}
_LONGEST: Final = 200


class Unreachable(Exception):
    """No answer came. `kind` is short and stable, fit for a label; the text is for people."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class Client:
    """What all requests to one receiver have in common."""

    def __init__(self, settings: ReceiverSettings, clock: Clock) -> None:
        self._settings = settings
        self._access = Access(settings, clock)
        parts = urlsplit(settings.url)
        self._secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or _PORTS[parts.scheme]
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._fixed = (
            ("Host", host_field(parts.netloc)),
            ("User-Agent", f"gpuledger/{__version__}"),
            ("Content-Type", "application/x-protobuf"),
            ("Content-Encoding", "snappy"),
            ("X-Prometheus-Remote-Write-Version", "0.1.0"),
        )

    def line(self) -> Line:
        """A connection of its own, made when it is needed and anew whenever it broke."""
        return Line(self)

    def told(self, body: bytes) -> str:
        """What an answer's body says, as a piece of one line, without our own secrets."""
        return clean_name(self._access.hide(" ".join(body.decode("utf-8", "replace").split())), _LONGEST)

    async def connect(self) -> tuple[Connection, int]:
        """A new connection, and the generation of the secrets that it was made with."""
        loop = asyncio.get_running_loop()
        context = self._access.context
        generation = self._access.generation
        name = (self._settings.tls.server_name or self._host) if self._secure else None
        try:
            _, connection = await loop.create_connection(
                Connection,
                self._host,
                self._port,
                ssl=context if self._secure else None,
                server_hostname=name,
                happy_eyeballs_delay=next_address_after(self._host),
            )
        except ssl.SSLCertVerificationError as error:
            raise Unreachable("tls", f"its certificate is not believed: {error.verify_message}") from None
        except ssl.SSLError as error:
            raise Unreachable("tls", f"no TLS connection: {why_no_tls(error)}") from None
        except OSError as error:
            raise Unreachable("connect", f"{self._host} cannot be reached: {_reason(error)}") from None
        except UnicodeError:
            raise Unreachable("connect", f"cannot be reached: {self._host!r} is no name of a host") from None
        return connection, generation

    async def post(self, line: Line, body: bytes) -> Answer:
        """Raises Unreachable."""
        try:
            async with asyncio.timeout(self._settings.remote_timeout):
                return await self._post(line, body)
        except TimeoutError:
            line.close()
            raise Unreachable("timeout", f"no answer within {self._settings.remote_timeout:g} s") from None
        except BrokenOff as error:
            line.close()
            raise Unreachable("broken", f"broke off: {error}") from None

    async def _post(self, line: Line, body: bytes) -> Answer:
        try:
            self._access.look()
        except GpuledgerError as error:
            raise Unreachable("credentials", str(error)) from None
        headers = (*self._fixed, *self._access.headers, ("Content-Length", str(len(body))))
        connection = await line.get(self._access.generation)
        fresh = connection.requests == 0
        try:
            return await connection.ask(self._target, headers, body)
        except BrokenOff as error:
            # It hung up an idle connection at the moment at which we used it: nothing is wrong with anybody.
            if fresh or not error.unanswered:
                raise
            line.close()
            connection = await line.get(self._access.generation)
            return await connection.ask(self._target, headers, body)


class Line:
    """One connection at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._connection: Connection | None = None
        self._generation = 0

    async def get(self, generation: int) -> Connection:
        """The connection of before, if it can be used still; else a new one. Raises Unreachable."""
        connection = self._connection
        if connection is None or not connection.usable or generation != self._generation:
            self.close()
            self._connection, self._generation = connection, _ = await self._client.connect()
        return connection

    def close(self) -> None:
        """Hang up. Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _reason(error: OSError) -> str:
    # Asyncio's own texts, by address or for several at once, say less than the number does; a resolver's
    # numbers are below zero.
    if error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return clean_name(error.strerror or str(error), _LONGEST)

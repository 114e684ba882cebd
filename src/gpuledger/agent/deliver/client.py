"""Asking one receiver to take samples: where, with which credentials, and what went wrong in one line."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

from gpuledger import __version__
from gpuledger.agent.deliver.connection import Answer, BrokenOff, Connection
from gpuledger.agent.deliver.credentials import Access, why_no_tls
from gpuledger.agent.deliver.settings import ReceiverSettings
from gpuledger.http.hosts import host_field, next_address_after
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.model.text import clean_name

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


# A receiver that asks for more patience than this, in seconds, is asked anew by then.
_LONGEST_WAIT: Final = 3600.0


class Verdict(Enum):
    """Delivered; to be sent again; refused for good."""

    DONE = "done"
    AGAIN = "again"
    REFUSED = "refused"


def verdict(status: int, *, retry_429: bool) -> Verdict:
    """As remote write 1.0 wants it: 5xx and 429 may pass, another 4xx would be the same the next time.

    A redirect is not followed and nothing is wrong with the samples: they wait until the URL is set right.
    """
    if 200 <= status < 300:
        return Verdict.DONE
    if 400 <= status < 500 and not (status == 429 and retry_429):
        return Verdict.REFUSED
    return Verdict.AGAIN


def retry_after(value: str, now: float) -> float:
    """Seconds to wait by a `Retry-After` of seconds or of a date; 0 for none and for what is neither.

    `now` is unix seconds.
    """
    text = value.strip()
    seconds = 0.0
    if text.isascii() and text.isdecimal():
        seconds = float(text[:9])
    elif text:
        with suppress(ValueError, OverflowError):
            date = parsedate_to_datetime(text)
            seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
    return min(max(seconds, 0.0), _LONGEST_WAIT)


class Backoff:
    """Longer from failure to failure, and never the same for two agents whose receiver came back.

    `chance` answers numbers from 0 to 1.
    """

    def __init__(self, lowest: float, highest: float, chance: Callable[[], float]) -> None:
        self._lowest = lowest
        self._highest = max(lowest, highest)
        self._chance = chance
        self._failures = 0

    def reset(self) -> None:
        """All is well again."""
        self._failures = 0

    def next(self) -> float:
        """Seconds to wait after one more failure: half of the step to all of it."""
        step = min(self._highest, self._lowest * 2.0 ** min(self._failures, 60))
        self._failures += 1
        return step * (0.5 + self._chance() / 2)


def wanted_shards(
    now: int, lowest: int, highest: int, seconds_per_sample: float, samples_per_second: float, queued: int
) -> int:
    """How many requests at once keep up with what comes in and catch up with what is queued in a minute.

    `seconds_per_sample` is what a shard takes for one; within a third of the present number it stays.
    """
    wanted = seconds_per_sample * (samples_per_second + queued / 60)
    if not 0.7 * now <= wanted <= 1.3 * now:
        # Rounded up, and with something to spare, or the next peak would change it back.
        now = int(wanted * 1.1) + 1
    return min(max(now, lowest), highest)

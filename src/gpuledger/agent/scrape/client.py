"""Asks one target for its page, over a connection that is kept open, within a time."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from gpuledger import __version__
from gpuledger.agent.deliver.credentials import FileAccess, tls_context
from gpuledger.agent.deliver.settings import ClientTls, Login, Secret
from gpuledger.agent.scrape.answer import Answer, ScrapeFailed
from gpuledger.agent.scrape.connection import Connection, ConnectionClosed
from gpuledger.http.hosts import host_field, next_address_after
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock


class TargetAccess(FileAccess):
    """Shared by all targets with the same login and certificates. `elsewhere` is for https where a redirect
    leads away from the target: it believes the same, and shows no certificate.
    """

    def __init__(self, tls: ClientTls, login: Login | None, clock: Clock, *, encrypted: bool) -> None:
        super().__init__(tls, login, clock)
        self._tls = tls
        self._login = login
        self._encrypted = encrypted
        self.elsewhere: ssl.SSLContext | None = None

    def _read(self) -> None:
        self._show((), self._login)
        if self._encrypted:
            self.context = self.elsewhere = tls_context(self._tls)
            if not self._tls.certificate.absent:
                self.elsewhere = tls_context(replace(self._tls, certificate=Secret(), key=Secret()))


_ACCEPT: Final = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_MOST_REDIRECTS: Final = 10
# Already written as they are to be sent, a percent sign included.
_SAFE: Final = "/?:@!$&'()*+,;=-._~%"
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked, and within what. `url` is absolute; `timeout` is seconds for all of it.

    `server_name` is who the certificate must be for, the URL's host where it is empty. With
    `cleartext_credentials` a login may go over plain http.
    """

    url: str
    timeout: float
    body_limit: int = 0
    follow_redirects: bool = True
    server_name: str = ""
    cleartext_credentials: bool = False


class Client:
    """One target's. `access` is its login and certificates: sent to the URL's own origin and no other."""

    def __init__(self, request: Request, access: TargetAccess | None) -> None:
        self._request = request
        self._access = access
        self._split = urlsplit(request.url)
        self._connection: Connection | None = None
        self._generation = 0
        self._login: tuple[tuple[str, str], ...] = ()
        self._bytes = b""

    async def fetch(self) -> Answer:
        """The target's answer with status 200. Raises ScrapeFailed, after `timeout` too."""
        try:
            async with asyncio.timeout(self._request.timeout):
                answer = await self._ask()
        except TimeoutError:
            self.close()
            raise ScrapeFailed(f"the target did not answer within {self._request.timeout:g} s") from None
        if answer.status != 200:
            raise ScrapeFailed(
                f"the target answers with HTTP status {answer.status} {_phrase(answer.status)}".strip()
            )
        return answer

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _ask(self) -> Answer:
        self._look()
        kept = self._connection
        if kept is not None and kept.usable:
            with suppress(ConnectionClosed):
                # Closed since the scrape before, as servers do with idle connections: once more, anew.
                return await self._followed(await kept.ask(self._bytes, self._request.body_limit))
        self._connection = await self._connect(self._split)
        return await self._followed(await self._connection.ask(self._bytes, self._request.body_limit))

    def _look(self) -> None:
        """Take a login or certificates that have changed; what they were does not go out again."""
        if self._access is not None:
            try:
                self._access.look()
            except GpuledgerError as error:
                self.close()
                raise ScrapeFailed(str(error)) from None
            if self._access.generation != self._generation:
                self._generation = self._access.generation
                self._login = self._access.headers
                self._bytes = b""
                self.close()
        if not self._bytes:
            self._bytes = self._written(self._split, self._login)

    async def _connect(self, where: SplitResult) -> Connection:
        context = None
        if where.scheme == "https":
            if self._access is not None:
                own = _origin(where) == _origin(self._split)
                context = self._access.context if own else self._access.elsewhere
            if context is None:
                raise ScrapeFailed("the target is https, and there is nothing to verify its certificate by")
        host = where.hostname or ""
        name = (self._request.server_name or host) if where.netloc == self._split.netloc else host
        loop = asyncio.get_running_loop()
        try:
            _, made = await loop.create_connection(
                lambda: Connection(context, name),
                host,
                where.port or _PORTS[where.scheme],
                happy_eyeballs_delay=next_address_after(host),
            )
        except (socket.gaierror, UnicodeError):
            # A name with an empty part, or too long a one, is not even asked for.
            raise ScrapeFailed(f"the host {host} is not known") from None
        except OSError as error:
            raise ScrapeFailed(f"cannot connect: {_reason(error)}") from None
        return made

    async def _followed(self, answer: Answer) -> Answer:
        """What the answer leads to, over connections of its own."""
        url = self._request.url
        for _ in range(_MOST_REDIRECTS):
            place = answer.headers.get("location")
            if not (self._request.follow_redirects and answer.status in _REDIRECTS and place):
                return answer
            url, where = _led_to(url, place)
            login = self._login if _origin(where) == _origin(self._split) else ()
            connection = await self._connect(where)
            try:
                answer = await connection.ask(self._written(where, login), self._request.body_limit)
            finally:
                connection.close()
        raise ScrapeFailed(f"the target redirects more than {_MOST_REDIRECTS} times")

    def _written(self, where: SplitResult, login: tuple[tuple[str, str], ...]) -> bytes:
        if login and where.scheme != "https" and not self._request.cleartext_credentials:
            raise ScrapeFailed(
                "a login is not sent over plain http; use scheme https, or set credentialsOverHttp: true"
            )
        path = quote(where.path or "/", _SAFE) + (f"?{quote(where.query, _SAFE)}" if where.query else "")
        head = (
            f"GET {path} HTTP/1.1\r\nHost: {_host_field(where)}\r\nUser-Agent: gpuledger/{__version__}\r\n"
            f"Accept: {_ACCEPT}\r\nAccept-Encoding: gzip\r\n"
            f"X-Prometheus-Scrape-Timeout-Seconds: {self._request.timeout:g}\r\n"
        )
        return (head + "".join(f"{name}: {value}\r\n" for name, value in login) + "\r\n").encode("latin-1")


def _led_to(url: str, place: str) -> tuple[str, SplitResult]:
    """Where a `Location` leads from a URL. Raises ScrapeFailed."""
    try:
        url = urljoin(url, place)
        where = urlsplit(url)
        usable = where.scheme in _PORTS and bool(where.hostname) and where.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ScrapeFailed("the target redirects to what is no http address")
    return url, where


def _host_field(where: SplitResult) -> str:
    try:
        return host_field(where.netloc)
    except UnicodeError:
        raise ScrapeFailed(f"the host {where.hostname} is not known") from None


def _phrase(status: int) -> str:
    """What the status means. The target's own words may quote the login that it was shown."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _origin(where: SplitResult) -> tuple[str, str, int]:
    return where.scheme, where.hostname or "", where.port or _PORTS[where.scheme]


def _reason(error: OSError) -> str:
    """In the machine's words; failures of several addresses are one text without a number."""
    return os.strerror(error.errno).lower() if error.errno else str(error)

"""Scrape client: fetches one target's page over a keep-alive connection, within the scrape timeout."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final
from urllib.parse import SplitResult, urljoin, urlsplit

from gpuledger import __version__
from gpuledger.agent.deliver.credentials import ReloadedCredentials
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from gpuledger.http.async_client import HttpClient
from gpuledger.http.client_messages import (
    DEFAULT_PORTS,
    HttpRequestFailed,
    HttpResponse,
    encode_request,
    request_target,
)
from gpuledger.http.hosts import host_field

_ACCEPT: Final = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_MOST_REDIRECTS: Final = 10
# The target's own reason phrase could echo our credentials.
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
_FIXED_HEADERS: Final = (
    ("User-Agent", f"gpuledger/{__version__}"),
    ("Accept", _ACCEPT),
    ("Accept-Encoding", "gzip"),
)


# The adaptive timeout is at most so many times the configured one, and ends so many seconds before the next
# scrape: the limits of document 002's agent.
_MOST_TIMEOUTS: Final = 5.0
_RESERVE: Final = 5.0


class ScrapeTimeout:
    """Timeout of the next scrape of a target, in `seconds`."""

    def __init__(self, settings: ScrapeSettings) -> None:
        self._adaptive = settings.adaptive_timeout
        self._usual = self.seconds = settings.timeout
        spare = settings.interval - _RESERVE
        highest = _MOST_TIMEOUTS * self._usual
        self._highest = max(self._usual, min(highest, spare) if spare > 0 else highest)
        self._timeouts = 0

    def add_timeout(self) -> None:
        """Count a scrape that timed out; other failures do not count."""
        self._timeouts += 1
        if self._adaptive and self._timeouts >= self._adaptive.failure_threshold:
            self.seconds = min(self.seconds * self._adaptive.multiplier, self._highest)
            self._timeouts = 0

    def add_success(self) -> None:
        """Return to the configured timeout."""
        self.seconds, self._timeouts = self._usual, 0


class ScrapeClient:
    """Client of one target. The credentials in `access` are sent only to the origin of the target's URL."""

    def __init__(self, target: Target, access: ReloadedCredentials | None) -> None:
        self._url = target.url
        self._settings = target.settings
        self.timeout = ScrapeTimeout(target.settings)
        self._access = access
        self._split = urlsplit(target.url)
        self._client: HttpClient | None = None
        self._generation = 0
        self._login: tuple[tuple[str, str], ...] = ()
        self._bytes = b""
        self._encoded_timeout = target.settings.timeout

    async def fetch(self) -> HttpResponse:
        """Scrape the target; return a response with status 200. Raises HttpRequestFailed, also on timeout."""
        seconds = self.timeout.seconds
        try:
            async with asyncio.timeout(seconds):
                client = self._current_client()
                if seconds != self._encoded_timeout:
                    self._encoded_timeout = seconds
                    self._bytes = self._encode_request(self._split, self._login)
                response = await self._follow_redirects(await client.exchange(self._bytes))
        except TimeoutError:
            self.timeout.add_timeout()
            raise HttpRequestFailed(
                f"the target did not respond within the scrape timeout of {seconds:g} s", "timeout"
            ) from None
        if response.status != 200:
            shown = f"{response.status} {_PHRASES.get(response.status, '')}".strip()
            raise HttpRequestFailed(f"the target returned HTTP status {shown}")
        self.timeout.add_success()
        return response

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()

    def _current_client(self) -> HttpClient:
        """Return the client; after a change of the credentials a new one, with a new request."""
        if self._access is not None:
            self._access.reload()
            if self._access.generation != self._generation:
                self._generation = self._access.generation
                self._login = self._access.headers
                self.close()
                self._client = None
        if self._client is None:
            self._bytes = self._encode_request(self._split, self._login)
            self._client = self._new_client(self._split)
        return self._client

    def _new_client(self, parts: SplitResult) -> HttpClient:
        context = None
        if parts.scheme == "https":
            if self._access is not None:
                own = _origin(parts) == _origin(self._split)
                context = self._access.context if own else self._access.elsewhere
            if context is None:
                raise HttpRequestFailed(
                    "the target redirects to https; set scheme: https to scrape it with TLS"
                )
        name = self._settings.tls.server_name if parts.netloc == self._split.netloc else ""
        port = parts.port or DEFAULT_PORTS[parts.scheme]
        return HttpClient(
            parts.hostname or "", port, context, server_name=name, body_limit=self._settings.body_limit
        )

    async def _follow_redirects(self, response: HttpResponse) -> HttpResponse:
        """Follow redirects, each on a new connection, and return the final response."""
        url = self._url
        for _ in range(_MOST_REDIRECTS):
            location = response.headers.get("location")
            if not (self._settings.follow_redirects and response.status in _REDIRECTS and location):
                return response
            url, parts = _resolve_redirect(url, location)
            login = self._login if _origin(parts) == _origin(self._split) else ()
            client = self._new_client(parts)
            try:
                response = await client.exchange(self._encode_request(parts, login))
            finally:
                client.close()
        raise HttpRequestFailed(f"the target redirects more than {_MOST_REDIRECTS} times")

    def _encode_request(self, parts: SplitResult, login: tuple[tuple[str, str], ...]) -> bytes:
        if login and parts.scheme != "https" and not self._settings.credentials_over_http:
            raise HttpRequestFailed(
                "credentials are not sent over plain http; use scheme https, or set credentialsOverHttp: true"
            )
        headers = (
            ("Host", _host_field(parts)),
            *_FIXED_HEADERS,
            ("X-Prometheus-Scrape-Timeout-Seconds", f"{self.timeout.seconds:g}"),
            *login,
        )
        return encode_request("GET", request_target(parts), headers)


def _resolve_redirect(url: str, location: str) -> tuple[str, SplitResult]:
    """Resolve a `Location` header against a URL. Raises HttpRequestFailed."""
    try:
        url = urljoin(url, location)
        parts = urlsplit(url)
        usable = parts.scheme in DEFAULT_PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise HttpRequestFailed("the target redirects to an invalid http or https URL")
    return url, parts


def _host_field(parts: SplitResult) -> str:
    try:
        return host_field(parts.netloc)
    except UnicodeError:
        raise HttpRequestFailed(f"cannot resolve the host {parts.hostname}") from None


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    return parts.scheme, parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme]

"""Remote-write client of one receiver: requests, retry decisions, backoff and the number of shards."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

from gpuledger import __version__
from gpuledger.agent.deliver.credentials import ReloadedCredentials
from gpuledger.agent.deliver.protocol import (
    VERSION_1,
    VERSION_HEADERS,
    WriteAnswer,
    WriteProtocol,
    unwritten_samples,
)
from gpuledger.agent.deliver.requests import WriteRequest
from gpuledger.agent.deliver.settings import ReceiverSettings
from gpuledger.http.async_client import HttpClient
from gpuledger.http.client_messages import (
    DEFAULT_PORTS,
    HttpRequestFailed,
    HttpResponse,
    encode_request,
    request_target,
)
from gpuledger.http.hosts import host_field
from gpuledger.model.source import Clock
from gpuledger.model.text import clean_name

# Bytes of a response body that are kept for the error, and that are read to keep the connection open.
_SHOWN: Final = 512
_READ: Final = 64 << 10
# Characters of the error.
_LONGEST: Final = 200
_FIXED_HEADERS: Final = (
    ("User-Agent", f"gpuledger/{__version__}"),
    ("Content-Encoding", "snappy"),
)


_LOG = logging.getLogger(__name__)


class RemoteWriteClient:
    """Sends write requests to one receiver, in the version that `protocol` chooses."""

    def __init__(self, settings: ReceiverSettings, clock: Clock, protocol: WriteProtocol) -> None:
        self._settings = settings
        self._protocol = protocol
        self._parts = urlsplit(settings.url)
        encrypted = self._parts.scheme == "https"
        self._access = ReloadedCredentials(
            settings.tls, settings.login, clock, encrypted=encrypted, headers=settings.headers
        )
        self._target = request_target(self._parts)
        self._fixed = (("Host", host_field(self._parts.netloc)), *_FIXED_HEADERS)
        self._client: HttpClient | None = None
        self._generation = 0

    def summarize_body(self, body: bytes) -> str:
        """Return a response body as one short line, with our secrets redacted."""
        text = " ".join(body[:_SHOWN].decode("utf-8", "replace").split())
        return clean_name(self._access.redact(text), _LONGEST)

    def describe(self, response: HttpResponse) -> str:
        """Return an unsuccessful response as one short line."""
        text = f"the receiver returned HTTP status {response.status}"
        if 300 <= response.status < 400 and response.headers.get("location"):
            return f"{text}; redirects are not followed, set the URL to the redirect's target"
        body = self.summarize_body(response.body)
        return f"{text}: {body}" if body else text

    async def send(self, request: WriteRequest) -> WriteAnswer:
        """Send a request in the version that the receiver understands.

        Raises HttpRequestFailed, also if it understands only 1.0 and 2.0 is configured.
        """
        version = self._protocol.version
        body = request.encode(version)
        response = await self.post_write_request(body, version)
        if version == VERSION_1 or (understood := self._protocol.judge(response)):
            return WriteAnswer(response, len(body), unwritten_samples(response, request.samples, version))
        reason = self.describe(response)
        if understood is False and not self._protocol.fall_back():
            raise HttpRequestFailed(
                f"{reason}; it does not understand remote write 2.0, set protocol: auto", "protocol"
            )
        body = request.encode(VERSION_1)
        response = await self.post_write_request(body, VERSION_1)
        if understood is None and response.status < 300:
            self._protocol.fall_back()
        if self._protocol.version == VERSION_1:
            name = self._settings.name
            _LOG.info(
                "remote write to %s: using 1.0, because a request of 2.0 had no effect (%s)", name, reason
            )
        return WriteAnswer(response, len(body), unwritten_samples(response, request.samples, VERSION_1))

    async def post_write_request(self, body: bytes, version: str = VERSION_1) -> HttpResponse:
        """Send one write request of a version. Raises HttpRequestFailed, also on timeout."""
        try:
            async with asyncio.timeout(self._settings.remote_timeout):
                client = self._current_client()
                headers = (*self._fixed, *VERSION_HEADERS[version], *self._access.headers)
                return await client.exchange(encode_request("POST", self._target, headers, body))
        except TimeoutError:
            raise HttpRequestFailed(
                f"no response within the remote_timeout of {self._settings.remote_timeout:g} s", "timeout"
            ) from None

    def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._client is not None:
            self._client.close()

    def _current_client(self) -> HttpClient:
        """Return the HTTP client; after a change of the credentials a new one."""
        self._access.reload()
        if self._client is None or self._access.generation != self._generation:
            self.close()
            self._generation = self._access.generation
            self._client = HttpClient(
                self._parts.hostname or "",
                self._parts.port or DEFAULT_PORTS[self._parts.scheme],
                self._access.context,
                server_name=self._settings.tls.server_name,
                body_limit=_READ,
                truncate=True,
            )
        return self._client


# Upper bound for Retry-After, in seconds.
_MAX_RETRY_AFTER: Final = 3600.0


def must_retry(status: int, *, retry_429: bool) -> bool:
    """Return whether remote write 1.0 requires a retry: for 5xx and 429, but not for other 4xx.

    A redirect is retried, because its samples are valid: they wait until the URL is corrected.
    """
    rejected = 400 <= status < 500 and not (status == 429 and retry_429)
    return not (200 <= status < 300 or rejected)


def parse_retry_after(value: str, now: float) -> float:
    """Return the seconds to wait for a `Retry-After` (seconds or date); 0 if absent or invalid.

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
    return min(max(seconds, 0.0), _MAX_RETRY_AFTER)


def backoff_delay(failures: int, lowest: float, highest: float, chance: float) -> float:
    """Return the seconds to wait after one more than `failures` failures: 50 to 100 % of an exponential step.

    `chance` is from 0 to 1: jitter spreads the retries of many agents.
    """
    return min(highest, lowest * 2.0 ** min(failures, 60)) * (0.5 + chance / 2)


def desired_shards(
    now: int, lowest: int, highest: int, seconds_per_sample: float, samples_per_second: float, queued: int
) -> int:
    """Return the number of shards that keeps up with the input and drains the queue within a minute.

    `seconds_per_sample` is one shard's send time per sample. A change of less than 30 % is ignored.
    """
    desired = seconds_per_sample * (samples_per_second + queued / 60)
    if not 0.7 * now <= desired <= 1.3 * now:
        # Rounded up with 10 % headroom, so that the next peak does not resize again.
        now = int(desired * 1.1) + 1
    return min(max(now, lowest), highest)

"""Limits of the HTTP server: connections, requests, memory and time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpuledger.model.settings import NamedParser, duration, integer, setting, size

# Connections beyond the limit that may query health; other requests get 503.
RESERVE_CONNECTIONS: Final = 64


def _at_least(lowest: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        found = size(value)
        if found < lowest:
            raise ValueError(f"expected a size of at least {lowest} bytes, such as 64KiB")
        return found

    return NamedParser(parse, "SIZE")


_timeout: Final = duration(lowest=0.01, highest=86_400.0)


@dataclass(frozen=True)
class HttpLimits:
    """Limits in bytes, seconds and counts, of all clients together.

    `connections` 512: ten times the scrapers of a large site, and half the usual 1,024 file descriptors.
    `streams` 256: streams have no end, so some connections are kept for other requests; with fewer
    connections, streams are limited to half of them.
    `held_bytes` 64 MiB: a body that a client has partly read remains in memory after the next tick. Some
    fifty bodies of a large node fit; clients that read their response immediately do not count.
    `header_bytes` 16 KiB and `headers` 100: Prometheus sends ten, about 300 bytes; bearer tokens and proxies
    add a few thousand.
    `body_bytes` 64 KiB: request bodies are not used; one is read only to keep the connection usable.
    `request_seconds` 10: from the first byte (or the connect) to the end of the request. A scraper sends a
    request in one packet; this limits clients that send slowly.
    `idle_seconds` 150: scrapers reuse a connection for the next scrape. Intervals above two minutes make gaps
    in Prometheus (its lookback is five minutes), so two minutes and some jitter keep all connections;
    Prometheus itself closes idle ones after five minutes. An idle connection costs a few KiB.
    `response_seconds` 30: to read the whole response. The usual scrape timeout is 10 s, so no scraper still
    waits then. For a stream, the time in which a client may read nothing.
    `answer_seconds` 120: to compute a response that is not in memory; a report over years takes some ten.
    `linger_seconds` 2: after an early response the rest of the request is read and dropped, because closing
    with unread bytes resets the connection and the client may lose the response.
    """

    connections: int = setting(
        "web.limits.connections",
        integer(1, 1_000_000),
        512,
        "maximum open connections; beyond it only health is served, other requests get 503",
    )
    streams: int = setting(
        "web.limits.streams",
        integer(0, 1_000_000),
        256,
        "maximum open event streams, at most half of the connections; beyond it 503",
    )
    held_bytes: int = setting(
        "web.limits.response_memory",
        _at_least(1 << 20),
        64 << 20,
        "maximum memory of partly read responses; beyond it the slowest connection is closed",
    )
    header_bytes: int = setting(
        "web.limits.header_size",
        _at_least(1024),
        16 << 10,
        "maximum size of request line and headers; beyond it 431",
    )
    headers: int = setting(
        "web.limits.headers", integer(1, 100_000), 100, "maximum number of headers; beyond it 431"
    )
    body_bytes: int = setting(
        "web.limits.body_size",
        _at_least(0),
        64 << 10,
        "maximum size of a request body, which is ignored; beyond it 413",
    )
    request_seconds: float = setting(
        "web.limits.request_timeout",
        _timeout,
        10.0,
        "timeout to receive a request or a TLS handshake; then 408",
    )
    idle_seconds: float = setting(
        "web.limits.idle_timeout",
        _timeout,
        150.0,
        "timeout of an idle connection between two requests",
    )
    response_seconds: float = setting(
        "web.limits.response_timeout",
        _timeout,
        30.0,
        "timeout for the client to read a response; then the connection is closed",
    )
    answer_seconds: float = setting(
        "web.limits.answer_timeout",
        _timeout,
        120.0,
        "timeout to compute a response; then 503",
    )
    linger_seconds: float = 2.0

    @property
    def max_streams(self) -> int:
        """The effective maximum of streams: at most half of the connections."""
        return min(self.streams, self.connections // 2)

    @property
    def sweep_seconds(self) -> float:
        """Seconds between checks of deadlines: one, or less if a timeout is shorter."""
        timeouts = (self.request_seconds, self.idle_seconds, self.response_seconds, self.answer_seconds)
        return min(1.0, min(*timeouts, self.linger_seconds) / 2)

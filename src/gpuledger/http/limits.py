"""How much of the server all clients together, and one of them, may use, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpuledger.model.settings import duration, integer, number, setting, size

# Connections beyond the limit that may still ask for health, and are told to come back for all else.
RESERVE: Final = 64


def _at_least(lowest: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        found = size(value)
        if found < lowest:
            raise ValueError(f"a size of at least {lowest} bytes, such as 64KiB, is wanted")
        return found

    return parse


def _a_while(value: object) -> float:
    return duration(lowest=0.01, highest=86_400.0)(value)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds in bytes, seconds and counts. A client is an address, of IPv6 a network (`clients.client_of`).

    The defaults leave room for 50 scrapers and 20 open pages behind one address: a browser keeps up to six
    connections and a stream for each page.

    `connections` 512: ten times the scrapers of a large site, and half the usual 1,024 file descriptors.
    `client_connections` 256: two clients are needed to fill the server.
    `streams` 256 and `client_streams` 64: streams have no end, and some connections must stay for who asks
    and goes; of fewer connections they are half.
    `client_requests` 500 a second, twice as many at once: a page asks for some ten files when it is opened.
    `held_bytes` 64 MiB: pages that somebody has taken in part only are not let go of when the next tick makes
    new ones. Some fifty pages of a large node fit; who takes his answer at once never counts.
    `header_bytes` 16 KiB and `headers` 100: a Prometheus sends ten, about 300 bytes; bearer tokens and
    proxies add a few thousand.
    `body_bytes` 64 KiB: no page takes a body, so one is read only to keep the connection usable.
    `request_seconds` 10: from the first byte (or the connect) to the end of the request; a scraper sends
    all of it in one packet, so this is for clients that drip.
    `idle_seconds` 150: scrapers re-use a connection from one scrape to the next. Intervals above two
    minutes make gaps in Prometheus (it forgets a sample after five), so two minutes and some jitter keep
    everyone's connection; Prometheus itself lets go after five minutes. An idle connection costs a few KiB.
    `response_seconds` 30: to take the whole answer. The usual scrape timeout is 10 s, so nobody waits for
    more by then. Of a stream, which has no end, it is how long a client may take nothing.
    `answer_seconds` 120: to compute an answer that is not in memory; a report over years takes some ten.
    `linger_seconds` 2: after an early answer the rest of the request is read and dropped, since closing on
    unread bytes resets the connection and the client may never see the answer.
    """

    connections: int = setting(
        "web.limits.connections",
        integer(1, 1_000_000),
        512,
        "connections open at once; beyond them health alone is answered, all else with 503",
        metavar="N",
    )
    client_connections: int = setting(
        "web.limits.connections_per_client",
        integer(1, 1_000_000),
        256,
        "of these so many by one address (of IPv6: by one /64 network)",
        metavar="N",
    )
    streams: int = setting(
        "web.limits.streams",
        integer(0, 1_000_000),
        256,
        "streams of events open at once, at most half of the connections; beyond them 503",
        metavar="N",
    )
    client_streams: int = setting(
        "web.limits.streams_per_client",
        integer(0, 1_000_000),
        64,
        "of these so many by one address",
        metavar="N",
    )
    client_requests: float = setting(
        "web.limits.requests_per_client",
        number(1.0, 1e9),
        500.0,
        "requests a second by one address, twice as many at once; beyond them 429; health is not counted",
        metavar="N",
    )
    held_bytes: int = setting(
        "web.limits.response_memory",
        _at_least(1 << 20),
        64 << 20,
        "memory of answers that clients have taken in part; beyond it who holds most is cut off",
        metavar="SIZE",
    )
    header_bytes: int = setting(
        "web.limits.header_size",
        _at_least(1024),
        16 << 10,
        "request line and headers of a request; beyond it 431",
        metavar="SIZE",
    )
    headers: int = setting(
        "web.limits.headers", integer(1, 100_000), 100, "headers of a request; beyond them 431", metavar="N"
    )
    body_bytes: int = setting(
        "web.limits.body_size",
        _at_least(0),
        64 << 10,
        "body of a request, which no page looks at; beyond it 413",
        metavar="SIZE",
    )
    request_seconds: float = setting(
        "web.limits.request_timeout",
        _a_while,
        10.0,
        "a request, and a TLS handshake, must have come after so long; else 408",
        metavar="DURATION",
    )
    idle_seconds: float = setting(
        "web.limits.idle_timeout",
        _a_while,
        150.0,
        "a connection may rest between two requests",
        metavar="DURATION",
    )
    response_seconds: float = setting(
        "web.limits.response_timeout",
        _a_while,
        30.0,
        "an answer must be taken after so long, or the connection ends",
        metavar="DURATION",
    )
    answer_seconds: float = setting(
        "web.limits.answer_timeout",
        _a_while,
        120.0,
        "an answer must have been computed after so long; else 503",
        metavar="DURATION",
    )
    linger_seconds: float = 2.0

    @property
    def most_streams(self) -> int:
        """How many streams there may really be: never more than half of the connections."""
        return min(self.streams, self.connections // 2)

    @property
    def sweep_seconds(self) -> float:
        """How often deadlines are looked at: once a second, oftener when one of them is shorter than that."""
        mine = (self.request_seconds, self.idle_seconds, self.response_seconds, self.answer_seconds)
        return min(1.0, min(*mine, self.linger_seconds) / 2)

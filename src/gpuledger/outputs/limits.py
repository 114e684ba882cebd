"""How much of the server one client may use, and for how long."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a connection, in bytes and seconds; `connections` counts those open at once.

    `header_bytes` 16 KiB: a Prometheus sends about 300 bytes; bearer tokens and proxies add a few thousand.
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
    `connections` 512: ten times the scrapers of a large site, and half the usual 1,024 file descriptors.
    """

    header_bytes: int = 16 * 1024
    body_bytes: int = 64 * 1024
    request_seconds: float = 10.0
    idle_seconds: float = 150.0
    response_seconds: float = 30.0
    answer_seconds: float = 120.0
    linger_seconds: float = 2.0
    connections: int = 512

    @property
    def sweep_seconds(self) -> float:
        """How often deadlines are looked at: once a second, oftener when one of them is shorter than that."""
        mine = (self.request_seconds, self.idle_seconds, self.response_seconds, self.answer_seconds)
        return min(1.0, min(*mine, self.linger_seconds) / 2)

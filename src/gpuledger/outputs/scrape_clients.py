"""ScrapeClients: the intervals at which clients request the metrics pages."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from math import isfinite

from gpuledger.http.routes import Request
from gpuledger.model.source import Clock

# A client counts from its fifth regular scrape on: a person who reloads a page is not regular.
_REGULAR_SCRAPES = 5
# Gaps between scrapes are regular if they differ by at most this share of the longest, or this many seconds.
_JITTER_SHARE, _JITTER_SECONDS = 0.1, 1.0
# Prometheus scrapes with this timeout unless configured otherwise; its header has the real one.
_USUAL_TIMEOUT = 10.0
_TIMEOUT_HEADER = "x-prometheus-scrape-timeout-seconds"
# Seconds. Who comes less often does not compute rates of these counters.
_LONGEST_INTERVAL = 3600.0
# A client that missed this many scrapes has left.
_MISSED = 5
_MOST_CLIENTS = 256


@dataclass(slots=True)
class _Client:
    """One client: `interval` and `timeout` are seconds; `interval` is 0 until its scrapes are regular."""

    last: float
    interval: float = 0.0
    timeout: float = _USUAL_TIMEOUT
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=_REGULAR_SCRAPES - 1))

    def add(self, now: float, timeout: float) -> None:
        self.gaps.append(now - self.last)
        self.last, self.timeout = now, timeout
        longest = max(self.gaps)
        is_regular = longest - min(self.gaps) <= max(_JITTER_SECONDS, _JITTER_SHARE * longest)
        if len(self.gaps) == self.gaps.maxlen and is_regular and longest <= _LONGEST_INTERVAL:
            self.interval = longest

    def hold(self, now: float) -> float:
        """Interval plus timeout; 0 if the client is not regular or has left."""
        is_here = now - self.last <= _MISSED * self.interval
        return self.interval + min(self.timeout, self.interval) if is_here else 0.0


class ScrapeClients:
    """Recent clients of the metrics pages. The event loop adds scrapes; another thread reads.

    Two clients with the same address (behind a gateway) are distinguished by their connections, and a client
    that opens a connection for each scrape is known by its address: each scrape counts under both.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._clients: dict[Hashable, _Client] = {}

    def add(self, request: Request) -> None:
        """Record one scrape."""
        if request.method != "GET":
            return
        now, timeout = self._clock.elapsed(), _timeout_of(request)
        same = (request.path, request.headers.get("user-agent", ""))
        address = request.client.rpartition(" ")[0]
        for key in {(request.client, same), (address, same)}:
            client = self._clients.get(key)
            if client is not None:
                client.add(now, timeout)
                continue
            self._clients[key] = _Client(now)
            if len(self._clients) > _MOST_CLIENTS:
                del self._clients[min(self._clients, key=lambda one: self._clients[one].last)]

    def longest_hold(self) -> float:
        """The longest known scrape interval plus its timeout, in seconds; 0 if none is known."""
        now = self._clock.elapsed()
        return max((client.hold(now) for client in tuple(self._clients.values())), default=0.0)


def _timeout_of(request: Request) -> float:
    try:
        seconds = float(request.headers.get(_TIMEOUT_HEADER, ""))
    except ValueError:
        return _USUAL_TIMEOUT
    return seconds if isfinite(seconds) and seconds > 0 else _USUAL_TIMEOUT

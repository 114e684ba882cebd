"""Who is let in: rate limit, then basic auth; and the headers of answers. Health is for everyone."""

from __future__ import annotations

import asyncio
import binascii
from dataclasses import replace
from math import ceil
from typing import Final

from gpuledger.http.routes import PROBES, Request, Response, plain
from gpuledger.http.web_config.current import CurrentWebConfig
from gpuledger.http.web_config.model import RateLimit
from gpuledger.http.web_config.passwords import Busy, Passwords
from gpuledger.model.source import Clock

# The server sends it with every answer anyway.
_ALWAYS_SENT: Final = "X-Content-Type-Options"

_CHALLENGE: Final = (("WWW-Authenticate", 'Basic realm="gpuledger", charset="UTF-8"'),)
_UNAUTHORIZED: Final = plain("a user name and a password are wanted", 401, _CHALLENGE)
_BUSY: Final = plain("too many passwords are being checked; try again", 503, (("Retry-After", "1"),))


class WebGate:
    """Decides on each request under the web config in force."""

    def __init__(self, current: CurrentWebConfig, clock: Clock, passwords: Passwords | None = None) -> None:
        self._current = current
        self._passwords = passwords or Passwords()
        self._bucket = _Bucket(clock)

    def decide(self, request: Request) -> Response | asyncio.Future[bool] | None:
        """None lets the request in, a Response refuses it; a future says later whether it is let in."""
        self._current.look()
        config = self._current.config
        if request.path in PROBES:
            return None
        limit = config.rate_limit
        if limit is not None and not self._bucket.take(limit):
            return plain("too many requests", 429, (("Retry-After", str(ceil(limit.interval))),))
        if not config.users:
            return None
        given = credentials(request.headers.get("authorization", ""))
        if given is None:
            return self.refused
        try:
            answer = self._passwords.ask(config.users, *given)
        except Busy:
            return _BUSY
        if isinstance(answer, bool):
            return None if answer else self.refused
        return answer

    @property
    def era(self) -> int:
        """See `Gate.era`."""
        self._current.look()
        return self._current.era

    @property
    def refused(self) -> Response:
        """The answer to whom a password check does not let in."""
        return _UNAUTHORIZED

    def dress(self, response: Response) -> Response:
        """The response with the headers of `http_server_config`, which replace a page's own."""
        more = [header for header in self._current.config.headers if header[0] != _ALWAYS_SENT]
        if not more:
            return response
        replaced = {name.lower() for name, _ in more}
        kept = (header for header in response.headers if header[0].lower() not in replaced)
        return replace(response, headers=(*kept, *more))


def credentials(header: str) -> tuple[str, bytes] | None:
    """User and password of an Authorization header (RFC 7617); None for another scheme or a broken one."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        decoded = binascii.a2b_base64(encoded.strip(), strict_mode=True)
    except (binascii.Error, ValueError):
        return None
    name, colon, password = decoded.partition(b":")
    return (name.decode("utf-8", "surrogateescape"), password) if colon else None


class _Bucket:
    """Tokens of a rate limit: one comes per interval, each request takes one, `burst` can lie there."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limit: RateLimit | None = None
        self._tokens = 0.0
        self._at = 0.0

    def take(self, limit: RateLimit) -> bool:
        """Whether there was one left. A changed limit begins anew with all tokens."""
        now = self._clock.elapsed()
        if limit != self._limit:
            self._limit, self._tokens = limit, float(limit.burst)
        else:
            self._tokens = min(float(limit.burst), self._tokens + (now - self._at) / limit.interval)
        self._at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

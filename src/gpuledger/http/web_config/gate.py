"""Rate limit, basic auth and additional response headers of a web config. Health queries are exempt."""

from __future__ import annotations

import asyncio
import binascii
from dataclasses import replace
from math import ceil
from typing import Final

from gpuledger.http.routes import PROBES, Request, Response, text_response
from gpuledger.http.web_config.current_config import CurrentWebConfig
from gpuledger.http.web_config.model import RateLimit
from gpuledger.http.web_config.passwords import CheckerBusy, PasswordChecker
from gpuledger.model.source import Clock

# The server sends this header with every response anyway.
_ALWAYS_SENT: Final = "X-Content-Type-Options"

_CHALLENGE: Final = (("WWW-Authenticate", 'Basic realm="gpuledger", charset="UTF-8"'),)
_UNAUTHORIZED: Final = text_response("user name and password required", 401, _CHALLENGE)
_BUSY: Final = text_response("too many passwords are being checked; try again", 503, (("Retry-After", "1"),))


class WebGate:
    """Decides on each request under the web config in force."""

    def __init__(
        self, current: CurrentWebConfig, clock: Clock, passwords: PasswordChecker | None = None
    ) -> None:
        self._current = current
        self._passwords = passwords or PasswordChecker()
        self._bucket = _Bucket(clock)

    def decide(self, request: Request) -> Response | asyncio.Future[bool] | None:
        """None accepts the request, a Response rejects it; a future decides later whether to accept it."""
        self._current.refresh()
        config = self._current.config
        if request.path in PROBES:
            return None
        limit = config.rate_limit
        if limit is not None and not self._bucket.take_token(limit):
            return text_response("too many requests", 429, (("Retry-After", str(ceil(limit.interval))),))
        if not config.users:
            return None
        given = parse_basic_auth(request.headers.get("authorization", ""))
        if given is None:
            return self.rejection
        try:
            answer = self._passwords.check_password(config.users, *given)
        except CheckerBusy:
            return _BUSY
        if isinstance(answer, bool):
            return None if answer else self.rejection
        return answer

    def identify(self, request: Request, certificate_name: str) -> Request:
        """See `RequestGate.identify`. Without users in the file, a password proves nothing."""
        identity = certificate_name
        if self._current.config.users:
            given = parse_basic_auth(request.headers.get("authorization", ""))
            # Health queries are accepted without a password.
            identity = "" if given is None or request.path in PROBES else given[0]
        return replace(request, identity=identity) if identity else request

    @property
    def generation(self) -> int:
        """See `RequestGate.generation`."""
        self._current.refresh()
        return self._current.generation

    @property
    def rejection(self) -> Response:
        """The response to a wrong password."""
        return _UNAUTHORIZED

    def add_headers(self, response: Response) -> Response:
        """The response with the headers of `http_server_config`, which replace headers of the handler."""
        more = [header for header in self._current.config.headers if header[0] != _ALWAYS_SENT]
        if not more:
            return response
        replaced = {name.lower() for name, _ in more}
        kept = (header for header in response.headers if header[0].lower() not in replaced)
        return replace(response, headers=(*kept, *more))


def parse_basic_auth(header: str) -> tuple[str, bytes] | None:
    """User and password of an Authorization header (RFC 7617); None for another scheme or a malformed one."""
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
    """A token bucket: gains one token per interval, holds `burst` tokens; each request takes one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limit: RateLimit | None = None
        self._tokens = 0.0
        self._at = 0.0

    def take_token(self, limit: RateLimit) -> bool:
        """Take a token; returns whether there was one. A changed limit starts with a full bucket."""
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

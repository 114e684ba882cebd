"""Requests, responses, and the routing of paths to handlers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from gpuledger.http.hosts import AllowedHosts
from gpuledger.model.access import EVERYTHING, Reader

_LOG = logging.getLogger(__name__)

PLAIN = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Request:
    """One request, without its body, which is not used.

    `path` is decoded and without the query, `query` is as sent (empty without one), header names are lower
    case and repeated headers joined by a comma. `client` is its address and port, separated by a space;
    empty if unknown. `identity` is the name that a password or a client certificate proved, empty without
    one. `reader` says which rows the response may have.
    """

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    client: str = ""
    identity: str = ""
    reader: Reader = EVERYTHING

    def has_etag(self, tag: str) -> bool:
        """Whether If-None-Match contains this ETag, compared weakly (RFC 9110, 13.1.2)."""
        bare = tag.removeprefix("W/")
        known = (tag.strip().removeprefix("W/") for tag in self.headers.get("if-none-match", "").split(","))
        return any(candidate in (bare, "*") for candidate in known)


class ResponseStream(Protocol):
    """A response body without a known end, for one client. Used by the event loop's thread only."""

    def begin(self, wake: Callable[[], None]) -> None:
        """Start; call `wake` whenever `take` has more data, but not from within this method."""

    def take(self) -> bytes | None:
        """The next chunk: empty when there is none yet, None at the end.

        Called only after the client has read the previous chunk, which may be long after `wake`.
        """

    def end(self) -> None:
        """The client has closed, or the stream has ended. Called exactly once."""


@dataclass(frozen=True, slots=True)
class Response:
    """Status, headers and body. The server adds the headers for length and connection.

    With `stream` there is no body: its result produces the chunks for this one client.
    """

    status: int = 200
    body: bytes = b""
    content_type: str = PLAIN
    headers: tuple[tuple[str, str], ...] = ()
    stream: Callable[[], ResponseStream] | None = None


# A response that is being computed. It is set in the event loop's thread, maybe after the client has closed.
PendingResponse = asyncio.Future[Response]

# Runs in the event loop and must not block: returns a response from memory or a future.
Handler = Callable[[Request], Response | PendingResponse]


def text_response(text: str, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """A plain text response for people."""
    return Response(status, f"{text}\n".encode(), PLAIN, headers)


def completed_response(request: Request, answer: PendingResponse) -> Response:
    """The result of a computed response; 500 when computing failed."""
    error = asyncio.CancelledError() if answer.cancelled() else answer.exception()
    return answer.result() if error is None else internal_error_response(request, error)


def internal_error_response(request: Request, error: BaseException) -> Response:
    """Log the error and return a 500 response."""
    _LOG.error("request for %s failed", request.path, exc_info=error)
    return text_response("internal error; the log of gpuledger has the reason", 500)


class Routes:
    """Maps exact paths, and prefixes that end in a slash, to handlers of GET. HEAD is GET without the body.

    `hosts` filters the allowed host names; None allows all.
    """

    def __init__(
        self,
        exact: Mapping[str, Handler],
        prefixes: Mapping[str, Handler] | None = None,
        hosts: AllowedHosts | None = None,
    ) -> None:
        self._table = (dict(exact), dict(prefixes or {}), hosts)

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths; a prefix ends in `...`."""
        exact, prefixes, _ = self._table
        return tuple(sorted([*exact, *(f"{prefix}..." for prefix in prefixes)]))

    def replace_with(self, other: Routes) -> None:
        """Use the routes of `other` from now on, for open connections too. Callable from any thread."""
        self._table = other._table

    def respond(self, request: Request) -> Response | PendingResponse:
        """The handler's response, or 404, 405, 421; 500 when the handler raises."""
        hosts = self._table[2]
        if hosts is not None and not hosts.allow(request.headers.get("host", "")):
            return text_response("this host name is not served; see --web.hosts", 421)
        handler = self._find(request.path)
        if handler is None:
            return text_response("\n".join(("not found; available paths:", *self.paths)), 404)
        if request.method not in ("GET", "HEAD"):
            return text_response(f"method {request.method} is not allowed", 405, (("Allow", "GET, HEAD"),))
        try:
            return handler(request)
        except Exception as error:  # noqa: BLE001  (an error in one handler must not stop the server)
            return internal_error_response(request, error)

    def _find(self, path: str) -> Handler | None:
        exact, prefixes, _ = self._table
        if path in exact:
            return exact[path]
        matches = [prefix for prefix in prefixes if path.startswith(prefix)]
        return prefixes[max(matches, key=len)] if matches else None


HEALTHY = "/-/healthy"
READY = "/-/ready"
HEALTH = "/health"

# Paths of liveness and readiness probes: exempt from authentication and limits.
PROBES: Final = frozenset({HEALTHY, READY, HEALTH})

"""What a request is answered with: paths to handlers, and the answers that no handler gives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

_LOG = logging.getLogger(__name__)

PLAIN = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Request:
    """One request without its body, which is never of interest here.

    `path` is decoded and without the query, `query` is as sent (empty without one), header names are lower
    case and repeated headers joined by a comma. `client` is whom limits count it for, empty for nobody.
    """

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    client: bytes = b""

    def has(self, tag: str) -> bool:
        """Whether the client says by If-None-Match that it has what bears this ETag: compared weakly, as
        RFC 9110 (13.1.2) wants it.
        """
        bare = tag.removeprefix("W/")
        known = (one.strip().removeprefix("W/") for one in self.headers.get("if-none-match", "").split(","))
        return any(one in (bare, "*") for one in known)


class Hosts(Protocol):
    """Under which names something is served."""

    def allow(self, authority: str) -> bool:
        """Whether under this one: a host with or without a port, as the Host header has it."""


class Stream(Protocol):
    """What is told to one client until one of them has enough. Used by the event loop's thread alone."""

    def begin(self, wake: Callable[[], None]) -> None:
        """The client listens; `wake` is to be called when there is more to take, but not from in here."""

    def take(self) -> bytes | None:
        """What there is now: empty for nothing yet, None when it has come to its end.

        Asked only when the client has taken what came before, which may be long after `wake`.
        """

    def end(self) -> None:
        """Nobody listens any more. Called once, also after the end."""


@dataclass(frozen=True, slots=True)
class Response:
    """Status, body and what describes it. Length and connection headers are the server's business.

    With `stream` there is no body: what that makes is told as it comes, to this one client.
    """

    status: int = 200
    body: bytes = b""
    content_type: str = PLAIN
    headers: tuple[tuple[str, str], ...] = ()
    stream: Callable[[], Stream] | None = None


# What is being computed elsewhere. It is set in the event loop's thread; who asked may have gone by then.
Later = asyncio.Future[Response]

# Runs in the event loop: answers from memory or later, never waits.
Handler = Callable[[Request], Response | Later]


def plain(text: str, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """A few lines of text for a person."""
    return Response(status, f"{text}\n".encode(), PLAIN, headers)


def arrived(request: Request, answer: Later) -> Response:
    """What an answer that came later is; 500 when computing it failed."""
    error = asyncio.CancelledError() if answer.cancelled() else answer.exception()
    return answer.result() if error is None else failed(request, error)


def failed(request: Request, error: BaseException) -> Response:
    """The answer in place of one that could not be made; the log has the reason."""
    _LOG.error("the page %s failed", request.path, exc_info=error)
    return plain("internal error; the log of gpuledger has the reason", 500)


class Routes:
    """Exact paths, and prefixes that end in a slash, to handlers for GET. HEAD is GET without the body.

    `hosts` says which names they may be asked under; without it, any.
    """

    def __init__(
        self,
        exact: Mapping[str, Handler],
        prefixes: Mapping[str, Handler] | None = None,
        hosts: Hosts | None = None,
    ) -> None:
        self._table = (dict(exact), dict(prefixes or {}), hosts)

    @property
    def paths(self) -> tuple[str, ...]:
        """What can be asked for; a prefix ends in `...`."""
        exact, prefixes, _ = self._table
        return tuple(sorted([*exact, *(f"{prefix}..." for prefix in prefixes)]))

    def become(self, other: Routes) -> None:
        """Answer as `other` does from here on, open connections too. From any thread."""
        self._table = other._table

    def respond(self, request: Request) -> Response | Later:
        """The handler's answer, or 404, 405, 421; 500 when it raises: a page never takes the server down."""
        hosts = self._table[2]
        if hosts is not None and not hosts.allow(request.headers.get("host", "")):
            return plain("this is not served under that name; see --web.hosts", 421)
        handler = self._find(request.path)
        if handler is None:
            return plain("\n".join(("no such page; there are:", *self.paths)), 404)
        if request.method not in ("GET", "HEAD"):
            return plain(f"{request.method} is not possible here", 405, (("Allow", "GET, HEAD"),))
        try:
            return handler(request)
        except Exception as error:  # noqa: BLE001  (whatever a page stumbles over, the others must go on)
            return failed(request, error)

    def _find(self, path: str) -> Handler | None:
        exact, prefixes, _ = self._table
        if path in exact:
            return exact[path]
        matches = [prefix for prefix in prefixes if path.startswith(prefix)]
        return prefixes[max(matches, key=len)] if matches else None


HEALTHY = "/-/healthy"
READY = "/-/ready"
HEALTH = "/health"

# Asked by whoever decides whether the program lives: no password and no limit is in their way.
PROBES: Final = frozenset({HEALTHY, READY, HEALTH})

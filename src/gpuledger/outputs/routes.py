"""What a request is answered with: paths to handlers, and the answers that no handler gives."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_LOG = logging.getLogger(__name__)

PLAIN = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Request:
    """One request without its body, which is never of interest here.

    `path` is decoded and without the query, `query` is as sent (empty without one), header names are lower
    case and repeated headers joined by a comma.
    """

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """Status, body and what describes it. Length and connection headers are the server's business."""

    status: int = 200
    body: bytes = b""
    content_type: str = PLAIN
    headers: tuple[tuple[str, str], ...] = ()


# Runs in the event loop: answers from memory, never waits.
Handler = Callable[[Request], Response]


def plain(text: str, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """A few lines of text for a person."""
    return Response(status, f"{text}\n".encode(), PLAIN, headers)


class Routes:
    """Exact paths, and prefixes that end in a slash, to handlers for GET. HEAD is GET without the body."""

    def __init__(self, exact: Mapping[str, Handler], prefixes: Mapping[str, Handler] | None = None) -> None:
        self._table = (dict(exact), dict(prefixes or {}))

    @property
    def paths(self) -> tuple[str, ...]:
        """What can be asked for; a prefix ends in `...`."""
        exact, prefixes = self._table
        return tuple(sorted([*exact, *(f"{prefix}..." for prefix in prefixes)]))

    def become(self, other: Routes) -> None:
        """Answer as `other` does from here on, open connections too. From any thread."""
        self._table = other._table

    def respond(self, request: Request) -> Response:
        """The handler's answer, or 404, 405, or 500 when it raises: a page never takes the server down."""
        handler = self._find(request.path)
        if handler is None:
            return plain("\n".join(("no such page; there are:", *self.paths)), 404)
        if request.method not in ("GET", "HEAD"):
            return plain(f"{request.method} is not possible here", 405, (("Allow", "GET, HEAD"),))
        try:
            return handler(request)
        except Exception:  # noqa: BLE001  (whatever a page stumbles over, the others must go on)
            _LOG.exception("the page %s failed", request.path)
            return plain("internal error; the log of gpuledger has the reason", 500)

    def _find(self, path: str) -> Handler | None:
        exact, prefixes = self._table
        if path in exact:
            return exact[path]
        matches = [prefix for prefix in prefixes if path.startswith(prefix)]
        return prefixes[max(matches, key=len)] if matches else None

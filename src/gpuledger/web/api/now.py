"""What changes with the tick, made once however many ask: the snapshot and the last hour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuledger.model.page import Page
from gpuledger.outputs.compression import gzipped, wants_gzip
from gpuledger.outputs.routes import Request, Response
from gpuledger.web.api.answers import JSON, packed
from gpuledger.web.api.recent import Recent
from gpuledger.web.api.snapshot import snapshot_of
from gpuledger.web.api.values import Words, encoded


@dataclass(slots=True)
class _Bytes:
    """A body and its gzip, made when first asked for."""

    tag: str
    plain: bytes
    gzip: bytes | None = None


class Tagged:
    """Answers that say which state they are of, so that who has it already gets none. `run` tells this run of
    the program from others, whose states have the same numbers. Used in the event loop alone.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._made: _Bytes | None = None

    def respond(self, number: int, make: Callable[[], Words], request: Request) -> Response:
        """The state of this number, which `make` tells."""
        # Weak: plain and gzip are the same state, not the same bytes.
        tag = f'W/"{self._run}-{number}"'
        headers = (("Cache-Control", "private, no-cache"), ("ETag", tag))
        if request.has(tag):
            return Response(304, b"", JSON, (*headers, ("Vary", "Accept-Encoding")))
        made = self._made
        if made is None or made.tag != tag:
            made = self._made = _Bytes(tag, encoded(make()))
        if not wants_gzip(request):
            return packed(made.plain, gzip=False, headers=headers)
        if made.gzip is None:
            made.gzip = gzipped(made.plain)
        coded = (*headers, ("Vary", "Accept-Encoding"), ("Content-Encoding", "gzip"))
        return Response(200, made.gzip, JSON, coded)


class Now:
    """The two answers. `current` gives the newest Page and its number."""

    def __init__(self, current: Callable[[], tuple[int, Page]], recent: Recent, node: str, run: str) -> None:
        self._current = current
        self._recent = recent
        self._node = node
        self._snapshot = Tagged(run)
        self._hour = Tagged(run)

    def snapshot(self, request: Request) -> Response:
        """`/api/v1/snapshot`."""
        number, page = self._current()
        return self._snapshot.respond(number, lambda: snapshot_of(page, self._node), request)

    def recent(self, request: Request) -> Response:
        """`/api/v1/recent`."""
        return self._hour.respond(self._recent.now, self._recent.told, request)

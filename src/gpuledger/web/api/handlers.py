"""Each endpoint's answer. What is in memory is told at once, the rest later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuledger.http.routes import Later, Request, Response
from gpuledger.model.node_state import NodeState
from gpuledger.outputs.responses import gzipped, wants_gzip
from gpuledger.web.api.answers import INTERNAL, JSON, Refused, answer, packed
from gpuledger.web.api.api import Api, Terms
from gpuledger.web.api.endpoints import ENDPOINTS, Endpoint
from gpuledger.web.api.energy import HELD, EnergyReports
from gpuledger.web.api.health import HealthAnswers
from gpuledger.web.api.parameters import read_query
from gpuledger.web.api.recent import Recent
from gpuledger.web.api.sessions import sessions_of
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

    def __init__(
        self, current: Callable[[], tuple[int, NodeState]], recent: Recent, node: str, run: str
    ) -> None:
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


_LOG = logging.getLogger(__name__)

_Asked = Mapping[str, Any]
_Method = Callable[[Request, _Asked], Response | Later]

_KEPT_BY_NOBODY = (("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))


class Handlers:
    """The endpoints of an Api under some terms. Used in the event loop.

    `reports` that nobody asks for any more are let go of after `held` seconds, or twice as many.
    Streams of events are of this `era`, None for the present: they end with it.
    """

    def __init__(self, api: Api, terms: Terms, held: float = HELD, era: int | None = None) -> None:
        self._api = api
        self._limits = terms.limits
        self._era = api.events.era if era is None else era
        self._held = held
        self._forgetting: asyncio.TimerHandle | None = None
        now = Now(lambda: api.current, api.recent, terms.node, api.run)
        self.reports = EnergyReports(api.books, lambda: terms.prices, held=held)
        self._health = HealthAnswers(terms.diagnose, api.clock, api.workers["health"])
        self._description: bytes | None = None
        methods: dict[str, _Method] = {
            "snapshot": lambda request, _: now.snapshot(request),
            "recent": lambda request, _: now.recent(request),
            "sessions": self._tell_sessions,
            "energy": self._tell_energy,
            "health": lambda request, _: self._health.respond(lambda: api.current[1], request),
            "events": self._tell_events,
            "openapi.json": lambda request, _: self._describe(request),
        }
        self._table: dict[str, tuple[Endpoint, _Method]] = {
            endpoint.path: (endpoint, methods[endpoint.name]) for endpoint in ENDPOINTS
        }

    def respond(self, request: Request) -> Response | Later:
        """The answer to anything below `/api/`."""
        try:
            found = self._table.get(request.path)
            if found is None:
                raise Refused(404, "not_found", f"no such endpoint; there are: {', '.join(self._table)}")
            endpoint, method = found
            return method(request, read_query(request.query, endpoint.parameters))
        except Refused as refusal:
            return refusal.response
        except Exception:  # noqa: BLE001  (whatever it stumbles over, the others must go on)
            _LOG.exception("%s failed", request.path)
            return INTERNAL.response

    def _tell_sessions(self, request: Request, asked: _Asked) -> Response | Later:
        page, books = self._api.current[1], self._api.books
        worker = self._api.workers["sessions"]
        return worker.ask(_same(request), lambda: answer(sessions_of(page, books, asked), request))

    def _tell_energy(self, request: Request, asked: _Asked) -> Response | Later:
        page = self._api.current[1]
        worker = self._api.workers["energy"]
        self._forget_later()
        return worker.ask(_same(request), lambda: answer(self.reports.told(page, asked), request))

    def _forget_later(self) -> None:
        # Of those who have gone nobody asks again: what was held for them must not stay.
        if self._forgetting is None:
            self._forgetting = asyncio.get_running_loop().call_later(self._held, self._forget)

    def _forget(self) -> None:
        self._forgetting = None

        def forget() -> Response:
            self.reports.forget()
            return Response()

        forgotten = self._api.workers["energy"].ask(self, forget)
        if isinstance(forgotten, Response):
            self._forget_later()
        else:
            forgotten.add_done_callback(lambda _: self._forget_later() if self.reports.holds else None)

    def _tell_events(self, request: Request, asked: _Asked) -> Response:
        limit, events = asked["limit"], self._api.events
        if (
            len(events) >= self._limits.most_streams
            or events.of(request.client) >= self._limits.client_streams
        ):
            raise Refused(503, "busy", "too many listen to events already; ask again later", retry=10)
        return Response(
            content_type="text/event-stream",
            headers=_KEPT_BY_NOBODY,
            stream=lambda: events.listen(limit, self._era, request.client),
        )

    def _describe(self, request: Request) -> Response:
        if self._description is None:
            from gpuledger.web.api.openapi import description

            self._description = encoded(description())
        headers = (("Cache-Control", "no-cache"),)
        return packed(self._description, gzip=wants_gzip(request), headers=headers)


def _same(request: Request) -> tuple[str, bool]:
    """What makes two requests to one endpoint the same."""
    return request.query, wants_gzip(request)

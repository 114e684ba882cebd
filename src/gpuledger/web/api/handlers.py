"""Each endpoint's answer. What is in memory is told at once, the rest later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from gpuledger.outputs.routes import Later, Request, Response
from gpuledger.web.api.answers import INTERNAL, Refused, answer, packed, wants_gzip
from gpuledger.web.api.api import Api, Terms
from gpuledger.web.api.endpoints import ENDPOINTS, Endpoint
from gpuledger.web.api.energy import EnergyReports
from gpuledger.web.api.health import HealthAnswers
from gpuledger.web.api.now import Now
from gpuledger.web.api.parameters import read_query
from gpuledger.web.api.sessions import sessions_of
from gpuledger.web.api.values import encoded

_LOG = logging.getLogger(__name__)

_Asked = Mapping[str, Any]
_Method = Callable[[Request, _Asked], Response | Later]

_KEPT_BY_NOBODY = (("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))


class Handlers:
    """The endpoints of an Api under some terms. Used in the event loop."""

    def __init__(self, api: Api, terms: Terms) -> None:
        self._api = api
        now = Now(lambda: api.current, api.recent, terms.node, api.run)
        self._energy = EnergyReports(api.books, lambda: terms.prices)
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
        return worker.ask(_same(request), lambda: answer(self._energy.told(page, asked), request))

    def _tell_events(self, _: Request, asked: _Asked) -> Response:
        limit = asked["limit"]
        return Response(
            content_type="text/event-stream",
            headers=_KEPT_BY_NOBODY,
            stream=lambda: self._api.events.listen(limit),
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

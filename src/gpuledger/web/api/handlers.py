"""The handlers of the endpoints. Data in memory is returned immediately, other data as a PendingResponse."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from gpuledger.host.time_zone import find_time_zone
from gpuledger.http.routes import PendingResponse, Request, Response
from gpuledger.ledger.store.watched_range import NothingWatched
from gpuledger.model.access import Reader
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.outputs.responses import content_response, wants_gzip
from gpuledger.web.api.api import Api, ApiOptions, RunCommand
from gpuledger.web.api.endpoints import ENDPOINTS, Endpoint
from gpuledger.web.api.energy import HELD_SECONDS, EnergyReports
from gpuledger.web.api.events import EventStream
from gpuledger.web.api.gpu_health import list_xids
from gpuledger.web.api.health import HealthHandler
from gpuledger.web.api.json_values import VERSION, JsonObject, encode_json
from gpuledger.web.api.own_snapshot import own_state, snapshot_for
from gpuledger.web.api.parameters import read_query
from gpuledger.web.api.responses import INTERNAL_ERROR, JSON, ApiError, bad_request, json_response
from gpuledger.web.api.sessions import list_sessions
from gpuledger.web.api.snapshot import build_snapshot


class EtagResponder:
    """Responds with an ETag, and with 304 to clients that have the state. Caches the newest responses.

    `run` identifies this run of the program: other runs use the same state numbers. Used in the event loop.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._tag, self._body = "", b""
        # With and without gzip, each made with the first request for it.
        self._responses: dict[bool, Response] = {}

    def respond(self, number: int, make: Callable[[], JsonObject], request: Request) -> Response:
        """A response with the state of this number; `make` builds its JSON."""
        # A weak tag: the plain and the gzip body are the same state, not the same bytes.
        tag = f'W/"{self._run}-{number}"'
        headers = (("Cache-Control", "private, no-cache"),)
        if request.has_etag(tag):
            return content_response(request, b"", JSON, headers, tag)
        if self._tag != tag:
            self._tag, self._body, self._responses = tag, encode_json(make()), {}
        gzip = wants_gzip(request)
        if gzip not in self._responses:
            self._responses[gzip] = content_response(request, self._body, JSON, headers, tag)
        return self._responses[gzip]


_LOG = logging.getLogger(__name__)

_Parameters = Mapping[str, Any]
_Method = Callable[[Request, _Parameters], Response | PendingResponse]

_STREAM_HEADERS = (("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))


class ApiHandlers:
    """Handles all requests below `/api/`. Used in the event loop.

    Cached energy reports are dropped after one to two times `held` seconds. Event streams belong to this
    `generation` (None: the current one) and end with it.
    """

    def __init__(
        self, api: Api, options: ApiOptions, held: float = HELD_SECONDS, generation: int | None = None
    ) -> None:
        self._api, self._options = api, options
        self._node, self._timezone = options.node, options.timezone
        self._limits = options.limits
        self._generation = api.events.generation if generation is None else generation
        self._held = held
        self._drop_timer: asyncio.TimerHandle | None = None
        self._snapshot, self._recent = EtagResponder(api.run), EtagResponder(api.run)
        self.reports = EnergyReports(api.ledger_access, lambda: options, held=held)
        self._health = HealthHandler(options.diagnose, api.clock, api.workers["health"])
        self._description: bytes | None = None
        methods: dict[str, _Method] = {
            "snapshot": lambda request, _: self._respond_snapshot(request),
            "recent": lambda request, _: self._recent.respond(api.recent.now, api.recent.to_json, request),
            "sessions": self._respond_sessions,
            "energy": self._respond_energy,
            "receipt": self._respond_receipt,
            "xids": self._respond_xids,
            "health": lambda request, _: self._health.respond(lambda: api.current[1], request),
            "report": self._respond_command("report"),
            "explain": self._respond_command("explain"),
            "idle": self._respond_command("idle"),
            "events": self._respond_events,
            "books": lambda _, parameters: self._respond_books(parameters),
            "openapi.json": lambda request, _: self._describe(request),
        }
        self._table: dict[str, tuple[Endpoint, _Method]] = {
            endpoint.path: (endpoint, methods[endpoint.name]) for endpoint in ENDPOINTS
        }

    def respond(self, request: Request) -> Response | PendingResponse:
        """Respond to any request below `/api/`."""
        try:
            found = self._table.get(request.path)
            if found is None:
                raise ApiError(404, "not_found", f"no such endpoint; available: {', '.join(self._table)}")
            endpoint, method = found
            if not endpoint.own and not request.reader.reads_all:
                raise ApiError(403, "forbidden", "this is for administrators of the node: see access.admins")
            return method(request, read_query(request.query, endpoint.parameters))
        except ApiError as refusal:
            return refusal.response
        except Exception:  # noqa: BLE001  (a failing endpoint must not affect other requests)
            _LOG.exception("%s failed", request.path)
            return INTERNAL_ERROR.response

    def _respond_snapshot(self, request: Request) -> Response:
        number, state = self._api.current
        if not request.reader.reads_all:
            # Never cached: it is one reader's.
            return json_response(snapshot_for(state, self._node, request.reader), request)
        return self._snapshot.respond(number, lambda: build_snapshot(state, self._node), request)

    def _respond_sessions(self, request: Request, parameters: _Parameters) -> Response | PendingResponse:
        state, ledger_access = own_state(self._api.current[1], request.reader), self._api.ledger_access

        def build() -> JsonObject:
            zone = find_time_zone(self._timezone)
            return list_sessions(state, ledger_access, parameters, zone, request.reader)

        return self._compute("sessions", request, build)

    def _respond_xids(self, request: Request, parameters: _Parameters) -> Response:
        return json_response(list_xids(self._api.current[1], parameters["gpu"]), request)

    def _respond_energy(self, request: Request, parameters: _Parameters) -> Response | PendingResponse:
        state = self._api.current[1]
        self._schedule_drop()
        return self._compute(
            "energy", request, lambda: self.reports.report_page(state, parameters, request.reader)
        )

    def _respond_command(self, command: str) -> _Method:
        def respond(request: Request, parameters: _Parameters) -> Response | PendingResponse:
            run = self._options.run_command
            if run is None:
                raise ApiError(404, "not_served", f"{command} is not served here")
            given = {name: text for name, text in parameters.items() if text is not None}
            return self._compute("energy", request, lambda: _output(run, command, given, request.reader))

        return respond

    def _respond_receipt(self, request: Request, parameters: _Parameters) -> Response | PendingResponse:
        api, options, state = self._api, self._options, self._api.current[1]

        def build() -> JsonObject:
            # Imported lazily: few clients request receipts.
            from gpuledger.web.api.receipts import answer_receipt

            return dict(answer_receipt(state, api.ledger_access, options, parameters, request.reader))

        return self._compute("energy", request, build)

    def _compute(
        self, worker: str, request: Request, build: Callable[[], JsonObject]
    ) -> Response | PendingResponse:
        # Equal requests of a reader to one endpoint share a response.
        key = (request.reader, request.path, request.query, wants_gzip(request))
        return self._api.workers[worker].submit(key, lambda: json_response(build(), request))

    def _schedule_drop(self) -> None:
        # Clients that are gone send no further requests, so a timer drops their reports.
        if self._drop_timer is None:
            self._drop_timer = asyncio.get_running_loop().call_later(self._held, self._drop_expired)

    def _drop_expired(self) -> None:
        self._drop_timer = None

        def drop() -> Response:
            self.reports.drop_expired()
            return Response()

        dropped = self._api.workers["energy"].submit(self, drop)
        if isinstance(dropped, Response):
            self._schedule_drop()
        else:
            dropped.add_done_callback(lambda _: self._schedule_drop() if self.reports.has_reports else None)

    def _respond_events(self, request: Request, parameters: _Parameters) -> Response:
        ticks_only = not request.reader.reads_all
        limit, events = parameters["limit"], self._api.events
        if len(events) >= self._limits.max_streams:
            raise ApiError(503, "busy", "too many open event streams; retry later", retry=10)
        return Response(
            content_type="text/event-stream",
            headers=_STREAM_HEADERS,
            stream=lambda: EventStream(events, limit, self._generation, ticks_only=ticks_only),
        )

    def _respond_books(self, parameters: _Parameters) -> Response | PendingResponse:
        state, ledger_access = self._api.current[1], self._api.ledger_access

        def build() -> Response:
            # Imported lazily: few nodes export anything.
            from gpuledger.web.api.books import books_response

            zone = find_time_zone(self._timezone)
            return books_response(state, ledger_access, parameters, self._node, zone)

        # Each client has a separate archive.
        return self._api.workers["books"].submit(object(), build)

    def _describe(self, request: Request) -> Response:
        if self._description is None:
            from gpuledger.web.api.openapi import openapi_document

            self._description = encode_json(openapi_document())
        headers = (("Cache-Control", "no-cache"),)
        return content_response(request, self._description, JSON, headers)


def _output(run: RunCommand, command: str, parameters: Mapping[str, str], reader: Reader) -> JsonObject:
    """The output of a command. Raises ApiError."""
    try:
        return {"version": VERSION, **run(command, parameters, reader)}
    except UsageError as error:
        raise bad_request("", str(error)) from None
    except NothingWatched as error:
        raise ApiError(404, "not_watched", str(error), "since") from None
    except GpuledgerError as error:
        # The same for a name that is not in the ledger, and one that is not the reader's.
        raise ApiError(404, "unknown_owner", str(error)) from None

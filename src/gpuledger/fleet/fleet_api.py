"""The HTTP handlers of the fleet: `/api/v1/fleet`, ledgers of nodes passed through, and its page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from gpuledger import __version__
from gpuledger.fleet.fleet import NodeFleet
from gpuledger.fleet.idle_week import IdleWeek
from gpuledger.fleet.node_download import open_download
from gpuledger.http.hosts import AllowedHosts
from gpuledger.http.routes import Handler, PendingResponse, Request, Response, Routes
from gpuledger.ledger.report.statement.terms import StatementTerms, terms_as_json
from gpuledger.outputs.responses import content_response, probe_routes
from gpuledger.web.api.json_values import VERSION, encode_json
from gpuledger.web.api.parameters import Parameter, read_query
from gpuledger.web.api.responses import JSON, ApiError, json_response

FLEET_PATH: Final = "/api/v1/fleet"
BOOKS_PATH: Final = "/api/v1/fleet/books"
TERMS_PATH: Final = "/api/v1/fleet/terms"
# More than a revision has.
_DIGITS: Final = 18
_SINCE: Final = Parameter(
    "since",
    "Only nodes that changed after this `revision` of an earlier answer.",
    {"type": "string"},
    str,
    "",
)
_NODE: Final = Parameter("node", "URL or name of the node.", {"type": "string"}, str, "")
_RANGE: Final = tuple(
    Parameter(name, "As in the API of a node.", {"type": "string"}, str, default)
    for name, default in (("since", "today"), ("until", "now"))
)


class FleetApi:
    """Answers from memory; ledgers of nodes are passed through piece by piece."""

    def __init__(self, fleet: NodeFleet, week: IdleWeek, terms: Callable[[], StatementTerms]) -> None:
        self._fleet = fleet
        self._week = week
        self._terms = terms

    def respond_fleet(self, request: Request) -> Response:
        """All nodes, or those that changed since a revision."""
        fleet = self._fleet
        since = self._known_revision(read_query(request.query, (_SINCE,))["since"])
        # Finding GPUs that are listed twice can change nodes.
        nodes = list(fleet.encoded_nodes(since))
        tag = f'W/"{fleet.run}-{fleet.revision}"'
        headers = (("Cache-Control", "private, no-cache"),)
        if request.has_etag(tag):
            return content_response(request, b"", JSON, headers, tag)
        head = encode_json(self._head(since))
        body = head[:-1] + b',"nodes":[' + b",".join(encoded for _, encoded in nodes) + b"]}"
        return content_response(request, body, JSON, headers, tag)

    def respond_terms(self, request: Request) -> Response:
        """Prices, teams and time zone of the fleet, as a statement has them."""
        return json_response({"version": VERSION, **terms_as_json(self._terms())}, request)

    def respond_books(self, request: Request) -> PendingResponse:
        """The ledger rows of one node in a range, as that node exports them."""
        given = read_query(request.query, (_NODE, *_RANGE))
        node = self._fleet.find_node(given["node"])
        if node is None:
            raise ApiError(404, "not_found", "the fleet has no such node; see /api/v1/fleet", "node")
        query = urlencode({"since": given["since"], "until": given["until"]})
        return asyncio.ensure_future(open_download(node.client, f"/api/v1/books?{query}"))

    def _known_revision(self, text: str) -> int:
        """The number of a revision; 0, before all nodes, for one of another run."""
        run, _, number = text.rpartition("-")
        known = run == self._fleet.run and number.isdecimal() and len(number) < _DIGITS
        return int(number) if known and int(number) <= self._fleet.revision else 0

    def _head(self, since: int) -> dict[str, Any]:
        fleet = self._fleet
        return {
            "version": VERSION,
            "gpuledger": __version__,
            "now": fleet.clock.unix(),
            "revision": f"{fleet.run}-{fleet.revision}",
            "complete": not since,
            "interval_seconds": fleet.pace.interval,
            "lists": [
                {"name": one.name, "nodes": len(one.nodes), "error": one.error, "since": one.since}
                for one in fleet.membership.states
            ],
            "week": self._week.fields(fleet.listed_twice),
            "keys": fleet.keys,
        }


def fleet_routes(api: FleetApi, unready: Callable[[], str], hosts: AllowedHosts | None = None) -> Routes:
    """The routes of page, API and probes."""

    def index(request: Request) -> Response:
        # Imported lazily: programs that read the API need no files of the page.
        from gpuledger.fleet.page.page_files import fleet_index

        return fleet_index(request)

    def file(request: Request) -> Response:
        from gpuledger.fleet.page.page_files import fleet_file

        return fleet_file(request)

    exact: dict[str, Handler] = {
        "/": index,
        FLEET_PATH: _refusing(api.respond_fleet),
        TERMS_PATH: _refusing(api.respond_terms),
        BOOKS_PATH: _refusing(api.respond_books),
        **probe_routes(unready),
    }
    return Routes(exact, {"/page/": file, "/api/": _refusing(_no_endpoint)}, hosts)


_ENDPOINTS: Final[Sequence[str]] = (FLEET_PATH, TERMS_PATH, BOOKS_PATH)


def _no_endpoint(_: Request) -> Response:
    raise ApiError(404, "not_found", f"no such endpoint; available: {', '.join(_ENDPOINTS)}")


def _refusing(handler: Handler) -> Handler:
    """The handler with the API's error responses."""

    def serve(request: Request) -> Response | PendingResponse:
        try:
            return handler(request)
        except ApiError as refusal:
            return refusal.response

    return serve

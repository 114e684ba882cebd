"""What answers below `/api/`.

What is needed only to answer is loaded when somebody asks for the first time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gpuledger.http.routes import Handler, Later, Request, Response
from gpuledger.model.node_state import NodeState
from gpuledger.model.source import Clock
from gpuledger.web.api.api import Api, Terms
from gpuledger.web.settings import STILL, Links, View

if TYPE_CHECKING:
    from gpuledger.web.api.handlers import Handlers


def landing(current: Callable[[], NodeState], links: Links, clock: Clock, path: str = "/") -> Handler:
    """The handler of `path` for the Page that `current` gives."""

    def serve(request: Request) -> Response:
        # Where nobody looks, the table of HTML entities and OpenSSL are not in memory.
        from gpuledger.web.landing_html import render, styled

        view = View(clock.unix(), request.headers.get("host", ""), request.query != STILL, path)
        return styled(render(current(), links, view))

    return serve


def page_routes(
    current: Callable[[], NodeState], links: Links, clock: Clock
) -> tuple[dict[str, Handler], dict[str, Handler]]:
    """What is answered at exact paths, and below which prefixes: for the routes of a listener.

    Until somebody looks, nothing that serves the files is in memory.
    """

    def index(request: Request) -> Response:
        from gpuledger.web.page import files

        return files.index(request, links)

    def file(request: Request) -> Response:
        from gpuledger.web.page import files

        return files.file(request)

    return {"/": index, "/plain": landing(current, links, clock, "/plain")}, {"/page/": file}


PREFIX: Final = "/api/"


def served(api: Api, terms: Terms) -> Handler:
    """What answers with this API under these terms."""
    made: Handlers | None = None
    # Not when first asked: by then the API may have been taken away.
    era = api.events.era

    def serve(request: Request) -> Response | Later:
        nonlocal made
        if made is None:
            from gpuledger.web.api.handlers import Handlers

            made = Handlers(api, terms, era=era)
        return made.respond(request)

    return serve


def not_served(page: str) -> Handler:
    """What answers below `/api/` where `web.page` is this, and not full."""

    def serve(_: Request) -> Response:
        from gpuledger.web.api.answers import Refused

        message = f"web.page is {page}: the API is served with web.page: full alone, since it names users"
        return Refused(404, "not_served", message).response

    return serve

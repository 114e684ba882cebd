"""The HTTP handlers of the web page and the API. What they need is imported with the first request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gpuledger.http.routes import Handler, PendingResponse, Request, Response
from gpuledger.model.node_state import NodeState
from gpuledger.model.source import Clock
from gpuledger.web.api.api import Api, ApiOptions
from gpuledger.web.settings import NO_REFRESH_QUERY, Links

if TYPE_CHECKING:
    from gpuledger.web.api.handlers import ApiHandlers


def plain_page_handler(
    current: Callable[[], NodeState], links: Links, clock: Clock, path: str = "/"
) -> Handler:
    """A handler that serves the plain page at `path`; `current` returns the NodeState to show."""

    def serve(request: Request) -> Response:
        # Imported lazily: without requests, html's entity table and OpenSSL stay out of memory.
        from gpuledger.web.plain_page import html_response, render_plain_page

        host, refreshing = request.headers.get("host", ""), request.query != NO_REFRESH_QUERY
        page = render_plain_page(current(), links, clock.unix(), host=host, refreshing=refreshing, path=path)
        return html_response(page)

    return serve


def page_handlers(
    current: Callable[[], NodeState], links: Links, clock: Clock
) -> tuple[dict[str, Handler], dict[str, Handler]]:
    """The handlers of the web page: those of exact paths, and those of path prefixes."""

    def index(request: Request) -> Response:
        from gpuledger.web.page import static_files

        return static_files.index_response(request, links)

    def file(request: Request) -> Response:
        from gpuledger.web.page import static_files

        return static_files.file_response(request)

    return {"/": index, "/plain": plain_page_handler(current, links, clock, "/plain")}, {"/page/": file}


API_PREFIX: Final = "/api/"


def api_handler(api: Api, options: ApiOptions) -> Handler:
    """A handler that serves everything below `/api/`."""
    made: ApiHandlers | None = None
    # Read now, not with the first request: by then a reload may have turned the API off.
    generation = api.events.generation

    def serve(request: Request) -> Response | PendingResponse:
        nonlocal made
        if made is None:
            from gpuledger.web.api.handlers import ApiHandlers

            made = ApiHandlers(api, options, generation=generation)
        return made.respond(request)

    return serve


RECEIPT_PREFIX: Final = "/receipt/"


def receipt_handler(api: Api, options: ApiOptions) -> Handler:
    """A handler that serves the pages of receipts, below `/receipt/`."""

    def serve(request: Request) -> Response | PendingResponse:
        # Imported lazily: few nodes serve receipts.
        from gpuledger.web.api.receipts import respond_receipt_page

        return respond_receipt_page(api, options, request, RECEIPT_PREFIX)

    return serve


def disabled_api_handler(page: str) -> Handler:
    """A handler that refuses everything below `/api/`, because `web.page` is `page` and not full."""

    def serve(_: Request) -> Response:
        from gpuledger.web.api.responses import ApiError

        message = f"web.page is {page}: the API is served only with web.page: full, because it names users"
        return ApiError(404, "not_served", message).response

    return serve

"""Where the page is: `/`, its files below `/page/`, and for who has no scripts a table at `/plain`."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.model.page import Page
from gpuledger.model.source import Clock
from gpuledger.outputs.routes import Handler, Request, Response
from gpuledger.web.landing import landing
from gpuledger.web.view import Links


def page_routes(
    current: Callable[[], Page], links: Links, clock: Clock
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

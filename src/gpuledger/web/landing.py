"""The handler of the plain page. It is made from the current Page when asked, which is rarely."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.model.page import Page
from gpuledger.model.source import Clock
from gpuledger.outputs.routes import Handler, Request, Response
from gpuledger.web.view import STILL, Links, View


def landing(current: Callable[[], Page], links: Links, clock: Clock, path: str = "/") -> Handler:
    """The handler of `path` for the Page that `current` gives."""

    def serve(request: Request) -> Response:
        # Where nobody looks, the table of HTML entities and OpenSSL are not in memory.
        from gpuledger.web.document import render
        from gpuledger.web.style import styled

        view = View(clock.unix(), request.headers.get("host", ""), request.query != STILL, path)
        return styled(render(current(), links, view))

    return serve

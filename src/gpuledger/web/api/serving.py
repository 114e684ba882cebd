"""What answers below `/api/`.

What is needed only to answer is loaded when somebody asks for the first time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuledger.outputs.routes import Handler, Later, Request, Response
from gpuledger.web.api.api import Api, Terms

if TYPE_CHECKING:
    from gpuledger.web.api.handlers import Handlers

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

"""With `access.mode: own`, HTTP requests need a name that the settings list, by which rows are filtered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from gpuledger.app.readers import Readers
from gpuledger.http.routes import PROBES, Handler, PendingResponse, Request, Response, text_response
from gpuledger.web.api.responses import ApiError
from gpuledger.web.routes import API_PREFIX, RECEIPT_PREFIX

# Paths with files of the page, and with rows that are filtered by reader. All others, such as metrics pages,
# are for readers of everything.
_OWN_PATHS: Final = ("/", "/page/", API_PREFIX, RECEIPT_PREFIX)


def guard_routes(table: Mapping[str, Handler], readers: Readers) -> dict[str, Handler]:
    """The handlers of paths, each behind a check of the reader; those of health queries as they are."""
    return {
        path: handler if path in PROBES else _guarded(path, handler, readers)
        for path, handler in table.items()
    }


def _guarded(path: str, handler: Handler, readers: Readers) -> Handler:
    def serve(request: Request) -> Response | PendingResponse:
        reader = readers.reader_of_name(request.identity)
        if reader is None:
            if not request.identity:
                message = "access.mode is own: a password or a client certificate is required (web.config)"
                return _refusal(request, message)
            return _refusal(request, "this user is in neither access.users nor access.admins")
        if not reader.reads_all and path not in _OWN_PATHS:
            return _refusal(request, "this is for administrators of the node: see access.admins")
        return handler(replace(request, reader=reader))

    return serve


def _refusal(request: Request, message: str) -> Response:
    if request.path.startswith(API_PREFIX):
        return ApiError(403, "forbidden", message).response
    return text_response(message, 403, (("Cache-Control", "no-store"),))

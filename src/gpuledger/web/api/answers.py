"""Answers of the API as the server sends them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuledger.outputs.compression import gzipped, wants_gzip
from gpuledger.outputs.routes import Request, Response
from gpuledger.web.api.values import VERSION, encoded

JSON: Final = "application/json; charset=utf-8"
_FRESH: Final = (("Cache-Control", "no-store"),)

# Below it a gzip costs more than it saves.
_WORTH: Final = 1024


class Refused(Exception):
    """A request that gets an error. `message` is one line that names the remedy; `parameter` is empty where
    none is to blame; `retry` are the seconds after which it is worth to ask again.
    """

    def __init__(
        self, status: int, code: str, message: str, parameter: str = "", retry: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.parameter = parameter
        self.retry = retry

    @property
    def response(self) -> Response:
        """As the server sends it."""
        error = {"code": self.code, "message": self.message, "parameter": self.parameter or None}
        after = () if self.retry is None else (("Retry-After", str(self.retry)),)
        body = encoded({"version": VERSION, "error": error})
        return Response(self.status, body, JSON, (*_FRESH, *after))


def bad_request(parameter: str, message: str) -> Refused:
    """What is wrong with a parameter."""
    return Refused(400, "bad_request", message, parameter)


INTERNAL: Final = Refused(500, "internal", "internal error; the log of gpuledger has the reason")


def answer(words: Mapping[str, Any], request: Request) -> Response:
    """The words as JSON that is not to be kept, in gzip where that is accepted and worth it."""
    return packed(encoded(words), gzip=wants_gzip(request), headers=_FRESH)


def packed(body: bytes, *, gzip: bool, headers: tuple[tuple[str, str], ...]) -> Response:
    """JSON with these headers, in gzip where that is wanted and worth it."""
    vary = (*headers, ("Vary", "Accept-Encoding"))
    if gzip and len(body) >= _WORTH:
        return Response(200, gzipped(body), JSON, (*vary, ("Content-Encoding", "gzip")))
    return Response(200, body, JSON, vary)

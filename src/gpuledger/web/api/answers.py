"""Answers of the API as the server sends them."""

from __future__ import annotations

import json
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final

from gpuledger.http.routes import Request, Response
from gpuledger.outputs.responses import gzipped, wants_gzip
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


# Texts that were asked for are in it: no longer than a request may be.
_LONGEST = 16_384


def cursor_of(numbers: Sequence[float], asked: Mapping[str, str] | None = None) -> str:
    """A word for these numbers, and for the parameters with which they were `asked` for."""
    text = json.dumps([*numbers, *([asked] if asked else [])], separators=(",", ":")).encode("ascii")
    return urlsafe_b64encode(text).decode("ascii").rstrip("=")


def told_in(cursor: str, count: int) -> tuple[list[float], dict[str, str]]:
    """The numbers of a word that `cursor_of` made, and the parameters. Raises Refused."""
    try:
        if len(cursor) > _LONGEST:
            raise ValueError
        padded = cursor + "=" * (-len(cursor) % 4)
        found = json.loads(b64decode(padded, altchars="-_", validate=True))
        if not isinstance(found, list):
            raise ValueError
        asked = found.pop() if len(found) == count + 1 else {}
        # JSON's true is a number in Python.
        if len(found) != count or not all(type(one) in (int, float) and isfinite(one) for one in found):
            raise ValueError
        if not isinstance(asked, dict) or not all(isinstance(text, str) for text in asked.values()):
            raise ValueError
        # Half a surrogate is no text.
        "".join(asked.values()).encode()
    except (ValueError, RecursionError, OverflowError):
        raise broken() from None
    return found, asked


def another(parameter: str) -> Refused:
    """What is said of a parameter that is not what the cursor was made with."""
    return bad_request(
        parameter, f"{parameter}: the cursor goes on with another; give it as before, or the cursor alone"
    )


def broken() -> Refused:
    """What is said of a word that no answer of this node had."""
    return bad_request("cursor", "cursor: the value of `next` in an answer is wanted, as it was")

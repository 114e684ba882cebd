"""HTTP responses of the API: JSON, errors, and cursors for paging."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

from gpuledger.http.routes import Request, Response
from gpuledger.outputs.responses import content_response
from gpuledger.web.api.json_values import VERSION, encode_json

JSON: Final = "application/json; charset=utf-8"
_FRESH: Final = (("Cache-Control", "no-store"),)


@dataclass(eq=False)
class ApiError(Exception):
    """An error response. `message` is one line with the remedy; `parameter` is the invalid parameter or
    empty; `retry` is the Retry-After in seconds.
    """

    status: int
    code: str
    message: str
    parameter: str = ""
    retry: int | None = None

    def __str__(self) -> str:
        return self.message

    @property
    def response(self) -> Response:
        """The HTTP response."""
        error = {"code": self.code, "message": self.message, "parameter": self.parameter or None}
        after = () if self.retry is None else (("Retry-After", str(self.retry)),)
        body = encode_json({"version": VERSION, "error": error})
        return Response(self.status, body, JSON, (*_FRESH, *after))


def bad_request(parameter: str, message: str) -> ApiError:
    """The error for an invalid parameter."""
    return ApiError(400, "bad_request", message, parameter)


INTERNAL_ERROR: Final = ApiError(500, "internal", "internal error; the log of gpuledger has the reason")


def json_response(words: Mapping[str, Any], request: Request) -> Response:
    """A JSON response that must not be cached, with gzip if accepted and worthwhile."""
    return content_response(request, encode_json(words), JSON, _FRESH)


def run_of_etag(etag: str) -> str:
    """The run of the program in the ETag of a snapshot, `W/"RUN-NUMBER"`; empty for another form."""
    run, dash, number = etag.removeprefix("W/").strip('"').rpartition("-")
    return run if dash and number.isdigit() else ""


# A cursor contains the parameters of the first request: as long as a request may be.
_MAX_CURSOR = 16_384


def encode_cursor(numbers: Sequence[float], parameters: Mapping[str, str] | None = None) -> str:
    """A cursor that contains these numbers and the parameters of the first request."""
    # Imported lazily, for memory.
    from base64 import urlsafe_b64encode

    values = [*numbers, *([parameters] if parameters else [])]
    text = json.dumps(values, separators=(",", ":")).encode("ascii")
    return urlsafe_b64encode(text).decode("ascii").rstrip("=")


def decode_cursor(cursor: str, count: int) -> tuple[list[float], dict[str, str]]:
    """The `count` numbers and the parameters of a cursor from `encode_cursor`. Raises ApiError."""
    from base64 import b64decode

    try:
        if len(cursor) > _MAX_CURSOR:
            raise ValueError
        padded = cursor + "=" * (-len(cursor) % 4)
        found = json.loads(b64decode(padded, altchars="-_", validate=True))
        if not isinstance(found, list):
            raise ValueError
        parameters = found.pop() if len(found) == count + 1 else {}
        # A bool is an int in Python.
        if len(found) != count or not all(type(one) in (int, float) and isfinite(one) for one in found):
            raise ValueError
        if not isinstance(parameters, dict) or not all(isinstance(text, str) for text in parameters.values()):
            raise ValueError
        # Raises UnicodeEncodeError, a ValueError, for a lone surrogate.
        "".join(parameters.values()).encode()
    except (ValueError, RecursionError, OverflowError):
        raise invalid_cursor() from None
    return found, parameters


def cursor_mismatch(parameter: str) -> ApiError:
    """The error for a parameter that differs from the one in the cursor."""
    return bad_request(
        parameter, f"{parameter}: differs from the cursor; repeat the first value or send only the cursor"
    )


def invalid_cursor() -> ApiError:
    """The error for a cursor that this node did not issue."""
    return bad_request("cursor", "cursor: expected the unchanged value of `next` from a response")

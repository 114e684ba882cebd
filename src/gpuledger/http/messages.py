"""Convert between h11's messages and `Request` and `Response`; validate requests."""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from urllib.parse import unquote

import h11

from gpuledger.http.limits import HttpLimits
from gpuledger.http.routes import Request, Response, text_response

_REASONS = {
    200: b"OK",
    304: b"Not Modified",
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    421: b"Misdirected Request",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    503: b"Service Unavailable",
    505: b"HTTP Version Not Supported",
}


def parse_request(message: h11.Request, client: str = "") -> Request:
    """Convert a request. The host of an absolute target (as sent to proxies) replaces the Host header
    (RFC 9112, 3.2.2).
    """
    target = message.target.decode("ascii", "replace")
    host = None
    if not target.startswith("/") and "://" in target:
        host, target = _split_absolute_target(target.partition("://")[2])
    path, _, query = target.partition("?")
    headers: dict[str, str] = {}
    for raw_name, raw_value in message.headers:
        name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if host is not None:
        headers["host"] = host
    return Request(message.method.decode("ascii"), unquote(path), query, headers, client)


def response_head(response: Response, *, close: bool) -> h11.Response:
    """Status line and headers.

    `nosniff` keeps browsers from guessing the type: responses contain names that processes chose.
    """
    # A stream's length is unknown, and a 304 needs none.
    length = None if response.stream is not None or response.status == 304 else len(response.body)
    return _head(response.status, response.content_type, length, response.headers, close)


# Cached: h11's validation of headers takes a sixth of a scrape, and all scrapers get the same head.
@lru_cache(maxsize=64)
def _head(
    status: int,
    content_type: str,
    length: int | None,
    more: tuple[tuple[str, str], ...],
    close: bool,
) -> h11.Response:
    headers = [
        ("Content-Type", content_type),
        *([] if length is None else [("Content-Length", str(length))]),
        ("X-Content-Type-Options", "nosniff"),
        *more,
    ]
    if close:
        headers.append(("Connection", "close"))
    return h11.Response(status_code=status, headers=headers, reason=_REASONS.get(status, b""))


def protocol_error_response(error: h11.RemoteProtocolError) -> Response:
    """The response to a client that does not send HTTP; it never repeats the client's bytes."""
    if error.error_status_hint == 431:
        return text_response("the headers of the request are too long", 431)
    if error.error_status_hint == 501:
        return text_response("this transfer encoding is not supported", 501)
    return text_response("this is not an HTTP request", 400)


def _split_absolute_target(rest: str) -> tuple[str, str]:
    """Split an absolute target, without its scheme, into host with port and origin-form target."""
    ends = min((at for at in map(rest.find, "/?") if at >= 0), default=len(rest))
    target = rest[ends:]
    return rest[:ends], target if target.startswith("/") else "/" + target


_SUPPORTED_VERSIONS: Final = (b"1.0", b"1.1")


def request_fault(message: h11.Request, limits: HttpLimits) -> Response | None:
    """The error response to a malformed request; None for a well-formed one.

    Content length together with transfer encoding, and transfer encoding before HTTP/1.1, allow request
    smuggling (RFC 9112, 6.1 and 11.2). Versions: RFC 9110, 15.6.6.
    """
    if message.http_version not in _SUPPORTED_VERSIONS:
        return text_response("only HTTP/1.0 and HTTP/1.1 are supported", 505)
    if message.method == b"CONNECT":
        # A client may send another protocol without waiting for the response: do not parse it as requests.
        return text_response("CONNECT is not supported", 405, (("Allow", "GET, HEAD"),))
    if len(message.headers) > limits.headers:
        return text_response(f"more than {limits.headers} headers", 431)
    names = [name for name, _ in message.headers]
    if b"transfer-encoding" in names:
        if b"content-length" in names:
            return text_response("the request has both Content-Length and Transfer-Encoding", 400)
        if message.http_version == b"1.0":
            return text_response("HTTP/1.0 has no Transfer-Encoding", 400)
    return None

"""Between h11's messages and our own."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import h11

from gpuledger.http.limits import Limits
from gpuledger.http.registry import NOBODY
from gpuledger.http.routes import Request, Response, plain

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


def request_of(message: h11.Request, client: bytes = NOBODY) -> Request:
    """Our view of a request. The host of an absolute target (as sent to proxies) takes the place of the
    header's (RFC 9112, 3.2.2).
    """
    target = message.target.decode("ascii", "replace")
    host = None
    if not target.startswith("/") and "://" in target:
        host, target = _parted(target.partition("://")[2])
    path, _, query = target.partition("?")
    headers: dict[str, str] = {}
    for raw_name, raw_value in message.headers:
        name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if host is not None:
        headers["host"] = host
    return Request(message.method.decode("ascii"), _decoded(path), query, headers, client)


def head_of(response: Response, *, close: bool) -> h11.Response:
    """Status line and headers.

    Browsers must not guess the type: names that processes chose are in the pages.
    """
    # How long a stream will be is not known, and how long what the client has already is not asked.
    length = None if response.stream is not None or response.status == 304 else len(response.body)
    return _head(response.status, response.content_type, length, response.headers, close)


# h11 checks each header anew, a sixth of the time of a scrape; all scrapers of a Page get the same head.
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


def answer_to(error: h11.RemoteProtocolError) -> Response:
    """What a client that does not speak HTTP is told; never its own bytes."""
    if error.error_status_hint == 431:
        return plain("the headers of the request are too long", 431)
    if error.error_status_hint == 501:
        return plain("this transfer encoding is not understood", 501)
    return plain("this is not an HTTP request", 400)


def _parted(rest: str) -> tuple[str, str]:
    """Host and port of what stands after the scheme, and the target as it would be alone."""
    ends = min((at for at in map(rest.find, "/?") if at >= 0), default=len(rest))
    target = rest[ends:]
    return rest[:ends], target if target.startswith("/") else "/" + target


def _decoded(path: str) -> str:
    if "%" not in path:
        return path
    # No page has such a path, so this import is hardly ever paid for.
    from urllib.parse import unquote

    return unquote(path)


_SPOKEN: Final = (b"1.0", b"1.1")


def fault_of(message: h11.Request, limits: Limits) -> Response | None:
    """What is wrong with how a request is written, as the answer to it; None when nothing is.

    Length and transfer encoding together, and a transfer encoding before HTTP/1.1, are what request smuggling
    is made of (RFC 9112, 6.1 and 11.2). Versions are those of RFC 9110, 15.6.6.
    """
    if message.http_version not in _SPOKEN:
        return plain("HTTP/1.1 is spoken here", 505)
    if message.method == b"CONNECT":
        # Whoever does not wait for the answer goes on in another protocol: no request may be read into that.
        return plain("no tunnel begins here", 405, (("Allow", "GET, HEAD"),))
    if len(message.headers) > limits.headers:
        return plain(f"more than {limits.headers} headers", 431)
    names = [name for name, _ in message.headers]
    if b"transfer-encoding" in names:
        if b"content-length" in names:
            return plain("the request has a length and a transfer encoding", 400)
        if message.http_version == b"1.0":
            return plain("HTTP/1.0 knows no transfer encoding", 400)
    return None

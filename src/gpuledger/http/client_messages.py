"""HTTP/1.1 messages of both clients: encodes requests, and parses responses with size limits (RFC 9112)."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, quote

from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import to_short_line

_STATUS: Final = re.compile(rb"HTTP/1\.(?P<minor>[01]) (?P<status>[0-9]{3})(?: [^\r\n]*)?")
_HEAD_END: Final = b"\r\n\r\n"
_HEAD_BYTES: Final = 64 * 1024
_CHUNK_LINE: Final = 4096
_LENGTH_DIGITS: Final = 18
# zlib's window size plus 16: expect a gzip header.
_GZIP: Final = 31
_GZIP_PIECE: Final = 64 * 1024
_GZIP_OUTPUT: Final = 1 << 20
# gzip members (RFC 1952) allowed in one body. Servers write one per flush; no known one writes this many.
_MOST_MEMBERS: Final = 1000
_NO_BODY: Final = (204, 304)


class HttpRequestFailed(GpuledgerError):
    """A request has no usable response; the text says why.

    `kind` is a short, stable code: `connect`, `tls`, `broken` (the connection or the response is not HTTP),
    `coding` (the body cannot be decoded), `body_limit`; callers add `timeout` and `credentials`.
    """

    def __init__(self, text: str, kind: str = "broken") -> None:
        super().__init__(text)
        self.kind = kind


class ConnectionClosed(HttpRequestFailed):
    """The connection ended before the first response byte. A reused connection is worth one retry."""


DEFAULT_PORTS: Final = {"http": 80, "https": 443}
# Characters that a URL path and query keep unquoted; `%` because they are quoted already.
_SAFE: Final = "/?:@!$&'()*+,;=-._~%"


def request_target(parts: SplitResult) -> str:
    """The path and query of a URL, quoted."""
    return quote(parts.path or "/", _SAFE) + (f"?{quote(parts.query, _SAFE)}" if parts.query else "")


def encode_request(method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes = b"") -> bytes:
    """One request. Content-Length is added except for a GET. Values must be one line of Latin-1."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    if method != "GET":
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


def basic_authorization(pair: str) -> str:
    """The value of the Authorization header for `user:password`."""
    return f"Basic {b64encode(pair.encode()).decode()}"


@dataclass(slots=True)
class HttpResponse:
    """Status, headers and body, still encoded. Headers have lower-case names; the last value of a name wins,
    but all values of `warning` are joined.
    """

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def decoded_body(self, limit: int = 0) -> bytes:
        """Return the decompressed body. Raises HttpRequestFailed above `limit` bytes (0: no limit)."""
        coding = self.headers.get("content-encoding", "identity").strip().lower()
        if coding in ("gzip", "x-gzip"):
            return _decompress_gzip(self.body, limit)
        if coding != "identity":
            raise HttpRequestFailed(
                f"the server sent Content-Encoding {coding[:40]!r}; only gzip and identity are accepted",
                "coding",
            )
        if limit and len(self.body) > limit:
            raise _oversized(limit)
        return self.body


def json_error(body: bytes) -> tuple[str, str]:
    """Code and message, as one short line, of an error of this program's APIs; empty texts if it is none."""
    try:
        error = json.loads(body)["error"]
        return str(error.get("code") or ""), to_short_line(error.get("message") or "")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return "", ""


def _decompress_gzip(body: bytes, limit: int) -> bytes:
    """Decompress all members and join them (RFC 1952, 2.2)."""
    pages: list[bytes] = []
    size = members = 0
    # In pieces: zlib copies the bytes behind each member, so that a body of many empty members would block
    # the event loop, and an output in one piece takes twice its memory while it grows.
    pieces = [body[at : at + _GZIP_PIECE] for at in range(0, len(body), _GZIP_PIECE)][::-1]
    member = None
    try:
        while pieces:
            piece = pieces.pop()
            if member is None:
                members += 1
                member = zlib.decompressobj(_GZIP)
            pages.append(member.decompress(piece, _GZIP_OUTPUT))
            size += len(pages[-1])
            if limit and size > limit:
                raise _oversized(limit)
            if member.eof:
                rest, member = member.unused_data, None
                if rest:
                    pieces.append(rest)
            elif len(pages[-1]) == _GZIP_OUTPUT:
                # zlib may have more output of what it consumed.
                pieces.append(member.unconsumed_tail)
            if members > _MOST_MEMBERS:
                raise HttpRequestFailed(
                    f"the server's gzip body has more than {_MOST_MEMBERS} members", "coding"
                )
    except zlib.error as error:
        raise HttpRequestFailed(f"the server's gzip body is corrupt: {error}", "coding") from None
    if member is not None:
        raise HttpRequestFailed("the server's gzip body is truncated", "coding")
    return pages[0] if len(pages) == 1 else b"".join(pages)


def _oversized(limit: int) -> HttpRequestFailed:
    return HttpRequestFailed(f"body size limit of {limit} bytes exceeded", "body_limit")


class ResponseParser:
    """Incremental parser of one response. `limit` bounds the body as sent (0: no limit).

    A longer body is an error; with `truncate` the response ends there, and the connection cannot be reused.
    """

    def __init__(self, limit: int = 0, *, truncate: bool = False) -> None:
        self.response: HttpResponse | None = None
        self.keep_alive = False
        self.started = False
        self.complete = False
        self._limit = limit
        self._truncate = truncate
        self._head = bytearray()
        self._parts: list[bytes] = []
        self._left = 0
        self._size = 0
        self._chunked: _Chunks | None = None
        self._until_close = False

    @property
    def speaks_http(self) -> bool:
        """Whether the response began as one of HTTP/1, complete or not."""
        return self.response is not None or self._head.startswith(b"HTTP/1.")

    def feed(self, data: bytes) -> bool:
        """Parse more bytes; return whether the response is complete.

        Raises HttpRequestFailed for a malformed or oversized response.
        """
        self.started = True
        if self.response is None:
            self._head += data
            rest = self._after_head()
            if rest is None:
                return False
            data = rest
        return self._body(data)

    def close(self) -> bool:
        """Handle the end of the connection; return whether it completes the response."""
        if self.response is not None and self._until_close:
            self.response.body = b"".join(self._parts)
            self.complete = True
        return self.complete

    def end_error(self, reason: str = "") -> HttpRequestFailed:
        """The error for a connection that ended before the response was complete."""
        if self.started:
            return HttpRequestFailed("the server closed the connection in the middle of its response")
        return ConnectionClosed(reason or "the server closed the connection without a response")

    def take_body(self) -> bytes:
        """Remove and return the body bytes parsed so far, of a response that is read as a stream."""
        parts, self._parts = self._parts, []
        return b"".join(parts)

    def _after_head(self) -> bytes | None:
        """Return the first body bytes, or None while the head is incomplete. 1xx responses are skipped."""
        while self.response is None:
            end = self._head.find(_HEAD_END)
            if end < 0:
                if len(self._head) > _HEAD_BYTES:
                    raise HttpRequestFailed(f"the server's response headers exceed {_HEAD_BYTES} bytes")
                return None
            head = bytes(self._head[:end])
            del self._head[: end + len(_HEAD_END)]
            self._parse_head(head)
        rest = bytes(self._head)
        self._head.clear()
        return rest

    def _parse_head(self, head: bytes) -> None:
        line, *fields = head.split(b"\r\n")
        match = _STATUS.fullmatch(line)
        if match is None:
            raise HttpRequestFailed(f"the server does not speak HTTP/1.1: {line[:40].decode('latin-1')!r}")
        status = int(match["status"])
        if 100 <= status < 200:
            return
        response = HttpResponse(status)
        for header in fields:
            name, colon, value = header.partition(b":")
            if colon:
                key, text = name.decode("latin-1").lower(), value.strip().decode("latin-1")
                if key == "warning" and key in response.headers:
                    text = f"{response.headers[key]}, {text}"
                response.headers[key] = text
        self.response = response
        connection = response.headers.get("connection", "").lower()
        self.keep_alive = "close" not in connection and (match["minor"] == b"1" or "keep-alive" in connection)
        self._set_body_framing(response)

    def _set_body_framing(self, response: HttpResponse) -> None:
        length = response.headers.get("content-length")
        if response.status in _NO_BODY:
            self._left = 0
        elif "transfer-encoding" in response.headers:
            if response.headers["transfer-encoding"].lower() != "chunked":
                raise HttpRequestFailed("the server's response has a Transfer-Encoding other than chunked")
            self._chunked = _Chunks()
        elif length is None:
            self._until_close, self.keep_alive = True, False
        elif not (length.isascii() and length.isdigit() and len(length) <= _LENGTH_DIGITS):
            raise HttpRequestFailed("the server's response has an invalid Content-Length")
        else:
            self._left = int(length)

    def _body(self, data: bytes) -> bool:
        if self.response is None:
            return False
        done = False
        if self._chunked is not None:
            parts, done = self._chunked.feed(data)
        elif self._until_close:
            parts = [data]
        else:
            parts = [data[: self._left]]
            # Excess bytes would be mistaken for the response to the next request.
            self.keep_alive = self.keep_alive and len(data) <= self._left
            self._left -= len(parts[0])
            done = not self._left
        # Joined: many tiny chunks would take far more memory than the limit counts.
        self._parts.append(parts[0] if len(parts) == 1 else b"".join(parts))
        self._size += len(self._parts[-1])
        if self._limit and self._size > self._limit:
            if not self._truncate:
                raise _oversized(self._limit)
            done, self.keep_alive = True, False
        if done:
            self.response.body = b"".join(self._parts) if len(self._parts) != 1 else self._parts[0]
            self.complete = True
        return done


class _Chunks:
    """Decoder of the chunked transfer coding. Extensions and trailers are ignored."""

    def __init__(self) -> None:
        self._pending = b""
        # Missing bytes of the current chunk, including its CRLF; 0 before a chunk size.
        self._left = 0
        self._last = False

    def feed(self, data: bytes) -> tuple[list[bytes], bool]:
        """Return the body parts in these bytes, and whether the body is complete."""
        data = self._pending + data
        self._pending = b""
        parts: list[bytes] = []
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                # The last two bytes of a chunk are CRLF.
                parts.append(piece[: max(0, self._left - 2)])
                self._left -= len(piece)
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                self._pending = data[at:]
                if len(self._pending) > _CHUNK_LINE:
                    raise HttpRequestFailed("the server's chunked response is malformed")
                break
            line, at = data[at:end], end + 2
            if self._last:
                if not line:
                    return parts, True
                continue
            self._start_chunk(line.partition(b";")[0].strip())
        return parts, False

    def _start_chunk(self, size: bytes) -> None:
        if not re.fullmatch(rb"[0-9a-fA-F]{1,15}", size):
            raise HttpRequestFailed("the server's chunked response is malformed")
        length = int(size, 16)
        self._last = length == 0
        self._left = length + 2 if length else 0

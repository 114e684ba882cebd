"""An HTTP/1.1 answer out of the bytes of a connection (RFC 9112): what a scrape needs, within limits."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from typing import Final

_STATUS: Final = re.compile(rb"HTTP/1\.(?P<minor>[01]) (?P<status>[0-9]{3})(?: [^\r\n]*)?")
_HEAD_END: Final = b"\r\n\r\n"
_HEAD_BYTES: Final = 64 * 1024
_CHUNK_LINE: Final = 4096
_LENGTH_DIGITS: Final = 18
# gzip's own header, found by zlib.
_GZIP: Final = 31
_GZIP_PIECE: Final = 64 * 1024
# A member is what a server has compressed at once; one that makes a page of more has yet to be written.
_MOST_MEMBERS: Final = 1000
_NO_BODY: Final = (204, 304)


class ScrapeFailed(Exception):
    """A scrape that gave no page; the text says why. `oversized` when the page was larger than allowed."""

    def __init__(self, text: str, *, oversized: bool = False) -> None:
        super().__init__(text)
        self.oversized = oversized


@dataclass(slots=True)
class Answer:
    """Status, headers (names in lower case, the last one of a name stands) and body, still encoded."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def page(self, limit: int = 0) -> bytes:
        """The body as the target wrote it. Raises ScrapeFailed for more than `limit` bytes (0: no limit)."""
        coding = self.headers.get("content-encoding", "identity").strip().lower()
        if coding in ("gzip", "x-gzip"):
            return _unzipped(self.body, limit)
        if coding != "identity":
            raise ScrapeFailed(f"the target answers in the coding {coding[:40]!r}, which was not asked for")
        if limit and len(self.body) > limit:
            raise _oversized(limit)
        return self.body


def _unzipped(body: bytes, limit: int) -> bytes:
    """Several members in a row are one text (RFC 1952, 2.2)."""
    pages: list[bytes] = []
    size = members = 0
    # All but the first in pieces: what is behind a member's end is copied for each, and a page of empty ones
    # would keep all targets waiting.
    pieces = [body] if body else []
    member = None
    try:
        while pieces:
            piece = pieces.pop()
            if member is None:
                members += 1
                member = zlib.decompressobj(_GZIP)
            pages.append(member.decompress(piece, limit + 1 - size if limit else 0))
            size += len(pages[-1])
            if limit and size > limit:
                raise _oversized(limit)
            if member.eof:
                rest, member = member.unused_data, None
                pieces += [rest[at : at + _GZIP_PIECE] for at in range(0, len(rest), _GZIP_PIECE)][::-1]
            if members > _MOST_MEMBERS:
                raise ScrapeFailed(f"the target's gzip body has more than {_MOST_MEMBERS} parts")
    except zlib.error as error:
        raise ScrapeFailed(f"the target's gzip body is broken: {error}") from None
    if member is not None:
        raise ScrapeFailed("the target's gzip body ends too early")
    return pages[0] if len(pages) == 1 else b"".join(pages)


def _oversized(limit: int) -> ScrapeFailed:
    return ScrapeFailed(f"body size limit of {limit} bytes exceeded", oversized=True)


class AnswerReader:
    """Takes bytes until the answer is complete. `limit` bounds the body as it is sent; 0 is no limit."""

    def __init__(self, limit: int = 0) -> None:
        self.answer: Answer | None = None
        self.keeps_open = False
        self.started = False
        self._limit = limit
        self._head = bytearray()
        self._parts: list[bytes] = []
        self._left = 0
        self._size = 0
        self._chunked: _Chunks | None = None
        self._until_close = False

    def feed(self, data: bytes) -> bool:
        """Whether the answer is complete. Raises ScrapeFailed for what is no answer, or too long a one."""
        self.started = True
        if self.answer is None:
            self._head += data
            rest = self._after_head()
            if rest is None:
                return False
            data = rest
        return self._body(data)

    def close(self) -> bool:
        """The target has closed the connection: whether that completes the answer."""
        if self.answer is not None and self._until_close:
            self.answer.body = b"".join(self._parts)
            return True
        return False

    def _after_head(self) -> bytes | None:
        """What has come of the body; None while the head is not complete. 1xx answers are passed over."""
        while self.answer is None:
            end = self._head.find(_HEAD_END)
            if end < 0:
                if len(self._head) > _HEAD_BYTES:
                    raise ScrapeFailed("the headers of the target's answer are too long")
                return None
            head = bytes(self._head[:end])
            del self._head[: end + len(_HEAD_END)]
            self._begin(head)
        rest = bytes(self._head)
        self._head.clear()
        return rest

    def _begin(self, head: bytes) -> None:
        line, *fields = head.split(b"\r\n")
        match = _STATUS.fullmatch(line)
        if match is None:
            raise ScrapeFailed(f"the target does not speak HTTP/1.1: {line[:40].decode('latin-1')!r}")
        status = int(match["status"])
        if 100 <= status < 200:
            return
        answer = Answer(status)
        for one in fields:
            name, colon, value = one.partition(b":")
            if colon:
                answer.headers[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
        self.answer = answer
        connection = answer.headers.get("connection", "").lower()
        self.keeps_open = "close" not in connection and (match["minor"] == b"1" or "keep-alive" in connection)
        self._measure(answer)

    def _measure(self, answer: Answer) -> None:
        length = answer.headers.get("content-length")
        if answer.status in _NO_BODY:
            self._left = 0
        elif "transfer-encoding" in answer.headers:
            if answer.headers["transfer-encoding"].lower() != "chunked":
                raise ScrapeFailed("the target's answer has a transfer encoding that is not chunked")
            self._chunked = _Chunks()
        elif length is None:
            self._until_close, self.keeps_open = True, False
        elif not (length.isascii() and length.isdigit() and len(length) <= _LENGTH_DIGITS):
            raise ScrapeFailed("the target's answer has a Content-Length that is no number")
        else:
            self._left = int(length)

    def _body(self, data: bytes) -> bool:
        if self.answer is None:
            return False
        done = False
        if self._chunked is not None:
            parts, done = self._chunked.feed(data)
        elif self._until_close:
            parts = [data]
        else:
            parts = [data[: self._left]]
            # More than was asked for: what comes after it cannot be an answer to the next request.
            self.keeps_open = self.keeps_open and len(data) <= self._left
            self._left -= len(parts[0])
            done = not self._left
        # Joined, so that chunks of a byte do not take many times the memory that they are counted as.
        self._parts.append(parts[0] if len(parts) == 1 else b"".join(parts))
        self._size += len(self._parts[-1])
        if self._limit and self._size > self._limit:
            raise _oversized(self._limit)
        if done:
            self.answer.body = b"".join(self._parts) if len(self._parts) != 1 else self._parts[0]
        return done


class _Chunks:
    """The chunked transfer coding; extensions and trailers are passed over."""

    def __init__(self) -> None:
        self._pending = b""
        # Bytes of the chunk at hand that are still to come, its line end included; 0 before a size.
        self._left = 0
        self._last = False

    def feed(self, data: bytes) -> tuple[list[bytes], bool]:
        """What of the body is in these bytes, and whether it is complete."""
        data = self._pending + data
        self._pending = b""
        parts: list[bytes] = []
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                # The last two of a chunk's bytes are its line end.
                parts.append(piece[: max(0, self._left - 2)])
                self._left -= len(piece)
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                self._pending = data[at:]
                if len(self._pending) > _CHUNK_LINE:
                    raise ScrapeFailed("the target's chunked answer is broken")
                break
            line, at = data[at:end], end + 2
            if self._last:
                if not line:
                    return parts, True
                continue
            self._begin(line.partition(b";")[0].strip())
        return parts, False

    def _begin(self, size: bytes) -> None:
        if not re.fullmatch(rb"[0-9a-fA-F]{1,15}", size):
            raise ScrapeFailed("the target's chunked answer is broken")
        length = int(size, 16)
        self._last = length == 0
        self._left = length + 2 if length else 0

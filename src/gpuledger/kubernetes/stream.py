"""JSON as it comes: the items of a long list one at a time, and the lines of a watch."""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from typing import Any, Final

from gpuledger.model.errors import GpuledgerError

# An object in etcd is 1.5 MiB at most unless somebody raised that.
LONGEST: Final = 16 * 1024 * 1024
_SPACE: Final = " \t\r\n"
_UTF8: Final = getincrementaldecoder("utf-8")


class NotJson(GpuledgerError):
    """The API server's answer is not what it should be."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the API server's answer is not JSON ({why}); look at what stands between")


class ListReader:
    """Reads `{..., "items": [...], ...}`, of which only one item is held in memory at a time.

    `metadata` is the list's own, and complete once the items have been taken.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.metadata: dict[str, Any] = {}
        self._pieces = iter(pieces)
        self._decoder = json.JSONDecoder()
        self._utf8 = _UTF8()
        self._text = ""
        self._at = 0

    @property
    def next_page(self) -> str:
        """The token for the rest of a list that came in part; empty when this was all."""
        token = self.metadata.get("continue")
        return token if isinstance(token, str) else ""

    def items(self) -> Iterator[Any]:
        """The items in order. Raises NotJson, and whatever the pieces raise."""
        self._expect("{")
        if self._skip_if("}"):
            return
        while True:
            key = self._value()
            self._expect(":")
            if key == "items" and self._peek() == "[":
                yield from self._array()
            else:
                value = self._value()
                if key == "metadata" and isinstance(value, dict):
                    self.metadata = value
            if self._skip_if("}"):
                return
            self._expect(",")

    def _array(self) -> Iterator[Any]:
        self._expect("[")
        if self._skip_if("]"):
            return
        while True:
            yield self._value()
            if self._skip_if("]"):
                return
            self._expect(",")

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, self._at = self._decoder.raw_decode(self._text, self._at)
            except ValueError as error:
                self._more(len(self._text) - self._at, str(error))
            except RecursionError:
                raise NotJson("nested too deeply") from None
            else:
                return value

    def _peek(self) -> str:
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return self._text[self._at]
                self._at += 1
            self._more(1, "it ends too early")

    def _skip_if(self, char: str) -> bool:
        found = self._peek() == char
        self._at += found
        return found

    def _expect(self, char: str) -> None:
        if not self._skip_if(char):
            raise NotJson(f"{char!r} is missing")

    def _more(self, least: int, why: str) -> None:
        """Read on by at least so many characters: a long value is tried again only when it has doubled."""
        if len(self._text) - self._at > LONGEST:
            raise NotJson(f"a value of over {LONGEST} characters")
        parts = [self._text[self._at :]]
        self._at = 0
        while least > 0:
            piece = next(self._pieces, None)
            if piece is None:
                break
            try:
                parts.append(self._utf8.decode(piece))
            except UnicodeDecodeError:
                raise NotJson("it is not UTF-8") from None
            least -= len(parts[-1])
        if len(parts) == 1:
            raise NotJson(why)
        self._text = "".join(parts)


def lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The whole lines of a stream, which splits them anywhere; what follows the last line feed is no line."""
    rest: list[bytes] = []
    held = 0
    for piece in pieces:
        *whole, last = piece.split(b"\n")
        for line in whole:
            rest.append(line)
            joined = b"".join(rest)
            rest, held = [], 0
            if joined.strip():
                yield joined
        if last:
            rest.append(last)
            held += len(last)
        if held > LONGEST:
            raise NotJson(f"a line of over {LONGEST} bytes")

"""Streaming JSON parsers: the items of a long list one at a time, and the lines of a watch."""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from typing import Any, Final

from gpuledger.model.errors import GpuledgerError

# In characters. An object in etcd has at most 1.5 MiB by default.
MAX_VALUE_LENGTH: Final = 16 * 1024 * 1024
_SPACE: Final = " \t\r\n"
_UTF8: Final = getincrementaldecoder("utf-8")


class NotJson(GpuledgerError):
    """The API server's response is not the expected JSON."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the API server's response is not JSON ({why}); check for a proxy in between")


class ListReader:
    """Parses `{..., "items": [...], ...}` with only one item in memory at a time.

    `metadata` is that of the list, and complete after all items are read.
    """

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self.metadata: dict[str, Any] = {}
        self._chunks = iter(chunks)
        self._decoder = json.JSONDecoder()
        self._utf8 = _UTF8()
        self._text = ""
        self._offset = 0

    @property
    def next_page(self) -> str:
        """The `continue` token of a paginated list; empty on the last page."""
        token = self.metadata.get("continue")
        return token if isinstance(token, str) else ""

    def items(self) -> Iterator[Any]:
        """The items in order. Raises NotJson, and the errors of the chunks."""
        self._expect("{")
        if self._skip_if("}"):
            return
        while True:
            key = self._decode_value()
            self._expect(":")
            if key == "items" and self._peek() == "[":
                yield from self._iter_array()
            else:
                value = self._decode_value()
                if key == "metadata" and isinstance(value, dict):
                    self.metadata = value
            if self._skip_if("}"):
                return
            self._expect(",")

    def _iter_array(self) -> Iterator[Any]:
        self._expect("[")
        if self._skip_if("]"):
            return
        while True:
            yield self._decode_value()
            if self._skip_if("]"):
                return
            self._expect(",")

    def _decode_value(self) -> Any:
        self._peek()
        while True:
            try:
                value, self._offset = self._decoder.raw_decode(self._text, self._offset)
            except ValueError as error:
                self._read_more(len(self._text) - self._offset, str(error))
            except RecursionError:
                raise NotJson("nested too deeply") from None
            else:
                return value

    def _peek(self) -> str:
        while True:
            while self._offset < len(self._text):
                if self._text[self._offset] not in _SPACE:
                    return self._text[self._offset]
                self._offset += 1
            self._read_more(1, "it ends too early")

    def _skip_if(self, char: str) -> bool:
        found = self._peek() == char
        self._offset += found
        return found

    def _expect(self, char: str) -> None:
        if not self._skip_if(char):
            raise NotJson(f"{char!r} is missing")

    def _read_more(self, least: int, why: str) -> None:
        """Read at least `least` more characters.

        A long value is decoded again only after its text has doubled, so that parsing remains linear.
        """
        if len(self._text) - self._offset > MAX_VALUE_LENGTH:
            raise NotJson(f"a value of over {MAX_VALUE_LENGTH} characters")
        parts = [self._text[self._offset :]]
        self._offset = 0
        while least > 0:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            try:
                parts.append(self._utf8.decode(chunk))
            except UnicodeDecodeError:
                raise NotJson("it is not UTF-8") from None
            least -= len(parts[-1])
        if len(parts) == 1:
            raise NotJson(why)
        self._text = "".join(parts)


def split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The complete lines of a stream. Data after the last line feed is dropped."""
    rest: list[bytes] = []
    held = 0
    for chunk in chunks:
        *whole, last = chunk.split(b"\n")
        for line in whole:
            rest.append(line)
            joined = b"".join(rest)
            rest, held = [], 0
            if joined.strip():
                yield joined
        if last:
            rest.append(last)
            held += len(last)
        if held > MAX_VALUE_LENGTH:
            raise NotJson(f"a line of over {MAX_VALUE_LENGTH} bytes")

"""Streams with scripted data, and helpers to read them as a client."""

from __future__ import annotations

from gpuledger.http.routes import Response, Routes, text_response
from unit.http.support import until

GET_STREAM = b"GET /stream HTTP/1.1\r\nHost: h\r\n\r\n"


class Channel:
    """A stream that sends the data passed to `say`."""

    def __init__(self) -> None:
        self.pending: list[bytes | None] = []
        self.wake = lambda: None
        self.taken = 0
        self.ended = 0

    def begin(self, wake):
        self.wake = wake

    def take(self):
        if not self.pending:
            return b""
        self.taken += 1
        return self.pending.pop(0)

    def end(self):
        self.ended += 1

    def say(self, *words):
        self.pending += words
        self.wake()


class Station:
    """Routes with `/stream` for any number of clients, and `/hello`."""

    def __init__(self, *first: bytes | None) -> None:
        self.channels: list[Channel] = []
        self._first = first
        self.routes = Routes(
            {
                "/stream": lambda request: Response(stream=self._open, content_type="text/event-stream"),
                "/hello": lambda request: text_response("hello"),
            }
        )

    def _open(self):
        channel = Channel()
        channel.pending += self._first
        self.channels.append(channel)
        return channel

    def listeners(self, count):
        return until(lambda: len(self.channels) >= count)


async def head_of(client):
    return (await client.reader.readuntil(b"\r\n\r\n")).decode().lower()


async def chunk(client):
    """The next chunk's data; empty for the last one."""
    size = int(await client.reader.readuntil(b"\r\n"), 16)
    data = await client.reader.readexactly(size + 2)
    return data[:-2]

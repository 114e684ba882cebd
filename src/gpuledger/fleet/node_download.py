"""Passes a long answer of a node through to a client of the fleet, piece by piece: it is never in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from gpuledger.fleet.node_client import NodeClient, NodeRequestFailed, describe_refusal
from gpuledger.http.async_client import connect_failure
from gpuledger.http.client_messages import HttpRequestFailed, HttpResponse, ResponseParser
from gpuledger.http.routes import Response, ResponseStream
from gpuledger.web.api.responses import ApiError

_PIECE: Final = 64 * 1024
# Seconds: to connect, for the node to make its export, and between two pieces of it.
_CONNECT: Final = 5.0
_FIRST: Final = 115.0
_NEXT: Final = 30.0
# Bytes of an error.
_LONGEST_ERROR: Final = 64 * 1024


async def open_download(client: NodeClient, path: str) -> Response:
    """The answer of the node as a stream; its error as an error of the API (502 if there is none)."""
    try:
        return await _open_download(client, path)
    except NodeRequestFailed as error:
        return ApiError(502, error.kind, f"{client.address.url}: {error}").response


async def _open_download(client: NodeClient, path: str) -> Response:
    try:
        async with asyncio.timeout(_CONNECT):
            reader, writer = await client.open_stream(_PIECE)
    except TimeoutError:
        raise NodeRequestFailed(f"no connection within {_CONNECT:g} s", "connect") from None
    except (OSError, UnicodeError) as error:
        failure = connect_failure(client.address.host, error)
        raise NodeRequestFailed(str(failure), failure.kind) from None
    download = NodeDownload(reader, writer)
    try:
        writer.write(client.encode_request(path))
        head = await download.receive_head()
        if head.status != 200:
            head.body = await download.receive_error()
            raise NodeRequestFailed(*describe_refusal(head))
    except BaseException:
        writer.close()
        raise
    return Response(
        content_type=head.headers.get("content-type", "application/octet-stream"),
        headers=(("Cache-Control", "no-store"),),
        stream=lambda: download,
    )


class NodeDownload(ResponseStream):
    """The body of a node's answer as a stream for one client: a piece is read when the last one is sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._parser = ResponseParser()
        self._wake: Callable[[], None] = lambda: None
        self._piece = b""
        self._sent = asyncio.Event()
        self._is_over = False
        self._task: asyncio.Task[None] | None = None

    async def receive_head(self) -> HttpResponse:
        """Status and headers. Raises NodeRequestFailed."""
        async with _within(_FIRST):
            while self._parser.response is None:
                await self._receive()
        return self._parser.response

    async def receive_error(self) -> bytes:
        """The body of a short answer; empty if it is long or cut off."""
        body = b""
        async with _within(_NEXT):
            while not self._parser.complete and len(body) <= _LONGEST_ERROR:
                body += self._parser.take_body()
                await self._receive()
        body += self._parser.take_body() or (self._parser.response.body if self._parser.response else b"")
        return body if len(body) <= _LONGEST_ERROR else b""

    def begin(self, wake: Callable[[], None]) -> None:
        """See ResponseStream."""
        self._wake = wake
        self._task = asyncio.create_task(self._pass_through())

    def take(self) -> bytes | None:
        """See ResponseStream."""
        piece, self._piece = self._piece, b""
        if piece:
            self._sent.set()
            return piece
        return None if self._is_over else b""

    def end(self) -> None:
        """See ResponseStream."""
        if self._task is not None:
            self._task.cancel()
        self._writer.close()

    async def _pass_through(self) -> None:
        try:
            while True:
                if piece := self._parser.take_body():
                    self._piece = piece
                    self._sent.clear()
                    self._wake()
                    await self._sent.wait()
                if self._parser.complete:
                    return
                async with _within(_NEXT):
                    await self._receive()
        except NodeRequestFailed:
            # The client finds that the archive is cut off: its checksum is missing.
            return
        finally:
            self._is_over = True
            self._wake()

    async def _receive(self) -> None:
        try:
            data = await self._reader.read(_PIECE)
            if data:
                self._parser.feed(data)
            elif not self._parser.close():
                raise self._parser.end_error()
        except (OSError, HttpRequestFailed) as error:
            raise NodeRequestFailed(str(error), "broken") from None


@asynccontextmanager
async def _within(seconds: float) -> AsyncIterator[None]:
    """A time limit that raises NodeRequestFailed."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise NodeRequestFailed(f"no answer within {seconds:g} s", "slow") from None

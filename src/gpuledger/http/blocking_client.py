"""Blocking HTTP/1.1 client on a connected socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from time import monotonic
from typing import Final

from gpuledger.http.client_messages import HttpResponse, ResponseParser

_CHUNK: Final = 64 * 1024


class BlockingConnection:
    """Keep-alive HTTP/1.1 on a connected socket, one request at a time. The caller closes the socket.

    Methods that receive raise OSError (TimeoutError by the socket's timeout, which is per packet) and
    HttpRequestFailed.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._parser = ResponseParser()

    @property
    def speaks_http(self) -> bool:
        """Whether the newest response began as one of HTTP/1, even if it is incomplete."""
        return self._parser.speaks_http

    @property
    def reusable(self) -> bool:
        """Whether another request can be sent, after a complete response."""
        return self._parser.keep_alive

    def exchange(self, request: bytes, limit: int, until: float = float("inf")) -> HttpResponse:
        """Send an encoded request and return its response.

        `limit` bounds the body as sent, in bytes; `until` the whole response, in monotonic seconds.
        """
        self.send_request(request, limit)
        while not self._parser.complete:
            self._receive(until)
        return self.receive_head()

    def send_request(self, request: bytes, limit: int = 0) -> None:
        """Send an encoded request; `limit` bounds the body of its response (0: no limit). Raises OSError."""
        self._parser = ResponseParser(limit)
        self._socket.sendall(request)

    def receive_head(self, until: float = float("inf")) -> HttpResponse:
        """Wait for the response until a monotonic second. Its body is empty until `exchange` has read it."""
        while self._parser.response is None:
            self._receive(until)
        return self._parser.response

    def receive_chunks(self, until: float = float("inf"), slowest: float = 1.0) -> Iterator[bytes]:
        """Yield the body as it arrives.

        `until` is the monotonic second by which it must be complete if it is short; each `slowest` bytes
        give a second more.
        """
        while True:
            if chunk := self._parser.take_body():
                until += len(chunk) / slowest
                yield chunk
            if self._parser.complete:
                return
            self._receive(until)

    def _receive(self, until: float = float("inf")) -> None:
        patience = self._socket.gettimeout()
        left = until - monotonic()
        if left <= 0:
            raise TimeoutError
        if left < float("inf"):
            self._socket.settimeout(left if patience is None else min(left, patience))
        try:
            data = self._socket.recv(_CHUNK)
        finally:
            self._socket.settimeout(patience)
        if data:
            self._parser.feed(data)
        elif not self._parser.close():
            raise self._parser.end_error()

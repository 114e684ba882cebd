"""The little of HTTP/1.1 that a question over a blocking socket takes, by h11."""

from __future__ import annotations

import socket
from typing import Final

import h11

_CHUNK: Final = 64 * 1024


def send_get(
    http: h11.Connection, connected: socket.socket, target: str, headers: list[tuple[str, str]]
) -> None:
    """Send a GET without a body. Raises OSError."""
    request = http.send(h11.Request(method="GET", target=target, headers=headers)) or b""
    connected.sendall(request + (http.send(h11.EndOfMessage()) or b""))


def next_event(http: h11.Connection, connected: socket.socket) -> object:
    """The next event of the answer, waited for. Raises OSError (TimeoutError), h11.RemoteProtocolError."""
    while True:
        event = http.next_event()
        if event is not h11.NEED_DATA:
            return event
        http.receive_data(connected.recv(_CHUNK))

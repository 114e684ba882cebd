"""The little of HTTP/1.1 that a question over a blocking socket takes, by h11."""

from __future__ import annotations

import socket
from typing import Final
from urllib.parse import SplitResult, urlsplit

import h11

from gpuledger.model.errors import UsageError

_CHUNK: Final = 64 * 1024


def get(
    connected: socket.socket, target: str, headers: list[tuple[str, str]], longest: int
) -> tuple[int, dict[bytes, bytes], bytes]:
    """Status, headers and body of the answer to a GET.

    Raises OSError, also when the body has more than `longest` bytes or the connection closes before its end,
    TimeoutError by the socket's own limit, and h11.ProtocolError for what is no HTTP.
    """
    http = h11.Connection(h11.CLIENT)
    send_get(http, connected, target, headers)
    status, told, body = 0, dict[bytes, bytes](), bytearray()
    while True:
        event = next_event(http, connected)
        if isinstance(event, h11.Response):
            status, told = event.status_code, dict(event.headers)
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > longest:
                raise OSError(f"more than {longest // 1024 // 1024} MiB")
        elif isinstance(event, h11.EndOfMessage):
            return status, told, bytes(body)
        elif isinstance(event, h11.ConnectionClosed):
            raise OSError("closed")


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


_LONGEST = 300


def split_url(url: str, flag: str, example: str) -> SplitResult:
    """The parts of an HTTP URL; `http://` may be left out. Raises UsageError in the words of the flag."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        right = False
    if not right or " " in url or not url.isprintable():
        # What stands before an @ may be a password, in whatever else is wrong with it.
        named = one_line(url.rpartition("@")[2])
        raise UsageError(f"{flag}: a URL such as {example} is wanted, not '{named}'")
    return parts


def one_line(text: object) -> str:
    """In one line, and without what a terminal takes for more than text."""
    shown = "".join(sign if sign.isprintable() else " " for sign in str(text))
    return " ".join(shown.split())[:_LONGEST]

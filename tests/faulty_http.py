"""Servers that answer every request with one fault, for as long as the client bears it."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count, repeat
from pathlib import Path
from threading import Event, Thread
from time import monotonic

from running import PATIENCE

_OK = b"HTTP/1.1 200 OK\r\n"
_CHUNKED = _OK + b"Transfer-Encoding: chunked\r\n\r\n"
_HUGE = _OK + b"Content-Length: 999999999999\r\n\r\n"
_BOMB = gzip.compress(bytes(80 << 20), 1)
# Seconds between two bytes that drip.
_DRIP = 0.02


def _drips(head: bytes, drops: Iterator[bytes]) -> Iterator[bytes]:
    yield head
    yield from drops


# What is sent, piece by piece, and whether the pieces drip. Then, the connection is closed.
FAULTS: dict[str, tuple[Callable[[], Iterator[bytes]], bool]] = {
    "is silent": (lambda: repeat(b""), True),
    "drips its head": (lambda: _drips(b"HTTP/1.1 200 OK\r\nX: ", repeat(b"x")), True),
    "drips its body": (lambda: _drips(_HUGE, repeat(b" ")), True),
    "drips chunks": (lambda: _drips(_CHUNKED, repeat(b"1\r\n \r\n")), True),
    "drips trailers": (lambda: _drips(_CHUNKED + b"1\r\n \r\n0\r\n", repeat(b"X: y\r\n")), True),
    "drips interim responses": (lambda: repeat(b"HTTP/1.1 102 Processing\r\n\r\n"), True),
    "stops in its body": (lambda: _drips(_HUGE + b"{", repeat(b"")), True),
    "sends an endless header": (lambda: _drips(_OK + b"X: ", repeat(b"x" * 65536)), False),
    "sends endless headers": (lambda: _drips(_OK, (b"X%d: y\r\n" % at for at in count())), False),
    "sends an endless body": (lambda: _drips(_OK + b"\r\n", repeat(b" " * 65536)), False),
    "sends endless chunks": (lambda: _drips(_CHUNKED, repeat(b"10000\r\n" + b" " * 65536 + b"\r\n")), False),
    "sends a gzip bomb": (
        lambda: iter([_OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(_BOMB) + _BOMB]),
        False,
    ),
    "redirects to itself": (
        lambda: iter([b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n"]),
        False,
    ),
    "closes at once": (lambda: iter([]), False),
    "closes in its head": (lambda: iter([b"HTTP/1.1 200 OK\r\nContent-Le"]), False),
    "closes in its body": (lambda: iter([_HUGE + b'{"a": 1']), False),
    "closes in a chunk": (lambda: iter([_CHUNKED + b"10\r\n{}"]), False),
    "breaks its chunks": (lambda: iter([_CHUNKED + b"zz\r\n{}\r\n"]), False),
    "speaks another protocol": (lambda: iter([b"SSH-2.0-OpenSSH_9.2\r\n\r\n"]), False),
    "sends no JSON": (lambda: iter([_OK + b"Content-Length: 6\r\n\r\n<html>"]), False),
    "sends deep JSON": (lambda: iter([_OK + b"Content-Length: 100000\r\n\r\n" + b"[" * 100_000]), False),
}


class FaultyServer:
    """Listens, and answers with a fault. `outlasted` is True if a client bore it for PATIENCE."""

    def __init__(self, listening: socket.socket, fault: str) -> None:
        self._listening = listening
        self._fault = fault
        self._closing = Event()
        self.outlasted = False
        self._threads = [Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._closing.set()
        # Wakes `accept`.
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE)
        self._listening.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self._threads.append(Thread(target=self._answer, args=(client,)))
            self._threads[-1].start()

    def _answer(self, client: socket.socket) -> None:
        until = monotonic() + PATIENCE
        pieces, drips = FAULTS[self._fault]
        with client, suppress(OSError):
            client.settimeout(PATIENCE)
            client.recv(65536)
            for piece in pieces():
                client.sendall(piece)
                if drips:
                    self._wait_for_end(client)
                if self._closing.is_set() or monotonic() > until:
                    self.outlasted = not self._closing.is_set()
                    return

    def _wait_for_end(self, client: socket.socket) -> None:
        """Wait for the next drip. Raises OSError if the client has closed the connection."""
        client.settimeout(_DRIP)
        with suppress(TimeoutError):
            if not client.recv(65536):
                raise ConnectionResetError
        client.settimeout(PATIENCE)


@contextmanager
def faulty_server(fault: str, path: Path | None = None) -> Iterator[tuple[FaultyServer, int]]:
    """A server with a fault, and its port; on a unix socket with a path."""
    listening = socket.create_server(("127.0.0.1", 0)) if path is None else _listen(path)
    server = FaultyServer(listening, fault)
    try:
        yield server, 0 if path else listening.getsockname()[1]
    finally:
        server.close()


def _listen(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    return listening

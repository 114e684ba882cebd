"""A server in a separate thread, and a client for raw bytes."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

from gpuledger.http.addresses import Address
from gpuledger.http.connection import ClientConnection
from gpuledger.http.limits import HttpLimits
from gpuledger.http.routes import Routes
from gpuledger.http.server import HttpServer, ProtocolFactory
from running import PATIENCE

CORPUS = Path(__file__).parent / "corpus" / "http.toml"
_HEAD = re.compile(rb"HTTP/1\.1 ([0-9]{3})( [\x20-\x7e]*)?\r\n((?:[!-9;-~]+: ?[\x20-\x7e]*\r\n)*)\r\n")
_LENGTH = re.compile(rb"^content-length: ([0-9]+)\r$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    sent: bytes
    answers: list[int]


def corpus() -> list[Case]:
    cases = tomllib.loads(CORPUS.read_text("utf-8"))["case"]
    return [Case(case["name"], case["sent"].encode("latin-1"), case["answers"]) for case in cases]


@dataclass
class Running:
    """A running server. `complaints` are its log warnings and event loop errors; no client may cause them."""

    port: int
    complaints: list[str] = field(default_factory=list)
    count: Callable[[], int] = lambda: 0


class _Complaints(logging.Handler):
    def __init__(self, into: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._into = into

    def emit(self, record: logging.LogRecord) -> None:
        self._into.append(record.getMessage() + (" with a traceback" if record.exc_info else ""))


@contextmanager
def raw_server(
    routes: Routes, protocol_factory: ProtocolFactory = ClientConnection, limits: HttpLimits | None = None
) -> Iterator[Running]:
    loop = asyncio.new_event_loop()
    server = HttpServer(
        [(Address("127.0.0.1", 0), routes)],
        limits or HttpLimits(),
        protocol_factory=protocol_factory,
    )
    loop.run_until_complete(server.start())
    running = Running(server.addresses[0].port, count=lambda: server.connections)
    loop.set_exception_handler(lambda _, context: running.complaints.append(str(context)))
    listening = _Complaints(running.complaints)
    logging.getLogger().addHandler(listening)
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        yield running
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(PATIENCE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        logging.getLogger().removeHandler(listening)


def received_from(port: int, pieces: Sequence[bytes], tls: ssl.SSLContext | None = None) -> bytes:
    """Send the pieces and close the sending side; return all received bytes until the server closes."""
    received = bytearray()
    plain = socket.create_connection(("127.0.0.1", port), PATIENCE)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with plain if tls is None else tls.wrap_socket(plain, server_hostname="localhost") as client:
        # A server that has finished its response may reset the connection while bytes are sent.
        with suppress(OSError):
            for piece in pieces:
                client.sendall(piece)
            # Not the method of SSLSocket, after which received bytes are not decrypted.
            socket.socket.shutdown(client, socket.SHUT_WR)
        with suppress(ConnectionError, ssl.SSLEOFError):
            while data := client.recv(65536):
                received += data
    return bytes(received)


def answers_in(received: bytes) -> list[tuple[int, bytes]]:
    """Status and body of each final response; fails for bytes outside of responses."""
    found = []
    while received:
        head = _HEAD.match(received)
        assert head is not None, f"not an HTTP response: {received[:200]!r}"
        received = received[head.end() :]
        status, length = int(head[1]), _LENGTH.search(head[3])
        if status == 100:
            continue
        assert length is not None, head[0]
        size = int(length[1])
        assert len(received) >= size, "a response is truncated"
        found.append((status, received[:size]))
        received = received[size:]
    return found

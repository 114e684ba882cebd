"""A scripted scrape target: a test defines its responses, and it counts the requests."""

from __future__ import annotations

import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Thread
from typing import Any

from running import PATIENCE

TEXT = "text/plain; version=0.0.4"
OPEN = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclass(frozen=True)
class Answer:
    body: str
    content_type: str = TEXT
    status: int = 200
    delay: float = 0.0
    headers: tuple[tuple[str, str], ...] = ()


class _Server(ThreadingHTTPServer):
    """Knows which of its connections are open."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.open: set[Any] = set()
        self.changed = Condition()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self.changed:
            self.open.add(client_address)
            self.changed.notify_all()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self.changed:
                self.open.discard(client_address)
                self.changed.notify_all()


class Target:
    """HTTP server for scrapes. `answer` returns the response for a path.

    `requests` counts responses by path and client (the User-Agent up to the slash); `seen` holds the headers
    of the last request for each path.
    """

    def __init__(self, answer: Callable[[str], Answer], context: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.requests: Counter[tuple[str, str]] = Counter()
        self.seen: dict[str, dict[str, str]] = {}
        target = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                target.seen[path] = {name.lower(): value for name, value in self.headers.items()}
                found = target.answer(path)
                if found.delay:
                    time.sleep(found.delay)
                body = found.body.encode()
                self.send_response(found.status)
                self.send_header("Content-Type", found.content_type)
                self.send_header("Content-Length", str(len(body)))
                for name, value in found.headers:
                    self.send_header(name, value)
                self.end_headers()
                try:
                    self.wfile.write(body)
                except OSError:
                    self.close_connection = True
                target.requests[path, self.headers.get("User-Agent", "").partition("/")[0]] += 1

            def log_message(self, *_: object) -> None:
                pass

            def handle(self) -> None:
                try:
                    super().handle()
                except OSError:
                    self.close_connection = True

        self._server = _Server(Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def wait_until_idle(self) -> None:
        """Wait until all requests are answered, also those of a client that has ended since."""
        server = self._server
        with server.changed:
            # Connections are accepted in their order.
            with socket.create_connection(("127.0.0.1", self.port)) as last:
                assert server.changed.wait_for(lambda: last.getsockname() in server.open, PATIENCE)
            assert server.changed.wait_for(lambda: not server.open, PATIENCE)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE)


@contextmanager
def scripted(answer: Callable[[str], Answer], context: ssl.SSLContext | None = None) -> Iterator[Target]:
    target = Target(answer, context)
    try:
        yield target
    finally:
        target.close()

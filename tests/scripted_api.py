"""An API server with scripted lists, watches and errors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from select import select
from socket import MSG_PEEK, socket
from threading import Condition, Thread
from typing import Any
from urllib.parse import parse_qs

Json = dict[str, Any]
# The interval in which an open watch checks whether it has ended.
_POLL_SECONDS = 0.02


class ScriptedApi:
    """`responses` maps paths to lists of objects or to error statuses; other paths give 404.

    `watched` holds the path and query of each open watch.
    """

    def __init__(self, responses: Mapping[str, int | list[Json]]) -> None:
        self.responses = dict(responses)
        self.watched: list[str] = []
        self.url = ""
        self._events: dict[str, list[Json]] = {}
        self._changed = Condition()
        self._over = False

    def apply_changes(self, path: str, *changes: tuple[str, Json]) -> None:
        """Apply (event kind, object) pairs to a path: to its list from now on, and to its open watches."""
        with self._changed:
            for kind, item in changes:
                self._events.setdefault(path, []).append({"type": kind, "object": item})
                listed = self.responses[path]
                assert isinstance(listed, list)
                others = [one for one in listed if one["metadata"]["name"] != item["metadata"]["name"]]
                self.responses[path] = others if kind == "DELETED" else [*others, item]
            self._changed.notify_all()

    def refuse(self, path: str, status: int) -> None:
        """Respond with `status` from now on; watches of the path end."""
        with self._changed:
            self.responses[path] = status
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def listed(self, path: str) -> bytes:
        with self._changed:
            items = self.responses[path]
            version = str(len(self._events.get(path, ())))
        return json.dumps({"metadata": {"resourceVersion": version}, "items": items}).encode()

    def events(self, path: str, query: str, since: int, client: socket) -> Iterator[bytes]:
        """The event lines of one watch, until the path is refused or the client disconnects."""
        self.watched.append(f"{path}?{query}")
        try:
            while not (self._over or isinstance(self.responses[path], int) or _is_closed(client)):
                with self._changed:
                    if len(self._events.get(path, ())) == since:
                        self._changed.wait(_POLL_SECONDS)
                    new = self._events.get(path, [])[since:]
                since += len(new)
                if new:
                    yield b"".join(json.dumps(event).encode() + b"\n" for event in new)
        finally:
            self.watched.remove(f"{path}?{query}")


def _is_closed(client: socket) -> bool:
    """Whether the client has disconnected: it sends nothing else after its request."""
    return bool(select([client], [], [], 0.0)[0]) and not client.recv(1, MSG_PEEK)


@contextmanager
def scripted_api(responses: Mapping[str, int | list[Json]]) -> Iterator[ScriptedApi]:
    api = ScriptedApi(responses)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            response = api.responses.get(path, 404)
            self.send_response(response if isinstance(response, int) else 200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            parameters = parse_qs(query)
            if isinstance(response, int):
                body = {"kind": "Status", "status": "Failure", "message": "scripted", "code": response}
                self.wfile.write(json.dumps(body).encode())
            elif "watch" in parameters:
                for event in api.events(path, query, int(parameters["resourceVersion"][0]), self.connection):
                    self.wfile.write(event)
            else:
                self.wfile.write(api.listed(path))

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Ignored: clients disconnect in the middle of a watch."""

    server = Server(("127.0.0.1", 0), Handler)
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield api
    finally:
        api.close()
        server.shutdown()
        thread.join()
        server.server_close()

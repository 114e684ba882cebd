"""An API server that lists what a test tells it to, and tells of changes when the test does."""

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
# So often an open watch looks whether it is over.
_LOOK_SECONDS = 0.02


class ScriptedApi:
    """`answers` are lists of objects or refusals by path; 404 for every other one. `watched` are the paths,
    with what follows them, of the watches that are open now.
    """

    def __init__(self, answers: Mapping[str, int | list[Json]]) -> None:
        self.answers = dict(answers)
        self.watched: list[str] = []
        self.url = ""
        self._told: dict[str, list[Json]] = {}
        self._changed = Condition()
        self._over = False

    def families(self, path: str, *changes: tuple[str, Json]) -> None:
        """Kinds and objects of what happens at a path: listed from then on, told to whoever watches it."""
        with self._changed:
            for kind, about in changes:
                self._told.setdefault(path, []).append({"type": kind, "object": about})
                listed = self.answers[path]
                assert isinstance(listed, list)
                others = [one for one in listed if one["metadata"]["name"] != about["metadata"]["name"]]
                self.answers[path] = others if kind == "DELETED" else [*others, about]
            self._changed.notify_all()

    def refuse(self, path: str, status: int) -> None:
        """Answer so from now on; watches of the path end."""
        with self._changed:
            self.answers[path] = status
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def listed(self, path: str) -> bytes:
        with self._changed:
            items = self.answers[path]
            version = str(len(self._told.get(path, ())))
        return json.dumps({"metadata": {"resourceVersion": version}, "items": items}).encode()

    def events(self, path: str, query: str, since: int, client: socket) -> Iterator[bytes]:
        """Those of one watch, until the path is refused or the client has gone."""
        self.watched.append(f"{path}?{query}")
        try:
            while not (self._over or isinstance(self.answers[path], int) or _is_closed(client)):
                with self._changed:
                    if len(self._told.get(path, ())) == since:
                        self._changed.wait(_LOOK_SECONDS)
                    new = self._told.get(path, [])[since:]
                since += len(new)
                if new:
                    yield b"".join(json.dumps(event).encode() + b"\n" for event in new)
        finally:
            self.watched.remove(f"{path}?{query}")


def _is_closed(client: socket) -> bool:
    """Whether the other side has let go; it has nothing more to say else."""
    return bool(select([client], [], [], 0.0)[0]) and not client.recv(1, MSG_PEEK)


@contextmanager
def scripted_api(answers: Mapping[str, int | list[Json]]) -> Iterator[ScriptedApi]:
    api = ScriptedApi(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            answer = api.answers.get(path, 404)
            self.send_response(answer if isinstance(answer, int) else 200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            asked = parse_qs(query)
            if isinstance(answer, int):
                told = {"kind": "Status", "status": "Failure", "message": "scripted", "code": answer}
                self.wfile.write(json.dumps(told).encode())
            elif "watch" in asked:
                for told_now in api.events(path, query, int(asked["resourceVersion"][0]), self.connection):
                    self.wfile.write(told_now)
            else:
                self.wfile.write(api.listed(path))

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Clients go away in the middle of a watch."""

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

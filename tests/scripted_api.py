"""An API server that lists what a test tells it to and whose watches tell nothing until it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

Json = dict[str, Any]


@contextmanager
def scripted_api(answers: Mapping[str, int | list[Json]]) -> Iterator[str]:
    """Its URL. `answers` are lists of objects or refusals by path; 404 for every other one."""
    over = Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            answer = answers.get(path, 404)
            self.send_response(answer if isinstance(answer, int) else 200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            if "watch=1" in query:
                over.wait()
            elif isinstance(answer, int):
                told = {"kind": "Status", "status": "Failure", "message": "scripted", "code": answer}
                self.wfile.write(json.dumps(told).encode())
            else:
                self.wfile.write(json.dumps({"metadata": {"resourceVersion": "1"}, "items": answer}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        over.set()
        server.shutdown()
        thread.join()
        server.server_close()

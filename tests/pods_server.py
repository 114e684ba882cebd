"""A real HTTP server that lists and watches pods by a script, and pods to put into it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from random import Random
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from gpuledger.kubernetes.access import Access

Json = dict[str, Any]
END, CUT = object(), object()


class NoWait(Random):
    """Chance that never lets anybody wait."""

    def uniform(self, a: float, b: float) -> float:
        return 0.0


@dataclass(frozen=True)
class Asked:
    path: str
    query: dict[str, str]
    headers: dict[str, str]

    @property
    def token(self) -> str:
        return self.headers.get("authorization", "")


class Talk:
    """What a script may do with one request."""

    def __init__(self, handler: BaseHTTPRequestHandler, server: ApiServer) -> None:
        self._handler = handler
        self.server = server

    def head(self, status: int = 200, **headers: str) -> None:
        self._handler.send_response(status)
        for name, value in headers.items():
            self._handler.send_header(name.replace("_", "-"), value)
        self._handler.end_headers()

    def whole(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.head(status, Content_Length=str(len(body)), **headers)
        self._handler.wfile.write(body)

    def chunk(self, data: bytes) -> None:
        self._handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def raw(self, data: bytes) -> None:
        self._handler.wfile.write(data)


Script = Callable[[Talk], None]


@dataclass
class ApiServer:
    """`lists` and `watches` are scripts for the next requests.

    Without one, `pods` are listed, and what is put into `events` is watched: END ends a watch as its timeout
    does, CUT as a broken connection does.
    """

    pods: list[Json] = field(default_factory=list)
    version: str = "100"
    lists: deque[Script] = field(default_factory=deque)
    watches: deque[Script] = field(default_factory=deque)
    others: dict[str, Script] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    events: Queue[Any] = field(default_factory=Queue)
    closing: Event = field(default_factory=Event)
    port: int = 0

    @property
    def access(self) -> Access:
        return Access(f"http://127.0.0.1:{self.port}")

    def listed(self) -> list[Asked]:
        return [one for one in self.asked if "watch" not in one.query]

    def watched(self) -> list[Asked]:
        return [one for one in self.asked if "watch" in one.query]

    def answer(self, asked: Asked, talk: Talk) -> None:
        self.asked.append(asked)
        if asked.path in self.others:
            self.others[asked.path](talk)
        elif asked.path != "/api/v1/pods":
            status(404)(talk)
        elif "watch" in asked.query:
            (self.watches.popleft() if self.watches else live)(talk)
        else:
            (self.lists.popleft() if self.lists else all_pods)(talk)


def all_pods(talk: Talk) -> None:
    talk.whole(pod_list(talk.server.pods, talk.server.version))


def live(talk: Talk) -> None:
    talk.head(Transfer_Encoding="chunked")
    while (event := talk.server.events.get()) is not CUT:
        if event is END:
            talk.raw(b"0\r\n\r\n")
            return
        talk.chunk(event if isinstance(event, bytes) else line(event))


def status(code: int, message: str = "", **headers: str) -> Script:
    body = json.dumps({"kind": "Status", "code": code, "message": message}).encode()
    return lambda talk: talk.whole(body, code, **headers)


def chunks(*data: bytes, ends: bool = True) -> Script:
    def script(talk: Talk) -> None:
        talk.head(Transfer_Encoding="chunked")
        for one in data:
            talk.chunk(one)
        if ends:
            talk.raw(b"0\r\n\r\n")

    return script


def body(data: bytes, **headers: str) -> Script:
    return lambda talk: talk.whole(data, **headers)


def hang(talk: Talk) -> None:
    talk.head(Transfer_Encoding="chunked")
    talk.server.closing.wait()


def silence(talk: Talk) -> None:
    talk.server.closing.wait()


def pod_list(pods: list[Json], version: str = "100", token: str = "") -> bytes:
    meta = {"resourceVersion": version} | ({"continue": token} if token else {})
    return json.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": pods}).encode()


def event(kind: str, about: Json) -> Json:
    return {"type": kind, "object": about}


def line(told: Json) -> bytes:
    return json.dumps(told).encode() + b"\n"


def bookmark(version: str) -> Json:
    return event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": version}})


def error_event(code: int, reason: str = "", message: str = "") -> Json:
    return event("ERROR", {"kind": "Status", "code": code, "reason": reason, "message": message})


def a_pod(
    uid: str = "u1",
    name: str = "train",
    namespace: str = "ml",
    version: str = "101",
    created: str = "2026-11-28T03:00:00Z",
    containers: Json | None = None,
    phase: str = "Running",
    **meta: Any,
) -> Json:
    """A pod as the API tells it; `containers` maps names to container ids."""
    told = [{"name": key, "containerID": value} for key, value in (containers or {}).items()]
    return {
        "metadata": {
            "uid": uid,
            "name": name,
            "namespace": namespace,
            "resourceVersion": version,
            "creationTimestamp": created,
            **meta,
        },
        "status": {"phase": phase, "containerStatuses": told},
    }


@contextmanager
def serving() -> Iterator[ApiServer]:
    state = ApiServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(parts.path, dict(parse_qsl(parts.query)), headers)
            self.close_connection = True
            state.answer(asked, Talk(self, state))

        def log_message(self, *_: object) -> None:
            """Quiet."""

    class Server(ThreadingHTTPServer):
        # A client that goes away is what half of the tests are about.
        daemon_threads = True
        block_on_close = False

        def handle_error(self, *_: object) -> None:
            """Quiet."""

    server = Server(("127.0.0.1", 0), Handler)
    state.port = server.server_port
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.closing.set()
        for _ in range(20):
            state.events.put(CUT)
        server.shutdown()
        thread.join()
        server.server_close()

"""A scripted API server for lists and watches of pods, and builders of pods and events."""

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

from gpuledger.kubernetes.access import ApiServerAccess

Json = dict[str, Any]
END, CUT = object(), object()


class NoWait(Random):
    """A random source without jitter."""

    def uniform(self, a: float, b: float) -> float:
        return 0.0


@dataclass(frozen=True)
class ReceivedRequest:
    path: str
    query: dict[str, str]
    headers: dict[str, str]

    @property
    def token(self) -> str:
        return self.headers.get("authorization", "")


class ServerExchange:
    """One request at the server, with the ways in which a script can respond."""

    def __init__(self, handler: BaseHTTPRequestHandler, server: ApiServer) -> None:
        self._handler = handler
        self.server = server

    def send_head(self, status: int = 200, **headers: str) -> None:
        self._handler.send_response(status)
        for name, value in headers.items():
            self._handler.send_header(name.replace("_", "-"), value)
        self._handler.end_headers()

    def send_response(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_head(status, Content_Length=str(len(body)), **headers)
        self._handler.wfile.write(body)

    def send_chunk(self, data: bytes) -> None:
        self._handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def send_raw(self, data: bytes) -> None:
        self._handler.wfile.write(data)


Script = Callable[[ServerExchange], None]


@dataclass
class ApiServer:
    """`lists` and `watches` are scripts for the next requests.

    Without a script, a list returns `pods`, and a watch returns what is put into `events`: END ends it like
    its timeout, CUT like a broken connection. `other_paths` are scripts for other paths.
    """

    pods: list[Json] = field(default_factory=list)
    version: str = "100"
    lists: deque[Script] = field(default_factory=deque)
    watches: deque[Script] = field(default_factory=deque)
    other_paths: dict[str, Script] = field(default_factory=dict)
    requests: list[ReceivedRequest] = field(default_factory=list)
    events: Queue[Any] = field(default_factory=Queue)
    closing: Event = field(default_factory=Event)
    port: int = 0

    @property
    def access(self) -> ApiServerAccess:
        return ApiServerAccess(f"http://127.0.0.1:{self.port}")

    def listed(self) -> list[ReceivedRequest]:
        return [one for one in self.requests if "watch" not in one.query]

    def watched(self) -> list[ReceivedRequest]:
        return [one for one in self.requests if "watch" in one.query]

    def answer(self, request: ReceivedRequest, exchange: ServerExchange) -> None:
        self.requests.append(request)
        if request.path in self.other_paths:
            self.other_paths[request.path](exchange)
        elif request.path != "/api/v1/pods":
            status(404)(exchange)
        elif "watch" in request.query:
            (self.watches.popleft() if self.watches else send_events)(exchange)
        else:
            (self.lists.popleft() if self.lists else all_pods)(exchange)


def all_pods(exchange: ServerExchange) -> None:
    exchange.send_response(pod_list(exchange.server.pods, exchange.server.version))


def send_events(exchange: ServerExchange) -> None:
    exchange.send_head(Transfer_Encoding="chunked")
    while (event := exchange.server.events.get()) is not CUT:
        if event is END:
            exchange.send_raw(b"0\r\n\r\n")
            return
        exchange.send_chunk(event if isinstance(event, bytes) else line(event))


def status(code: int, message: str = "", **headers: str) -> Script:
    body = json.dumps({"kind": "Status", "code": code, "message": message}).encode()
    return lambda exchange: exchange.send_response(body, code, **headers)


def chunks(*data: bytes, ends: bool = True) -> Script:
    def script(exchange: ServerExchange) -> None:
        exchange.send_head(Transfer_Encoding="chunked")
        for one in data:
            exchange.send_chunk(one)
        if ends:
            exchange.send_raw(b"0\r\n\r\n")

    return script


def body(data: bytes, **headers: str) -> Script:
    return lambda exchange: exchange.send_response(data, **headers)


def hang(exchange: ServerExchange) -> None:
    exchange.send_head(Transfer_Encoding="chunked")
    exchange.server.closing.wait()


def silence(exchange: ServerExchange) -> None:
    exchange.server.closing.wait()


def pod_list(pods: list[Json], version: str = "100", token: str = "") -> bytes:
    meta = {"resourceVersion": version} | ({"continue": token} if token else {})
    return json.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": pods}).encode()


def event(kind: str, item: Json) -> Json:
    return {"type": kind, "object": item}


def line(event: Json) -> bytes:
    return json.dumps(event).encode() + b"\n"


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
    """A core/v1 Pod; `containers` maps names to container ids."""
    statuses = [{"name": key, "containerID": value} for key, value in (containers or {}).items()]
    return {
        "metadata": {
            "uid": uid,
            "name": name,
            "namespace": namespace,
            "resourceVersion": version,
            "creationTimestamp": created,
            **meta,
        },
        "status": {"phase": phase, "containerStatuses": statuses},
    }


@contextmanager
def serving() -> Iterator[ApiServer]:
    state = ApiServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = ReceivedRequest(parts.path, dict(parse_qsl(parts.query)), headers)
            self.close_connection = True
            state.answer(request, ServerExchange(self, state))

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        # Many tests disconnect in the middle of a response.
        daemon_threads = True
        block_on_close = False

        def handle_error(self, *_: object) -> None:
            """Log nothing."""

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

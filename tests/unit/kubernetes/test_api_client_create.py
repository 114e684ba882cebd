"""Objects that the blocking client creates, and the answers that are errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.kubernetes.api_client import ApiClient, ApiServerRefused, ApiServerUnreachable

PATH = "/apis/events.k8s.io/v1/namespaces/ml/events"


class Server:
    """An API server that keeps what it receives, and answers with one status."""

    def __init__(self) -> None:
        self.status, self.body = 201, b"{}"
        self.received: list[tuple[str, str, str, Any]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                sent = self.headers["Content-Type"], self.headers["Authorization"]
                server.received.append((self.path, *sent, json.loads(body)))
                self.send_response(server.status)
                self.send_header("Content-Length", str(len(server.body)))
                self.end_headers()
                self.wfile.write(server.body)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = Thread(target=made.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield made
    made.http.shutdown()
    made.http.server_close()
    thread.join()


def client(server: Server) -> ApiClient:
    return ApiClient(ApiServerAccess(server.url, token="secret"))


def test_an_object_is_sent_as_json_with_the_credentials(server: Server) -> None:
    client(server).create(PATH, {"kind": "Event", "note": "für"})
    expected = (PATH, "application/json", "Bearer secret", {"kind": "Event", "note": "für"})
    assert server.received == [expected]


def test_several_objects_are_created_one_after_the_other(server: Server) -> None:
    made = client(server)
    for number in range(3):
        made.create(PATH, {"number": number})
    assert [body["number"] for *_, body in server.received] == [0, 1, 2]


REFUSED = {
    "it exists": (409, "already exists", r"409 .*already exists"),
    "a missing permission": (
        403,
        'User "x" cannot create',
        r'x may not create events; add .*"events\.k8s\.io"',
    ),
    "a namespace that is deleted": (403, "it is being terminated", "403"),
    "invalid": (422, "note: too long", "422 .*too long"),
    "an error": (500, "etcd", "500 .*etcd"),
}


@pytest.mark.parametrize(("status", "message", "text"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_has_its_status_and_the_message_of_the_server(
    server: Server, status: int, message: str, text: str
) -> None:
    server.status, server.body = status, json.dumps({"kind": "Status", "message": message}).encode()
    with pytest.raises(ApiServerRefused, match=text) as raised:
        client(server).create(PATH, {})
    assert (raised.value.status, raised.value.message) == (status, message)


def test_a_server_that_is_gone(server: Server) -> None:
    made = client(server)
    server.http.server_close()
    with pytest.raises(ApiServerUnreachable, match=r"cannot be reached|no response"):
        made.create(PATH, {})

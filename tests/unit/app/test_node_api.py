"""Asking a node over HTTP, whatever answers there. The server is real and says what the test wants."""

from __future__ import annotations

import base64
import gzip
import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from gpuledger.app.node_api import SNAPSHOT, Access, NodeApi
from gpuledger.model.errors import GpuledgerError, UsageError
from unit.terminal.support import snapshot

BODY = json.dumps(snapshot()).encode()


class Answers:
    """What a node says by path; and what it was asked."""

    def __init__(self):
        self.by_path = {SNAPSHOT: (200, {}, BODY)}
        self.asked = []
        self.connections = 0

    def handler(answers):  # noqa: N805  (the class below has a self of its own)
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                answers.connections += 1
                super().setup()

            def do_GET(self):
                answers.asked.append((self.path, dict(self.headers)))
                status, headers, body = answers.by_path.get(self.path, (404, {}, b"not here"))
                self.send_response(status)
                for name, text in headers.items():
                    self.send_header(name, text)
                if "Content-Length" not in headers:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        return Handler


@pytest.fixture
def answers() -> Iterator[Answers]:
    made = Answers()
    server = ThreadingHTTPServer(("127.0.0.1", 0), made.handler())
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def api(answers) -> Iterator[NodeApi]:
    made = NodeApi(answers.url, Access())
    yield made
    made.close()


def trouble(api: NodeApi) -> str:
    with pytest.raises(GpuledgerError) as caught:
        api.snapshot()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_one_connection_serves_many_pictures_and_an_unchanged_one_is_not_sent_again(answers, api):
    answers.by_path[SNAPSHOT] = (200, {"ETag": '"7"'}, BODY)
    first = api.snapshot()
    answers.by_path[SNAPSHOT] = (304, {"Content-Length": "0"}, b"")
    assert api.snapshot() is first
    assert answers.asked[1][1]["If-None-Match"] == '"7"'
    assert answers.connections == 1


def test_what_comes_packed_is_unpacked(answers, api):
    answers.by_path[SNAPSHOT] = (200, {"Content-Encoding": "gzip"}, gzip.compress(BODY))
    assert api.snapshot()["node"] == "node-1"
    assert answers.asked[0][1]["Accept-Encoding"] == "gzip"


def test_a_path_before_the_api_is_kept(answers):
    answers.by_path[f"/gpu{SNAPSHOT}"] = (200, {}, BODY)
    api = NodeApi(f"{answers.url}/gpu/", Access())
    assert api.snapshot()["node"] == "node-1"
    api.close()


def test_user_and_password_go_to_the_node_and_into_no_message(answers):
    answers.by_path[SNAPSHOT] = (401, {}, b"")
    api = NodeApi(answers.url.replace("http://", "http://ann:s%40crt@"), Access())
    told = trouble(api)
    api.close()
    assert answers.asked[0][1]["Authorization"] == "Basic " + base64.b64encode(b"ann:s@crt").decode()
    assert "s@crt" not in told
    assert "s%40crt" not in told


def test_the_password_may_stand_in_a_file(answers, tmp_path):
    (tmp_path / "password").write_text("secret\n")
    api = NodeApi(answers.url, Access(user="ann", password_file=str(tmp_path / "password")))
    api.snapshot()
    api.close()
    assert answers.asked[0][1]["Authorization"] == "Basic " + base64.b64encode(b"ann:secret").decode()


ANSWERS = [
    (401, {}, b"", "--password-file"),
    (403, {}, b"", "does not let this user in"),
    (
        302,
        {"Location": "https://elsewhere/\x07"},
        b"",
        "sends elsewhere, to https://elsewhere/: name that as --url",
    ),
    (400, {}, b"Client sent an HTTP request to an HTTPS server.", "is it https://?"),
    (404, {}, b"<html>", "is no gpuledger that top knows"),
    (500, {}, b"oops", "answers 500"),
    (503, {}, b'{"error": {"code": "x", "message": "come\\u001b back"}}', "answers 503 to .*: come back"),
    (200, {}, b"<html>", "without JSON"),
    (200, {}, b"[1]", "with no object"),
    (200, {}, b"[" * 100_000, "without JSON"),
    (200, {"Content-Encoding": "gzip"}, b"not packed", "cannot be read"),
    (200, {"Content-Encoding": "gzip"}, gzip.compress(BODY, mtime=0)[:-9], "cannot be read"),
]


# Named by status and remedy: packed bytes carry the time, and test processes must agree on names.
@pytest.mark.parametrize(
    ("status", "headers", "body", "why"), ANSWERS, ids=[f"{answer[0]}-{answer[3]}" for answer in ANSWERS]
)
def test_an_answer_that_is_no_snapshot_is_one_line_with_a_remedy(answers, api, status, headers, body, why):
    answers.by_path[SNAPSHOT] = (status, headers, body)
    with pytest.raises(GpuledgerError, match=why) as caught:
        api.snapshot()
    assert str(caught.value).isprintable()


def test_a_gpuledger_without_the_api_is_told_by_its_metrics(answers, api):
    del answers.by_path[SNAPSHOT]
    answers.by_path["/metrics/native"] = (200, {}, b'gpuledger_build_info{version="0.0.9"} 1\n')
    assert "is a gpuledger (0.0.9) that does not show who is on its GPUs: set web.page to full" in trouble(
        api
    )


def test_a_path_that_is_wrong_is_told_from_a_node_without_the_api(answers):
    api = NodeApi(f"{answers.url}/metrics", Access())
    assert "give --url without a path" in trouble(api)
    api.close()


def test_a_connection_that_was_closed_meanwhile_is_made_anew_and_a_node_that_is_gone_is_told(answers, api):
    api.snapshot()
    api._connection.sock.shutdown(socket.SHUT_RDWR)
    assert api.snapshot()["node"] == "node-1"
    api.close()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        gone = NodeApi(f"http://127.0.0.1:{probe.getsockname()[1]}", Access())
        assert "cannot be reached (Connection refused)" in trouble(gone)


def test_a_node_that_does_not_answer_is_not_waited_for_without_end():
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        api = NodeApi(f"http://127.0.0.1:{deaf.getsockname()[1]}", Access(), timeout=0.05)
        assert "did not answer within 0.05 s" in trouble(api)


def test_a_node_that_drips_its_answer_is_not_waited_for_without_end():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip():
            client, _ = server.accept()
            with client, suppress(OSError):
                client.recv(4096)
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")
                while True:
                    client.sendall(b" ")

        node = Thread(target=drip)
        node.start()
        slow = NodeApi(f"http://127.0.0.1:{server.getsockname()[1]}", Access(), timeout=0.05)
        assert "did not answer within 0.05 s" in trouble(slow)
        node.join()


URLS = [
    ("node-7", "http://node-7:9400"),
    ("node-7:9401", "http://node-7:9401"),
    ("http://node-7", "http://node-7:80"),
    ("https://node-7/gpu/", "https://node-7:443/gpu"),
    ("http://[::1]:9400", "http://[::1]:9400"),
]


@pytest.mark.parametrize(("given", "asked"), URLS)
def test_who_names_a_host_alone_means_the_nodes_port(given, asked):
    assert NodeApi(given, Access()).url == asked


WRONG = [
    ("ftp://x", Access(), "--url"),
    ("http://", Access(), "--url"),
    ("http://x:0", Access(), "--url"),
    ("http://x", Access(user="ann"), "--password-file"),
    ("http://x", Access(password_file="/x"), "give --user too"),
    ("http://x", Access(user="ann", password_file="/not/there"), "cannot read /not/there"),
    ("https://x", Access(ca_file="/not/there"), "--ca-file"),
    ("https://x", Access(cert_file="/not/there"), "--cert-file"),
    ("https://x", Access(key_file="/not/there"), "--cert-file"),
]


@pytest.mark.parametrize(("url", "access", "why"), WRONG)
def test_what_cannot_be_meant_is_an_error_of_the_user(url, access, why):
    with pytest.raises(UsageError, match=why):
        NodeApi(url, access)

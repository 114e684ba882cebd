"""The client of a node's API against a real server with scripted responses."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from certificates import Certificates
from gpuledger.app.node_api import SNAPSHOT, NodeApiClient
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.terminal.settings import NodeAccessSettings
from scripted_target import Answer, scripted
from unit.terminal.support import snapshot

BODY = json.dumps(snapshot()).encode()


class ScriptedNode:
    """The responses of a node by path, and the received requests."""

    def __init__(self):
        self.by_path = {SNAPSHOT: (200, {}, BODY)}
        self.requests = []
        self.connections = 0

    def handler(node):  # noqa: N805  (the inner class has its own self)
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                node.connections += 1
                super().setup()

            def do_GET(self):
                node.requests.append((self.path, dict(self.headers)))
                status, headers, body = node.by_path.get(self.path, (404, {}, b"not found"))
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
def node() -> Iterator[ScriptedNode]:
    made = ScriptedNode()
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
def api(node) -> Iterator[NodeApiClient]:
    made = NodeApiClient(node.url, NodeAccessSettings())
    yield made
    made.close()


def error_of(api: NodeApiClient) -> str:
    with pytest.raises(GpuledgerError) as caught:
        api.snapshot()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_one_connection_is_reused_and_an_unchanged_snapshot_is_not_sent_again(node, api):
    node.by_path[SNAPSHOT] = (200, {"ETag": '"7"'}, BODY)
    first = api.snapshot()
    node.by_path[SNAPSHOT] = (304, {"Content-Length": "0"}, b"")
    assert api.snapshot() is first
    assert node.requests[1][1]["If-None-Match"] == '"7"'
    assert node.connections == 1


def test_a_gzip_response_is_decompressed(node, api):
    node.by_path[SNAPSHOT] = (200, {"Content-Encoding": "gzip"}, gzip.compress(BODY))
    assert api.snapshot()["node"] == "node-1"
    assert node.requests[0][1]["Accept-Encoding"] == "gzip"


def test_a_path_prefix_of_the_url_is_kept(node):
    node.by_path[f"/gpu{SNAPSHOT}"] = (200, {}, BODY)
    api = NodeApiClient(f"{node.url}/gpu/", NodeAccessSettings())
    assert api.snapshot()["node"] == "node-1"
    api.close()


def test_credentials_are_sent_but_in_no_message(node):
    node.by_path[SNAPSHOT] = (401, {}, b"")
    api = NodeApiClient(node.url.replace("http://", "http://ann:s%40crt@"), NodeAccessSettings())
    message = error_of(api)
    api.close()
    assert node.requests[0][1]["Authorization"] == "Basic " + base64.b64encode(b"ann:s@crt").decode()
    assert "does not accept this login (401): check the user and the password" in message
    assert "s@crt" not in message
    assert "s%40crt" not in message


def test_the_password_is_read_from_a_file(node, tmp_path):
    (tmp_path / "password").write_text("secret\n")
    api = NodeApiClient(node.url, NodeAccessSettings(user="ann", password_file=str(tmp_path / "password")))
    api.snapshot()
    api.close()
    assert node.requests[0][1]["Authorization"] == "Basic " + base64.b64encode(b"ann:secret").decode()


ANSWERS = [
    (401, {}, b"", "--password-file"),
    (403, {}, b"", "denies access to this user"),
    (
        302,
        {"Location": "https://elsewhere/\x07"},
        b"",
        "redirects to https://elsewhere/: give that URL as --url",
    ),
    (
        302,
        {"Location": "https://gw/n1/api/v1/snapshot?x=1"},
        b"",
        "redirects to https://gw/n1: give that URL",
    ),
    (400, {}, b"Client sent an HTTP request to an HTTPS server.", "try https://"),
    (404, {}, b"<html>", "not as a gpuledger: is gpuledger serve running"),
    (500, {}, b"oops", "answers 500 to /api/v1/snapshot: try again later, and check its log"),
    (429, {}, b"", "answers 429 to /api/v1/snapshot: try again later"),
    (405, {}, b"", "answers 405 to /api/v1/snapshot: is gpuledger serve running there"),
    (503, {}, b'{"error": {"code": "x", "message": "come\\u001b back"}}', "answers 503 to .*: come back"),
    (200, {}, b"<html>", "is not a JSON object"),
    (200, {}, b"[1]", "/api/v1/snapshot is not a JSON object"),
    (200, {}, b"[" * 100_000, "snapshot is not a JSON object"),
    (200, {"Content-Encoding": "gzip"}, b"not packed", "cannot read the answer"),
    (200, {"Content-Encoding": "gzip"}, gzip.compress(BODY, mtime=0)[:-9], "cannot read the answer"),
]


# Named by status and remedy: packed bytes carry the time, and test processes must agree on names.
@pytest.mark.parametrize(
    ("status", "headers", "body", "why"), ANSWERS, ids=[f"{answer[0]}-{answer[3]}" for answer in ANSWERS]
)
def test_a_response_without_a_snapshot_is_a_one_line_error_with_a_remedy(
    node, api, status, headers, body, why
):
    node.by_path[SNAPSHOT] = (status, headers, body)
    with pytest.raises(GpuledgerError, match=why) as caught:
        api.snapshot()
    assert str(caught.value).isprintable()


def test_a_gpuledger_without_the_web_api_is_recognized_by_its_metrics(node, api):
    del node.by_path[SNAPSHOT]
    node.by_path["/metrics/native"] = (200, {}, b'gpuledger_build_info{version="0.0.9"} 1\n')
    assert "is a gpuledger (0.0.9) that does not serve the web API: set web.page to full" in error_of(api)


def test_a_wrong_path_is_distinguished_from_a_node_without_the_web_api(node):
    api = NodeApiClient(f"{node.url}/metrics", NodeAccessSettings())
    assert "give --url without a path" in error_of(api)
    api.close()


def test_a_closed_connection_is_reopened_and_an_unreachable_node_is_an_error(node, api):
    api.snapshot()
    api._socket.shutdown(socket.SHUT_RDWR)
    assert api.snapshot()["node"] == "node-1"
    api.close()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        gone = NodeApiClient(f"http://127.0.0.1:{probe.getsockname()[1]}", NodeAccessSettings())
        assert "cannot be reached (Connection refused)" in error_of(gone)


def test_a_node_that_does_not_answer_times_out():
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        api = NodeApiClient(f"http://127.0.0.1:{deaf.getsockname()[1]}", NodeAccessSettings(), timeout=0.05)
        assert "did not answer within 0.05 s" in error_of(api)


def test_a_node_that_answers_byte_by_byte_times_out():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def send_slowly():
            client, _ = server.accept()
            with client, suppress(OSError):
                client.recv(4096)
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")
                while True:
                    client.sendall(b" ")

        node = Thread(target=send_slowly)
        node.start()
        slow = NodeApiClient(
            f"http://127.0.0.1:{server.getsockname()[1]}", NodeAccessSettings(), timeout=0.05
        )
        assert "did not answer within 0.05 s" in error_of(slow)
        node.join()


URLS = [
    ("node-7", "http://node-7:9400"),
    ("node-7:9401", "http://node-7:9401"),
    ("http://node-7", "http://node-7:80"),
    ("https://node-7/gpu/", "https://node-7:443/gpu"),
    ("http://[::1]:9400", "http://[::1]:9400"),
]


@pytest.mark.parametrize(("given", "requests"), URLS)
def test_a_host_without_a_scheme_gets_the_default_port_of_gpuledger(given, requests):
    assert NodeApiClient(given, NodeAccessSettings()).url == requests


WRONG = [
    ("ftp://x", NodeAccessSettings(), "--url"),
    ("http://", NodeAccessSettings(), "--url"),
    ("http://x:0", NodeAccessSettings(), "--url"),
    ("http://x", NodeAccessSettings(user="ann"), "--password-file"),
    (
        "http://x",
        NodeAccessSettings(user="ann:secret", password_file="/x"),
        "--user: expected a name without",
    ),
    ("http://x", NodeAccessSettings(password_file="/x"), "needs --user too"),
    ("http://x", NodeAccessSettings(user="ann", password_file="/not/there"), "cannot read /not/there"),
    ("https://x", NodeAccessSettings(ca_file="/not/there"), "--ca-file"),
    ("https://x", NodeAccessSettings(cert_file="/not/there"), "--cert-file"),
    ("https://x", NodeAccessSettings(key_file="/not/there"), "--cert-file"),
]


@pytest.mark.parametrize(("url", "access", "why"), WRONG)
def test_contradictory_flags_are_usage_errors(url, access, why):
    with pytest.raises(UsageError, match=why):
        NodeApiClient(url, access)


NO_PAIR = "expected a certificate and a private key without a passphrase, in PEM format"
KEYS = [
    ("", rf"server.crt: {NO_PAIR}; a key in another file needs --key-file"),
    ("server.crt", rf"server.crt with the key \S*server.crt: {NO_PAIR}"),
    # OpenSSL would prompt for the passphrase.
    ("encrypted.key", rf"encrypted.key: {NO_PAIR}"),
    ("client.key", r"server.crt with the key \S*client.key: key values mismatch"),
    ("not-there", r"server.crt with the key \S*not-there: No such file or directory"),
]


def test_a_key_that_cannot_be_used_is_named_with_the_remedy(tmp_path: Path) -> None:
    own = Certificates(tmp_path).crt("server")
    for key, why in KEYS:
        access = NodeAccessSettings(cert_file=str(own), key_file=key and str(own.parent / key))
        with pytest.raises(UsageError, match=f"{why}$"):
            NodeApiClient("https://x", access)


def test_a_private_ca_without_key_usage_is_accepted_by_every_python(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.crt("server"), certificates.key("server"))
    with scripted(lambda _: Answer(BODY.decode(), "application/json"), context) as node:
        access = NodeAccessSettings(ca_file=str(certificates.crt("ca")))
        api = NodeApiClient(f"https://localhost:{node.port}", access)
        assert api.snapshot() == json.loads(BODY)
        api.close()


def test_the_remedy_of_a_certificate_fits_its_fault(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    remedies = {"stranger": "use a name or address of the certificate", "server": "--ca-file"}
    for name, remedy in remedies.items():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.crt(name), certificates.key(name))
        # Of the server's certificate, the CA is missing.
        trusted = certificates.crt("stranger" if name == "server" else name)
        with scripted(lambda _: Answer(BODY.decode(), "application/json"), context) as node:
            url = f"https://localhost:{node.port}"
            api = NodeApiClient(url, NodeAccessSettings(ca_file=str(trusted)))
            with pytest.raises(GpuledgerError, match=rf"^the certificate of .* is not trusted \(.*{remedy}"):
                api.snapshot()


def test_an_invalid_host_name_opens_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr(socket, "create_connection", lambda *address: opened.append(address))
    with pytest.raises(GpuledgerError, match="label empty"):
        NodeApiClient("https://a..example:9400", NodeAccessSettings()).snapshot()
    assert opened == []

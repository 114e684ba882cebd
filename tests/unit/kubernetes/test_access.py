"""Where the API server is and what it is shown, over plain HTTP and TLS."""

from __future__ import annotations

import socket
import ssl
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import h11
import pytest
import yaml

from gpuledger.kubernetes.access import Access
from gpuledger.kubernetes.client import ApiClient, Interrupted, Unreachable, refused
from gpuledger.kubernetes.cluster import find_access, read_kubeconfig
from gpuledger.kubernetes.settings import KubernetesSettings
from gpuledger.model.errors import GpuledgerError, UsageError

CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "token").write_text("of-the-account\n")
    (folder / "ca.crt").write_text("PEM")
    return folder


def test_in_a_cluster_its_own_server_and_account_are_used(account: Path) -> None:
    access = find_access(KubernetesSettings(), CLUSTER, account)
    assert access == Access("https://10.0.0.1:6443", token_file=account / "token", ca_file=account / "ca.crt")
    assert (access.host, access.port, access.read_token()) == ("10.0.0.1", 6443, "of-the-account")


def test_an_address_of_version_6_is_bracketed(account: Path) -> None:
    access = find_access(KubernetesSettings(), {"KUBERNETES_SERVICE_HOST": "fd00::1"}, account)
    assert access is not None
    assert (access.url, access.host, access.port) == ("https://[fd00::1]:443", "fd00::1", 443)


def test_outside_of_clusters_there_is_none(account: Path) -> None:
    assert find_access(KubernetesSettings(), {}, account) is None


def test_a_url_beats_the_cluster_and_keeps_the_account_unless_files_are_named(account: Path) -> None:
    given = KubernetesSettings(api="https://other:7443/k8s/c1")
    access = find_access(given, CLUSTER, account)
    assert access is not None
    assert (access.host, access.port, access.prefix) == ("other", 7443, "/k8s/c1")
    assert access.token_file == account / "token"
    named = KubernetesSettings(api="https://other", token_file="/t", ca_file="/c")
    assert find_access(named, CLUSTER, account) == Access(
        "https://other", token_file=Path("/t"), ca_file=Path("/c")
    )


def test_a_plain_proxy_is_shown_no_token(account: Path) -> None:
    access = find_access(KubernetesSettings(api="http://127.0.0.1:8001"), CLUSTER, account)
    assert access == Access("http://127.0.0.1:8001")


@pytest.mark.parametrize(
    ("api", "words"),
    [
        ("http://10.0.0.9:8080", "not sent unencrypted"),
        ("https://:6443", "is none"),
        ("https://host:99999", "is none"),
    ],
)
def test_what_cannot_be_meant_is_refused(api: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        find_access(KubernetesSettings(api=api, token_file="/t"), {})


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read .No such file"), (b"", "no token"), (b"a b", "no token"), (b"\xff", "not text")],
)
def test_a_token_that_is_none_is_told_with_its_file(tmp_path: Path, content: Any, words: str) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    with pytest.raises(GpuledgerError, match=words) as told:
        Access("https://x", token_file=token).read_token()
    assert str(token) in str(told.value)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (b'{"message": "etcd is\\naway"}', "500 from https://x:443: etcd is away; it is tried again"),
        (b"{}", "500 from https://x:443; it is tried again"),
        (b"<html>", "500 from https://x:443; it is tried again"),
    ],
)
def test_a_refusal_is_in_the_servers_words_where_it_has_any(message: bytes, line: str) -> None:
    response = h11.Response(status_code=500, headers=[("Retry-After", "7")])
    told = refused(Access("https://x:443"), "/api/v1/pods", response, message)
    assert (str(told), told.retry_after) == (line, 7.0)


@pytest.mark.parametrize(
    ("access", "whose"),
    [
        (Access("https://x", token_file=Path("/t")), "the token of /t"),
        (Access("https://x", token="t"), "the token of the kubeconfig"),
        (Access("https://x", certificate_data="c"), "the client certificate of the kubeconfig"),
        (Access("https://x"), "a request without a token (--kubernetes-token-file names one)"),
    ],
    ids=["token file", "token", "certificate", "nothing"],
)
def test_who_is_not_accepted_is_told_what_was_shown(access: Access, whose: str) -> None:
    told = refused(access, "/", h11.Response(status_code=401, headers=[]), b"")
    assert str(told) == f"401 from https://x: {whose} is not accepted; give it one that is valid"


def test_secrets_are_not_shown() -> None:
    shown = repr(Access("https://x", token="s3cret", certificate_data="s3cret", key_data="s3cret"))
    assert "s3cret" not in shown


def config(tmp_path: Path, cluster: Any = None, user: Any = None, **top: Any) -> Path:
    content = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://k:6443/"} | (cluster or {})}],
        "users": [{"name": "u", "user": user or {}}],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(content | top))
    return file


def data(text: str) -> str:
    return b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("cluster", "user", "expected"),
    [
        ({}, {"token": "t"}, {"token": "t"}),
        ({"certificate-authority-data": data("CA")}, {}, {"ca_data": "CA"}),
        (
            {},
            {"client-certificate-data": data("CERT"), "client-key-data": data("KEY")},
            {"certificate_data": "CERT", "key_data": "KEY"},
        ),
        (
            {"tls-server-name": "n", "insecure-skip-tls-verify": True},
            {},
            {"server_name": "n", "verify": False},
        ),
    ],
)
def test_a_kubeconfig_is_read(tmp_path: Path, cluster: Any, user: Any, expected: dict[str, Any]) -> None:
    access = find_access(KubernetesSettings(kubeconfig=str(config(tmp_path, cluster, user))), CLUSTER)
    assert access == Access("https://k:6443", **expected)


def test_files_of_a_kubeconfig_are_relative_to_it(tmp_path: Path) -> None:
    user = {"tokenFile": "t", "client-certificate": "c.pem", "client-key": "/k.pem"}
    access = read_kubeconfig(config(tmp_path, {"certificate-authority": "ca.pem"}, user))
    assert (access.token_file, access.ca_file) == (tmp_path / "t", tmp_path / "ca.pem")
    assert (access.certificate_file, access.key_file) == (tmp_path / "c.pem", Path("/k.pem"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"user": {"exec": {"command": "aws"}}}, "gets its credentials from a program .exec."),
        ({"current-context": "other"}, "no context named 'other'"),
        ({"clusters": []}, "no cluster named 'c'"),
        ({"clusters": None}, "no cluster named 'c'"),
        ({"cluster": {"certificate-authority-data": "%%%"}}, "certificate-authority-data is not base64"),
        ({"user": {"client-certificate-data": "%%%"}}, "client-certificate-data is not base64"),
        ({"user": {"client-key-data": "%%%"}}, "client-key-data is not base64"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_told(tmp_path: Path, given: Any, words: str) -> None:
    file = config(tmp_path, **given)
    with pytest.raises(GpuledgerError, match=words) as told:
        read_kubeconfig(file)
    assert str(file) in str(told.value)


def test_a_kubeconfig_whose_server_is_no_url_is_told(tmp_path: Path) -> None:
    with pytest.raises(GpuledgerError, match="URL 'k' is none; https://HOST:PORT is wanted"):
        read_kubeconfig(config(tmp_path, {"server": "k"}))


@pytest.mark.parametrize(
    ("content", "words"), [(None, "No such file"), ("[", "not YAML"), ("x", "no kubeconfig")]
)
def test_a_file_that_is_no_kubeconfig_is_told(tmp_path: Path, content: Any, words: str) -> None:
    file = tmp_path / "kubeconfig"
    if content is not None:
        file.write_text(content)
    with pytest.raises(GpuledgerError, match=words):
        read_kubeconfig(file)


class Authority:
    """A certificate authority of the test's own, and what it signed for 127.0.0.1 and a client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run("req -x509 {new} -keyout ca.key -out ca.pem -days 2 -subj /CN=authority")
        self._sign("server", "subjectAltName=IP:127.0.0.1")
        self._sign("client", "extendedKeyUsage=clientAuth")

    def _sign(self, name: str, extension: str) -> None:
        self.path(f"{name}.ext").write_text(extension)
        self._run(f"req -new {{new}} -keyout {name}.key -out {name}.csr -subj /CN={name}")
        signed = f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial"
        self._run(f"{signed} -out {name}.pem -days 2 -extfile {name}.ext")

    def _run(self, words: str) -> None:
        new = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
        command = ["openssl", *words.format(new=new).split()]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)

    def path(self, name: str) -> Path:
        return self.folder / name

    def text(self, name: str) -> str:
        return self.path(name).read_text()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@contextmanager
def encrypted(authority: Authority, *, client: bool = False, hanging: Event | None = None) -> Iterator[str]:
    """A server that answers with the name in the client's certificate, or goes on when `hanging` is set."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # Under TLS the connection is an SSLSocket, which typeshed's handler does not know.
            shown = self.connection.getpeercert() if client else {}  # type: ignore[attr-defined]
            self.send_response(200)
            if hanging is not None:
                self.send_header("Content-Length", "1000")
            self.end_headers()
            if hanging is not None:
                hanging.wait()
            self.wfile.write(str((shown or {}).get("subject", "nobody")).encode())

        def log_message(self, *_: object) -> None:
            """Quiet."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.path("server.pem"), authority.path("server.key"))
    if client:
        context.load_verify_locations(authority.path("ca.pem"))
        context.verify_mode = ssl.CERT_REQUIRED

    class Server(HTTPServer):
        def handle_error(self, *_: object) -> None:
            """Quiet."""

    server = Server(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(access: Access) -> bytes:
    with ApiClient(access).get("/", {}) as pieces:
        return b"".join(pieces)


@pytest.mark.parametrize("form", ["file", "data"])
def test_a_certificate_of_the_named_authority_is_believed(authority: Authority, form: str) -> None:
    with encrypted(authority) as url:
        ca: dict[str, Any] = {"ca_file": authority.path("ca.pem")}
        if form == "data":
            ca = {"ca_data": authority.text("ca.pem")}
        assert ask(Access(url, **ca)) == b"nobody"


def test_a_client_certificate_is_shown_from_files_or_from_within_the_kubeconfig(authority: Authority) -> None:
    files = {"certificate_file": authority.path("client.pem"), "key_file": authority.path("client.key")}
    within = {"certificate_data": authority.text("client.pem"), "key_data": authority.text("client.key")}
    with encrypted(authority, client=True) as url:
        for shown in (files, within):
            # The fields of each case are of different types.
            assert b"client" in ask(Access(url, ca_file=authority.path("ca.pem"), **shown))  # type: ignore[arg-type]


def test_a_certificate_of_another_authority_is_not_believed(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    with (
        encrypted(authority) as url,
        pytest.raises(Unreachable, match=r"is not believed .*--kubernetes-ca-file"),
    ):
        ask(Access(url, ca_file=other.path("ca.pem")))


def test_an_authority_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    for content, why in ((None, "No such file or directory"), ("no PEM", "it is not PEM")):
        if content is not None:
            ca.write_text(content)
        with pytest.raises(GpuledgerError, match=rf"{ca} cannot be read .{why}.*--kubernetes-ca-file"):
            ask(Access("https://127.0.0.1:1", ca_file=ca))


def test_a_certificate_for_another_name_is_not_believed(authority: Authority) -> None:
    with encrypted(authority) as url, pytest.raises(Unreachable, match="is not believed"):
        ask(Access(url, ca_file=authority.path("ca.pem"), server_name="other.example"))


def test_without_verification_all_is_believed(authority: Authority) -> None:
    with encrypted(authority) as url:
        assert ask(Access(url, verify=False)) == b"nobody"


def test_an_authority_is_read_again_for_every_connection(authority: Authority, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("not yet")
    with encrypted(authority) as url:
        client = ApiClient(Access(url, ca_file=ca))
        with pytest.raises(GpuledgerError, match="--kubernetes-ca-file"), client.get("/", {}):
            pass
        ca.write_text(authority.text("ca.pem"))
        with client.get("/", {}) as pieces:
            assert b"".join(pieces) == b"nobody"


def test_http_to_a_server_that_speaks_https_is_told(authority: Authority) -> None:
    with encrypted(authority) as url, pytest.raises(Unreachable, match="http or https"):
        ask(Access(url.replace("https", "http")))


def test_abort_ends_a_handshake_that_nobody_answers(authority: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        access = Access(f"https://127.0.0.1:{listening.getsockname()[1]}", verify=False)
        client = ApiClient(access, connect_timeout=3600.0)
        ended: list[Exception] = []

        def get() -> None:
            try:
                with client.get("/", {}):
                    pass
            except Unreachable as error:
                ended.append(error)

        thread = Thread(target=get, daemon=True)
        thread.start()
        # It says hello, and waits.
        accepted = listening.accept()[0]
        assert accepted.recv(1)
        client.abort()
        thread.join(10)
        accepted.close()
    assert len(ended) == 1


def test_abort_ends_the_reading_of_an_encrypted_answer(authority: Authority) -> None:
    hanging = Event()
    reading = Event()
    with encrypted(authority, hanging=hanging) as url:
        client = ApiClient(Access(url, ca_file=authority.path("ca.pem")), timeout=3600.0)
        ended: list[Exception] = []

        def get() -> None:
            try:
                with client.get("/", {}) as pieces:
                    reading.set()
                    list(pieces)
            except Interrupted as error:
                ended.append(error)

        thread = Thread(target=get, daemon=True)
        thread.start()
        assert reading.wait(10)
        client.abort()
        thread.join(10)
        hanging.set()
    assert len(ended) == 1


def test_after_abort_nothing_is_asked_any_more() -> None:
    client = ApiClient(Access("http://127.0.0.1:1"))
    client.abort()
    with pytest.raises(Unreachable, match="ended on demand"), client.get("/", {}):
        pass

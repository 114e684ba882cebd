"""Finding the API server, its credentials, and connections over HTTP and TLS."""

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

import pytest
import yaml

from gpuledger.http.client_messages import HttpResponse
from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.kubernetes.api_client import (
    ApiClient,
    ApiResponseInterrupted,
    ApiServerUnreachable,
    refusal_from_response,
)
from gpuledger.kubernetes.cluster_access import find_access, read_kubeconfig
from gpuledger.kubernetes.settings import KubernetesSettings
from gpuledger.model.errors import GpuledgerError, UsageError
from running import PATIENCE

CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "token").write_text("of-the-account\n")
    (folder / "ca.crt").write_text("PEM")
    return folder


def test_in_a_cluster_its_server_and_service_account_are_used(account: Path) -> None:
    access = find_access(KubernetesSettings(), CLUSTER, account)
    assert access == ApiServerAccess(
        "https://10.0.0.1:6443", token_file=account / "token", ca_file=account / "ca.crt"
    )
    assert (access.host, access.port, access.read_token()) == ("10.0.0.1", 6443, "of-the-account")


def test_an_ipv6_address_is_bracketed(account: Path) -> None:
    access = find_access(KubernetesSettings(), {"KUBERNETES_SERVICE_HOST": "fd00::1"}, account)
    assert access is not None
    assert (access.url, access.host, access.port) == ("https://[fd00::1]:443", "fd00::1", 443)


def test_outside_a_cluster_there_is_no_server(account: Path) -> None:
    assert find_access(KubernetesSettings(), {}, account) is None


def test_a_url_overrides_the_cluster_and_keeps_the_service_account_unless_files_are_set(
    account: Path,
) -> None:
    given = KubernetesSettings(api="https://other:7443/k8s/c1")
    access = find_access(given, CLUSTER, account)
    assert access is not None
    assert (access.host, access.port, access.prefix) == ("other", 7443, "/k8s/c1")
    assert access.token_file == account / "token"
    named = KubernetesSettings(api="https://other", token_file="/t", ca_file="/c")
    assert find_access(named, CLUSTER, account) == ApiServerAccess(
        "https://other", token_file=Path("/t"), ca_file=Path("/c")
    )


def test_an_http_proxy_gets_no_token(account: Path) -> None:
    access = find_access(KubernetesSettings(api="http://127.0.0.1:8001"), CLUSTER, account)
    assert access == ApiServerAccess("http://127.0.0.1:8001")


@pytest.mark.parametrize(
    ("api", "words"),
    [
        ("http://10.0.0.9:8080", "not sent unencrypted"),
        ("https://:6443", "invalid API server URL"),
        ("https://host:99999", "invalid API server URL"),
    ],
)
def test_an_invalid_or_unencrypted_url_is_refused(api: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        find_access(KubernetesSettings(api=api, token_file="/t"), {})


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read .No such file"), (b"", "no token"), (b"a b", "no token"), (b"\xff", "not text")],
)
def test_an_invalid_token_is_an_error_that_names_its_file(tmp_path: Path, content: Any, words: str) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    with pytest.raises(GpuledgerError, match=words) as error:
        ApiServerAccess("https://x", token_file=token).read_token()
    assert str(token) in str(error.value)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (b'{"message": "etcd is\\naway"}', "500 from https://x:443: etcd is away; retrying"),
        (b"{}", "500 from https://x:443; retrying"),
        (b"<html>", "500 from https://x:443; retrying"),
    ],
)
def test_a_refusal_contains_the_servers_message(message: bytes, line: str) -> None:
    response = HttpResponse(500, {"retry-after": "7"})
    error = refusal_from_response(ApiServerAccess("https://x:443"), "/api/v1/pods", response, message)
    assert (str(error), error.retry_after) == (line, 7.0)


@pytest.mark.parametrize(
    ("access", "credentials"),
    [
        (ApiServerAccess("https://x", token_file=Path("/t")), "the token of /t"),
        (ApiServerAccess("https://x", token="t"), "the token of the kubeconfig"),
        (ApiServerAccess("https://x", certificate_data="c"), "the client certificate of the kubeconfig"),
        (ApiServerAccess("https://x"), "a request without a token (see --kubernetes-token-file)"),
    ],
    ids=["token file", "token", "certificate", "nothing"],
)
def test_a_401_names_the_credentials_that_were_sent(access: ApiServerAccess, credentials: str) -> None:
    error = refusal_from_response(access, "/", HttpResponse(401), b"")
    assert str(error) == f"401 from https://x: {credentials} is not accepted; set valid credentials"


def test_secrets_are_not_in_the_repr() -> None:
    shown = repr(ApiServerAccess("https://x", token="s3cret", certificate_data="s3cret", key_data="s3cret"))
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
    assert access == ApiServerAccess("https://k:6443", **expected)


def test_files_of_a_kubeconfig_are_relative_to_it(tmp_path: Path) -> None:
    user = {"tokenFile": "t", "client-certificate": "c.pem", "client-key": "/k.pem"}
    access = read_kubeconfig(config(tmp_path, {"certificate-authority": "ca.pem"}, user))
    assert (access.token_file, access.ca_file) == (tmp_path / "t", tmp_path / "ca.pem")
    assert (access.certificate_file, access.key_file) == (tmp_path / "c.pem", Path("/k.pem"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"user": {"exec": {"command": "aws"}}}, "gets its credentials from a plugin .exec."),
        ({"current-context": "other"}, "no context named 'other'"),
        ({"clusters": []}, "no cluster named 'c'"),
        ({"clusters": None}, "no cluster named 'c'"),
        ({"cluster": {"certificate-authority-data": "%%%"}}, "certificate-authority-data is not base64"),
        ({"user": {"client-certificate-data": "%%%"}}, "client-certificate-data is not base64"),
        ({"user": {"client-key-data": "%%%"}}, "client-key-data is not base64"),
    ],
)
def test_an_unusable_kubeconfig_is_an_error_that_names_the_file(
    tmp_path: Path, given: Any, words: str
) -> None:
    file = config(tmp_path, **given)
    with pytest.raises(GpuledgerError, match=words) as error:
        read_kubeconfig(file)
    assert str(file) in str(error.value)


def test_a_kubeconfig_with_an_invalid_server_url_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GpuledgerError, match="invalid API server URL 'k'; expected https://HOST:PORT"):
        read_kubeconfig(config(tmp_path, {"server": "k"}))


@pytest.mark.parametrize(
    ("content", "words"), [(None, "No such file"), ("[", "not YAML"), ("x", "not a kubeconfig")]
)
def test_a_file_that_is_not_a_kubeconfig_is_an_error(tmp_path: Path, content: Any, words: str) -> None:
    file = tmp_path / "kubeconfig"
    if content is not None:
        file.write_text(content)
    with pytest.raises(GpuledgerError, match=words):
        read_kubeconfig(file)


class Authority:
    """A test CA, with certificates for 127.0.0.1 and for a client."""

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
    """An HTTPS server that responds with the subject of the client certificate.

    With `hanging`, it sends only the head until the event is set.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # With TLS the connection is an SSLSocket, which typeshed does not declare.
            certificate = self.connection.getpeercert() if client else {}  # type: ignore[attr-defined]
            self.send_response(200)
            if hanging is not None:
                self.send_header("Content-Length", "1000")
            self.end_headers()
            if hanging is not None:
                hanging.wait()
            self.wfile.write(str((certificate or {}).get("subject", "no certificate")).encode())

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.path("server.pem"), authority.path("server.key"))
    if client:
        context.load_verify_locations(authority.path("ca.pem"))
        context.verify_mode = ssl.CERT_REQUIRED

    class Server(HTTPServer):
        def handle_error(self, *_: object) -> None:
            """Log nothing."""

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


def ask(access: ApiServerAccess) -> bytes:
    with ApiClient(access).get("/", {}) as pieces:
        return b"".join(pieces)


@pytest.mark.parametrize("form", ["file", "data"])
def test_a_certificate_of_the_configured_ca_is_trusted(authority: Authority, form: str) -> None:
    with encrypted(authority) as url:
        ca: dict[str, Any] = {"ca_file": authority.path("ca.pem")}
        if form == "data":
            ca = {"ca_data": authority.text("ca.pem")}
        assert ask(ApiServerAccess(url, **ca)) == b"no certificate"


def test_a_client_certificate_comes_from_files_or_from_the_kubeconfig(authority: Authority) -> None:
    files = {"certificate_file": authority.path("client.pem"), "key_file": authority.path("client.key")}
    within = {"certificate_data": authority.text("client.pem"), "key_data": authority.text("client.key")}
    with encrypted(authority, client=True) as url:
        for shown in (files, within):
            # The fields of each case are of different types.
            assert b"client" in ask(ApiServerAccess(url, ca_file=authority.path("ca.pem"), **shown))  # type: ignore[arg-type]


def test_a_certificate_of_another_ca_is_not_trusted(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    with (
        encrypted(authority) as url,
        pytest.raises(ApiServerUnreachable, match=r"is not trusted .*--kubernetes-ca-file"),
    ):
        ask(ApiServerAccess(url, ca_file=other.path("ca.pem")))


def test_an_unreadable_ca_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    for content, why in ((None, "No such file or directory"), ("no PEM", "it is not PEM")):
        if content is not None:
            ca.write_text(content)
        with pytest.raises(GpuledgerError, match=rf"{ca} cannot be read .{why}.*--kubernetes-ca-file"):
            ask(ApiServerAccess("https://127.0.0.1:1", ca_file=ca))


def test_a_certificate_for_another_name_is_not_trusted(authority: Authority) -> None:
    with encrypted(authority) as url, pytest.raises(ApiServerUnreachable, match="is not trusted"):
        ask(ApiServerAccess(url, ca_file=authority.path("ca.pem"), server_name="other.example"))


def test_without_verification_every_certificate_is_accepted(authority: Authority) -> None:
    with encrypted(authority) as url:
        assert ask(ApiServerAccess(url, verify=False)) == b"no certificate"


def test_the_ca_is_read_again_for_every_connection(authority: Authority, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("not yet")
    with encrypted(authority) as url:
        client = ApiClient(ApiServerAccess(url, ca_file=ca))
        with pytest.raises(GpuledgerError, match="--kubernetes-ca-file"), client.get("/", {}):
            pass
        ca.write_text(authority.text("ca.pem"))
        with client.get("/", {}) as pieces:
            assert b"".join(pieces) == b"no certificate"


def test_http_to_an_https_server_is_an_error(authority: Authority) -> None:
    with encrypted(authority) as url, pytest.raises(ApiServerUnreachable, match="http or https"):
        ask(ApiServerAccess(url.replace("https", "http")))


def test_abort_ends_an_unanswered_tls_handshake(authority: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        access = ApiServerAccess(f"https://127.0.0.1:{listening.getsockname()[1]}", verify=False)
        client = ApiClient(access, connect_timeout=3600.0)
        ended: list[Exception] = []

        def get() -> None:
            try:
                with client.get("/", {}):
                    pass
            except ApiServerUnreachable as error:
                ended.append(error)

        thread = Thread(target=get, daemon=True)
        thread.start()
        # The client sends its TLS hello and waits.
        accepted = listening.accept()[0]
        assert accepted.recv(1)
        client.abort()
        thread.join(PATIENCE)
        accepted.close()
    assert len(ended) == 1


def test_abort_ends_the_reading_of_an_encrypted_response(authority: Authority) -> None:
    hanging = Event()
    reading = Event()
    with encrypted(authority, hanging=hanging) as url:
        client = ApiClient(ApiServerAccess(url, ca_file=authority.path("ca.pem")), timeout=3600.0)
        ended: list[Exception] = []

        def get() -> None:
            try:
                with client.get("/", {}) as pieces:
                    reading.set()
                    list(pieces)
            except ApiResponseInterrupted as error:
                ended.append(error)

        thread = Thread(target=get, daemon=True)
        thread.start()
        assert reading.wait(PATIENCE)
        client.abort()
        thread.join(PATIENCE)
        hanging.set()
    assert len(ended) == 1


def test_after_abort_requests_fail() -> None:
    client = ApiClient(ApiServerAccess("http://127.0.0.1:1"))
    client.abort()
    with pytest.raises(ApiServerUnreachable, match="request aborted"), client.get("/", {}):
        pass


def test_a_server_name_that_tls_refuses_is_rejected_in_one_line(tmp_path: Path) -> None:
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://10.0.0.1", "tls-server-name": ".a"}}],
    }
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(GpuledgerError, match=r"^--kubeconfig: .*: tls-server-name: expected a host"):
        read_kubeconfig(file)

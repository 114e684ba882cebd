"""`gpuledger serve --web.config.file` with a real Prometheus, real certificates and real bcrypt."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bcrypt
import httpx
import pytest

from certificates import Certificates
from running import PATIENCE, Server, get, gpuledger, prometheus, serving, serving_prepared, wait_until

CONFIG = """\
tls_server_config:
  cert_file: server.crt
  key_file: server.key
  client_auth_type: VerifyClientCertIfGiven
  client_ca_file: ca.crt
basic_auth_users:
  prometheus: {hashed}
"""

JOB = """\
  - job_name: {name}
    scheme: {scheme}
    tls_config: {{ca_file: {ca}, server_name: localhost}}
    {auth}
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""

RIGHT = "basic_auth: {username: prometheus, password: secret}"
WRONG = "basic_auth: {username: prometheus, password: guess}"
NOBODY = "basic_auth: {username: mallory, password: secret}"


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.fixture
def file(certificates: Certificates) -> Path:
    path = certificates.folder / "web.yml"
    path.write_text(CONFIG.format(hashed=bcrypt.hashpw(b"secret", bcrypt.gensalt(5)).decode()))
    return path


@contextmanager
def client(server: Server, certificates: Certificates, name: str = "") -> Iterator[httpx.Client]:
    url = f"https://localhost:{server.port}"
    with httpx.Client(
        base_url=url, verify=certificates.client_context(name), trust_env=False, timeout=PATIENCE
    ) as made:
        yield made


def test_a_real_prometheus_scrapes_only_with_tls_and_password(file: Path, certificates: Certificates) -> None:
    with serving_prepared("--source", "simulator", "--web.config.file", str(file)) as server:
        jobs = [
            ("right", "https", "ca", RIGHT),
            ("wrong", "https", "ca", WRONG),
            ("nobody", "https", "ca", NOBODY),
            ("without", "https", "ca", ""),
            ("distrustful", "https", "stranger", RIGHT),
            ("plain", "http", "ca", RIGHT),
        ]
        configs = [
            JOB.format(name=name, scheme=scheme, ca=certificates.crt(ca), auth=auth, port=server.port)
            for name, scheme, ca, auth in jobs
        ]
        config = "\n".join(["global: {scrape_interval: 1s}", "scrape_configs:", *configs])
        with prometheus(config) as real:
            server.wait_line("TLS handshake with 127.0.0.1 failed: http request")
            wait_until(lambda: len(real.query("up")) == len(jobs), "every job to be scraped")
            real.wait_query("gpu_total_processes{job='right'}")
            assert {str(row["metric"]["job"]) for row in real.query("up == 1")} == {"right"}
            reasons = get(f"{real.url}/api/v1/targets").json()["data"]["activeTargets"]
            errors = {target["labels"]["job"]: target["lastError"] for target in reasons}
    assert errors["right"] == ""
    for name in ("wrong", "nobody", "without"):
        assert "401 Unauthorized" in errors[name]
    assert "certificate" in errors["distrustful"]
    assert "EOF" in errors["plain"]


def test_probes_work_with_auth_on(file: Path, certificates: Certificates) -> None:
    with (
        serving("--source", "simulator", "--web.config.file", str(file)) as server,
        client(server, certificates) as probe,
    ):
        wait_until(lambda: probe.get("/-/ready").status_code == 200, "readiness")
        assert probe.get("/-/healthy").status_code == probe.get("/health").status_code == 200
        assert probe.get("/metrics").status_code == probe.get("/").status_code == 401
        assert probe.get("/metrics", auth=("prometheus", "secret")).status_code == 200


def test_a_certificate_is_rotated_while_serving_and_an_invalid_one_is_rejected(
    file: Path, certificates: Certificates
) -> None:
    def shown() -> str:
        return ssl.get_server_certificate(("127.0.0.1", server.port))

    with serving_prepared("--source", "simulator", "--web.config.file", str(file)) as server:
        first = shown()
        certificates.issue("server", "subjectAltName=DNS:localhost", signer="ca")
        wait_until(lambda: shown() != first, "the new certificate")
        second = shown()
        certificates.crt("server").write_text("junk")
        wait_until(lambda: shown() and complaints(server), "an error in the log")
        assert shown() == second
        certificates.issue("server", "subjectAltName=DNS:localhost", signer="ca")
        wait_until(lambda: shown() not in (first, second), "the third certificate")
        assert len(complaints(server)) == 1
        with client(server, certificates) as probe:
            assert probe.get("/-/healthy").status_code == 200


def complaints(server: Server) -> list[str]:
    return [line for line in server.lines if "level=error" in line and "remains in force" in line]


def test_client_certificates_are_verified(file: Path, certificates: Certificates) -> None:
    file.write_text(file.read_text().replace("VerifyClientCertIfGiven", "RequireAndVerifyClientCert"))
    with serving_prepared("--source", "simulator", "--web.config.file", str(file)) as server:
        with client(server, certificates, "client") as known:
            assert known.get("/metrics", auth=("prometheus", "secret")).status_code == 200
        for name in ("", "stranger"):
            with client(server, certificates, name) as unknown, pytest.raises(httpx.TransportError):
                unknown.get("/-/healthy")


def test_without_a_web_config_neither_ssl_nor_bcrypt_is_loaded() -> None:
    with serving("--source", "simulator") as server:
        server.wait_ticks(1)
        mapped = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "libssl" not in mapped
    assert "_bcrypt" not in mapped


def test_an_invalid_web_config_is_one_line_and_exit_code_two(file: Path, certificates: Certificates) -> None:
    file.write_text(file.read_text().replace("key_file: server.key", "key_file: client.key"))
    done = gpuledger("serve", "--source", "simulator", "--web.config.file", str(file))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    key = certificates.key("client")
    place = f"{file}: tls_server_config.key_file: {key}"
    assert line == f"gpuledger: {place}: the private key does not match the certificate"


def test_users_without_bcrypt_are_one_line_with_a_remedy(file: Path, tmp_path: Path) -> None:
    (tmp_path / "bcrypt.py").write_text("raise ImportError('not here')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = gpuledger("serve", "--web.config.file", str(file), env={"PYTHONPATH": path})
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.endswith("basic_auth_users needs the Python package bcrypt: `pip install bcrypt`")

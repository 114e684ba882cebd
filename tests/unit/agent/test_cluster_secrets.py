"""Kubernetes Secrets of targets: which are watched, and rotation."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builders import FakeClock
from certificates import Certificates
from gpuledger.agent.cluster_secrets import ClusterSecrets
from gpuledger.agent.deliver.credentials import ReloadedCredentials
from gpuledger.agent.deliver.settings import ClientTls
from gpuledger.agent.scrape.client import ScrapeClient
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from gpuledger.host.clock import SystemClock
from gpuledger.http.client_messages import HttpRequestFailed
from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.model.errors import GpuledgerError
from running import wait_until
from scripted_api import Json, ScriptedApi, scripted_api
from scripted_target import Answer, scripted

PATH = "/api/v1/namespaces/own/secrets"


def secret(name: str, **data: bytes) -> Json:
    encoded = {key: b64encode(value).decode() for key, value in data.items()}
    return {"metadata": {"namespace": "own", "name": name}, "data": encoded}


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with scripted_api({PATH: []}) as made:
        yield made


@pytest.fixture
def secrets(api: ScriptedApi) -> Iterator[ClusterSecrets]:
    made = ClusterSecrets(ApiServerAccess(api.url), "own", SystemClock())
    yield made
    made.stop()


def watched(api: ScriptedApi, *names: str) -> Callable[[], bool]:
    """Return a condition: exactly these Secrets are watched."""

    def found() -> bool:
        current = {path.partition("metadata.name%3D")[2].partition("&")[0] for path in tuple(api.watched)}
        return current == set(names)

    return found


def test_a_secret_that_a_reload_no_longer_uses_is_not_watched(
    api: ScriptedApi, secrets: ClusterSecrets
) -> None:
    with secrets.watch_only_used():
        first = secrets.get_secret("kept", "key")
        secrets.get_secret("dropped", "key")
    wait_until(watched(api, "kept", "dropped"), "both watches")
    with secrets.watch_only_used():
        assert secrets.get_secret("kept", "key") is first
    wait_until(watched(api, "kept"), "the unused watch to end")


def test_a_failed_reload_keeps_the_watches(api: ScriptedApi, secrets: ClusterSecrets) -> None:
    with secrets.watch_only_used():
        secrets.get_secret("kept", "key")
    with pytest.raises(GpuledgerError), secrets.watch_only_used():
        secrets.get_secret("new", "key")
        raise GpuledgerError("the configuration is bad")
    wait_until(watched(api, "kept"), "only the old watch")


def test_a_secret_that_is_used_again_is_watched_again(api: ScriptedApi, secrets: ClusterSecrets) -> None:
    for names in (("back",), (), ("back",)):
        with secrets.watch_only_used():
            for name in names:
                secrets.get_secret(name, "key")
        wait_until(watched(api, *names), f"watches of {names}")


def context_of(certificates: Certificates, name: str) -> ssl.SSLContext:
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.load_cert_chain(certificates.crt(name), certificates.key(name))
    return made


def test_a_ca_rotated_in_its_secret_is_used_at_the_next_scrape(
    api: ScriptedApi, secrets: ClusterSecrets, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path)
    certificates.issue("new-ca", "basicConstraints=critical,CA:TRUE")
    certificates.issue("new-server", "subjectAltName=IP:127.0.0.1", signer="new-ca")
    old, new = (certificates.crt(name).read_bytes() for name in ("ca", "new-ca"))
    api.apply_changes(PATH, ("ADDED", secret("tls", ca=old)))
    ca = secrets.get_secret("tls", "ca")
    clock = FakeClock()
    access = ReloadedCredentials(ClientTls(ca=ca), None, clock, encrypted=True)

    async def fetch(port: int) -> str:
        client = ScrapeClient(Target("one", f"https://127.0.0.1:{port}/", (), ScrapeSettings()), access)
        try:
            return (await client.fetch()).body.decode()
        except HttpRequestFailed as failure:
            return str(failure)
        finally:
            client.close()

    def scrape(server: str) -> str:
        clock.advance(1)
        with scripted(lambda _: Answer("a 1\n"), context_of(certificates, server)) as target:
            return asyncio.run(fetch(target.port))

    def holds(data: bytes) -> Callable[[], bool]:
        assert ca.provider is not None
        return lambda: ca.provider is not None and ca.provider.revision() == (b64encode(data).decode(), "")

    wait_until(holds(old), "the old CA")
    assert scrape("server") == "a 1\n"
    assert "cannot verify the server's certificate" in scrape("new-server")
    api.apply_changes(PATH, ("MODIFIED", secret("tls", ca=new)))
    wait_until(holds(new), "the new CA")
    assert scrape("new-server") == "a 1\n"
    assert "cannot verify the server's certificate" in scrape("server")

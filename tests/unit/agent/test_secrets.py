"""Secrets of the cluster that targets name: what is watched, and what a rotation comes to."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builders import FakeClock
from certificates import Certificates
from gpuledger.agent.deliver.settings import ClientTls
from gpuledger.agent.scrape.answer import ScrapeFailed
from gpuledger.agent.scrape.client import Client, Request, TargetAccess
from gpuledger.agent.secrets import Vault
from gpuledger.host.clock import SystemClock
from gpuledger.kubernetes.access import Access
from gpuledger.model.errors import GpuledgerError
from running import wait_until
from scripted_api import Json, ScriptedApi, scripted_api
from scripted_target import Answer, scripted

PATH = "/api/v1/namespaces/own/secrets"


def secret(name: str, **data: bytes) -> Json:
    told = {key: b64encode(value).decode() for key, value in data.items()}
    return {"metadata": {"namespace": "own", "name": name}, "data": told}


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with scripted_api({PATH: []}) as made:
        yield made


@pytest.fixture
def vault(api: ScriptedApi) -> Iterator[Vault]:
    made = Vault(Access(api.url), "own", SystemClock())
    yield made
    made.stop()


def watched(api: ScriptedApi, *names: str) -> Callable[[], bool]:
    """Whether these Secrets are watched and no others."""

    def found() -> bool:
        asked = {path.partition("metadata.name%3D")[2].partition("&")[0] for path in tuple(api.watched)}
        return asked == set(names)

    return found


def test_a_secret_that_a_reload_no_longer_names_is_watched_no_more(api: ScriptedApi, vault: Vault) -> None:
    with vault.reading():
        first = vault.secret("kept", "key")
        vault.secret("dropped", "key")
    wait_until(watched(api, "kept", "dropped"), "both watches")
    with vault.reading():
        assert vault.secret("kept", "key") is first
    wait_until(watched(api, "kept"), "the watch of what is not named to end")


def test_a_reload_that_fails_leaves_the_watches_as_they_were(api: ScriptedApi, vault: Vault) -> None:
    with vault.reading():
        vault.secret("kept", "key")
    with pytest.raises(GpuledgerError), vault.reading():
        vault.secret("new", "key")
        raise GpuledgerError("the configuration is bad")
    wait_until(watched(api, "kept"), "the watch of before alone")


def test_a_secret_that_is_named_again_is_watched_anew(api: ScriptedApi, vault: Vault) -> None:
    for names in (("back",), (), ("back",)):
        with vault.reading():
            for name in names:
                vault.secret(name, "key")
        wait_until(watched(api, *names), f"watches of {names}")


def context_of(certificates: Certificates, name: str) -> ssl.SSLContext:
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.load_cert_chain(certificates.crt(name), certificates.key(name))
    return made


def test_an_authority_that_is_rotated_in_its_secret_is_believed_at_the_next_scrape(
    api: ScriptedApi, vault: Vault, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path)
    certificates.issue("new-ca", "basicConstraints=critical,CA:TRUE")
    certificates.issue("new-server", "subjectAltName=IP:127.0.0.1", signer="new-ca")
    old, new = (certificates.crt(name).read_bytes() for name in ("ca", "new-ca"))
    api.families(PATH, ("ADDED", secret("tls", ca=old)))
    held = vault.secret("tls", "ca")
    clock = FakeClock()
    access = TargetAccess(ClientTls(ca=held), None, clock, encrypted=True)

    async def ask(port: int) -> str:
        client = Client(Request(f"https://127.0.0.1:{port}/", 30), access)
        try:
            return (await client.fetch()).body.decode()
        except ScrapeFailed as failure:
            return str(failure)
        finally:
            client.close()

    def scrape(server: str) -> str:
        clock.advance(1)
        with scripted(lambda _: Answer("a 1\n"), context_of(certificates, server)) as target:
            return asyncio.run(ask(target.port))

    def holds(data: bytes) -> Callable[[], bool]:
        assert held.held is not None
        return lambda: held.held is not None and held.held.mark() == (b64encode(data).decode(), "")

    wait_until(holds(old), "the old authority")
    assert scrape("server") == "a 1\n"
    assert "certificate is not accepted" in scrape("new-server")
    api.families(PATH, ("MODIFIED", secret("tls", ca=new)))
    wait_until(holds(new), "the new authority")
    assert scrape("new-server") == "a 1\n"
    assert "certificate is not accepted" in scrape("server")

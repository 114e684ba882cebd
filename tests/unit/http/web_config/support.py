"""A web config file in a folder of certificates, and servers and clients that speak under it."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from contextlib import suppress

import pytest

from builders import FakeClock
from certificates import Certificates
from gpuledger.http.web_config.web import Web
from unit.http.support import Client, serve, some_routes

TLS = "tls_server_config: {{cert_file: server.crt, key_file: server.key{more}}}\n"

# Passwords of `counting`'s hashes are the last letters of the hash.
FILLER = b"." * 21 + b"e" + b"." * 20


def hash_of(password: str, cost: int = 10) -> bytes:
    """A made-up hash in the right form, for a check that is made up, too."""
    return f"$2b${cost:02}$".encode() + FILLER + password.encode().rjust(11, b".")


class Check:
    """Stands in for bcrypt: counts, and notes what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, password, stored):
        self.asked.append((password, stored))
        return stored.endswith(password.rjust(11, b"."))

    @property
    def costs(self):
        return [stored[4:6].decode() for _, stored in self.asked]


@pytest.fixture(scope="session")
def issued(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def certificates(issued, tmp_path):
    """A folder of one's own, whose files a test may change."""
    copy = object.__new__(Certificates)
    copy.folder = tmp_path / "web"
    shutil.copytree(issued.folder, copy.folder)
    return copy


class TlsClient(Client):
    def __init__(self, server, context):
        super().__init__(server)
        self._context = context

    async def __aenter__(self):
        where = {"host": "127.0.0.1", "port": self._port, "server_hostname": "localhost"}
        self.reader, self.writer = await asyncio.open_connection(ssl=self._context, **where)
        return self

    async def __aexit__(self, *_):
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


def serve_under(file, scenario, *, clock=None, passwords=None, limits=None, routes=None):
    """Run `scenario(server)` against a server under the web config in the file."""
    web = Web(file, clock or FakeClock(), passwords)
    return serve(scenario, limits=limits, routes=routes or some_routes(), speaker=web.speaker)


@pytest.fixture
def file(certificates):
    path = certificates.folder / "web.yml"
    path.write_text(TLS.format(more=""))
    return path


def client_hello(curve=None, maximum=ssl.TLSVersion.TLSv1_3):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = maximum
    if curve:
        context.set_ecdh_curve(curve)
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()

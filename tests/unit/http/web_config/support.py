"""A web config file in a folder of certificates, with servers and clients that use it."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from contextlib import suppress

import pytest

from builders import FakeClock
from certificates import Certificates
from gpuledger.http.web_config.security import WebSecurity
from unit.http.support import Client, serve, some_routes

TLS = "tls_server_config: {{cert_file: server.crt, key_file: server.key{more}}}\n"

# In these fake hashes the last characters are the password.
FILLER = b"." * 21 + b"e" + b"." * 20


def hash_of(password: str, cost: int = 10) -> bytes:
    """A fake but well-formed hash for `CountingCheck`."""
    return f"$2b${cost:02}$".encode() + FILLER + password.encode().rjust(11, b".")


class CountingCheck:
    """Replaces bcrypt and records its calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, password, stored):
        self.calls.append((password, stored))
        return stored.endswith(password.rjust(11, b"."))

    @property
    def costs(self):
        return [stored[4:6].decode() for _, stored in self.calls]


@pytest.fixture(scope="session")
def issued(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def certificates(issued, tmp_path):
    """A copy of the folder, with files that the test may change."""
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
    web = WebSecurity(file, clock or FakeClock(), passwords)
    return serve(
        scenario, limits=limits, routes=routes or some_routes(), protocol_factory=web.protocol_factory
    )


@pytest.fixture
def file(certificates):
    path = certificates.folder / "web.yml"
    path.write_text(TLS.format(more=""))
    return path


def client_hello(curve=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if curve:
        context.set_ecdh_curve(curve)
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()

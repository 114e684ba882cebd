"""A server for one test, raw clients, and a fake dialect."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from gpuledger.http.addresses import Address
from gpuledger.http.connection import ClientConnection
from gpuledger.http.limits import HttpLimits
from gpuledger.http.routes import Response, Routes, text_response
from gpuledger.http.server import HttpServer
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.node_state import Health, NodeState
from gpuledger.model.snapshot import Snapshot, SourceInfo
from running import PATIENCE

LOCAL = Address("127.0.0.1", 0)
SOURCE = SourceInfo("nvml")


@dataclass
class FakeDialect:
    """Exports the time of the NodeState in `series` series."""

    name: str = "process"
    series: int = 2
    required_quantities: frozenset = frozenset()
    specs: tuple = ()
    calls: int = 0
    broken: bool = False

    def __post_init__(self):
        self.specs = self.specs or (FamilySpec(f"{self.name}_x", "gauge", "help", ("n",)),)

    def families(self, state: NodeState) -> Iterable[Family]:
        self.calls += 1
        if self.broken:
            raise RuntimeError("a dialect has a bug")
        for spec in self.specs:
            yield Family(spec, {(str(n),): state.unix for n in range(self.series)})


def a_page(unix=1.0, *, readings=(), source=SOURCE, snapshot=True, **health):
    values = {"status": "ok", "healthy": True, "attempted": True, **health}
    shot = Snapshot(unix, unix, source, readings=tuple(readings)) if snapshot else None
    return NodeState(unix, source, shot, health=Health(**values))


def some_routes(**bodies):
    """`/hello`, `/big` (4 MB), `/broken`, and one path per keyword."""

    def broken(request):
        raise RuntimeError("a page has a bug")

    exact = {
        "/hello": lambda request: text_response("hello"),
        "/big": lambda request: Response(body=BIG),
        "/broken": broken,
        "/echo": lambda request: text_response(f"{request.method} {request.path} {request.query}"),
    }
    exact |= {f"/{name}": lambda request, body=body: text_response(body) for name, body in bodies.items()}
    return Routes(exact)


BIG = bytes(range(256)) * 16_384


def serve(
    scenario, *, routes=None, limits=None, grace=60.0, listeners=None, protocol_factory=ClientConnection
):
    """Run `scenario(server)` against a started server."""

    async def run():
        pairs = listeners or [(LOCAL, routes or some_routes())]
        server = HttpServer(pairs, limits or HttpLimits(), grace, protocol_factory)
        await server.start()
        try:
            return await asyncio.wait_for(scenario(server), PATIENCE)
        finally:
            await server.stop()

    return asyncio.run(run())


async def until(condition):
    """Wait for the condition; the timeout of the test ends a wait that never succeeds."""
    while not condition():
        await asyncio.sleep(0.002)


@dataclass
class Answer:
    status: int
    headers: dict = field(default_factory=dict)
    body: bytes = b""


class Client:
    """A raw connection that sends exactly the bytes of the test."""

    def __init__(self, server, position=0, source="127.0.0.1"):
        self._port = server.addresses[position].port
        self._source = (source, 0)

    async def __aenter__(self):
        self.reader, self.writer = await asyncio.open_connection(
            "127.0.0.1", self._port, local_addr=self._source
        )
        return self

    async def __aexit__(self, *_):
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, path, *headers, method="GET"):
        lines = (f"{method} {path} HTTP/1.1", "Host: h", *headers, "", "")
        await self.send("\r\n".join(lines).encode())
        return await self.answer(bodiless=method == "HEAD")

    async def answer(self, *, bodiless=False):
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status_line, *lines = head.rstrip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        length = 0 if bodiless else int(headers.get("content-length", 0))
        return Answer(int(status_line.split()[1]), headers, await self.reader.readexactly(length))

    async def closed(self):
        """Wait until the server closes; return the received rest."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""


GET_HELLO = b"GET /hello HTTP/1.1\r\nHost: h\r\n\r\n"

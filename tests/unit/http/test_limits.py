"""Behavior of a server with clients at their limits."""

from __future__ import annotations

import asyncio
import resource
import socket
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from gpuledger.http.limits import RESERVE_CONNECTIONS, HttpLimits
from gpuledger.http.routes import PROBES, Response, Routes, text_response
from gpuledger.model.settings import build_settings, declared_settings
from unit.http.streams import GET_STREAM, Station
from unit.http.support import BIG, GET_HELLO, Client, serve, until

FEW = HttpLimits(connections=8)
OTHER = "127.0.0.2"


def routes():
    station = Station(b"word")
    exact = {path: lambda request: text_response("OK") for path in PROBES}
    exact |= {"/hello": lambda request: text_response("hello"), "/big": lambda request: Response(body=BIG)}
    exact["/stream"] = lambda request: station.routes.respond(request)
    return Routes(exact)


@asynccontextmanager
async def crowd(server, count, sent=b"", source="127.0.0.1"):
    """Connections that have sent `sent` and read nothing."""
    async with AsyncExitStack() as stack:
        before = server.connections
        clients = []
        for _ in range(count):
            client = await stack.enter_async_context(Client(server, source=source))
            client.writer.transport.pause_reading()
            client.writer.write(sent)
            clients.append(client)
        await until(lambda: server.connections == before + count)
        yield clients
        for client in clients:
            client.writer.transport.abort()


EXHAUSTED = {
    "silence": b"",
    "an incomplete request": GET_HELLO[:20],
    "a missing body": b"GET /hello HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n",
    "unread responses": b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n",
    "streams": GET_STREAM,
}


@pytest.mark.parametrize("sent", EXHAUSTED.values(), ids=EXHAUSTED)
def test_with_all_connections_in_use_health_is_served_and_other_requests_get_503(sent):
    async def scenario(server):
        async with crowd(server, 8, sent):
            statuses = []
            for path in (*sorted(PROBES), "/hello"):
                async with Client(server, source=OTHER) as client:
                    answer = await client.ask(path)
                    statuses.append((answer.status, answer.headers.get("retry-after")))
        await until(lambda: server.connections == 0)
        async with Client(server) as client:
            return statuses, (await client.ask("/hello")).status

    statuses, after = serve(scenario, routes=routes(), limits=FEW)
    assert statuses == [(200, None)] * 3 + [(503, "1")]
    assert after == 200


def test_a_connection_in_the_reserve_gets_a_free_seat():
    async def scenario(server):
        async with crowd(server, 8) as sitting, Client(server) as waiting:
            early = await waiting.ask("/-/healthy")
            sitting[0].writer.transport.abort()
            await until(lambda: server.connections == 8)
            return early.status, (await waiting.ask("/hello")).status, (await waiting.ask("/hello")).status

    assert serve(scenario, routes=routes(), limits=FEW) == (200, 200, 200)


def test_a_flood_of_connections_does_not_affect_a_probe():
    async def scenario(server):
        async with crowd(server, 8):
            flood = [await Client(server).__aenter__() for _ in range(3 * RESERVE_CONNECTIONS)]
            await until(lambda: server.connections == 8 + RESERVE_CONNECTIONS)
            async with Client(server) as probe:
                status = (await probe.ask("/-/ready")).status
            for client in flood:
                client.writer.transport.abort()
            return status

    assert serve(scenario, routes=routes(), limits=FEW) == 200


def test_a_probe_is_answered_while_many_clients_connect_at_once():
    async def scenario(server):
        async with crowd(server, 8):
            flood = []
            # None is accepted before all have connected, because nothing is awaited.
            for last in range(200):
                one = socket.socket()
                one.bind((f"127.0.1.{last + 1}", 0))
                one.connect(("127.0.0.1", server.addresses[0].port))
                flood.append(one)
            flood[0].sendall(b"GET /-/healthy HTTP/1.1\r\nHost: h\r\n\r\n")
            flood[0].setblocking(False)
            answer = await asyncio.get_running_loop().sock_recv(flood[0], 1024)
            for one in flood:
                one.close()
            async with Client(server) as last:
                await last.ask("/-/ready")
            await until(lambda: server.connections == 8)
            return answer

    assert serve(scenario, routes=routes(), limits=FEW).startswith(b"HTTP/1.1 200 ")


def test_the_connection_that_is_idle_for_the_longest_time_makes_room():
    async def scenario(server):
        async with AsyncExitStack() as stack:
            seated = [await stack.enter_async_context(Client(server)) for _ in range(4)]
            for client in (seated[1], seated[0], *seated[2:]):
                await client.ask("/hello")
            newcomer = await stack.enter_async_context(Client(server))
            status = (await newcomer.ask("/hello")).status
            return status, await seated[1].closed(), (await seated[0].ask("/hello")).status

    assert serve(scenario, routes=routes(), limits=HttpLimits(connections=4)) == (200, b"", 200)


def test_one_idle_connection_makes_room_for_one_connection():
    limits = HttpLimits(connections=2)

    async def scenario(server):
        async with Client(server) as idle, crowd(server, 1, GET_HELLO[:20]):
            await idle.ask("/hello")
            async with Client(server) as one, Client(server) as other:
                # A client that does not read keeps its seat: the second one finds no idle connection.
                for client in (one, other):
                    await client.send(EXHAUSTED["unread responses"])
                return [(await client.reader.readexactly(12))[-3:] for client in (one, other)]

    assert sorted(serve(scenario, routes=routes(), limits=limits)) == [b"200", b"503"]


def test_slow_readers_of_one_body_hold_its_bytes_once():
    async def scenario(server):
        async with crowd(server, 20, EXHAUSTED["unread responses"]):
            async with Client(server) as other:
                await other.ask("/hello")
            return server.held_bytes

    assert serve(scenario, routes=routes()) == len(BIG)


def test_slow_readers_are_limited_in_memory_and_a_fast_reader_is_unaffected():
    size, pages = 8 << 20, []

    def fresh(request):
        pages.append(bytes([len(pages)]) * size)
        return Response(body=pages[-1])

    async def scenario(server):
        most = 0
        async with AsyncExitStack() as stack:
            slow = []
            for number in range(6):
                client = await stack.enter_async_context(Client(server))
                client.writer.transport.pause_reading()
                await client.send(b"GET /fresh HTTP/1.1\r\nHost: h\r\n\r\n")
                await until(lambda count=number + 1: len(pages) == count)
                slow.append(client)
                most = max(most, server.held_bytes)
            async with Client(server, source=OTHER) as quick:
                got = await quick.ask("/fresh")
            await until(lambda: server.connections <= 2 + 1)
            for client in slow:
                client.writer.transport.abort()
        await until(lambda: server.connections == 0)
        return most, got.body == pages[-1], server.held_bytes

    limits = HttpLimits(held_bytes=3 * size)
    most, whole, after = serve(scenario, routes=Routes({"/fresh": fresh}), limits=limits)
    assert (most, whole, after) == (3 * size, True, 0)


def test_a_body_that_was_read_slowly_is_released():
    async def scenario(server):
        async with Client(server) as slow:
            slow.writer.transport.pause_reading()
            await slow.send(EXHAUSTED["unread responses"])
            await until(lambda: server.held_bytes == len(BIG))
            slow.writer.transport.resume_reading()
            await slow.answer()
            await until(lambda: server.held_bytes == 0)
            return (await slow.ask("/hello")).status

    assert serve(scenario, routes=routes()) == 200


@pytest.mark.parametrize(("headers", "status"), [(99, 200), (100, 431)])
def test_the_number_of_headers_is_limited(headers, status):
    async def scenario(server):
        async with Client(server) as client:
            return (await client.ask("/hello", *(f"X-{n}: y" for n in range(headers)))).status

    # Host counts, too.
    assert serve(scenario, routes=routes()) == status


def test_streams_use_at_most_half_of_the_connections():
    assert (HttpLimits().max_streams, HttpLimits(connections=100).max_streams) == (256, 50)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("web.limits.connections", "0"),
        ("web.limits.connections", "nan"),
        ("web.limits.streams", "-1"),
        ("web.limits.header_size", "10"),
        ("web.limits.response_memory", "64 parsecs"),
        ("web.limits.request_timeout", "0"),
        ("web.limits.idle_timeout", "for ever"),
    ],
)
def test_an_invalid_limit_is_rejected(key, value):
    parse = {setting.key: setting.parse for _, setting, _ in declared_settings(HttpLimits)}[key]
    with pytest.raises(ValueError, match="expected"):
        parse(value)


def test_limits_are_parsed_from_settings():
    parsers = {setting.key: setting.parse for _, setting, _ in declared_settings(HttpLimits)}
    given = {"web.limits.connections": "9", "web.limits.header_size": "8KiB", "web.limits.idle_timeout": "2m"}
    limits = build_settings(HttpLimits, {key: parsers[key](value) for key, value in given.items()})
    assert (limits.connections, limits.header_bytes, limits.idle_seconds) == (9, 8192, 120.0)


# Soft and hard limit of descriptors; the resulting connections of 512, and the resulting soft limit.
DESCRIPTORS = [(1024, 4096, 512, 1024), (256, 4096, 512, 704), (256, 600, 408, 600), (100, 100, 1, 100)]


@pytest.mark.parametrize(("soft", "hard", "connections", "after"), DESCRIPTORS)
def test_connections_are_limited_by_file_descriptors(soft, hard, connections, after):
    program = (
        "import resource;from gpuledger.app.serving import limit_to_descriptors;"
        "from gpuledger.http.limits import HttpLimits;"
        "print(limit_to_descriptors(HttpLimits()).connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(connections), str(after)]
    assert ("ulimit -n" in done.stderr) is (connections < 512)

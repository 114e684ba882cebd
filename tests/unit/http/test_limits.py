"""What a server still answers when clients have taken all that they may."""

from __future__ import annotations

import asyncio
import resource
import socket
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from gpuledger.http.limits import RESERVE, Limits
from gpuledger.http.routes import PROBES, Response, Routes, plain
from gpuledger.model.settings import build, declared
from unit.http.streams import GET_STREAM, Station
from unit.http.support import BIG, GET_HELLO, Client, serve, until

FEW = Limits(connections=8, client_connections=8)
OTHER = "127.0.0.2"


def routes():
    station = Station(b"word")
    exact = {path: lambda request: plain("OK") for path in PROBES}
    exact |= {"/hello": lambda request: plain("hello"), "/big": lambda request: Response(body=BIG)}
    exact["/stream"] = lambda request: station.routes.respond(request)
    return Routes(exact)


@asynccontextmanager
async def crowd(server, count, sent=b"", source="127.0.0.1"):
    """So many connections that have sent this and take nothing."""
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
    "half a request": GET_HELLO[:20],
    "a body that does not come": b"GET /hello HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n",
    "answers not taken": b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n",
    "streams": GET_STREAM,
}


@pytest.mark.parametrize("sent", EXHAUSTED.values(), ids=EXHAUSTED)
def test_health_answers_and_all_else_is_told_to_come_back_when_every_connection_is_taken_by(sent):
    async def scenario(server):
        async with crowd(server, 8, sent):
            told = []
            for path in (*sorted(PROBES), "/hello"):
                async with Client(server, source=OTHER) as client:
                    answer = await client.ask(path)
                    told.append((answer.status, answer.headers.get("retry-after")))
        await until(lambda: server.connections == 0)
        async with Client(server) as client:
            return told, (await client.ask("/hello")).status

    told, after = serve(scenario, routes=routes(), limits=FEW)
    assert told == [(200, None)] * 3 + [(503, "1")]
    assert after == 200


def test_a_connection_that_waits_in_the_reserve_gets_the_seat_that_becomes_free():
    async def scenario(server):
        async with crowd(server, 8) as sitting, Client(server) as waiting:
            early = await waiting.ask("/-/healthy")
            sitting[0].writer.transport.abort()
            await until(lambda: server.connections == 8)
            return early.status, (await waiting.ask("/hello")).status, (await waiting.ask("/hello")).status

    assert serve(scenario, routes=routes(), limits=FEW) == (200, 200, 200)


def test_a_flood_of_connections_leaves_a_probe_of_another_client_alone():
    async def scenario(server):
        async with crowd(server, 8), Client(server, source=OTHER) as probe:
            flood = [await Client(server).__aenter__() for _ in range(3 * RESERVE)]
            await until(lambda: server.connections == 8 + RESERVE)
            status = (await probe.ask("/-/ready")).status
            for client in flood:
                client.writer.transport.abort()
            return status

    assert serve(scenario, routes=routes(), limits=FEW) == 200


def test_a_probe_is_answered_however_many_clients_connect_at_the_same_moment():
    async def scenario(server):
        async with crowd(server, 8):
            flood = []
            # None of them is accepted before all are there: nothing is awaited.
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


def test_one_client_cannot_take_the_connections_of_all():
    limits = Limits(connections=8, client_connections=6)

    async def scenario(server):
        async with crowd(server, 6, GET_HELLO[:20]):
            async with Client(server) as seventh:
                own = await seventh.ask("/hello")
            async with Client(server, source=OTHER) as other:
                return own.status, own.headers["retry-after"], (await other.ask("/hello")).status

    assert serve(scenario, routes=routes(), limits=limits) == (503, "1", 200)


def test_of_idle_connections_those_of_the_client_that_has_most_make_room():
    limits = Limits(connections=4, client_connections=4)

    async def scenario(server):
        async with AsyncExitStack() as stack:
            sources = (OTHER, "127.0.0.1", "127.0.0.1", "127.0.0.1")
            seated = [await stack.enter_async_context(Client(server, source=one)) for one in sources]
            for client in seated:
                await client.ask("/hello")
            newcomer = await stack.enter_async_context(Client(server, source="127.0.0.3"))
            status = (await newcomer.ask("/hello")).status
            return status, await seated[1].closed(), (await seated[0].ask("/hello")).status

    assert serve(scenario, routes=routes(), limits=limits) == (200, b"", 200)


def test_one_idle_connection_makes_room_for_one_alone():
    limits = Limits(connections=2, client_connections=2)

    async def scenario(server):
        async with Client(server) as idle, crowd(server, 1, GET_HELLO[:20]):
            await idle.ask("/hello")
            async with Client(server) as one, Client(server) as other:
                # What is not taken keeps its seat: who comes second finds none idle.
                for client in (one, other):
                    await client.send(EXHAUSTED["answers not taken"])
                return [(await client.reader.readexactly(12))[-3:] for client in (one, other)]

    assert sorted(serve(scenario, routes=routes(), limits=limits)) == [b"200", b"503"]


def test_who_asks_too_often_is_told_so_and_let_go_while_others_and_health_are_answered():
    # One request in a thousand seconds and two at once: no third one in the time of this test.
    limits = Limits(client_requests=0.001 * 1000)

    async def scenario(server):
        async with Client(server) as often:
            await often.send(GET_HELLO * 10)
            statuses = []
            while True:
                answer = await often.answer()
                statuses.append(answer.status)
                if answer.status != 200:
                    break
            rest = await often.closed()
        async with Client(server) as again, Client(server, source=OTHER) as other:
            return (
                statuses[-1],
                len(statuses) < 10,
                answer.headers["retry-after"],
                answer.headers["connection"],
                rest,
                (await again.ask("/-/healthy")).status,
                (await other.ask("/hello")).status,
            )

    assert serve(scenario, routes=routes(), limits=limits) == (429, True, "1", "close", b"", 200, 200)


def test_slow_readers_of_one_page_hold_its_bytes_once():
    async def scenario(server):
        async with crowd(server, 20, EXHAUSTED["answers not taken"]):
            async with Client(server) as other:
                await other.ask("/hello")
            return server.held_bytes

    assert serve(scenario, routes=routes()) == len(BIG)


def test_slow_readers_of_ever_new_pages_hold_no_more_than_the_limit_and_a_quick_one_gets_all_of_his():
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
                await until(lambda asked=number + 1: len(pages) == asked)
                slow.append(client)
                most = max(most, server.held_bytes)
            async with Client(server, source=OTHER) as quick:
                got = await quick.ask("/fresh")
            await until(lambda: server.connections <= 2 + 1)
            for client in slow:
                client.writer.transport.abort()
        await until(lambda: server.connections == 0)
        return most, got.body == pages[-1], server.held_bytes

    limits = Limits(held_bytes=3 * size)
    most, whole, after = serve(scenario, routes=Routes({"/fresh": fresh}), limits=limits)
    assert (most, whole, after) == (3 * size, True, 0)


def test_an_answer_that_was_taken_late_is_let_go_of():
    async def scenario(server):
        async with Client(server) as slow:
            slow.writer.transport.pause_reading()
            await slow.send(EXHAUSTED["answers not taken"])
            await until(lambda: server.held_bytes == len(BIG))
            slow.writer.transport.resume_reading()
            await slow.answer()
            await until(lambda: server.held_bytes == 0)
            return (await slow.ask("/hello")).status

    assert serve(scenario, routes=routes()) == 200


@pytest.mark.parametrize(("headers", "status"), [(99, 200), (100, 431)])
def test_a_request_has_so_many_headers_at_most(headers, status):
    async def scenario(server):
        async with Client(server) as client:
            return (await client.ask("/hello", *(f"X-{n}: y" for n in range(headers)))).status

    # Host is one, too.
    assert serve(scenario, routes=routes()) == status


def test_streams_are_never_more_than_half_of_the_connections():
    assert (Limits().most_streams, Limits(connections=100).most_streams) == (256, 50)


def test_by_default_fifty_scrapers_and_twenty_pages_share_an_address():
    limits = Limits()
    browsers_connections, streams, requests_of_a_page = 20 * 6, 20, 10
    assert limits.client_connections >= 50 + browsers_connections
    assert limits.client_streams >= streams
    assert 2 * limits.client_requests >= 50 + 20 * requests_of_a_page


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("web.limits.connections", "0"),
        ("web.limits.connections_per_client", "-1"),
        ("web.limits.requests_per_client", "nan"),
        ("web.limits.header_size", "10"),
        ("web.limits.response_memory", "64 parsecs"),
        ("web.limits.request_timeout", "0"),
        ("web.limits.idle_timeout", "for ever"),
    ],
)
def test_a_limit_that_cannot_be_is_refused(key, value):
    parse = {setting.key: setting.parse for _, setting, _ in declared(Limits)}[key]
    with pytest.raises(ValueError, match="wanted"):
        parse(value)


def test_limits_come_out_of_settings():
    parsers = {setting.key: setting.parse for _, setting, _ in declared(Limits)}
    given = {"web.limits.connections": "9", "web.limits.header_size": "8KiB", "web.limits.idle_timeout": "2m"}
    limits = build(Limits, {key: parsers[key](value) for key, value in given.items()})
    assert (limits.connections, limits.header_bytes, limits.idle_seconds) == (9, 8192, 120.0)


# soft and hard limit of descriptors, then what comes of 512 connections.
DESCRIPTORS = [(1024, 4096, 512, 1024), (256, 4096, 512, 704), (256, 600, 408, 600), (100, 100, 1, 100)]


@pytest.mark.parametrize(("soft", "hard", "connections", "after"), DESCRIPTORS)
def test_there_are_no_more_connections_than_descriptors(soft, hard, connections, after):
    program = (
        "import resource;from gpuledger.app.serving import within_descriptors;"
        "from gpuledger.http.limits import Limits;"
        "print(within_descriptors(Limits()).connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
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

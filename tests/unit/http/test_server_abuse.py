"""The server with slow, malformed and too many clients."""

from __future__ import annotations

import asyncio
import socket
import struct
import tracemalloc

import pytest

from gpuledger.http.limits import HttpLimits
from unit.http.support import BIG, GET_HELLO, Client, serve, until


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET /hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /hello HTTP/1.1\r\n\r\n",
        b"GET /hello HTTP/1.1\r\nHost: h\r\nbroken header\r\n\r\n",
        b"GET /hello HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n",
        b"GET /h\xc3\xa9 HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST /hello HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_a_malformed_request_gets_400_and_is_closed(request_bytes):
    async def scenario(server):
        async with Client(server) as client:
            await client.send(request_bytes)
            answer = await client.answer()
            rest = await client.closed()
        async with Client(server) as other:
            return answer, rest, (await other.ask("/hello")).status

    answer, rest, other = serve(scenario)
    assert (answer.status, answer.headers["connection"], rest, other) == (400, "close", b"", 200)


def test_an_unknown_transfer_encoding_gets_501():
    async def scenario(server):
        async with Client(server) as client:
            return (await client.ask("/hello", "Transfer-Encoding: gzip", method="POST")).status

    assert serve(scenario) == 501


def test_headers_that_are_too_long_get_431_and_are_closed():
    async def scenario(server):
        async with Client(server) as client:
            await client.send(b"GET /hello HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 40_000)
            return (await client.answer()).status, await client.closed()

    assert serve(scenario) == (431, b"")


def test_headers_just_below_the_limit_are_served():
    async def scenario(server):
        async with Client(server) as client:
            return (await client.ask("/hello", "X: " + "x" * 15_000)).status

    assert serve(scenario) == 200


def test_a_small_body_is_dropped_and_the_connection_continues():
    async def scenario(server):
        async with Client(server) as client:
            await client.send(b"GET /hello HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nGET /" + GET_HELLO)
            return [(await client.answer()).body for _ in range(2)]

    assert serve(scenario) == [b"hello\n"] * 2


@pytest.mark.parametrize("framing", ["Content-Length: 200000", "Transfer-Encoding: chunked"])
def test_a_large_body_gets_413_and_is_closed(framing):
    async def scenario(server):
        async with Client(server) as client:
            head = f"POST /hello HTTP/1.1\r\nHost: h\r\n{framing}\r\n\r\n".encode()
            chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n" if "chunked" in framing else b"x" * 0x8000
            await client.send(head + chunk * 3)
            return (await client.answer()).status, await client.closed()

    assert serve(scenario) == (413, b"")


def test_expect_100_continue_is_answered():
    async def scenario(server):
        async with Client(server) as client:
            head = b"GET /hello HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
            await client.send(head)
            first = await client.answer()
            await client.send(b"ok")
            return first.status, (await client.answer()).status

    assert serve(scenario) == (100, 200)


def test_an_unsupported_method_gets_405_and_the_connection_continues():
    async def scenario(server):
        async with Client(server) as client:
            answer = await client.ask("/hello", "Content-Length: 0", method="DELETE")
            return answer.status, answer.headers["allow"], (await client.ask("/hello")).status

    assert serve(scenario) == (405, "GET, HEAD", 200)


def test_an_upgrade_offer_is_ignored():
    async def scenario(server):
        async with Client(server) as client:
            answer = await client.ask("/hello", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c")
            return answer.body, (await client.ask("/hello")).body

    assert serve(scenario) == (b"hello\n", b"hello\n")


def test_a_client_that_sends_slowly_gets_408_while_others_are_served():
    async def scenario(server):
        async with Client(server) as slow, Client(server) as other:
            await slow.send(GET_HELLO[:10])
            ended = asyncio.ensure_future(slow.closed())
            served = 0
            while not ended.done():
                slow.writer.write(b"x")
                served += (await other.ask("/hello")).status == 200
            return served > 0, await ended

    served, response = serve(scenario, limits=HttpLimits(request_seconds=0.5))
    assert served
    assert response.startswith(b"HTTP/1.1 408 ")


def test_a_silent_client_is_closed():
    async def scenario(server):
        async with Client(server) as silent:
            return await silent.closed()

    assert serve(scenario, limits=HttpLimits(request_seconds=0.05)) == b""


def test_a_connection_that_idles_too_long_is_closed():
    async def scenario(server):
        async with Client(server) as client:
            await client.ask("/hello")
            return await client.closed()

    assert serve(scenario, limits=HttpLimits(idle_seconds=0.05)) == b""


def test_the_time_limit_of_a_request_does_not_end_an_idle_connection():
    async def scenario(server):
        async with Client(server) as idle, Client(server) as silent:
            await idle.ask("/hello")
            await silent.closed()
            return (await idle.ask("/hello")).status

    assert serve(scenario, limits=HttpLimits(request_seconds=1.0)) == 200


def test_a_client_that_does_not_read_is_cut_off_and_blocks_no_other():
    async def scenario(server):
        async with Client(server) as slow, Client(server) as other:
            await slow.send(b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n")
            await until(lambda: server.connections == 2)
            status = (await other.ask("/hello")).status
            await until(lambda: server.connections == 1)
            return status, len(await slow.closed()) < len(BIG)

    assert serve(scenario, limits=HttpLimits(response_seconds=1.0)) == (200, True)


def test_a_client_that_closes_before_its_response_logs_nothing(caplog):
    async def scenario(server):
        with socket.create_connection(("127.0.0.1", server.addresses[0].port)) as client:
            await until(lambda: server.connections == 1)
            # The server sees the request, and finds the connection reset when it writes.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n")
        await until(lambda: server.connections == 0)

    serve(scenario)
    assert caplog.messages == []


def test_slow_clients_share_one_body_without_copies():
    async def scenario(server):
        async with asyncio.TaskGroup() as opening:
            tasks = [opening.create_task(Client(server).__aenter__()) for _ in range(20)]
        clients = [task.result() for task in tasks]
        tracemalloc.start()
        for client in clients:
            client.writer.transport.pause_reading()
            await client.send(b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n")
        # Its response comes after all of those were started.
        async with Client(server) as other:
            await other.ask("/hello")
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        for client in clients:
            client.writer.transport.abort()
        return held

    # One piece of 32 KiB each, and what the test itself allocates.
    assert serve(scenario) < 20 * 64 * 1024


def test_a_client_that_does_not_read_cannot_queue_requests():
    async def scenario(server):
        async with Client(server) as flooding, Client(server) as other:
            flooding.writer.transport.pause_reading()
            # More than the kernel's buffers hold.
            flooding.writer.write(b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n" + GET_HELLO * 1_000_000)
            await other.ask("/hello")
            tracemalloc.start()
            # Turns of the event loop in which the server could read.
            for _ in range(200):
                await other.ask("/hello")
            held = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            flooding.writer.transport.abort()
            return held

    assert serve(scenario) < 1_000_000


def test_a_client_that_reads_slowly_gets_every_byte():
    async def scenario(server):
        async with Client(server) as client:
            await client.send(b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n")
            head = await client.reader.readuntil(b"\r\n\r\n")
            body = bytearray()
            while len(body) < len(BIG):
                body += await client.reader.read(10_000)
            return head.startswith(b"HTTP/1.1 200"), bytes(body) == BIG

    assert serve(scenario) == (True, True)


def test_a_connection_above_the_limit_gets_503():
    async def scenario(server):
        async with Client(server) as first, Client(server):
            await until(lambda: server.connections == 2)
            async with Client(server) as refused:
                answer = await refused.ask("/hello")
                rest = await refused.closed()
            await first.__aexit__()
            await until(lambda: server.connections == 1)
            async with Client(server) as later:
                return answer, rest, (await later.ask("/hello")).status

    answer, rest, later = serve(scenario, limits=HttpLimits(connections=2))
    assert (answer.status, answer.headers["retry-after"], answer.headers["connection"]) == (503, "1", "close")
    assert (rest, later) == (b"", 200)


def test_a_connection_between_two_scrapes_makes_room():
    async def scenario(server):
        async with Client(server) as first, Client(server) as second:
            await first.ask("/hello")
            await second.ask("/hello")
            async with Client(server) as third:
                status = (await third.ask("/hello")).status
                return status, await first.closed(), (await second.ask("/hello")).status

    assert serve(scenario, limits=HttpLimits(connections=2)) == (200, b"", 200)


def test_connections_beyond_the_reserve_are_dropped():
    async def scenario(server):
        clients = [await Client(server).__aenter__() for _ in range(80)]
        await until(lambda: server.connections == 1 + 64)
        for client in clients[1:]:
            client.writer.write(GET_HELLO)
        seen = [await client.closed() for client in clients[1:]]
        for client in clients:
            await client.__aexit__()
        return sum(answer.startswith(b"HTTP/1.1 503") for answer in seen), seen[0]

    refused, first = serve(scenario, limits=HttpLimits(connections=1))
    assert (refused, first) == (64, b"")

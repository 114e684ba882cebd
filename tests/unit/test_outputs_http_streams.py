"""Answers without an end: what a client gets of them, and what a slow one costs the others."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gpuledger.outputs.connection import Connection
from gpuledger.outputs.limits import Limits
from gpuledger.outputs.routes import Response, Routes, plain
from unit.outputs_support import GET_HELLO, Client, serve, until

GET_STREAM = b"GET /stream HTTP/1.1\r\nHost: h\r\n\r\n"


class Channel:
    """A stream that says what the test says; `size` makes each word that long."""

    def __init__(self) -> None:
        self.pending: list[bytes | None] = []
        self.wake = lambda: None
        self.taken = 0
        self.ended = 0

    def begin(self, wake):
        self.wake = wake

    def take(self):
        if not self.pending:
            return b""
        self.taken += 1
        return self.pending.pop(0)

    def end(self):
        self.ended += 1

    def say(self, *words):
        self.pending += words
        self.wake()


class Station:
    """`/stream` for any number of clients, and `/hello`."""

    def __init__(self, *first: bytes | None) -> None:
        self.channels: list[Channel] = []
        self._first = first
        self.routes = Routes(
            {
                "/stream": lambda request: Response(stream=self._open, content_type="text/event-stream"),
                "/hello": lambda request: plain("hello"),
            }
        )

    def _open(self):
        channel = Channel()
        channel.pending += self._first
        self.channels.append(channel)
        return channel

    def listeners(self, count):
        return until(lambda: len(self.channels) >= count)


async def head_of(client):
    return (await client.reader.readuntil(b"\r\n\r\n")).decode().lower()


async def chunk(client):
    """The next chunk's data; empty for the last one."""
    size = int(await client.reader.readuntil(b"\r\n"), 16)
    data = await client.reader.readexactly(size + 2)
    return data[:-2]


def test_what_is_said_comes_at_once_in_chunks_of_no_told_length():
    station = Station(b"first\n")

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_STREAM)
            head = await head_of(client)
            first = await chunk(client)
            station.channels[0].say(b"second\n")
            second = await chunk(client)
            station.channels[0].say(b"third\n", None)
            return head, first, second, await chunk(client), await chunk(client)

    head, *words = serve(scenario, routes=station.routes)
    assert words == [b"first\n", b"second\n", b"third\n", b""]
    assert "transfer-encoding: chunked" in head
    assert "content-length" not in head
    assert station.channels[0].ended == 1


def test_after_its_end_the_connection_goes_on_with_the_next_request():
    station = Station(b"a", None)

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_STREAM + GET_HELLO + GET_STREAM)
            await head_of(client)
            first = [await chunk(client), await chunk(client)]
            hello = (await client.answer()).body
            await head_of(client)
            return first, hello, [await chunk(client), await chunk(client)]

    assert serve(scenario, routes=station.routes) == ([b"a", b""], b"hello\n", [b"a", b""])


def test_a_request_that_came_with_it_is_answered_when_it_has_ended():
    station = Station()

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_STREAM + GET_HELLO)
            await head_of(client)
            station.channels[0].say(None)
            return await chunk(client), (await client.answer()).body

    assert serve(scenario, routes=station.routes) == (b"", b"hello\n")


def test_head_opens_no_stream_and_the_connection_goes_on():
    station = Station(b"a")

    async def scenario(server):
        async with Client(server) as client:
            answer = await client.ask("/stream", method="HEAD")
            return answer.headers["content-type"], (await client.ask("/hello")).body

    assert serve(scenario, routes=station.routes) == ("text/event-stream", b"hello\n")
    assert station.channels == []


def test_an_old_client_gets_it_without_chunks_until_the_connection_ends():
    station = Station(b"one ", b"two", None)

    async def scenario(server):
        async with Client(server) as client:
            await client.send(b"GET /stream HTTP/1.0\r\n\r\n")
            head = await head_of(client)
            return "chunked" in head, await client.closed()

    assert serve(scenario, routes=station.routes) == (False, b"one two")


def test_a_healthy_stream_outlives_every_limit_of_time():
    station = Station(b"a")
    limits = Limits(
        request_seconds=0.05,
        idle_seconds=0.05,
        response_seconds=0.05,
        answer_seconds=0.05,
        linger_seconds=0.05,
    )

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_STREAM)
            await head_of(client)
            await chunk(client)
            for _ in range(3):
                async with Client(server) as silent:
                    await silent.closed()
            station.channels[0].say(b"still here")
            return await chunk(client)

    assert serve(scenario, routes=station.routes, limits=limits) == b"still here"


class Narrow(Client):
    """A client that takes little at a time: the kernel's buffers on its side are small."""

    async def __aenter__(self):
        inner = socket.socket()
        inner.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        inner.setblocking(False)
        await asyncio.get_running_loop().sock_connect(inner, ("127.0.0.1", self._port))
        self.reader, self.writer = await asyncio.open_connection(sock=inner, limit=1024)
        return self


BIG_WORD = b"x" * 200_000


async def fall_behind(station, client):
    """Say more than the kernel takes for a client that reads nothing; answers how much was handed over."""
    await client.send(GET_STREAM)
    await station.listeners(1)
    client.writer.transport.pause_reading()
    channel = station.channels[0]
    before = -1
    while channel.taken > before:
        before = channel.taken
        channel.say(BIG_WORD)
        await asyncio.sleep(0)
    return channel


def test_who_is_behind_is_not_asked_for_more_until_he_has_caught_up():
    station = Station()

    async def scenario(server):
        async with Narrow(server) as slow, Client(server) as other:
            channel = await fall_behind(station, slow)
            before = channel.taken
            for _ in range(50):
                channel.say()
                await other.ask("/hello")
            skipped = channel.taken == before
            channel.pending[:] = [b"newest", None]
            slow.writer.transport.resume_reading()
            everything = bytearray()
            while not everything.endswith(b"0\r\n\r\n"):
                everything += await slow.reader.read(65_536)
            return skipped, everything.endswith(b"6\r\nnewest\r\n0\r\n\r\n")

    assert serve(scenario, routes=station.routes) == (True, True)


def test_who_takes_nothing_for_too_long_is_cut_off():
    station = Station()

    async def scenario(server):
        async with Narrow(server) as slow, Client(server) as healthy:
            channel = await fall_behind(station, slow)
            await healthy.send(GET_STREAM)
            await station.listeners(2)
            await until(lambda: channel.ended)
            station.channels[1].say(b"unharmed")
            await head_of(healthy)
            return channel.ended, await chunk(healthy), station.channels[1].ended

    assert serve(scenario, routes=station.routes, limits=Limits(response_seconds=0.1)) == (1, b"unharmed", 0)


def test_who_catches_up_in_time_is_not_cut_off_later():
    station = Station()

    async def scenario(server):
        async with Narrow(server) as slow:
            channel = await fall_behind(station, slow)
            channel.pending[:] = [b"newest"]
            slow.writer.transport.resume_reading()
            seen = b""
            while not seen.endswith(b"newest\r\n"):
                seen = seen[-20:] + await slow.reader.read(65_536)
            for _ in range(3):
                async with Client(server) as silent:
                    await silent.closed()
            channel.say(b"still here")
            return await chunk(slow), channel.ended

    limits = Limits(request_seconds=0.2, response_seconds=0.2)
    assert serve(scenario, routes=station.routes, limits=limits) == (b"still here", 0)


def test_a_client_that_has_gone_is_noticed_by_what_is_said_to_it():
    station = Station()

    async def scenario(server):
        async with Client(server) as gone, Client(server) as other:
            await gone.send(GET_STREAM)
            await station.listeners(1)
            gone.writer.transport.abort()
            while not station.channels[0].ended:
                station.channels[0].say(b"anybody?")
                await other.ask("/hello")
            return server.connections

    assert serve(scenario, routes=station.routes) == 1
    assert station.channels[0].ended == 1


def test_a_client_that_has_said_all_goes_on_listening():
    station = Station()

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_STREAM)
            await head_of(client)
            client.writer.write_eof()
            station.channels[0].say(b"still there?")
            heard = await chunk(client)
            station.channels[0].say(None)
            return heard, await client.closed()

    assert serve(scenario, routes=station.routes) == (b"still there?", b"0\r\n\r\n")


def test_stop_ends_every_stream_whole_and_at_once():
    station = Station(b"a")

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_STREAM)
            await head_of(client)
            await chunk(client)
            await server.stop()
            return await client.closed(), server.connections

    assert serve(scenario, routes=station.routes) == (b"0\r\n\r\n", 0)
    assert station.channels[0].ended == 1


def test_stop_cuts_off_a_stream_whose_client_is_behind():
    station = Station()

    async def scenario(server):
        async with Narrow(server) as slow:
            channel = await fall_behind(station, slow)
            await server.stop()
            return channel.ended, server.connections

    assert serve(scenario, routes=station.routes, grace=0.02) == (1, 0)


def test_streams_count_against_the_limit_and_make_no_room_for_others():
    station = Station(b"a")

    async def scenario(server):
        async with Client(server) as first, Client(server) as second:
            for client in (first, second):
                await client.send(GET_STREAM)
                await head_of(client)
                await chunk(client)
            async with Client(server) as refused:
                status = (await refused.ask("/stream")).status
            station.channels[0].say(b"b")
            return status, await chunk(first)

    assert serve(scenario, routes=station.routes, limits=Limits(connections=2)) == (503, b"b")


def test_as_many_streams_as_there_may_be_connections_all_hear_the_same():
    station = Station()

    async def scenario(server):
        clients = [await Client(server).__aenter__() for _ in range(512)]
        for client in clients:
            await client.send(GET_STREAM)
        await station.listeners(512)
        for channel in station.channels:
            channel.say(b"tick")
        heard = set()
        for client in clients:
            await head_of(client)
            heard.add(await chunk(client))
        async with Client(server) as refused:
            status = (await refused.ask("/stream")).status
        await server.stop()
        ends = {await client.closed() for client in clients}
        for client in clients:
            await client.__aexit__()
        return heard, status, ends

    limits = Limits(client_connections=512, client_requests=512.0)
    assert serve(scenario, routes=station.routes, limits=limits) == ({b"tick"}, 503, {b"0\r\n\r\n"})
    assert {channel.ended for channel in station.channels} == {1}


@pytest.mark.parametrize("more", [b"", GET_HELLO])
def test_who_sends_no_more_hears_no_more_and_its_seat_is_free(more):
    station = Station(b"a")

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_STREAM)
            await head_of(client)
            first = await chunk(client)
            await client.send(more)
            client.writer.write_eof()
            # Nothing is said meanwhile: it is the end itself that is heard.
            rest = await client.closed()
            await until(lambda: server.connections == 0)
            return first, rest

    assert serve(scenario, routes=station.routes) == (b"a", b"0\r\n\r\n")
    assert station.channels[0].ended == 1


def test_beside_a_stream_no_more_is_read_than_one_request_may_have():
    station, limits = Station(b"a"), Limits()

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_STREAM)
            await head_of(client)
            first = await chunk(client)
            client.writer.transport.set_write_buffer_limits(high=0)
            # More than the kernel and one request have room for: it is not taken while the stream lasts.
            client.writer.write(GET_HELLO * 1_000_000)
            stuck = asyncio.ensure_future(client.writer.drain())
            for word in (b"b", b"c"):
                station.channels[0].say(word)
                assert await chunk(client) == word
            waits = not stuck.done()
            station.channels[0].say(None)
            ended = await chunk(client)
            hello = (await client.answer()).body
            stuck.cancel()
            client.writer.transport.abort()
            return first, waits, ended, hello

    assert serve(scenario, routes=station.routes, limits=limits) == (b"a", True, b"", b"hello\n")


class Shut:
    """A gate that lets nobody in."""

    era = 0
    refused = plain("no", 401)

    def decide(self, request):
        return self.refused

    def dress(self, response):
        return response


def test_who_is_not_let_in_opens_no_stream():
    station = Station(b"a")

    async def scenario(server):
        async with Client(server) as client:
            return (await client.ask("/stream")).status

    def speaker(registry, routes):
        return Connection(registry, routes, Shut())

    assert serve(scenario, routes=station.routes, speaker=speaker) == 401
    assert station.channels == []


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_the_client_has_already_is_answered_without_a_body_or_a_length(method):
    async def scenario(server):
        async with Client(server) as client:
            answer = await client.ask("/same", method=method)
            return answer.status, answer.headers.get("content-length"), (await client.ask("/hello")).body

    routes = Routes(
        {
            "/same": lambda request: Response(304, headers=(("ETag", 'W/"1"'),)),
            "/hello": lambda request: plain("hello"),
        }
    )
    assert serve(scenario, routes=routes) == (304, None, b"hello\n")

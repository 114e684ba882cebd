"""Answers without an end: what a client gets of them, and what they leave to others."""

from __future__ import annotations

import asyncio

import pytest

from gpuledger.http.connection import Connection
from gpuledger.http.limits import Limits
from gpuledger.http.routes import Response, Routes, plain
from unit.http.streams import GET_STREAM, Station, chunk, head_of
from unit.http.support import GET_HELLO, Client, serve, until


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

"""Streams: what a client receives, and the effect on others."""

from __future__ import annotations

import asyncio

import pytest

from gpuledger.http.connection import ClientConnection
from gpuledger.http.limits import HttpLimits
from gpuledger.http.routes import Response, Routes, text_response
from unit.http.streams import GET_STREAM, Station, chunk, head_of
from unit.http.support import GET_HELLO, Client, serve, until


def test_stream_data_are_sent_immediately_in_chunks_without_content_length():
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


def test_after_a_stream_the_connection_continues_with_the_next_request():
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


def test_a_request_pipelined_after_a_stream_is_answered_after_its_end():
    station = Station()

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_STREAM + GET_HELLO)
            await head_of(client)
            station.channels[0].say(None)
            return await chunk(client), (await client.answer()).body

    assert serve(scenario, routes=station.routes) == (b"", b"hello\n")


def test_head_opens_no_stream_and_the_connection_continues():
    station = Station(b"a")

    async def scenario(server):
        async with Client(server) as client:
            answer = await client.ask("/stream", method="HEAD")
            return answer.headers["content-type"], (await client.ask("/hello")).body

    assert serve(scenario, routes=station.routes) == ("text/event-stream", b"hello\n")
    assert station.channels == []


def test_an_http_1_0_client_gets_a_stream_without_chunks():
    station = Station(b"one ", b"two", None)

    async def scenario(server):
        async with Client(server) as client:
            await client.send(b"GET /stream HTTP/1.0\r\n\r\n")
            head = await head_of(client)
            return "chunked" in head, await client.closed()

    assert serve(scenario, routes=station.routes) == (False, b"one two")


def test_a_healthy_stream_has_no_timeout():
    station = Station(b"a")
    limits = HttpLimits(
        request_seconds=1.0,
        idle_seconds=0.5,
        response_seconds=0.5,
        answer_seconds=0.5,
        linger_seconds=0.5,
    )

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_STREAM)
            await head_of(client)
            await chunk(client)
            # When it is closed, all limits have passed.
            async with Client(server) as silent:
                await silent.closed()
            station.channels[0].say(b"still here")
            return await chunk(client)

    assert serve(scenario, routes=station.routes, limits=limits) == b"still here"


def test_a_closed_stream_is_detected_by_a_write():
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


def test_a_half_closed_client_still_receives_a_stream():
    station = Station()

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_STREAM)
            await head_of(client)
            client.writer.write_eof()
            station.channels[0].say(b"still there?")
            received = await chunk(client)
            station.channels[0].say(None)
            return received, await client.closed()

    assert serve(scenario, routes=station.routes) == (b"still there?", b"0\r\n\r\n")


def test_stop_ends_every_stream_regularly_and_immediately():
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


def test_streams_count_as_connections_and_are_not_closed_for_others():
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

    assert serve(scenario, routes=station.routes, limits=HttpLimits(connections=2)) == (503, b"b")


def test_as_many_streams_as_connections_all_receive_the_same_data():
    station = Station()

    async def scenario(server):
        clients = [await Client(server).__aenter__() for _ in range(512)]
        for client in clients:
            await client.send(GET_STREAM)
        await station.listeners(512)
        for channel in station.channels:
            channel.say(b"tick")
        received = set()
        for client in clients:
            await head_of(client)
            received.add(await chunk(client))
        async with Client(server) as refused:
            status = (await refused.ask("/stream")).status
        await server.stop()
        ends = {await client.closed() for client in clients}
        for client in clients:
            await client.__aexit__()
        return received, status, ends

    assert serve(scenario, routes=station.routes) == ({b"tick"}, 503, {b"0\r\n\r\n"})
    assert {channel.ended for channel in station.channels} == {1}


@pytest.mark.parametrize("more", [b"", GET_HELLO])
def test_a_half_closed_stream_is_ended_and_its_seat_is_free(more):
    station = Station(b"a")

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_STREAM)
            await head_of(client)
            first = await chunk(client)
            await client.send(more)
            client.writer.write_eof()
            # No data are sent meanwhile: the close itself is detected.
            rest = await client.closed()
            await until(lambda: server.connections == 0)
            return first, rest

    assert serve(scenario, routes=station.routes) == (b"a", b"0\r\n\r\n")
    assert station.channels[0].ended == 1


def test_during_a_stream_at_most_one_request_is_read():
    station, limits = Station(b"a"), HttpLimits()

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_STREAM)
            await head_of(client)
            first = await chunk(client)
            client.writer.transport.set_write_buffer_limits(high=0)
            # More than the buffers of the kernel and of one request: it is not read during the stream.
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


class ClosedGate:
    """A gate that rejects all requests."""

    generation = 0
    rejection = text_response("no", 401)

    def decide(self, request):
        return self.rejection

    def identify(self, request, certificate_name):
        return request

    def add_headers(self, response):
        return response


def test_an_unauthenticated_client_opens_no_stream():
    station = Station(b"a")

    async def scenario(server):
        async with Client(server) as client:
            return (await client.ask("/stream")).status

    def protocol_factory(registry, routes):
        return ClientConnection(registry, routes, ClosedGate())

    assert serve(scenario, routes=station.routes, protocol_factory=protocol_factory) == 401
    assert station.channels == []


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_304_has_no_body_and_no_length(method):
    async def scenario(server):
        async with Client(server) as client:
            answer = await client.ask("/same", method=method)
            return answer.status, answer.headers.get("content-length"), (await client.ask("/hello")).body

    routes = Routes(
        {
            "/same": lambda request: Response(304, headers=(("ETag", 'W/"1"'),)),
            "/hello": lambda request: text_response("hello"),
        }
    )
    assert serve(scenario, routes=routes) == (304, None, b"hello\n")

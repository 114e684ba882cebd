"""Streams to slow clients, which must not affect others."""

from __future__ import annotations

import asyncio
import socket

from gpuledger.http.limits import HttpLimits
from unit.http.streams import GET_STREAM, Station, chunk, head_of
from unit.http.support import Client, serve, until


class SlowClient(Client):
    """A client with a small receive buffer."""

    async def __aenter__(self):
        inner = socket.socket()
        inner.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        inner.setblocking(False)
        await asyncio.get_running_loop().sock_connect(inner, ("127.0.0.1", self._port))
        self.reader, self.writer = await asyncio.open_connection(sock=inner, limit=1024)
        return self


BIG_WORD = b"x" * 200_000


async def fill_buffers(station, client):
    """Send more than the kernel buffers for a client that reads nothing; returns the channel."""
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


def test_a_stream_is_not_queried_while_its_client_is_blocked():
    station = Station()

    async def scenario(server):
        async with SlowClient(server) as slow, Client(server) as other:
            channel = await fill_buffers(station, slow)
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


def test_a_stream_client_that_reads_nothing_is_cut_off():
    station = Station()

    async def scenario(server):
        async with SlowClient(server) as slow, Client(server) as healthy:
            channel = await fill_buffers(station, slow)
            await healthy.send(GET_STREAM)
            await station.listeners(2)
            await until(lambda: channel.ended)
            station.channels[1].say(b"unharmed")
            await head_of(healthy)
            return channel.ended, await chunk(healthy), station.channels[1].ended

    assert serve(scenario, routes=station.routes, limits=HttpLimits(response_seconds=0.1)) == (
        1,
        b"unharmed",
        0,
    )


def test_a_stream_client_that_catches_up_is_not_cut_off():
    station = Station()

    async def scenario(server):
        async with SlowClient(server) as slow:
            channel = await fill_buffers(station, slow)
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

    limits = HttpLimits(request_seconds=1.0, response_seconds=2.0)
    assert serve(scenario, routes=station.routes, limits=limits) == (b"still here", 0)


def test_stop_cuts_off_a_blocked_stream():
    station = Station()

    async def scenario(server):
        async with SlowClient(server) as slow:
            channel = await fill_buffers(station, slow)
            await server.stop()
            return channel.ended, server.connections

    assert serve(scenario, routes=station.routes, grace=0.02) == (1, 0)

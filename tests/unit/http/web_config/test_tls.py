"""The server behind TLS, by real handshakes."""

from __future__ import annotations

import _ssl
import asyncio
import ctypes
import socket
import ssl
import tracemalloc
from contextlib import suppress

import pytest

from builders import FakeClock
from gpuledger.http.limits import RESERVE_CONNECTIONS, HttpLimits
from gpuledger.http.routes import Response, Routes
from unit.http.streams import GET_STREAM, Station, chunk, head_of
from unit.http.support import BIG, GET_HELLO, Client, some_routes, until
from unit.http.web_config.support import (
    TLS,
    TlsClient,
    certificates,
    file,
    issued,
    serve_under,
)

__all__ = ["certificates", "file", "issued"]


async def try_once(server, context, path="/hello"):
    """The status of a response, or None if the handshake fails."""
    try:
        async with TlsClient(server, context) as client:
            return (await client.ask(path)).status
    except (OSError, asyncio.IncompleteReadError):
        return None


def test_requests_on_one_tls_connection_work_as_without_tls(file, certificates):
    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as client:
            bodies = [(await client.ask(path)).body for path in ("/hello", "/big", "/hello")]
            return bodies, server.connections

    assert serve_under(file, scenario) == ([b"hello\n", BIG, b"hello\n"], 1)


def test_alpn_selects_http1_over_http2(file, certificates):
    context = certificates.client_context()
    context.set_alpn_protocols(["h2", "http/1.1"])

    async def scenario(server):
        async with TlsClient(server, context) as client:
            return client.writer.get_extra_info("ssl_object").selected_alpn_protocol()

    assert serve_under(file, scenario) == "http/1.1"


def test_pipelined_requests_over_tls_are_answered_in_order(file, certificates):
    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as client:
            await client.send(GET_HELLO * 40)
            return [(await client.answer()).body for _ in range(40)]

    assert serve_under(file, scenario) == [b"hello\n"] * 40


def test_connection_close_over_tls_sends_the_whole_response_and_close_notify(file, certificates):
    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as client:
            await client.send(b"GET /big HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            body = (await client.answer()).body
            return body == BIG, await client.closed()

    assert serve_under(file, scenario) == (True, b"")


def test_a_stream_over_tls_is_sent_immediately_and_ends_regularly(file, certificates):
    station = Station(b"first")

    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as client:
            await client.send(GET_STREAM)
            await head_of(client)
            first = await chunk(client)
            station.channels[0].say(b"second")
            second = await chunk(client)
            await server.stop()
            return first, second, await client.closed()

    assert serve_under(file, scenario, routes=station.routes) == (b"first", b"second", b"0\r\n\r\n")


def test_a_closed_stream_over_tls_frees_its_seat_without_a_write(file, certificates):
    station = Station(b"first")

    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as client:
            await client.send(GET_STREAM)
            await head_of(client)
            first = await chunk(client)
            client.writer.close()
            await until(lambda: station.channels[0].ended and server.connections == 0)
            return first

    assert serve_under(file, scenario, routes=station.routes) == b"first"


def test_a_stream_ends_with_its_connection_when_certificates_change(file, certificates):
    station, clock = Station(b"first"), FakeClock()

    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as client:
            await client.send(GET_STREAM)
            await head_of(client)
            first = await chunk(client)
            file.write_text(file.read_text() + "# changed\n")
            clock.advance(1.0)
            station.channels[0].say(b"second")
            return first, await client.closed()

    found = serve_under(file, scenario, clock=clock, routes=station.routes)
    assert found == (b"first", b"0\r\n\r\n")


def test_an_early_response_arrives_over_tls(file, certificates):
    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as client:
            await client.send(b"GET /hello HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 40_000)
            return (await client.answer()).status, await client.closed()

    assert serve_under(file, scenario, limits=HttpLimits(linger_seconds=1.0)) == (431, b"")


def test_a_tls_client_that_keeps_sending_reads_an_early_response(file, certificates):
    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as client:
            await client.send(b"POST /hello HTTP/1.1\r\nHost: h\r\nContent-Length: 99999\r\n\r\n")
            for _ in range(9):
                client.writer.write(b"x" * 10_000)
                await asyncio.sleep(0)
            return (await client.answer()).status

    assert serve_under(file, scenario) == 413


def test_a_tls_client_that_does_not_read_costs_one_piece(file, certificates):
    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as client:
            client.writer.transport.pause_reading()
            before = tracemalloc.get_traced_memory()[0]
            await client.send(b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n")
            async with TlsClient(server, certificates.client_context()) as other:
                statuses = [(await other.ask("/hello")).status for _ in range(3)]
            grown = tracemalloc.get_traced_memory()[0] - before
            client.writer.transport.resume_reading()
            return statuses, grown, (await client.answer()).body == BIG

    tracemalloc.start()
    try:
        statuses, grown, whole = serve_under(file, scenario)
    finally:
        tracemalloc.stop()
    assert (statuses, whole) == ([200] * 3, True)
    assert grown < len(BIG) / 2


def key_updates(tls, outgoing, count):
    """Encrypted KeyUpdate messages, each of which requests one from the server."""
    openssl = ctypes.CDLL(_ssl.__file__)
    # CPython's PySSLSocket: the object's head, a reference to the socket, then OpenSSL's SSL.
    connection = ctypes.c_void_p.from_address(id(tls._sslobj) + 3 * ctypes.sizeof(ctypes.c_void_p))
    for _ in range(count):
        assert openssl.SSL_key_update(connection, 1)
        tls.do_handshake()
    return outgoing.read()


def test_a_client_that_does_not_read_the_answers_to_key_updates_is_cut_off(file, certificates):
    """A stream is written, so requests are read beside it, and OpenSSL answers each KeyUpdate."""
    station = Station(b"x" * (8 << 20))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = certificates.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")

    async def scenario(server):
        async with Client(server) as client:
            with suppress(ssl.SSLWantReadError):
                tls.do_handshake()
            await client.send(outgoing.read())
            while True:
                incoming.write(await client.reader.read(65536))
                with suppress(ssl.SSLWantReadError):
                    tls.do_handshake()
                    break
            tls.write(GET_STREAM)
            client.writer.transport.pause_reading()
            await client.send(outgoing.read())
            await station.listeners(1)
            before = server.connections
            client.writer.write(key_updates(tls, outgoing, 10_000))
            await until(lambda: server.connections == 0)
            return before

    assert serve_under(file, scenario, routes=station.routes) == 1


def test_requests_received_during_a_pending_response_are_answered_later(file, certificates):
    """Several records arrive with one read, and the response to the first pauses reading the rest."""

    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as client:
            client.writer.transport.pause_reading()
            for path in ("/big", "/big", "/hello", "/hello"):
                await client.send(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            async with TlsClient(server, certificates.client_context()) as other:
                await other.ask("/hello")
            client.writer.transport.resume_reading()
            return [(await client.answer()).body for _ in range(4)]

    assert serve_under(file, scenario) == [BIG, BIG, b"hello\n", b"hello\n"]


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"\x16",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["silence", "first byte", "half a ClientHello"],
)
def test_an_incomplete_handshake_times_out_while_others_are_served(file, certificates, start):
    async def scenario(server):
        async with Client(server) as slow:
            await slow.send(start)
            ended = asyncio.ensure_future(slow.closed())
            served = await try_once(server, certificates.client_context())
            return served, await ended

    assert serve_under(file, scenario, limits=HttpLimits(request_seconds=4.0)) == (200, b"")


def test_a_client_that_stops_after_its_hello_is_closed(file):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()

    async def scenario(server):
        async with Client(server) as slow:
            await slow.send(outgoing.read())
            flight = await slow.closed()
            return flight[:1], server.connections

    assert serve_under(file, scenario, limits=HttpLimits(request_seconds=1.0)) == (b"\x16", 0)


@pytest.mark.parametrize(
    "junk",
    [b"\x16\x03\x01\x00\x04\x02\x00\x00\x00", b"\x16\x03\x01\x00\x00" * 7000],
    ids=["no hello", "empty records"],
)
def test_a_malformed_handshake_is_closed_and_logged_once(file, certificates, junk, caplog):
    async def scenario(server):
        for _ in range(3):
            async with Client(server) as client:
                await client.send(junk)
                await client.closed()
        return await try_once(server, certificates.client_context())

    assert serve_under(file, scenario) == 200
    assert len(caplog.messages) == 1
    assert "TLS handshake with 127.0.0.1 failed" in caplog.messages[0]


def test_malformed_records_after_the_handshake_close_only_that_connection(file, certificates):
    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as client:
            client.writer.transport.get_extra_info("socket")._sock.send(b"x" * 100)
            await client.closed()
            await until(lambda: server.connections == 0)
            return await try_once(server, certificates.client_context())

    assert serve_under(file, scenario) == 200


def test_tls_connections_above_the_limit_get_503_and_health_is_served(file, certificates):
    async def scenario(server):
        async with Client(server):
            await until(lambda: server.connections == 1)
            context = certificates.client_context()
            refused, health = await try_once(server, context), await try_once(server, context, "/-/healthy")
        await until(lambda: server.connections == 0)
        return refused, health, await try_once(server, context)

    routes = some_routes(**{"-/healthy": "OK"})
    statuses = serve_under(file, scenario, routes=routes, limits=HttpLimits(connections=1))
    assert statuses == (503, 200, 200)


def test_unfinished_handshakes_beyond_the_reserve_are_dropped_and_health_is_served(file, certificates):
    async def scenario(server):
        silent = [await Client(server).__aenter__() for _ in range(80)]
        await until(lambda: server.connections == 1 + RESERVE_CONNECTIONS)
        health = await try_once(server, certificates.client_context(), "/-/healthy")
        for client in silent:
            client.writer.transport.abort()
        return health

    routes = some_routes(**{"-/healthy": "OK"})
    assert serve_under(file, scenario, routes=routes, limits=HttpLimits(connections=1)) == 200


def test_an_idle_tls_connection_makes_room_without_waiting_for_its_client(file, certificates):
    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as idle:
            await idle.ask("/hello")
            idle.writer.transport.pause_reading()
            status = await try_once(server, certificates.client_context())
            idle.writer.transport.abort()
            return status, server.connections

    status, connections = serve_under(file, scenario, limits=HttpLimits(connections=1))
    assert (status, connections <= 1) == (200, True)


def huge_route():
    """A body that does not fit in the buffers of the kernel."""
    body = BIG * 8
    return Routes({"/huge": lambda request: Response(body=body)})


def test_a_tls_client_that_does_not_read_is_cut_off(file, certificates):
    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as slow:
            slow.writer.transport.pause_reading()
            await slow.send(b"GET /huge HTTP/1.1\r\nHost: h\r\n\r\n")
            await until(lambda: server.held_bytes)
            await until(lambda: server.connections == 0)
            slow.writer.transport.abort()
            return server.held_bytes

    limits = HttpLimits(response_seconds=1.0)
    assert serve_under(file, scenario, routes=huge_route(), limits=limits) == 0


@pytest.mark.parametrize("resets", [False, True])
def test_a_tls_client_that_closes_before_its_response_logs_nothing(file, certificates, caplog, resets):
    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as client:
            client.writer.transport.pause_reading()
            await client.send(b"GET /huge HTTP/1.1\r\nHost: h\r\n\r\n")
            await until(lambda: server.held_bytes)
            if resets:
                client.writer.transport.abort()
            else:
                client.writer.transport.get_extra_info("socket")._sock.shutdown(socket.SHUT_WR)
                client.writer.transport.resume_reading()
            await until(lambda: server.connections == 0)

    serve_under(file, scenario, routes=huge_route())
    assert caplog.messages == []


def test_plain_http_on_a_tls_port_is_closed_and_logged_once(file, caplog):
    async def scenario(server):
        for _ in range(3):
            async with Client(server) as client:
                await client.send(GET_HELLO)
                assert not (await client.closed()).startswith(b"HTTP")

    serve_under(file, scenario)
    assert caplog.messages == ["TLS handshake with 127.0.0.1 failed: http request (logged once)"]


def test_a_client_receives_the_reason_of_a_failed_handshake(file, certificates):
    file.write_text(TLS.format(more=", client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.crt"))

    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as client:
            return await client.ask("/hello")

    with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
        serve_under(file, scenario)

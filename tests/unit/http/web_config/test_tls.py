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
from certificates import RSA
from gpuledger.http.limits import RESERVE_CONNECTIONS, HttpLimits
from gpuledger.http.routes import Response, Routes
from gpuledger.http.web_config.parser import read_web_config
from gpuledger.http.web_config.passwords import PasswordChecker
from gpuledger.http.web_config.security import WebSecurity
from gpuledger.http.web_config.tls_contexts import TlsContexts
from unit.http.streams import GET_STREAM, Station, chunk, head_of
from unit.http.support import BIG, GET_HELLO, Client, some_routes, until
from unit.http.web_config.support import (
    TLS,
    CountingCheck,
    TlsClient,
    certificates,
    file,
    hash_of,
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


# client_auth_type; the results without a certificate, with one of a stranger, with one of the CA.
CLIENT_AUTH = [
    ("NoClientCert", 200, 200, 200),
    ("RequestClientCert", 200, 200, 200),
    ("VerifyClientCertIfGiven", 200, None, 200),
    ("RequireAndVerifyClientCert", None, None, 200),
]


@pytest.mark.parametrize("maximum", ["TLS12", "TLS13"])
@pytest.mark.parametrize(("kind", "nothing", "stranger", "signed"), CLIENT_AUTH)
def test_client_auth_types_accept_and_reject_certificates(
    file, certificates, maximum, kind, nothing, stranger, signed
):
    authority = ", client_ca_file: ca.crt" if "Verify" in kind else ""
    file.write_text(TLS.format(more=f", client_auth_type: {kind}{authority}, max_version: {maximum}"))

    async def scenario(server):
        return [
            await try_once(server, certificates.client_context(name)) for name in ("", "stranger", "client")
        ]

    assert serve_under(file, scenario) == [nothing, stranger, signed]


@pytest.mark.parametrize(
    ("allowed", "status"),
    [("scraper", 200), ("127.0.0.9", 200), ("0:0::1", 200), ("scrape", None), ("client", None)],
)
def test_a_client_certificate_needs_one_of_the_allowed_names(file, certificates, allowed, status, caplog):
    kind = "RequireAndVerifyClientCert, client_ca_file: ca.crt"
    more = f", client_auth_type: {kind}, client_allowed_sans: [other, '{allowed}']"
    file.write_text(TLS.format(more=more))

    async def scenario(server):
        return await try_once(server, certificates.client_context("client"))

    assert serve_under(file, scenario) == status
    assert ("client_allowed_sans" in caplog.text) == (status is None)


@pytest.mark.parametrize(
    ("server_versions", "client_version", "status"),
    [
        ("min_version: TLS12", "TLSv1_2", 200),
        ("min_version: TLS13", "TLSv1_2", None),
        ("min_version: TLS13", "TLSv1_3", 200),
        ("max_version: TLS12", "TLSv1_3", None),
        ("cipher_suites: [TLS_AES_128_GCM_SHA256]", "TLSv1_2", None),
        ("cipher_suites: [TLS_AES_128_GCM_SHA256]", "TLSv1_3", 200),
    ],
)
def test_tls_versions_are_enforced(file, certificates, server_versions, client_version, status):
    file.write_text(TLS.format(more=f", {server_versions}"))
    context = certificates.client_context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion[client_version]

    async def scenario(server):
        return await try_once(server, context)

    assert serve_under(file, scenario) == status


async def agreed_cipher(server, context):
    async with TlsClient(server, context) as client:
        return client.writer.get_extra_info("cipher")[0]


@pytest.mark.parametrize(
    ("prefer_server", "cipher"),
    [("true", "ECDHE-ECDSA-AES256-GCM-SHA384"), ("false", "ECDHE-ECDSA-CHACHA20-POLY1305")],
)
def test_cipher_suites_of_tls_1_2_are_the_listed_ones_in_the_preferred_order(
    file, certificates, prefer_server, cipher
):
    listed = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
    more = f", cipher_suites: [{listed}], max_version: TLS12, prefer_server_cipher_suites: {prefer_server}"
    file.write_text(TLS.format(more=more))
    context = certificates.client_context()
    context.set_ciphers(
        "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-ECDSA-AES256-GCM-SHA384"
    )
    other = certificates.client_context()
    other.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")

    async def scenario(server):
        return await agreed_cipher(server, context), await try_once(server, other)

    assert serve_under(file, scenario) == (cipher, None)


@pytest.mark.parametrize(
    ("offered", "status"), [("AES256-GCM-SHA384", None), ("ECDHE-RSA-AES256-GCM-SHA384", 200)]
)
def test_without_a_list_cipher_suites_without_forward_secrecy_are_refused(
    file, certificates, offered, status
):
    """Also with a Python that keeps the defaults of OpenSSL, as in Debian."""
    certificates.issue("server", "subjectAltName=DNS:localhost", signer="ca", key=RSA)
    file.write_text(TLS.format(more=""))
    context = certificates.client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(offered)

    async def scenario(server):
        return await try_once(server, context)

    assert serve_under(file, scenario) == status


@pytest.mark.parametrize("maximum", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("curve", "status"), [("secp384r1", 200), ("X25519", None), ("prime256v1", None), (None, 200)]
)
def test_the_first_listed_curve_is_the_only_one(file, certificates, curve, status, maximum, caplog):
    # With TLS 1.2 the client must also support the curve of an elliptic certificate.
    certificates.issue("server", "subjectAltName=DNS:localhost", signer="ca", key=RSA)
    file.write_text(TLS.format(more=", curve_preferences: [CurveP384, X25519]"))
    context = certificates.client_context()
    context.maximum_version = maximum
    if curve:
        context.set_ecdh_curve(curve)

    async def scenario(server):
        return await try_once(server, context)

    assert serve_under(file, scenario) == status
    assert "curve_preferences: only the first curve is used: CurveP384" in caplog.text


def test_a_rotated_certificate_applies_to_new_connections_only(file, certificates):
    clock = FakeClock()

    def serial(client):
        return client.writer.get_extra_info("peercert")["serialNumber"]

    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as old:
            certificates.issue("server", "subjectAltName=DNS:localhost", signer="ca")
            clock.advance(2)
            async with TlsClient(server, certificates.client_context()) as new:
                statuses = [(await client.ask("/hello")).status for client in (old, new)]
                return statuses, serial(old) != serial(new)

    assert serve_under(file, scenario, clock=clock) == ([200, 200], True)


def test_a_rotated_client_ca_rejects_clients_of_the_old_one(file, certificates):
    clock = FakeClock()
    more = ", client_auth_type: RequireAndVerifyClientCert, client_ca_file: other.crt"
    (certificates.folder / "other.crt").write_bytes(certificates.crt("ca").read_bytes())
    file.write_text(TLS.format(more=more))
    context = certificates.client_context("client")

    async def scenario(server):
        before = await try_once(server, context)
        (certificates.folder / "other.crt").write_bytes(certificates.crt("stranger").read_bytes())
        clock.advance(2)
        return before, await try_once(server, context)

    assert serve_under(file, scenario, clock=clock) == (200, None)


@pytest.mark.parametrize(
    ("content", "authenticates"),
    [
        ("", False),
        ("rate_limit: {interval: 1s, burst: 5}", False),
        (f"basic_auth_users: {{alice: {hash_of('secret').decode()}}}", True),
        (TLS.format(more=""), False),
        (TLS.format(more=", client_auth_type: RequestClientCert"), False),
        (TLS.format(more=", client_auth_type: VerifyClientCertIfGiven, client_ca_file: ca.crt"), False),
        (TLS.format(more=", client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.crt"), True),
    ],
)
def test_only_a_password_or_a_required_certificate_authenticates(file, content, authenticates):
    file.write_text(content)
    assert WebSecurity(file, FakeClock()).authenticates is authenticates


@pytest.mark.parametrize(
    ("more", "name", "said"),
    [
        (", client_ca_file: ca.crt, client_auth_type: VerifyClientCertIfGiven", "client", "client"),
        (", client_ca_file: ca.crt, client_auth_type: RequireAndVerifyClientCert", "client", "client"),
        (", client_ca_file: ca.crt, client_auth_type: VerifyClientCertIfGiven", "", ""),
        # It is not requested, so nothing is proved.
        ("", "client", ""),
    ],
)
def test_a_request_has_the_name_in_the_verified_certificate(certificates, more, name, said):
    file = certificates.folder / "web.yml"
    file.write_text(TLS.format(more=more))

    async def scenario(server):
        async with TlsClient(server, certificates.client_context(name)) as client:
            return [(await client.ask("/name")).body.decode() for _ in range(2)]

    routes = Routes({"/name": lambda request: Response(body=request.identity.encode())})
    assert serve_under(file, scenario, routes=routes) == [said, said]


def test_with_users_the_name_is_that_of_the_password(certificates):
    file = certificates.folder / "web.yml"
    users = f"basic_auth_users: {{alice: {hash_of('secret').decode()}}}\n"
    more = ", client_ca_file: ca.crt, client_auth_type: RequireAndVerifyClientCert"
    file.write_text(TLS.format(more=more) + users)

    async def scenario(server):
        async with TlsClient(server, certificates.client_context("client")) as client:
            login = "Authorization: Basic YWxpY2U6c2VjcmV0"
            return (await client.ask("/name", login)).body, (await client.ask("/name")).status

    routes = Routes({"/name": lambda request: Response(body=request.identity.encode())})
    checker = PasswordChecker(CountingCheck())
    assert serve_under(file, scenario, routes=routes, passwords=checker) == (b"alice", 401)


@pytest.mark.parametrize(
    ("certificate", "has_own_authority", "name"),
    [
        ({"subject": ((("commonName", "dan"),),)}, True, "dan"),
        ({"subject": ((("organizationName", "lab"),), (("commonName", "dan"),))}, True, "dan"),
        # Any public authority could have signed it.
        ({"subject": ((("commonName", "dan"),),)}, False, ""),
        # Which of both is meant?
        ({"subject": ((("commonName", "dan"),), (("commonName", "root"),))}, True, ""),
        ({"subject": ((("commonName", "dan"), ("commonName", "root")),)}, True, ""),
        ({"subject": (), "subjectAltName": (("DNS", "dan"),)}, True, ""),
        ({}, True, ""),
        (None, True, ""),
    ],
)
def test_the_name_of_a_certificate(certificates, certificate, has_own_authority, name):
    file = certificates.folder / "web.yml"
    more = ", client_ca_file: ca.crt" if has_own_authority else ""
    file.write_text(TLS.format(more=f", client_auth_type: VerifyClientCertIfGiven{more}"))
    config = read_web_config(file).tls
    assert config is not None
    assert TlsContexts(config).client_name(certificate) == name

"""The server behind TLS, by real handshakes."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import ssl
import sys
import termios
import tracemalloc
import weakref

import pytest

from builders import FakeClock
from certificates import RSA
from gpuledger.http.limits import Limits
from gpuledger.http.web_config.current import CurrentWebConfig
from gpuledger.http.web_config.web import Web
from unit.http.streams import GET_STREAM, Station, chunk, head_of
from unit.http.support import BIG, GET_HELLO, Client, serve, some_routes, until
from unit.http.web_config.support import TLS, TlsClient, certificates, file, issued, serve_under

__all__ = ["certificates", "file", "issued"]


async def try_once(server, context, path="/hello"):
    """The status of a page, or None when the server does not want the client."""
    try:
        async with TlsClient(server, context) as client:
            return (await client.ask(path)).status
    except (OSError, asyncio.IncompleteReadError):
        return None


def test_pages_are_served_on_one_connection_as_without_tls(file, certificates):
    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as client:
            bodies = [(await client.ask(path)).body for path in ("/hello", "/big", "/hello")]
            return bodies, server.connections

    assert serve_under(file, scenario) == ([b"hello\n", BIG, b"hello\n"], 1)


def test_a_client_that_would_rather_have_http2_gets_http1(file, certificates):
    context = certificates.client_context()
    context.set_alpn_protocols(["h2", "http/1.1"])

    async def scenario(server):
        async with TlsClient(server, context) as client:
            return client.writer.get_extra_info("ssl_object").selected_alpn_protocol()

    assert serve_under(file, scenario) == "http/1.1"


def test_requests_sent_together_are_answered_in_order(file, certificates):
    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as client:
            await client.send(GET_HELLO * 40)
            return [(await client.answer()).body for _ in range(40)]

    assert serve_under(file, scenario) == [b"hello\n"] * 40


def test_a_client_that_wants_one_answer_gets_it_whole_with_a_proper_end(file, certificates):
    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as client:
            await client.send(b"GET /big HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            body = (await client.answer()).body
            return body == BIG, await client.closed()

    assert serve_under(file, scenario) == (True, b"")


def test_a_stream_is_heard_as_it_is_said_and_ends_properly_with_the_server(file, certificates):
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


def test_a_stream_whose_client_goes_frees_its_seat_though_nothing_is_said(file, certificates):
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
            file.write_text(file.read_text() + "# read anew\n")
            clock.advance(1.0)
            station.channels[0].say(b"second")
            return first, await client.closed()

    found = serve_under(file, scenario, clock=clock, routes=station.routes)
    assert found == (b"first", b"0\r\n\r\n")


def test_an_early_refusal_arrives(file, certificates):
    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as client:
            await client.send(b"GET /hello HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 40_000)
            return (await client.answer()).status, await client.closed()

    assert serve_under(file, scenario) == (431, b"")


def test_a_client_that_does_not_take_its_answer_costs_one_piece_of_it(file, certificates):
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


def test_a_client_that_takes_nothing_is_not_heard_until_it_does(file, certificates):
    """What it says may want an answer of the protocol's own, and these would pile up."""
    web, spoken = Web(file, FakeClock()), []

    def speaker(registry, routes):
        spoken.append(web.speaker(registry, routes))
        return spoken[-1]

    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as client:
            await client.ask("/hello")
            (transport,) = spoken
            arrived = transport.get_extra_info("socket").fileno()
            # As the socket's transport says it when the kernel takes no more.
            transport.pause_writing()
            await client.send(GET_HELLO)
            for _ in range(5):
                await asyncio.sleep(0)
            unread = int.from_bytes(fcntl.ioctl(arrived, termios.FIONREAD, bytes(4)), sys.byteorder)
            transport.resume_writing()
            return unread > len(GET_HELLO), (await client.answer()).status

    assert serve(scenario, routes=some_routes(), speaker=speaker) == (True, 200)


def test_requests_received_while_an_answer_waits_for_its_client_are_answered_after_it(file, certificates):
    """Several records come with one read, and the answer to the first stops the reading of the rest."""

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


def test_plain_http_is_told_to_use_https_in_one_line_and_closed(file):
    async def scenario(server):
        async with Client(server) as client:
            answer = await client.ask("/hello")
            return answer.status, answer.headers["connection"], answer.body, await client.closed()

    body = b"this port speaks TLS; ask with https://\n"
    assert serve_under(file, scenario) == (400, "close", body, b"")


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"\x16",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["silence", "first byte", "half a ClientHello"],
)
def test_a_handshake_that_does_not_end_is_closed_while_others_are_served(file, certificates, start):
    async def scenario(server):
        async with Client(server) as slow:
            await slow.send(start)
            ended = asyncio.ensure_future(slow.closed())
            served = await try_once(server, certificates.client_context())
            return served, await ended

    assert serve_under(file, scenario, limits=Limits(request_seconds=1.0)) == (200, b"")


def test_a_client_that_stops_after_its_hello_is_closed_too(file):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()

    async def scenario(server):
        async with Client(server) as slow:
            await slow.send(outgoing.read())
            flight = await slow.closed()
            return flight[:1], server.connections

    assert serve_under(file, scenario, limits=Limits(request_seconds=0.1)) == (b"\x16", 0)


@pytest.mark.parametrize(
    "junk",
    [b"\x16\x03\x01\x00\x04\x02\x00\x00\x00", b"\x16\x03\x01\x00\x00" * 7000],
    ids=["no hello", "empty records"],
)
def test_junk_instead_of_a_handshake_is_closed_said_once_and_the_server_goes_on(
    file, certificates, junk, caplog
):
    async def scenario(server):
        for _ in range(3):
            async with Client(server) as client:
                await client.send(junk)
                await client.closed()
        return await try_once(server, certificates.client_context())

    assert serve_under(file, scenario) == 200
    assert len(caplog.messages) == 1
    assert "TLS handshake with 127.0.0.1 failed" in caplog.messages[0]


def test_junk_after_the_handshake_ends_that_connection_alone(file, certificates):
    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as client:
            client.writer.transport.get_extra_info("socket")._sock.send(b"x" * 100)
            with pytest.raises(ssl.SSLError):
                await client.closed()
            await until(lambda: server.connections == 0)
            return await try_once(server, certificates.client_context())

    assert serve_under(file, scenario) == 200


def test_beyond_the_limit_of_connections_clients_are_told_so_and_health_is_answered(file, certificates):
    async def scenario(server):
        async with Client(server):
            await until(lambda: server.connections == 1)
            context = certificates.client_context()
            refused, health = await try_once(server, context), await try_once(server, context, "/-/healthy")
        await until(lambda: server.connections == 0)
        return refused, health, await try_once(server, context)

    routes = some_routes(**{"-/healthy": "OK"})
    told = serve_under(file, scenario, routes=routes, limits=Limits(connections=1))
    assert told == (503, 200, 200)


# client_auth_type, then what comes of no certificate, of one by a stranger, and of one by the CA.
CLIENT_AUTH = [
    ("NoClientCert", 200, 200, 200),
    ("RequestClientCert", 200, 200, 200),
    ("RequireAnyClientCert", None, 200, 200),
    ("VerifyClientCertIfGiven", 200, None, 200),
    ("RequireAndVerifyClientCert", None, None, 200),
]


@pytest.mark.parametrize("maximum", ["TLS12", "TLS13"])
@pytest.mark.parametrize(("kind", "nothing", "stranger", "signed"), CLIENT_AUTH)
def test_a_clients_certificate_decides_as_the_type_says(
    file, certificates, maximum, kind, nothing, stranger, signed
):
    authority = ", client_ca_file: ca.crt" if "Verify" in kind else ""
    file.write_text(TLS.format(more=f", client_auth_type: {kind}{authority}, max_version: {maximum}"))

    async def scenario(server):
        return [
            await try_once(server, certificates.client_context(name)) for name in ("", "stranger", "client")
        ]

    assert serve_under(file, scenario) == [nothing, stranger, signed]


def test_a_context_that_takes_anybody_ends_with_its_connection(file):
    file.write_text(TLS.format(more=", client_auth_type: RequireAnyClientCert"))
    contexts = CurrentWebConfig(file, FakeClock()).contexts
    gc.disable()
    try:
        first, second = contexts.choose(frozenset()), contexts.choose(frozenset())
        assert first is not second
        gone = weakref.ref(first)
        del first
        assert gone() is None
    finally:
        gc.enable()


def test_a_certificate_that_expired_is_somebody_elses_problem_where_none_is_verified(file, certificates):
    """As in Go: RequireAnyClientCert asks for a key's owner, not for a good certificate."""
    certificates.expire("stranger")
    file.write_text(TLS.format(more=", client_auth_type: RequireAnyClientCert"))

    async def scenario(server):
        return await try_once(server, certificates.client_context("stranger"))

    assert serve_under(file, scenario) == 200


@pytest.mark.parametrize(
    ("allowed", "status"),
    [("scraper", 200), ("127.0.0.9", 200), ("0:0::1", 200), ("scrape", None), ("client", None)],
)
@pytest.mark.parametrize(
    "kind", ["RequireAndVerifyClientCert, client_ca_file: ca.crt", "RequireAnyClientCert"]
)
def test_a_client_needs_one_of_the_allowed_names(file, certificates, kind, allowed, status, caplog):
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
def test_versions_are_kept(file, certificates, server_versions, client_version, status):
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
def test_cipher_suites_of_tls_1_2_are_those_listed_in_the_order_of_who_is_preferred(
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


@pytest.mark.parametrize("maximum", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("curve", "status"), [("X25519", 200), ("secp384r1", 200), ("prime256v1", None), (None, 200)]
)
def test_curves_are_those_listed(file, certificates, curve, status, maximum):
    # With TLS 1.2 an elliptic certificate's own curve would have to be among the client's.
    certificates.issue("server", "subjectAltName=DNS:localhost", signer="ca", key=RSA)
    file.write_text(TLS.format(more=", curve_preferences: [CurveP384, X25519]"))
    context = certificates.client_context()
    context.maximum_version = maximum
    if curve:
        context.set_ecdh_curve(curve)

    async def scenario(server):
        return await try_once(server, context)

    assert serve_under(file, scenario) == status


def test_a_rotated_certificate_is_for_new_connections_and_old_ones_go_on(file, certificates):
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


def test_a_rotated_client_ca_refuses_who_was_let_in_before(file, certificates):
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

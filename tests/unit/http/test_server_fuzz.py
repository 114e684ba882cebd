"""Fuzzing the server: responses or a clean close, no traceback, no data of other clients."""

from __future__ import annotations

import secrets
import socket
from itertools import pairwise
from urllib.parse import unquote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import FakeClock
from gpuledger.http.connection import ClientConnection
from gpuledger.http.routes import Routes, text_response
from gpuledger.http.web_config.security import WebSecurity
from raw_http import answers_in, corpus, raw_server, received_from
from running import PATIENCE
from unit.http.web_config.support import TLS, certificates, client_hello, issued

__all__ = ["certificates", "issued"]

CASES = corpus()
SENT = [case.sent for case in CASES]


def routes():
    return Routes(
        {"/echo": lambda request: text_response(f"{request.method} {request.query}")},
        {"/static/": lambda request: text_response("no such file", 404)},
    )


class OtherClient:
    """Another client on one connection, with secret requests."""

    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.secret = b""

    def ask(self):
        self.secret = secrets.token_hex(16).encode()
        self._socket.sendall(b"GET /echo?%s HTTP/1.1\r\nHost: h\r\n\r\n" % self.secret)

    def is_served(self):
        received = b""
        while not received.endswith(self.secret + b"\n"):
            received += self._socket.recv(4096) or b"closed"
            assert b"closed" not in received
        return answers_in(received) == [(200, b"GET " + self.secret + b"\n")]

    def close(self):
        self._socket.close()


@pytest.fixture(scope="module")
def server():
    with raw_server(routes(), ClientConnection) as running:
        other_client = OtherClient(running.port)
        running.other_client = other_client
        yield running
        other_client.close()


@pytest.fixture(scope="module")
def encrypted(issued, tmp_path_factory):
    file = issued.folder / "fuzz.yml"
    file.write_text(TLS.format(more=""))
    with raw_server(routes(), WebSecurity(file, FakeClock()).protocol_factory) as running:
        yield running


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_request_of_the_corpus_has_its_answers(case, server):
    answers = answers_in(received_from(server.port, [case.sent]))
    assert [status for status, _ in answers] == case.answers
    assert not any(b"smuggled" in body for _, body in answers)
    assert server.complaints == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_request_of_the_corpus_sent_byte_by_byte_has_the_same_answers(case, server):
    pieces = [bytes([byte]) for byte in case.sent]
    assert [status for status, _ in answers_in(received_from(server.port, pieces))] == case.answers


# Parts of valid and invalid requests.
WORDS = st.sampled_from(
    [
        b"GET /echo HTTP/1.1\r\n",
        b"POST /echo HTTP/1.1\r\n",
        b"GET /echo HTTP/1.0\r\n",
        b"Host: h\r\n",
        b"Content-Length: 5\r\n",
        b"Content-Length: 0\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"transfer-encoding:\tchunked \r\n",
        b"Connection: close\r\n",
        b"Connection: keep-alive\r\n",
        b"Expect: 100-continue\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b" ",
        b"\0",
        b"0\r\n\r\n",
        b"5\r\nhello\r\n",
        b"5;x=y\r\nhello\r\n",
        b"ffffffff\r\n",
        b"hello",
        b"%00",
        b"://",
        b"\x16\x03\x01",
        b"\xff",
        b"HEAD",
    ]
)
COMPOSED = st.lists(WORDS, max_size=14).map(b"".join)


@st.composite
def mangled(draw, seeds=SENT):
    """A request of the corpus with parts removed, doubled, or inserted."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(data)))
        end = draw(st.integers(begin, min(len(data), begin + 40)))
        middle = draw(st.one_of(st.just(b""), st.just(data[begin:end] * 2), WORDS, st.binary(max_size=4)))
        data = data[:begin] + middle + data[end:]
    return data


ANYTHING = st.one_of(
    mangled(),
    COMPOSED,
    st.lists(st.one_of(st.sampled_from(SENT), mangled()), min_size=2, max_size=4).map(b"".join),
    st.binary(max_size=300),
)


def pieces_of(data, cuts):
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[begin:end] for begin, end in pairwise(places)]


def without_heads(data):
    """Without HEAD: its response has a length but no body, so that responses could not be parsed."""
    return data.replace(b"HEAD", b"HEAR")


@given(ANYTHING, st.lists(st.integers(0, 2000), max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_input_gets_answers_or_a_close_and_another_client_is_served(server, data, cuts):
    data = without_heads(data)
    server.other_client.ask()
    received = received_from(server.port, pieces_of(data, cuts))
    assert server.other_client.is_served()
    assert server.other_client.secret not in received
    answers = answers_in(received)
    # Each request names its version; input without one gets one response and is closed.
    assert len(answers) <= data.count(b"HTTP/") + 1
    assert all(status in (200, 400, 404, 405, 413, 431, 501, 505) for status, _ in answers)
    # Responses contain only the method and the query of a request.
    assert all(
        body.split()[-1] in unquote(data.decode("latin-1")).encode() for s, body in answers if s == 200
    )
    assert server.complaints == []


@given(ANYTHING, st.lists(st.integers(0, 2000), max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_input_within_tls_gets_answers_or_a_close(encrypted, issued, data, cuts):
    pieces = pieces_of(without_heads(data), cuts)
    answers_in(received_from(encrypted.port, pieces, issued.client_context()))
    assert encrypted.complaints == []


@given(
    st.one_of(
        ANYTHING.filter(lambda data: not data.startswith(b"\x16")),
        mangled([client_hello(), client_hello("secp384r1"), b"\x16\x03\x01" + client_hello()[3:]]),
    ),
    st.lists(st.integers(0, 2000), max_size=4),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_input_without_tls_on_a_tls_port_gets_an_alert_or_a_close(encrypted, issued, data, cuts):
    received = received_from(encrypted.port, pieces_of(data, cuts))
    # A TLS alert, or a TLS hello.
    assert received[:1] in (b"", b"\x15", b"\x16")
    after = received_from(encrypted.port, [b"GET /echo HTTP/1.1\r\nHost: h\r\n\r\n"], issued.client_context())
    assert answers_in(after)[0][0] == 200
    assert all("TLS handshake with 127.0.0.1 failed" in line for line in encrypted.complaints)
    assert not any("traceback" in line for line in encrypted.complaints)

"""The server by raw bytes: an answer or a clean end, no traceback, nothing of another client, alive after."""

from __future__ import annotations

import secrets
import socket
from itertools import pairwise
from urllib.parse import unquote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import FakeClock
from gpuledger.http.connection import Connection
from gpuledger.http.routes import Routes, plain
from gpuledger.http.web_config.web import Web
from raw_http import answers_in, corpus, raw_server, told
from unit.http.web_config.support import TLS, certificates, client_hello, issued

__all__ = ["certificates", "issued"]

CASES = corpus()
SENT = [case.sent for case in CASES]


def routes():
    return Routes(
        {"/echo": lambda request: plain(f"{request.method} {request.query}")},
        {"/static/": lambda request: plain("no such file", 404)},
    )


class Neighbour:
    """Another client, on one connection all the time, whose requests nobody else knows."""

    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port), 30)
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
    with raw_server(routes(), Connection) as running:
        neighbour = Neighbour(running.port)
        running.neighbour = neighbour
        yield running
        neighbour.close()


@pytest.fixture(scope="module")
def encrypted(issued, tmp_path_factory):
    file = issued.folder / "fuzz.yml"
    file.write_text(TLS.format(more=""))
    with raw_server(routes(), Web(file, FakeClock()).speaker) as running:
        yield running


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_kept_request_has_its_answers(case, server):
    answers = answers_in(told(server.port, [case.sent]))
    assert [status for status, _ in answers] == case.answers
    assert not any(b"smuggled" in body for _, body in answers)
    assert server.complaints == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_byte_by_byte_it_has_the_same_answers(case, server):
    pieces = [bytes([byte]) for byte in case.sent]
    assert [status for status, _ in answers_in(told(server.port, pieces))] == case.answers


# Words that requests are made of, and that break them.
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
    """One of the corpus with a few pieces cut out, doubled, or put in."""
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
    """HEAD is answered without the body that its length speaks of, which only who asked for it knows."""
    return data.replace(b"HEAD", b"HEAR")


@given(ANYTHING, st.lists(st.integers(0, 2000), max_size=4))
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_sent_is_answered_or_ends_and_a_neighbour_is_served(server, data, cuts):
    data = without_heads(data)
    server.neighbour.ask()
    received = told(server.port, pieces_of(data, cuts))
    assert server.neighbour.is_served()
    assert server.neighbour.secret not in received
    answers = answers_in(received)
    # A request names its version; what names none is answered once, and ends.
    assert len(answers) <= data.count(b"HTTP/") + 1
    assert all(status in (200, 400, 404, 405, 413, 431, 501, 505) for status, _ in answers)
    # A page tells of a request nothing but its method and query, as they were sent.
    assert all(
        body.split()[-1] in unquote(data.decode("latin-1")).encode() for s, body in answers if s == 200
    )
    assert server.complaints == []


@given(ANYTHING, st.lists(st.integers(0, 2000), max_size=4))
@settings(deadline=None, max_examples=1500, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_behind_tls_the_same_holds(encrypted, issued, data, cuts):
    pieces = pieces_of(without_heads(data), cuts)
    answers_in(told(encrypted.port, pieces, issued.client_context()))
    assert encrypted.complaints == []


@given(
    st.one_of(
        ANYTHING.filter(lambda data: not data.startswith(b"\x16")),
        mangled([client_hello(), client_hello("secp384r1"), b"\x16\x03\x01" + client_hello()[3:]]),
    ),
    st.lists(st.integers(0, 2000), max_size=4),
)
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_no_tls_on_its_port_gets_a_line_or_an_end(encrypted, issued, data, cuts):
    received = told(encrypted.port, pieces_of(data, cuts))
    # An alert or a hello of TLS, or one line of HTTP.
    assert received[:1] in (b"", b"\x15", b"\x16", b"H")
    if received.startswith(b"H"):
        assert [status for status, _ in answers_in(received)] == [400]
    after = told(encrypted.port, [b"GET /echo HTTP/1.1\r\nHost: h\r\n\r\n"], issued.client_context())
    assert answers_in(after)[0][0] == 200
    assert all("TLS handshake with 127.0.0.1 failed" in line for line in encrypted.complaints)
    assert not any("traceback" in line for line in encrypted.complaints)

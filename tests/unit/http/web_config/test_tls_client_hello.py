"""What a ClientHello offers, read from its bytes."""

from __future__ import annotations

import ssl
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.http.web_config.tls import ClientHello
from unit.http.web_config.support import client_hello

X25519, P256, P384 = 29, 23, 24


def offered_groups(start):
    hello = ClientHello()
    hello.add(start)
    return hello.offered_groups()


def in_records_of(hello, size):
    """The same handshake message, in more records."""
    head, body = hello[:3], hello[5:]
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(head + len(part).to_bytes(2, "big") + part for part in parts)


@pytest.mark.parametrize("maximum", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(("curve", "number"), [("X25519", X25519), ("prime256v1", P256), ("secp384r1", P384)])
def test_the_groups_of_a_real_client(curve, number, maximum):
    assert offered_groups(client_hello(curve, maximum)) == {number}


def test_a_client_without_a_wish_offers_many():
    assert {X25519, P256, P384} <= offered_groups(client_hello())


@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_hello_in_several_records_is_the_same_one(size):
    hello = client_hello()
    assert offered_groups(in_records_of(hello, size)) == offered_groups(hello)


def test_until_it_is_whole_nothing_is_said():
    hello = client_hello()
    assert {offered_groups(hello[:end]) for end in range(len(hello))} == {None}


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_a_hello_that_comes_byte_by_byte_is_the_same_one(size):
    start = in_records_of(client_hello(), size)
    hello, told = ClientHello(), []
    for byte in start:
        hello.add(bytes([byte]))
        told.append(hello.offered_groups())
    assert told == [None] * (len(start) - 1) + [offered_groups(start)]


def test_no_record_is_looked_at_again_for_the_bytes_after_it():
    def calls(records):
        hello, seen = ClientHello(), 0

        def count(frame, event, argument):
            nonlocal seen
            seen += event == "c_call"

        start = b"\x16\x03\x01\x00\x01\x01" + b"\x16\x03\x01\x00\x01\xff" * records
        sys.setprofile(count)
        try:
            for at in range(len(start)):
                hello.add(start[at : at + 1])
                hello.offered_groups()
        finally:
            sys.setprofile(None)
        return seen

    assert calls(400) < 2.5 * calls(200)


@pytest.mark.parametrize(
    "start",
    [
        b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
        b"\x16\x03\x01\x00\x04\x01\x00\x00\x00",
        b"\x16\x03\x01\x00\x01\x01\x17\x03\x03\x00\x01\x00",
        b"\x16\x03\x01\x00\x00" * 7000,
    ],
    ids=["another message", "empty hello", "another record", "no end"],
)
def test_what_is_no_hello_offers_nothing(start):
    assert offered_groups(start) == frozenset()


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=300))
def test_no_bytes_are_too_strange(body):
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    assert offered_groups(b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message) is not None


def test_plain_http_is_known_by_its_first_byte():
    for start, tls in ((client_hello(), True), (b"GET / HTTP/1.1", False)):
        hello = ClientHello()
        hello.add(start)
        assert hello.is_tls is tls

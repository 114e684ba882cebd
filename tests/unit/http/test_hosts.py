"""Hosts of URLs: the Host header, and the delay between connection attempts."""

from __future__ import annotations

import ssl

import pytest

from gpuledger.http.hosts import (
    connection_attempt_delay,
    host_field,
    is_address,
    is_loopback,
    parse_server_name,
)

FIELDS = [
    ("gpu-node:9400", "gpu-node:9400"),
    ("user:secret@gpu-node", "gpu-node"),
    ("[::1]:9400", "[::1]:9400"),
    ("b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher.example:9400", "xn--bcher-kva.example:9400"),
]


@pytest.mark.parametrize(("netloc", "field"), FIELDS, ids=[field for _, field in FIELDS])
def test_the_host_header_has_no_credentials_and_is_ascii(netloc: str, field: str) -> None:
    assert host_field(netloc) == field


def test_a_name_that_cannot_be_encoded_is_rejected() -> None:
    with pytest.raises(UnicodeError):
        host_field("\N{CJK UNIFIED IDEOGRAPH-4E2D}..node")


# A host, whether it is an address, and whether it is a loopback host.
HOSTS = [
    ("10.0.0.1", True, False),
    ("127.1.2.3", True, True),
    ("::1", True, True),
    ("2001:db8::1", True, False),
    ("fe80::1%eth0", True, False),
    ("localhost", False, True),
    ("gpu-node", False, False),
    ("127.example", False, False),
    ("10.0.0", False, False),
    ("10.0.0.1%eth0", False, False),
    ("[::1]", False, False),
    ("::1\0", False, False),
    ("", False, False),
]


@pytest.mark.parametrize(("host", "address", "loopback"), HOSTS, ids=[repr(host) for host, *_ in HOSTS])
def test_addresses_and_loopback_hosts_are_recognized(host: str, address: bool, loopback: bool) -> None:
    assert (is_address(host), is_loopback(host)) == (address, loopback)


@pytest.mark.parametrize(("host", "has_others"), [("gpu-node", True), ("10.0.0.1", False), ("::1", False)])
def test_only_a_host_name_has_a_connection_attempt_delay(host: str, has_others: bool) -> None:
    assert (connection_attempt_delay(host) is not None) is has_others


@pytest.mark.parametrize("name", [".a.example", "a..b", "a\nb", "a" * 64, ".".join(["a" * 60] * 5)])
def test_a_server_name_that_tls_refuses_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="expected a host name such as"):
        parse_server_name(name)


@pytest.mark.parametrize(
    "name", ["gpu-1", "gpu-1.example.com.", "::1", "10.0.0.1", "b\N{GREEK SMALL LETTER ALPHA}"]
)
def test_an_accepted_server_name_is_accepted_by_openssl(name: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=parse_server_name(name))

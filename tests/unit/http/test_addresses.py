from __future__ import annotations

import errno
import socket
from contextlib import ExitStack

import pytest

from gpuledger.http import addresses
from gpuledger.http.addresses import Address, open_listening_sockets, parse_address, with_bound_port
from gpuledger.model.errors import GpuledgerError
from running import PATIENCE


@pytest.mark.parametrize(
    ("written", "address"),
    [
        (":9400", Address("", 9400)),
        ("0.0.0.0:9400", Address("0.0.0.0", 9400)),
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("[::1]:9400", Address("::1", 9400)),
        ("[fe80::1%eth0]:9400", Address("fe80::1%eth0", 9400)),
        ("localhost:9400", Address("localhost", 9400)),
        (" :9400 ", Address("", 9400)),
    ],
)
def test_addresses_are_parsed(written, address):
    assert parse_address(written) == address


@pytest.mark.parametrize("written", [":9400", "127.0.0.1:0", "[::1]:9400", "localhost:80"])
def test_an_address_prints_in_its_input_form(written):
    assert str(parse_address(written)) == written


@pytest.mark.parametrize(
    "written",
    [
        "",
        "9400",
        ":",
        "localhost",
        "::1:9400",
        "[::1]",
        "host:port",
        ":-1",
        "http://x:1",
        "[]:1",
        "a b:1",
        ":\uff19\uff14\uff10\uff10",
    ],
)
def test_a_malformed_address_is_an_error_with_the_expected_form(written):
    with pytest.raises(ValueError, match=r"expected an address such as :9400, 127\.0\.0\.1:9400"):
        parse_address(written)


def test_a_port_above_65535_is_an_error_with_the_range():
    with pytest.raises(ValueError, match="expected a port from 0 to 65535"):
        parse_address(":65536")


@pytest.fixture
def opened():
    with ExitStack() as stack:

        def listen(address):
            return [stack.enter_context(listening) for listening in open_listening_sockets(address)]

        yield listen


def reaches(host, listening):
    with socket.create_connection((host, listening.getsockname()[1]), timeout=PATIENCE):
        return True


def test_an_empty_host_accepts_ipv4(opened):
    (listening,) = opened(Address("", 0))
    assert reaches("127.0.0.1", listening)


def test_an_empty_host_accepts_ipv6(opened):
    (listening,) = opened(Address("", 0))
    if listening.family != socket.AF_INET6:
        pytest.skip("no IPv6 here")
    assert reaches("::1", listening)


@pytest.mark.parametrize("error", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_an_empty_host_is_ipv4_only_without_ipv6(opened, monkeypatch, error):
    real = addresses._listen

    def no_ipv6(family, where, **options):
        if family == socket.AF_INET6:
            raise OSError(error, "no IPv6")
        return real(family, where, **options)

    monkeypatch.setattr(addresses, "_listen", no_ipv6)
    (listening,) = opened(Address("", 0))
    assert listening.family == socket.AF_INET


def test_all_addresses_of_a_name_get_the_same_port(opened, monkeypatch):
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.2", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    listening = opened(Address("two", 0))
    assert [one_socket.getsockname()[0] for one_socket in listening] == ["127.0.0.1", "127.0.0.2"]
    assert len({one_socket.getsockname()[1] for one_socket in listening}) == 1


def test_a_missing_address_of_a_name_is_skipped(opened, monkeypatch):
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    (listening,) = opened(Address("two", 0))
    assert listening.getsockname()[0] == "127.0.0.1"


def test_the_bound_address_keeps_the_configured_host(opened):
    configured = Address("localhost", 0)
    listening = opened(configured)[0]
    assert with_bound_port(configured, listening) == Address("localhost", listening.getsockname()[1])


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        (Address("192.0.2.1", 9400), "this machine has no such address"),
        (Address("no.such.host.invalid", 9400), "unknown host 'no.such.host.invalid'"),
        (Address("x" * 70, 9400), "unknown host"),
    ],
)
def test_an_address_that_cannot_be_opened_is_one_line_with_a_remedy(address, reason):
    with pytest.raises(GpuledgerError) as raised:
        open_listening_sockets(address)
    text = str(raised.value)
    assert text.startswith(f"cannot listen on {address}: ")
    assert reason in text
    assert text.endswith("; choose another with --listen-address")


def test_a_port_without_permission_is_an_error_with_the_reason(monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(addresses, "_listen", refuse)
    with pytest.raises(
        GpuledgerError, match=r"on :80: no permission \(ports below 1024 need a privilege\); choose"
    ):
        open_listening_sockets(Address("", 80))


def test_a_port_in_use_is_an_error(opened):
    (listening,) = opened(Address("127.0.0.1", 0))
    with pytest.raises(GpuledgerError, match="port in use"):
        open_listening_sockets(Address("127.0.0.1", listening.getsockname()[1]))

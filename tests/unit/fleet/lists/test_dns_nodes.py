"""SRV records: the wire format, name servers that fail, answers that lie."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from socket import AF_INET, SO_REUSEADDR, SOCK_DGRAM, SOCK_STREAM, SOL_SOCKET, socket
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.fleet.lists.dns_nodes import (
    DnsNodes,
    MalformedAnswer,
    NameServer,
    SrvRecord,
    encode_query,
    name_servers,
    parse_answer,
)
from gpuledger.fleet.lists.node_list import AddressDefaults, UnreadableList
from gpuledger.model.errors import UsageError

NAME = "_gpuledger._tcp.lab.example.com"
HTTPS = AddressDefaults("https", 9400)


def encoded(name: str) -> bytes:
    return b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"


def record(target: bytes, port: int, name: bytes = b"\xc0\x0c") -> bytes:
    data = struct.pack("!3H", 0, 0, port) + target
    return name + struct.pack("!2HIH", 33, 1, 30, len(data)) + data


def message(query: bytes, records: list[bytes], flags: int = 0x8180) -> bytes:
    head = struct.pack("!6H", struct.unpack_from("!H", query)[0], flags, 1, len(records), 0, 0)
    return head + query[12:] + b"".join(records)


@contextmanager
def name_server(
    records: list[bytes], flags: int = 0x8180, tcp: list[bytes] | None = None
) -> Iterator[NameServer]:
    """A name server for one query over UDP and, with `tcp`, one over TCP."""
    with closing(socket(AF_INET, SOCK_DGRAM)) as udp, closing(socket(AF_INET, SOCK_STREAM)) as stream:
        stream.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        stream.bind(("127.0.0.1", 0))
        stream.listen()
        udp.bind(stream.getsockname())

        def serve() -> None:
            query, client = udp.recvfrom(512)
            # First an answer to another query: it is ignored.
            udp.sendto(
                message(struct.pack("!H", 1 ^ struct.unpack_from("!H", query)[0]) + query[2:], []), client
            )
            udp.sendto(message(query, records, flags), client)
            if tcp is not None:
                connected, _ = stream.accept()
                with connected:
                    query = connected.recv(512)[2:]
                    answer = message(query, tcp)
                    connected.sendall(struct.pack("!H", len(answer)) + answer)

        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield NameServer(*udp.getsockname())
        thread.join(10)


def hosts(*servers: NameServer) -> list[str]:
    return [one.url for one in asyncio.run(DnsNodes(NAME, HTTPS, lambda: servers).read_nodes())]


def test_records_are_hosts_and_ports_with_the_scheme_of_the_settings() -> None:
    compressed = b"\x05gpu-1\xc0\x1c"
    with name_server([record(encoded("gpu-2.lab"), 9443), record(compressed, 9400)]) as server:
        assert hosts(server) == ["https://gpu-1.lab.example.com:9400", "https://gpu-2.lab:9443"]


def test_an_answer_that_is_too_long_for_udp_is_fetched_over_tcp() -> None:
    with name_server([], 0x8380, [record(encoded("gpu-1"), 9400)]) as server:
        assert hosts(server) == ["https://gpu-1:9400"]


def test_the_next_name_server_answers_for_one_that_fails() -> None:
    with name_server([], 0x8182) as broken, name_server([record(encoded("gpu-1"), 9400)]) as server:
        assert hosts(broken, server) == ["https://gpu-1:9400"]


@pytest.mark.parametrize("flags", [0x8183, 0x8180])
def test_a_name_without_records_is_an_error_not_an_empty_lab(flags: int) -> None:
    with name_server([], flags) as server, pytest.raises(UnreadableList, match="no SRV records"):
        hosts(server)


def test_a_target_of_a_dot_says_that_there_is_no_service() -> None:
    with name_server([record(b"\0", 9400)]) as server:
        assert hosts(server) == []


@pytest.mark.parametrize("name", ["", "a..b", "x" * 64, "a." * 200, "ä.example"])
def test_a_malformed_name_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(UsageError, match=r"^--dns-srv"):
        DnsNodes(name, HTTPS)


def test_name_servers_are_those_of_resolv_conf() -> None:
    text = "# x\nnameserver 10.0.0.1\nsearch lab\nnameserver fe80::1%eth0\nnameserver\n"
    assert name_servers(text) == [NameServer("10.0.0.1"), NameServer("fe80::1%eth0")]
    assert name_servers("") == [NameServer("127.0.0.1")]


def test_names_that_form_a_loop_are_refused() -> None:
    query = encode_query(NAME, 7)
    with pytest.raises(MalformedAnswer, match="loop"):
        parse_answer(message(query, [record(b"\xc0\x0c", 1, b"\xc0" + bytes([len(query)]))]), 7)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_answer_or_refused(data: bytes) -> None:
    query = encode_query(NAME, 7)
    for answer in (data, message(query, [data]), query[:12] + data):
        try:
            found = parse_answer(answer, 7)
        except MalformedAnswer:
            continue
        assert all(isinstance(one, SrvRecord) for one in found.records)

"""A list of nodes from DNS SRV records (RFC 2782): a small resolver, because the C library has none for SRV.

It sends one query to each name server of /etc/resolv.conf until one answers, over UDP, and over TCP where the
answer is too long for UDP.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from gpuledger.fleet.lists.node_list import AddressDefaults, UnreadableList, require_valid_nodes
from gpuledger.fleet.node_address import NodeAddress
from gpuledger.host.files import read_at_most
from gpuledger.model.errors import UsageError, collect_errors

_SRV: Final = 33
_IN: Final = 1
_SECONDS: Final = 3.0
_PORT: Final = 53
# Compression pointers in one name (RFC 1035, 4.1.4): more is a loop.
_MOST_POINTERS: Final = 64
# Bytes of a name on the wire (RFC 1035, 3.1).
_LONGEST_NAME: Final = 255
_NO_NAME: Final = 3
_RESOLV_CONF: Final = Path("/etc/resolv.conf")


class NameServer(NamedTuple):
    """The address of a name server."""

    host: str
    port: int = _PORT


class SrvRecord(NamedTuple):
    """One record: the host, and the port of the service there."""

    target: str
    port: int


class MalformedAnswer(ValueError):
    """An answer of a name server that is none."""


def name_servers(text: str) -> list[NameServer]:
    """The name servers of a resolv.conf; this machine's without any (resolv.conf(5))."""
    words = [line.split() for line in text.splitlines()]
    found = [NameServer(line[1]) for line in words if len(line) > 1 and line[0] == "nameserver"]
    return found[:3] or [NameServer("127.0.0.1")]


def encode_query(name: str, number: int) -> bytes:
    """A query for the SRV records of a name (RFC 1035, 4.1). Raises ValueError for a malformed name."""
    labels = [label.encode("ascii") for label in name.rstrip(".").split(".")]
    if not all(0 < len(label) < 64 for label in labels) or len(name) > 253:
        raise ValueError("a label is empty or too long")
    # Recursion desired, one question.
    head = struct.pack("!6H", number, 0x0100, 1, 0, 0, 0)
    question = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return head + question + struct.pack("!2H", _SRV, _IN)


class SrvAnswer(NamedTuple):
    """The records of an answer; `truncated` if it has to be requested over TCP."""

    records: list[SrvRecord]
    truncated: bool
    code: int


def parse_answer(data: bytes, number: int) -> SrvAnswer:
    """Parse the answer to query `number`. Raises MalformedAnswer."""
    try:
        found, flags, questions, answers, *_ = struct.unpack_from("!6H", data)
        if found != number or not flags & 0x8000:
            raise MalformedAnswer("it is not the answer to this query")
        at = 12
        for _ in range(questions):
            at = _read_name(data, at)[1] + 4
        records = []
        for _ in range(answers):
            at = _read_name(data, at)[1]
            kind, _, _, length = struct.unpack_from("!2HIH", data, at)
            at += 10
            if kind == _SRV:
                port = struct.unpack_from("!3H", data, at)[2]
                records.append(SrvRecord(_read_name(data, at + 6)[0], port))
            at += length
    except (struct.error, IndexError, UnicodeDecodeError):
        raise MalformedAnswer("it is cut off or malformed") from None
    return SrvAnswer(records, bool(flags & 0x0200), flags & 0x000F)


def _read_name(data: bytes, at: int) -> tuple[str, int]:
    """The name at a place, and the place after it."""
    labels: list[str] = []
    after, pointers, size = -1, 0, 1
    while length := data[at]:
        if length & 0xC0 == 0xC0:
            after = at + 2 if after < 0 else after
            at = struct.unpack_from("!H", data, at)[0] & 0x3FFF
            pointers += 1
            if pointers > _MOST_POINTERS:
                raise MalformedAnswer("its names form a loop")
            continue
        size += 1 + length
        if size > _LONGEST_NAME:
            raise MalformedAnswer("a name is too long")
        labels.append(data[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    return ".".join(labels), at + 1 if after < 0 else after


class DnsNodes:
    """The hosts and ports of the SRV records of a name. Raises UsageError for a malformed name."""

    def __init__(
        self,
        record: str,
        defaults: AddressDefaults,
        servers: Callable[[], Sequence[NameServer]] | None = None,
    ) -> None:
        try:
            encode_query(record, 0)
        except ValueError:
            raise UsageError(
                f"--dns-srv: expected a name such as _gpuledger._tcp.lab.example.com, not '{record}'"
            ) from None
        self._record, self._defaults = record, defaults
        self._servers = servers or _configured_servers
        self.name = f"DNS SRV {record}"

    async def read_nodes(self) -> Sequence[NodeAddress]:
        """See NodeList."""
        problem = "no name server"
        for server in self._servers():
            try:
                async with asyncio.timeout(2 * _SECONDS):
                    answer = await _query(server, self._record)
            except (OSError, MalformedAnswer) as error:
                problem = f"{server.host}: {str(error) or 'no answer'}"
                continue
            if answer.code == _NO_NAME or (not answer.code and not answer.records):
                raise UnreadableList(f"{self.name}: there are no SRV records of this name")
            if answer.code:
                problem = f"{server.host}: error {answer.code}"
                continue
            # A target of "." says that there is no such service.
            found: list[NodeAddress] = []
            errors: list[UsageError] = []
            for one in answer.records:
                with collect_errors(errors):
                    if one.target and one.port:
                        found.append(self._defaults.parse_address(f"{one.target}:{one.port}", self.name))
            return require_valid_nodes(sorted(found, key=lambda one: one.url), errors, self.name)
        raise UnreadableList(f"{self.name} cannot be read: {problem}")


def _configured_servers() -> Sequence[NameServer]:
    try:
        return name_servers(read_at_most(_RESOLV_CONF, 1 << 16).decode("utf-8", "replace"))
    except OSError:
        return name_servers("")


async def _query(server: NameServer, name: str) -> SrvAnswer:
    number = int.from_bytes(os.urandom(2))
    query = encode_query(name, number)
    answer = await _query_udp(server, query, number)
    return await _query_tcp(server, query, number) if answer.truncated else answer


class _AnswerReceiver(asyncio.DatagramProtocol):
    def __init__(self, number: int) -> None:
        self.answer: asyncio.Future[SrvAnswer] = asyncio.get_running_loop().create_future()
        self._number = number

    def datagram_received(self, data: bytes, _: object) -> None:
        # An answer to another query, or a forged one, is ignored: the right one may follow.
        with suppress(MalformedAnswer):
            found = parse_answer(data, self._number)
            if not self.answer.done():
                self.answer.set_result(found)

    def error_received(self, exc: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc)


async def _query_udp(server: NameServer, query: bytes, number: int) -> SrvAnswer:
    loop = asyncio.get_running_loop()
    transport, receiver = await loop.create_datagram_endpoint(
        lambda: _AnswerReceiver(number), remote_addr=(server.host, server.port)
    )
    try:
        transport.sendto(query)
        async with asyncio.timeout(_SECONDS):
            return await receiver.answer
    finally:
        receiver.answer.cancel()
        transport.close()


async def _query_tcp(server: NameServer, query: bytes, number: int) -> SrvAnswer:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        writer.write(struct.pack("!H", len(query)) + query)
        (length,) = struct.unpack("!H", await reader.readexactly(2))
        return parse_answer(await reader.readexactly(length), number)
    except asyncio.IncompleteReadError:
        raise MalformedAnswer("the connection ended before its answer") from None
    finally:
        writer.close()

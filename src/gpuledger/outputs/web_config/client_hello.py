"""The first bytes of a connection: TLS or not, and which groups (curves) the client can use.

RFC 8446 4.1.2 (ClientHello) and 4.2.7 (supported_groups); the framing is that of RFC 8446 5.1, in one or
several records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_SUPPORTED_GROUPS: Final = 10
# Those of current browsers, post-quantum key shares included, have 2 KiB.
_LONGEST: Final = 32 * 1024


def looks_like_tls(start: bytes | bytearray) -> bool:
    """Whether the first byte begins a handshake."""
    return start[0] == _HANDSHAKE


def offered_groups(start: bytes | bytearray) -> frozenset[int] | None:
    """Numbers of the groups that the ClientHello lists, none when it is malformed; None: more is to come."""
    try:
        hello = _handshake(bytes(start))
    except _Incomplete:
        return None if len(start) < _LONGEST else frozenset()
    try:
        return frozenset(_groups(hello))
    except (IndexError, ValueError):
        # OpenSSL will say what is wrong with it.
        return frozenset()


class _Incomplete(Exception):
    """The ClientHello goes on beyond what has been received."""


def _handshake(data: bytes) -> bytes:
    """The ClientHello's body, out of its records; empty when it is something else."""
    body, at = b"", 0
    while len(data) >= at + 5:
        if data[at] != _HANDSHAKE:
            return b""
        length = int.from_bytes(data[at + 3 : at + 5], "big")
        body += data[at + 5 : at + 5 + length]
        at += 5 + length
        if len(body) >= 4:
            wanted = 4 + int.from_bytes(body[1:4], "big")
            if body[0] != _CLIENT_HELLO:
                return b""
            if len(body) >= wanted:
                return body[4:wanted]
    raise _Incomplete


def _groups(hello: bytes) -> Iterator[int]:
    at = 2 + 32
    at += 1 + hello[at]
    at += 2 + int.from_bytes(hello[at : at + 2], "big")
    at += 1 + hello[at]
    at += 2
    while at + 4 <= len(hello):
        kind, length = (int.from_bytes(hello[place : place + 2], "big") for place in (at, at + 2))
        at += 4
        if kind == _SUPPORTED_GROUPS:
            listed = hello[at + 2 : at + length]
            for place in range(0, len(listed) - 1, 2):
                yield int.from_bytes(listed[place : place + 2], "big")
        at += length

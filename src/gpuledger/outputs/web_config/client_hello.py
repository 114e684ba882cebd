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
_RECORD_HEAD: Final = 5
_MESSAGE_HEAD: Final = 4


class ClientHello:
    """What a client says first, as its bytes arrive.

    A record is looked at once, when it is whole: whoever sends many short ones, a byte at a time, must not
    have all of them read anew for each byte.
    """

    def __init__(self) -> None:
        self.received = bytearray()
        self._message = bytearray()
        self._at = 0

    def add(self, data: bytes | memoryview) -> None:
        """These have arrived, at least one."""
        self.received += data

    @property
    def is_tls(self) -> bool:
        """Whether the first byte begins a handshake."""
        return self.received[0] == _HANDSHAKE

    def offered_groups(self) -> frozenset[int] | None:
        """Numbers of the groups that it lists, none when it is malformed; None: more is to come."""
        try:
            message = self._whole_message()
            if message is None:
                return None if len(self.received) < _LONGEST else frozenset()
            return frozenset(_groups(message))
        except (IndexError, ValueError):
            # OpenSSL will say what is wrong with it.
            return frozenset()

    def _whole_message(self) -> bytes | None:
        """The ClientHello's body, out of its records; None while it goes on beyond what has been received.
        Raises ValueError for anything else.
        """
        data, message = self.received, self._message
        while len(data) >= self._at + _RECORD_HEAD:
            length = int.from_bytes(data[self._at + 3 : self._at + _RECORD_HEAD], "big")
            # RFC 8446, 5.1: of a handshake no record is empty.
            if data[self._at] != _HANDSHAKE or not length:
                raise ValueError
            begin = self._at + _RECORD_HEAD
            if len(data) < begin + length:
                return None
            message += data[begin : begin + length]
            self._at = begin + length
            if message[0] != _CLIENT_HELLO:
                raise ValueError
            end = _MESSAGE_HEAD + int.from_bytes(message[1:_MESSAGE_HEAD], "big")
            if len(message) >= end:
                return bytes(message[_MESSAGE_HEAD:end])
        return None


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

"""TLS between a socket and a Connection, on memory buffers of `ssl`.

asyncio's own would keep 256 KiB per connection, would have to be loaded before it is known whether anything
is encrypted, and tells the server of a connection only after the handshake, however long that takes.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, cast

from gpuledger.http.connection import Connection
from gpuledger.http.openssl import reason_of
from gpuledger.http.registry import Registry
from gpuledger.http.routes import plain
from gpuledger.http.web_config.contexts import Contexts
from gpuledger.http.web_config.current import CurrentWebConfig

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


_LOG = logging.getLogger(__name__)

# Kinds of failed handshakes that are logged as a warning, each once; a scanner must not fill the log.
_MOST_REASONS = 32


class Handshakes:
    """What a server's connections share: the certificates in force, and what was complained of already."""

    def __init__(self, current: CurrentWebConfig) -> None:
        self._current = current
        self._said: set[str] = set()

    def contexts(self) -> Contexts:
        """The certificates that new connections get: looked at per handshake."""
        self._current.look()
        if self._current.contexts is None:
            raise RuntimeError("a server without TLS was asked for a certificate")
        return self._current.contexts

    def failed(self, peer: object, reason: str) -> None:
        """Log that a client was not let in."""
        level = logging.DEBUG
        if reason not in self._said and len(self._said) < _MOST_REASONS:
            self._said.add(reason)
            level = logging.WARNING
        host = peer[0] if isinstance(peer, tuple) else peer
        _LOG.log(level, "TLS handshake with %s failed: %s (said once)", host, reason)


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """The protocol of an encrypted socket, and the transport of the Connection that speaks through it.

    The Connection counts from the accept, so that its limits hold for the handshake too: who does not end
    it in the time of a request is closed.
    """

    def __init__(self, connection: Connection, registry: Registry, handshakes: Handshakes) -> None:
        super().__init__()
        self._connection = connection
        self._registry = registry
        self._handshakes = handshakes
        self._contexts: Contexts | None = None
        self._raw: asyncio.Transport | None = None
        self._peer: object = None
        self._hello = ClientHello()
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._established = False
        self._plain = False
        self._reading = True
        self._behind = False
        self._said_goodbye = False

    # What the socket's transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let the Connection count itself in."""
        self._raw = cast("asyncio.Transport", transport)
        self._peer = transport.get_extra_info("peername")
        self._connection.connection_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the Connection, and let go of everything."""
        self._raw = None
        self._tls = None
        self._connection.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002  (asyncio's signature)
        """The registry's one buffer: what is in it is taken before the next one reads."""
        return self._registry.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived: of the handshake, of requests, or of a client that did not expect TLS."""
        if self._plain or self._said_goodbye:
            # The Connection is only counting what it drops.
            self._connection.buffer_updated(nbytes)
            return
        data = memoryview(self._registry.buffer)[:nbytes]
        if self._tls is None:
            self._hello.add(data)
            self._begin()
        else:
            self._incoming.write(data)
            self._proceed()

    def eof_received(self) -> None:
        """The client sends no more. As asyncio has it, returning None closes once all is sent."""
        if self._established:
            self._connection.eof_received()

    def pause_writing(self) -> None:
        """The kernel's buffer for this client is full.

        Until it takes something it is not heard either, a stream's client included: messages of the protocol
        are answered by OpenSSL (RFC 8446, 4.6.3: each KeyUpdate), and their answers would pile up.
        """
        self._behind = True
        self._listen()
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """The client took what was pending."""
        self._behind = False
        self._listen()
        self._connection.resume_writing()

    # The handshake, then decrypting.

    def _begin(self) -> None:
        """Wait for the whole ClientHello: what it offers decides on the certificate's context."""
        if not self._hello.is_tls:
            self._plain = True
            self._connection.refuse(plain("this port speaks TLS; ask with https://", 400))
            return
        offered = self._hello.offered_groups()
        if offered is None:
            return
        self._contexts = self._handshakes.contexts()
        context = self._contexts.choose(offered)
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._incoming.write(self._hello.received)
        self._hello = ClientHello()
        self._proceed()

    def _proceed(self) -> None:
        if self._tls is None or not (self._established or self._handshake(self._tls)):
            return
        self._decrypt(self._tls)

    def _handshake(self, tls: ssl.SSLObject) -> bool:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._flush()
            self._fail(_why(error))
            return False
        self._flush()
        if self._contexts is not None and not self._contexts.allows(tls.getpeercert()):
            self._fail("the client certificate has none of client_allowed_sans")
            return False
        self._contexts = None
        self._established = True
        return True

    def _fail(self, reason: str) -> None:
        self._handshakes.failed(self._peer, reason)
        if self._raw is not None:
            self._raw.close()

    def _decrypt(self, tls: ssl.SSLObject) -> None:
        """Hand on what can be decrypted until the Connection has enough for now."""
        buffer = self._registry.buffer
        while self._listening and not self.is_closing() and not self._said_goodbye:
            try:
                count = int(tls.read(len(buffer), buffer))
            except ssl.SSLWantReadError:
                # It may have answered a message of the protocol's own.
                self._flush()
                return
            except ssl.SSLZeroReturnError:
                count = 0
            except ssl.SSLError:
                self._flush()
                self.abort()
                return
            if not count:
                self._connection.eof_received()
                self.close()
                return
            self._connection.buffer_updated(count)

    def _flush(self) -> None:
        if self._outgoing.pending and self._raw is not None:
            self._raw.write(self._outgoing.read())

    def _say_goodbye(self) -> None:
        """Send close_notify, so that the client knows the answer to be whole."""
        if self._tls is None or not self._established or self._said_goodbye:
            return
        self._said_goodbye = True
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        self._flush()

    # What the Connection calls.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send. Before the handshake nothing can be said, so the connection ends instead."""
        if self._plain and self._raw is not None:
            self._raw.write(data)
            return
        if self._tls is None or not self._established:
            self.abort()
            return
        rest = memoryview(data)
        while rest and not self._said_goodbye:
            rest = rest[self._tls.write(rest) :]
        self._flush()

    def get_extra_info(self, name: str, default: object = None) -> object:
        """What the socket's transport knows."""
        return default if self._raw is None else self._raw.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Those of the socket: nothing is kept back here."""
        if self._raw is not None:
            self._raw.set_write_buffer_limits(high, low)

    def can_write_eof(self) -> bool:
        """Each direction of TLS ends by itself."""
        return self._raw is not None and self._raw.can_write_eof()

    def write_eof(self) -> None:
        """Say that nothing more comes; what arrives is still read."""
        self._say_goodbye()
        if self._raw is not None and not self._raw.is_closing():
            self._raw.write_eof()

    def close(self) -> None:
        """End when what was written has been sent."""
        if self._raw is not None and not self._raw.is_closing():
            self._say_goodbye()
            self._raw.close()

    def abort(self) -> None:
        """End now."""
        if self._raw is not None:
            self._raw.abort()

    def is_closing(self) -> bool:
        """Whether it has ended or is about to."""
        return self._raw is None or self._raw.is_closing()

    def is_reading(self) -> bool:
        """Whether the Connection wants more."""
        return self._reading

    def pause_reading(self) -> None:
        """Keep what was received, and receive no more."""
        self._reading = False
        self._listen()

    def resume_reading(self) -> None:
        """Go on with what was kept, then with what comes."""
        self._reading = True
        self._listen()

    @property
    def _listening(self) -> bool:
        return self._reading and not self._behind

    def _listen(self) -> None:
        """Read the socket or leave it, as things are now."""
        if self._raw is None:
            return
        if not self._listening:
            self._raw.pause_reading()
        elif not self._raw.is_closing():
            self._raw.resume_reading()
            if self._established:
                self._registry.loop.call_soon(self._proceed)


def _why(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"client certificate: {error.verify_message}"
    return reason_of(error)

"""A blocking HTTP/1.1 client for the API server: one GET a connection, read as it comes."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import h11

from gpuledger import __version__
from gpuledger.host.http import next_event, send_get
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import host_and_port
from gpuledger.workloads.pods.access import Access
from gpuledger.workloads.pods.refusals import Refused, refused

if TYPE_CHECKING:
    from ssl import SSLContext

# Of the body of an error so much is looked at.
_LONGEST_ERROR: Final = 64 * 1024


def on_node(node: str) -> dict[str, str]:
    """The query that selects what is on the node of this name."""
    return {"fieldSelector": f"spec.nodeName={node}"}


class Unreachable(GpuledgerError):
    """No answer of the API server: not there, not trusted, or silent."""


class Interrupted(GpuledgerError):
    """An answer that began well broke off."""


class ApiClient:
    """Asks one API server. Used by one thread, but for `abort`.

    `timeout` is the longest wait in seconds for the next bytes of an answer, `connect_timeout` for the
    connection.
    """

    def __init__(self, access: Access, *, timeout: float = 30.0, connect_timeout: float = 10.0) -> None:
        self.access = access
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._socket: socket.socket | None = None
        self._aborted = False

    @contextmanager
    def get(
        self, path: str, query: Mapping[str, str], *, timeout: float | None = None
    ) -> Iterator[Iterator[bytes]]:
        """Ask, and answer with the body in the pieces in which it comes, to be read within the `with`.

        Raises Unreachable, Interrupted, Refused (any status but 200), or GpuledgerError for credentials that
        cannot be read; the pieces raise Interrupted when the answer breaks off. A 401 is tried again once,
        with the token as it is by then.
        """
        try:
            yield self._ask(path, query, timeout or self._timeout)
        finally:
            self._close()

    def abort(self) -> None:
        """End what is going on, now and for good; from any thread."""
        self._aborted = True
        if (connected := self._socket) is not None:
            try:
                # Not the method of an SSLSocket: that drops its state under the thread that reads.
                socket.socket.shutdown(connected, socket.SHUT_RDWR)
            except OSError:
                return

    def _ask(self, path: str, query: Mapping[str, str], timeout: float) -> Iterator[bytes]:
        try:
            return self._try(path, query, timeout)
        except Refused as error:
            if error.status != 401:
                raise
        self._close()
        return self._try(path, query, timeout)

    def _try(self, path: str, query: Mapping[str, str], timeout: float) -> Iterator[bytes]:
        access = self.access
        headers = [
            ("Host", host_and_port(access.host, access.port)),
            ("User-Agent", f"gpuledger/{__version__}"),
            ("Accept", "application/json"),
            ("Connection", "close"),
        ]
        if token := access.read_token():
            headers.append(("Authorization", f"Bearer {token}"))
        target = f"{access.prefix}{path}?{urlencode(query)}" if query else f"{access.prefix}{path}"
        exchange = _Exchange(self._connect(), access.url)
        response = exchange.ask(target, headers, timeout)
        if response.status_code != 200:
            raise refused(access, path, response, exchange.some(_LONGEST_ERROR))
        encoding = dict(response.headers).get(b"content-encoding", b"identity")
        if encoding != b"identity":
            told = encoding.decode("ascii", "replace")
            raise Unreachable(
                f"{access.url} answers in {told}, which was not asked for; look at the proxy before it"
            )
        return exchange.pieces()

    def _connect(self) -> socket.socket:
        access = self.access
        context: SSLContext | None = None
        if access.secure:
            from gpuledger.workloads.pods.tls import tls_context

            context = tls_context(access)
        try:
            connected = self._open(access.host, access.port)
            return self._encrypt(connected, context) if context is not None else connected
        except (OSError, UnicodeError) as error:
            raise Unreachable(_not_connected(access, error)) from None

    def _open(self, host: str, port: int) -> socket.socket:
        failed = OSError("it has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            made = self._hold(socket.socket(family, kind, protocol))
            try:
                made.settimeout(self._connect_timeout)
                made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                made.connect(address)
            except OSError as error:
                made.close()
                failed = error
            else:
                return made
        raise failed

    def _encrypt(self, connected: socket.socket, context: SSLContext) -> socket.socket:
        name = self.access.server_name or self.access.host
        wrapped = context.wrap_socket(connected, server_hostname=name, do_handshake_on_connect=False)
        self._hold(wrapped)
        wrapped.do_handshake()
        return wrapped

    def _hold(self, made: socket.socket) -> socket.socket:
        """Let `abort` end what this socket waits for: before it is connected, and while it shakes hands."""
        self._socket = made
        if self._aborted:
            raise Unreachable("ended on demand")
        return made

    def _close(self) -> None:
        closing, self._socket = self._socket, None
        if closing is not None:
            closing.close()


class _Exchange:
    """One request and its answer on a connection."""

    def __init__(self, connected: socket.socket, url: str) -> None:
        self._socket = connected
        self._url = url
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LONGEST_ERROR)
        self._begun = False

    def ask(self, target: str, headers: list[tuple[str, str]], timeout: float) -> h11.Response:
        self._socket.settimeout(timeout)
        try:
            send_get(self._http, self._socket, target, headers)
        except OSError as error:
            raise Unreachable(
                f"{self._url} closed the connection ({_words(error)}); it is tried again"
            ) from None
        while True:
            event = self._next()
            if isinstance(event, h11.Response):
                self._begun = True
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise Unreachable(f"{self._url} does not answer; see that it is an API server")

    def pieces(self) -> Iterator[bytes]:
        while True:
            event = self._next()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return

    def some(self, most: int) -> bytes:
        """What can be had of the body of an error, up to `most` bytes and a piece."""
        got = bytearray()
        try:
            for piece in self.pieces():
                got += piece
                if len(got) > most:
                    break
        except GpuledgerError:
            pass
        return bytes(got)

    def _next(self) -> object:
        try:
            return next_event(self._http, self._socket)
        except TimeoutError:
            waited = self._socket.gettimeout() or 0.0
            raise Unreachable(
                f"{self._url} said nothing for {waited:.0f} s; see that it is well, and what is between"
            ) from None
        except (OSError, h11.RemoteProtocolError) as error:
            if self._begun:
                raise Interrupted(f"{self._url} broke off in its answer ({_words(error)})") from None
            raise Unreachable(
                f"{self._url} gave no answer ({_words(error)}); see that it is an API server, and whether it "
                "speaks http or https"
            ) from None


def _not_connected(access: Access, error: Exception) -> str:
    # ssl is loaded by now where its errors can come.
    verify = getattr(error, "verify_message", "")
    if verify:
        return (
            f"the certificate of {access.url} is not believed ({verify}); name the authority that signed it "
            "with --kubernetes-ca-file"
        )
    return (
        f"{access.url} cannot be reached ({_words(error)}); see that the API server runs and may be reached "
        "from this node, or name it with --kubernetes-api"
    )


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)) or "closed"

"""A blocking HTTP/1.1 client for the API server: one GET a connection, read as it comes."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import h11

from gpuledger import __version__
from gpuledger.http.blocking_client import next_event, send_get
from gpuledger.kubernetes.access import Access
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import clean_name, host_and_port

if TYPE_CHECKING:
    from ssl import SSLContext

    import h11


# What it may not do, and the rule of a ClusterRole that allows it.
_RULES: Final = {
    "pods": ("list and watch pods", 'apiGroups: [""], resources: ["pods"], verbs: ["list", "watch"]'),
    "resourceslices": (
        "list resourceslices",
        'apiGroups: ["resource.k8s.io"], resources: ["resourceslices"], verbs: ["list"]',
    ),
}
_LONGEST_WAIT: Final = 600.0
_ACCOUNT: Final = re.compile(r'User "([^"]{1,300})"')


class Refused(GpuledgerError):
    """The API server answered, but not with what was asked for.

    `retry_after` is how many seconds it asks to be left alone, 0 where it does not.
    """

    def __init__(self, text: str, status: int, retry_after: float = 0.0) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after = retry_after

    @property
    def gone(self) -> bool:
        """The version that was asked for is forgotten: all must be listed anew."""
        return self.status == 410


def refused(access: Access, path: str, response: h11.Response, body: bytes) -> Refused:
    """The refusal in the API's own words (meta/v1 Status) where it has such."""
    status, message = response.status_code, _message(body)
    return Refused(_line(access, path, status, message), status, _retry_after(response))


def _line(access: Access, path: str, status: int, message: str) -> str:
    if status == 401:
        return f"401 from {access.url}: {_whose(access)} is not accepted; give it one that is valid"
    if status == 403:
        return f"403 from {access.url}: {_missing_rule(path, message)}"
    if status == 404:
        return f"404 from {access.url}: it has no {path}; see that the URL is an API server's"
    if 300 <= status < 400:
        return f"{status} from {access.url}: redirections are not followed; name the server itself"
    return f"{status} from {access.url}{f': {message}' if message else ''}; it is tried again"


def _whose(access: Access) -> str:
    if access.token_file:
        return f"the token of {access.token_file}"
    if access.token:
        return "the token of the kubeconfig"
    if access.certificate_data or access.certificate_file:
        return "the client certificate of the kubeconfig"
    return "a request without a token (--kubernetes-token-file names one)"


def _missing_rule(path: str, message: str) -> str:
    found = _ACCOUNT.search(message)
    who = found[1] if found else "this account"
    wanted = _RULES.get(path.rpartition("/")[2])
    if wanted is None:
        return f"{who} may not read {path}; give it the right to"
    return f"{who} may not {wanted[0]}; add to its ClusterRole the rule {{{wanted[1]}}}"


def _message(body: bytes) -> str:
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    message = told.get("message") if isinstance(told, dict) else None
    return clean_name(message.replace("\n", " "), 400) if isinstance(message, str) else ""


def _retry_after(response: h11.Response) -> float:
    told = dict(response.headers).get(b"retry-after", b"")
    return min(float(told), _LONGEST_WAIT) if told.isdigit() else 0.0


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
            from gpuledger.kubernetes.tls import tls_context

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

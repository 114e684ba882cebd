"""Blocking HTTP/1.1 client for the API server: one GET per connection, with a streamed response."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from gpuledger import __version__
from gpuledger.http.blocking_client import BlockingConnection
from gpuledger.http.client_messages import HttpRequestFailed, HttpResponse, encode_request
from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import clean_name, join_host_port

if TYPE_CHECKING:
    from ssl import SSLContext


# By resource: the missing permission, and the ClusterRole rule that allows it.
_RULES: Final = {
    "pods": ("list and watch pods", 'apiGroups: [""], resources: ["pods"], verbs: ["list", "watch"]'),
    "resourceslices": (
        "list resourceslices",
        'apiGroups: ["resource.k8s.io"], resources: ["resourceslices"], verbs: ["list"]',
    ),
}
_MAX_RETRY_AFTER: Final = 600.0
_ACCOUNT: Final = re.compile(r'User "([^"]{1,300})"')


class ApiServerRefused(GpuledgerError):
    """The API server responded with a status other than 200.

    `retry_after` is the value of the Retry-After header in seconds, 0 without one.
    """

    def __init__(self, text: str, status: int, retry_after: float = 0.0) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after = retry_after

    @property
    def is_expired(self) -> bool:
        """Whether the requested resourceVersion has expired: everything must be listed again."""
        return self.status == 410


def refusal_from_response(
    access: ApiServerAccess, path: str, response: HttpResponse, body: bytes
) -> ApiServerRefused:
    """The error for a response, with the message of its body (meta/v1 Status) if there is one."""
    status, message = response.status, _message(body)
    return ApiServerRefused(_refusal_text(access, path, status, message), status, _retry_after(response))


def _refusal_text(access: ApiServerAccess, path: str, status: int, message: str) -> str:
    if status == 401:
        return f"401 from {access.url}: {_credentials_name(access)} is not accepted; set valid credentials"
    if status == 403:
        return f"403 from {access.url}: {_missing_rule(path, message)}"
    if status == 404:
        return f"404 from {access.url}: it has no {path}; check that the URL is an API server"
    if 300 <= status < 400:
        return f"{status} from {access.url}: redirects are not followed; set the URL of the server itself"
    return f"{status} from {access.url}{f': {message}' if message else ''}; retrying"


def _credentials_name(access: ApiServerAccess) -> str:
    if access.token_file:
        return f"the token of {access.token_file}"
    if access.token:
        return "the token of the kubeconfig"
    if access.certificate_data or access.certificate_file:
        return "the client certificate of the kubeconfig"
    return "a request without a token (see --kubernetes-token-file)"


def _missing_rule(path: str, message: str) -> str:
    found = _ACCOUNT.search(message)
    account = found[1] if found else "this account"
    rule = _RULES.get(path.rpartition("/")[2])
    if rule is None:
        return f"{account} may not read {path}; add the permission to its ClusterRole"
    return f"{account} may not {rule[0]}; add to its ClusterRole the rule {{{rule[1]}}}"


def _message(body: bytes) -> str:
    try:
        status = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    message = status.get("message") if isinstance(status, dict) else None
    return clean_name(message.replace("\n", " "), 400) if isinstance(message, str) else ""


def _retry_after(response: HttpResponse) -> float:
    seconds = response.headers.get("retry-after", "")
    return min(float(seconds), _MAX_RETRY_AFTER) if seconds.isascii() and seconds.isdigit() else 0.0


# At most this much of the body of an error is read.
_MAX_ERROR_BYTES: Final = 64 * 1024


def node_selector_query(node: str) -> dict[str, str]:
    """Query parameters that select the objects on the node with this name."""
    return {"fieldSelector": f"spec.nodeName={node}"}


class ApiServerUnreachable(GpuledgerError):
    """No response from the API server: it is not reachable, not trusted, or does not respond in time."""


class ApiResponseInterrupted(GpuledgerError):
    """The connection broke off after the response had started."""


class ApiClient:
    """Client of one API server. Not thread-safe, except for `abort`.

    `timeout` is the longest wait in seconds for the next bytes of a response, `connect_timeout` for the
    connection.
    """

    def __init__(
        self, access: ApiServerAccess, *, timeout: float = 30.0, connect_timeout: float = 10.0
    ) -> None:
        self.access = access
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._socket: socket.socket | None = None
        self._aborted = False

    @contextmanager
    def get(
        self, path: str, query: Mapping[str, str], *, timeout: float | None = None
    ) -> Iterator[Iterator[bytes]]:
        """Send a GET and yield the chunks of the response body, to be read within the `with`.

        Raises ApiServerUnreachable, ApiServerRefused (any status but 200), or GpuledgerError for unreadable
        credentials. The chunks raise ApiResponseInterrupted if the response breaks off. A 401 is retried once
        with the token read again.
        """
        try:
            yield self._request(path, query, timeout or self._timeout)
        finally:
            self._close()

    def abort(self) -> None:
        """End the current request, and let all further ones fail. Thread-safe."""
        self._aborted = True
        if (connected := self._socket) is not None:
            try:
                # Not SSLSocket.shutdown, which drops its TLS state while another thread reads.
                socket.socket.shutdown(connected, socket.SHUT_RDWR)
            except OSError:
                return

    def _request(self, path: str, query: Mapping[str, str], timeout: float) -> Iterator[bytes]:
        try:
            return self._request_once(path, query, timeout)
        except ApiServerRefused as error:
            if error.status != 401:
                raise
        self._close()
        return self._request_once(path, query, timeout)

    def _request_once(self, path: str, query: Mapping[str, str], timeout: float) -> Iterator[bytes]:
        access = self.access
        headers = [
            ("Host", join_host_port(access.host, access.port)),
            ("User-Agent", f"gpuledger/{__version__}"),
            ("Accept", "application/json"),
            ("Connection", "close"),
        ]
        if token := access.read_token():
            headers.append(("Authorization", f"Bearer {token}"))
        target = f"{access.prefix}{path}?{urlencode(query)}" if query else f"{access.prefix}{path}"
        exchange = _HttpExchange(self._connect(), access.url)
        response = exchange.request(encode_request("GET", target, headers), timeout)
        if response.status != 200:
            raise refusal_from_response(access, path, response, exchange.read_error_body(_MAX_ERROR_BYTES))
        encoding = response.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise ApiServerUnreachable(
                f"{access.url} responds with content-encoding {encoding}, which was not requested; check the "
                "proxy in front of it"
            )
        return exchange.chunks()

    def _connect(self) -> socket.socket:
        access = self.access
        context: SSLContext | None = None
        if access.secure:
            from gpuledger.kubernetes.tls import tls_context

            context = tls_context(access)
        try:
            connected = self._open_socket(access.host, access.port)
            return self._encrypt(connected, context) if context is not None else connected
        except (OSError, UnicodeError) as error:
            raise ApiServerUnreachable(_not_connected(access, error)) from None

    def _open_socket(self, host: str, port: int) -> socket.socket:
        last_error = OSError("it has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            opened = self._track(socket.socket(family, kind, protocol))
            try:
                opened.settimeout(self._connect_timeout)
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                opened.connect(address)
            except OSError as error:
                opened.close()
                last_error = error
            else:
                return opened
        raise last_error

    def _encrypt(self, connected: socket.socket, context: SSLContext) -> socket.socket:
        name = self.access.server_name or self.access.host
        wrapped = context.wrap_socket(connected, server_hostname=name, do_handshake_on_connect=False)
        self._track(wrapped)
        wrapped.do_handshake()
        return wrapped

    def _track(self, opened: socket.socket) -> socket.socket:
        """Make `abort` apply to this socket, even while it connects or performs the TLS handshake."""
        self._socket = opened
        if self._aborted:
            raise ApiServerUnreachable("request aborted")
        return opened

    def _close(self) -> None:
        closing, self._socket = self._socket, None
        if closing is not None:
            closing.close()


class _HttpExchange:
    """One request and its response on a connection."""

    def __init__(self, connected: socket.socket, url: str) -> None:
        self._socket = connected
        self._connection = BlockingConnection(connected)
        self._url = url
        self._responded = False

    def request(self, request: bytes, timeout: float) -> HttpResponse:
        self._socket.settimeout(timeout)
        try:
            self._connection.send_request(request)
        except OSError as error:
            raise ApiServerUnreachable(
                f"{self._url} closed the connection ({_error_text(error)}); retrying"
            ) from None
        with self._described_errors():
            response = self._connection.receive_head()
        self._responded = True
        return response

    def chunks(self) -> Iterator[bytes]:
        with self._described_errors():
            yield from self._connection.receive_chunks()

    def read_error_body(self, max_bytes: int) -> bytes:
        """The available body of an error, cut at the first chunk after `max_bytes`."""
        body = bytearray()
        with suppress(GpuledgerError):
            for chunk in self.chunks():
                body += chunk
                if len(body) > max_bytes:
                    break
        return bytes(body)

    @contextmanager
    def _described_errors(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            waited = self._socket.gettimeout() or 0.0
            raise ApiServerUnreachable(
                f"{self._url}: no response within {waited:.0f} s; check the API server and the network"
            ) from None
        except (OSError, HttpRequestFailed) as error:
            if self._responded:
                raise ApiResponseInterrupted(
                    f"{self._url}: the response broke off ({_error_text(error)})"
                ) from None
            raise ApiServerUnreachable(
                f"{self._url}: no response ({_error_text(error)}); check that it is an API server, and "
                "whether it speaks http or https"
            ) from None


def _not_connected(access: ApiServerAccess, error: Exception) -> str:
    # getattr instead of isinstance: ssl is imported lazily.
    verify_message = getattr(error, "verify_message", "")
    if verify_message:
        return (
            f"the certificate of {access.url} is not trusted ({verify_message}); set the CA that signed it "
            "with --kubernetes-ca-file"
        )
    return (
        f"{access.url} cannot be reached ({_error_text(error)}); check that the API server runs and is "
        "reachable from this node, or set its URL with --kubernetes-api"
    )


def _error_text(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)) or "closed"

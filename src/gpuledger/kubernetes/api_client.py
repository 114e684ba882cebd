"""Blocking HTTP/1.1 client for the API server: one request per connection, with a streamed response."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from gpuledger import __version__
from gpuledger.http.blocking_client import BlockingConnection
from gpuledger.http.client_messages import HttpRequestFailed, HttpResponse
from gpuledger.kubernetes.access import ApiServerAccess, encode_api_request
from gpuledger.kubernetes.json_stream import ListReader
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import clean_name

if TYPE_CHECKING:
    from ssl import SSLContext


# By resource: the missing permission, and the ClusterRole rule that allows it.
_RULES: Final = {
    "pods": ("list and watch pods", 'apiGroups: [""], resources: ["pods"], verbs: ["list", "watch"]'),
    "resourceslices": (
        "list resourceslices",
        'apiGroups: ["resource.k8s.io"], resources: ["resourceslices"], verbs: ["list"]',
    ),
    "resourceclaims": (
        "get resourceclaims",
        'apiGroups: ["resource.k8s.io"], resources: ["resourceclaims"], verbs: ["get"]',
    ),
    "events": ("create events", 'apiGroups: ["events.k8s.io"], resources: ["events"], verbs: ["create"]'),
}
_MAX_RETRY_AFTER: Final = 600.0
_ACCOUNT: Final = re.compile(r'User "([^"]{1,300})"')


class ApiServerRefused(GpuledgerError):
    """The API server responded with a status other than 200.

    `retry_after` is the value of the Retry-After header in seconds, 0 without one. `message` is that of the
    response, empty if it has none.
    """

    def __init__(self, text: str, status: int, retry_after: float = 0.0, message: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.retry_after = retry_after
        self.message = message


def refusal_from_response(
    access: ApiServerAccess, path: str, response: HttpResponse, body: bytes
) -> ApiServerRefused:
    """The error for a response, with the message of its body (meta/v1 Status) if there is one."""
    status, message = response.status, _message(body)
    text = _refusal_text(access, path, status, message)
    return ApiServerRefused(text, status, _retry_after(response), message)


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
    # The path of a list ends with the resource, that of one object with the resource and its name.
    rule = next((_RULES[part] for part in path.split("/")[-2:] if part in _RULES), None)
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
_PAGE_SIZE: Final = "500"


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
        wait = timeout or self._timeout
        try:
            try:
                chunks = self._request(path, query, wait)
            except ApiServerRefused as error:
                if error.status != 401:
                    raise
                self._close()
                chunks = self._request(path, query, wait)
            yield chunks
        finally:
            self._close()

    def create(self, path: str, body: Mapping[str, object]) -> None:
        """POST an object.

        Raises as `get`; ApiServerRefused has the status 409 if an object of this name exists.
        """
        content = json.dumps(body, separators=(",", ":")).encode()
        try:
            for _ in self._request(path, {}, self._timeout, content):
                pass
        finally:
            self._close()

    def abort(self) -> None:
        """End the current request, and let all further ones fail. Thread-safe."""
        self._aborted = True
        if (connected := self._socket) is not None:
            # Not SSLSocket.shutdown, which drops its TLS state while another thread reads.
            with suppress(OSError):
                socket.socket.shutdown(connected, socket.SHUT_RDWR)

    def _request(
        self, path: str, query: Mapping[str, str], timeout: float, content: bytes | None = None
    ) -> Iterator[bytes]:
        """GET, or POST of `content`; the chunks of the body."""
        access = self.access
        headers = [("User-Agent", f"gpuledger/{__version__}"), ("Connection", "close")]
        if content is None:
            request = encode_api_request(access, "GET", path, query, headers)
        else:
            headers.append(("Content-Type", "application/json"))
            request = encode_api_request(access, "POST", path, query, headers, content)
        connected = self._connect()
        connected.settimeout(timeout)
        connection = BlockingConnection(connected)
        try:
            connection.send_request(request)
        except OSError as error:
            raise ApiServerUnreachable(
                f"{access.url} closed the connection ({_error_text(error)}); retrying"
            ) from None
        with _described_errors(access.url, timeout, responded=False):
            response = connection.receive_head()
        chunks = _chunks(connection, access.url, timeout)
        if response.status != 200 and (content is None or response.status != 201):
            raise refusal_from_response(access, path, response, _error_body(chunks))
        encoding = response.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise ApiServerUnreachable(
                f"{access.url} responds with content-encoding {encoding}, which was not requested; check the "
                "proxy in front of it"
            )
        return chunks

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


def list_pages(
    client: ApiClient, path: str, query: Mapping[str, str], *, cached: bool = True
) -> Generator[ListReader, None, None]:
    """Yield each page of a list, to be read before the next. `cached`: from the server's cache.

    The caller closes the generator, which ends the request.
    """
    page = {"limit": _PAGE_SIZE, "resourceVersion": "0"} if cached else {"limit": _PAGE_SIZE}
    while page:
        with client.get(path, {**query, **page}) as chunks:
            reader = ListReader(chunks)
            yield reader
        # The token includes the version; sending resourceVersion too is an error.
        page = {"limit": _PAGE_SIZE, "continue": reader.next_page} if reader.next_page else {}


def _chunks(connection: BlockingConnection, url: str, timeout: float) -> Iterator[bytes]:
    with _described_errors(url, timeout, responded=True):
        yield from connection.receive_chunks()


def _error_body(chunks: Iterator[bytes]) -> bytes:
    """The available body of an error, cut at the first chunk after _MAX_ERROR_BYTES."""
    body = bytearray()
    with suppress(GpuledgerError):
        for chunk in chunks:
            body += chunk
            if len(body) > _MAX_ERROR_BYTES:
                break
    return bytes(body)


@contextmanager
def _described_errors(url: str, timeout: float, *, responded: bool) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise ApiServerUnreachable(
            f"{url}: no response within {timeout:.0f} s; check the API server and the network"
        ) from None
    except (OSError, HttpRequestFailed) as error:
        if responded:
            raise ApiResponseInterrupted(f"{url}: the response broke off ({_error_text(error)})") from None
        raise ApiServerUnreachable(
            f"{url}: no response ({_error_text(error)}); check that it is an API server, and whether it "
            "speaks http or https"
        ) from None


def _not_connected(access: ApiServerAccess, error: Exception) -> str:
    # getattr instead of isinstance: ssl is imported lazily.
    verify_message = getattr(error, "verify_message", "")
    if verify_message:
        from gpuledger.http.openssl import certificate_remedy

        remedy = certificate_remedy(error, "set the CA that signed it with --kubernetes-ca-file")
        return f"the certificate of {access.url} is not trusted ({verify_message}); {remedy}"
    return (
        f"{access.url} cannot be reached ({_error_text(error)}); check that the API server runs and is "
        "reachable from this node, or set its URL with --kubernetes-api"
    )


def _error_text(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)) or "closed"

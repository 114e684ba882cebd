"""A client of a node's HTTP API. It keeps one connection open; its errors are one line with the remedy."""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any
from urllib.parse import quote

from gpuledger import __version__
from gpuledger.http.blocking_client import BlockingConnection
from gpuledger.http.client_access import ClientAccessSettings, create_client_context, find_login
from gpuledger.http.client_messages import (
    HttpRequestFailed,
    HttpResponse,
    basic_authorization,
    encode_request,
    json_error,
)
from gpuledger.http.hosts import base_of_redirect, host_field, parse_http_url
from gpuledger.http.openssl import NOT_TLS, certificate_remedy, ssl_reason
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import join_host_port, to_short_line

SNAPSHOT = "/api/v1/snapshot"
# Bytes of a response: some ten thousand processes.
_MAX_BODY = 64 << 20
_PLAIN = "/%:@!$&'()*+,;=~"


class NodeApiClient:
    """A client of one node's API. `timeout` is seconds per response. Not thread-safe.

    `access` has the credentials and the TLS files; a user in the URL takes precedence. For messages are
    `product`, the server; `flag`, which has the URL; `advice`, what to check; and `page`, what is read.
    """

    product = "gpuledger"
    flag = "--url"
    advice = "is gpuledger serve running there, on that port?"
    page = SNAPSHOT
    # Of a URL without scheme and port.
    port = 9400

    def __init__(self, url: str, access: ClientAccessSettings, timeout: float = 10.0) -> None:
        """Raises UsageError for a malformed URL and for files that cannot be read."""
        parts = parse_http_url(url, self.flag, "http://node:9400")
        self._secure = parts.scheme == "https"
        self.host, self._port = parts.hostname or "", parts.port or (443 if self._secure else 80)
        self._base = quote(parts.path.rstrip("/"), safe=_PLAIN)
        if parts.port is None and "://" not in url:
            self._port = self.port
        self.url = f"{parts.scheme}://{join_host_port(self.host, self._port)}{self._base}"
        self._headers = {"User-Agent": f"gpuledger/{__version__}", "Accept-Encoding": "gzip"}
        pair = find_login(parts.username, parts.password, access)
        if pair is not None:
            self._headers["Authorization"] = basic_authorization(pair)
        self._context = create_client_context(access) if self._secure else None
        self._timeout = timeout
        self._socket: socket.socket | None = None
        # Of the newest request.
        self._connection: BlockingConnection | None = None
        self._etag = ""
        self._newest: Mapping[str, Any] = {}

    def snapshot(self) -> Mapping[str, Any]:
        """The node's current snapshot. Raises GpuledgerError with one line when it cannot be read."""
        answer = self._get(SNAPSHOT, {"If-None-Match": self._etag} if self._etag else {})
        if answer.status == 304 and self._newest:
            return self._newest
        self._newest = self._parse_object(answer, SNAPSHOT)
        self._etag = answer.headers.get("etag", "")
        return self._newest

    def close(self) -> None:
        """Close the connection. Idempotent."""
        closing, self._socket = self._socket, None
        if closing is not None:
            closing.close()

    def _parse_object(self, answer: HttpResponse, path: str) -> Mapping[str, Any]:
        """The JSON object of the answer to a path. Raises GpuledgerError."""
        if answer.status != 200:
            raise GpuledgerError(self._describe_status(answer))
        with suppress(ValueError, RecursionError):
            found = json.loads(answer.body)
            if isinstance(found, dict):
                return found
        raise GpuledgerError(f"{self.url} is not a {self.product}: its answer to {path} is not a JSON object")

    def _get(self, path: str, headers: Mapping[str, str]) -> HttpResponse:
        reused = self._socket is not None
        try:
            try:
                return self._exchange(path, headers)
            except (ConnectionError, HttpRequestFailed):
                # The node may have closed a reused connection: try once on a new one.
                if not reused:
                    raise
                self.close()
                return self._exchange(path, headers)
        except (OSError, ValueError, HttpRequestFailed) as error:
            self.close()
            raise GpuledgerError(self._describe(error)) from None

    def _exchange(self, path: str, headers: Mapping[str, str]) -> HttpResponse:
        if self._socket is None:
            self._socket = self._connect()
        until = monotonic() + self._timeout
        connection = self._connection = BlockingConnection(self._socket)
        response = connection.exchange(self._encode(path, headers), _MAX_BODY, until)
        if not connection.reusable:
            self.close()
        response.body = response.decoded_body(_MAX_BODY)
        return response

    def _encode(self, path: str, headers: Mapping[str, str]) -> bytes:
        sent = {"Host": host_field(join_host_port(self.host, self._port)), **self._headers, **headers}
        return encode_request("GET", self._base + path, sent.items())

    def _connect(self) -> socket.socket:
        # Raises ValueError for an invalid host name, for which `wrap_socket` would leave its socket open.
        self.host.encode("idna")
        connected = socket.create_connection((self.host, self._port), self._timeout)
        if self._context is None:
            return connected
        # Closes the socket if the handshake fails.
        return self._context.wrap_socket(connected, server_hostname=self.host)

    def _describe(self, error: Exception) -> str:
        if isinstance(error, ssl.SSLCertVerificationError):
            why = to_short_line(error.verify_message or error)
            remedy = certificate_remedy(error, "give the certificate of its CA with --ca-file")
            return f"the certificate of {self.url} is not trusted ({why}): {remedy}"
        if isinstance(error, ssl.SSLError):
            reason = ssl_reason(error, str(error))
            if reason in NOT_TLS:
                return f"{self.url} does not speak TLS: try http:// in {self.flag}"
            return f"TLS handshake with {self.url} failed ({to_short_line(reason)})" + (
                "" if "certificate" not in reason else ": give a client certificate with --cert-file"
            )
        if isinstance(error, TimeoutError):
            return f"{self.url} did not answer within {self._timeout:g} s: {self.advice}"
        speaks_http = self._connection is not None and self._connection.speaks_http
        if isinstance(error, HttpRequestFailed) and error.kind == "broken" and not speaks_http:
            remedy = self.advice if self._secure else f"try https:// in {self.flag}"
            return f"{self.url} does not speak HTTP: {remedy}"
        if isinstance(error, OSError):
            return f"{self.url} cannot be reached ({to_short_line(error.strerror or error)}): {self.advice}"
        return f"cannot read the answer of {self.url}: {to_short_line(error)}"

    def _describe_status(self, answer: HttpResponse) -> str:
        if answer.status == 401 and "Authorization" in self._headers:
            return f"{self.url} does not accept this login (401): check the user and the password"
        if answer.status == 401:
            remedy = f"give --user and --password-file, or user:password@ in {self.flag}"
            return f"{self.url} requires a login (401): {remedy}"
        if answer.status == 403:
            return f"{self.url} denies access to this user (403): log in with --user as one who may read it"
        location = answer.headers.get("location")
        if 300 <= answer.status < 400 and location:
            target = to_short_line(base_of_redirect(location))
            return f"{self.url} redirects to {target}: give that URL as {self.flag}"
        if answer.status == 404:
            return self._describe_not_found()
        if answer.status == 400 and not self._secure:
            return f"{self.url} rejects the request (400): try https:// in {self.flag}"
        _, message = json_error(answer.body)
        to = f" to {self.page}" if self.page else ""
        if not message and (answer.status == 429 or answer.status >= 500):
            message = "try again later, and check its log, and that of a proxy in between"
        return f"{self.url} answers {answer.status}{to}: {message or self.advice}"

    def _describe_not_found(self) -> str:
        """A node without the web API, an older version, or a wrong path: the metrics page shows which."""
        with suppress(GpuledgerError):
            answer = self._get("/metrics/native", {})
            found = re.search(rb'^gpuledger_build_info\{[^}]*version="([^"]*)"', answer.body, re.MULTILINE)
            if answer.status == 200 and found:
                version = to_short_line(found[1].decode("utf-8", "replace"))
                return (
                    f"{self.url} is a gpuledger ({version}) that does not serve the web API: set web.page to"
                    " full there (gpuledger serve --web.page full), or upgrade it"
                )
        if self._base:
            return f"there is no gpuledger at {self.url}: give --url without a path, such as http://node:9400"
        return f"{self.url} answers, but not as a gpuledger: {self.advice}"

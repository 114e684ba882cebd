"""Asking a node's API over HTTP: one connection kept open, and errors in one line that name the remedy."""

from __future__ import annotations

import base64
import json
import re
import ssl
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import quote, unquote

from gpuledger import __version__
from gpuledger.http.blocking_client import one_line, split_url
from gpuledger.http.openssl import reason_of
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.text import host_and_port

SNAPSHOT = "/api/v1/snapshot"
# Some ten thousand processes.
_MOST = 64 << 20
_PIECE = 64 << 10
_PLAIN = "/%:@!$&'()*+,;=~"
_ADVICE = "is gpuledger serve running there, on that port?"


@dataclass(frozen=True, slots=True)
class Access:
    """How one gets in. Files are paths, empty for none; the URL's own user and password come first."""

    user: str = ""
    password_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class NodeApi:
    """The API of one node. `timeout` is seconds for each answer. Not for two threads at once."""

    def __init__(self, url: str, access: Access, timeout: float = 10.0) -> None:
        """Raises UsageError for what is no URL and for files that cannot be read."""
        parts = split_url(url, "--url", "http://node:9400")
        self._secure = parts.scheme == "https"
        self.host, self._port = parts.hostname or "", parts.port or (443 if self._secure else 80)
        self._base = quote(parts.path.rstrip("/"), safe=_PLAIN)
        if parts.port is None and "://" not in url:
            # Who leaves out the scheme means a node, and a node is on this port.
            self._port = 9400
        self.url = f"{parts.scheme}://{host_and_port(self.host, self._port)}{self._base}"
        self._headers = {"User-Agent": f"gpuledger/{__version__}", "Accept-Encoding": "gzip"}
        pair = _credentials(parts.username, parts.password, access)
        if pair is not None:
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        self._context = _context(access) if self._secure else None
        self._timeout = timeout
        self._connection: HTTPConnection | None = None
        self._etag = ""
        self._newest: Mapping[str, Any] = {}

    def snapshot(self) -> Mapping[str, Any]:
        """What is now. Raises GpuledgerError in one line when it cannot be had."""
        answer = self._get(SNAPSHOT, {"If-None-Match": self._etag} if self._etag else {})
        if answer.status == 304 and self._newest:
            return self._newest
        if answer.status != 200:
            raise self._refused(answer)
        try:
            found = json.loads(answer.body)
        except (ValueError, RecursionError):
            raise GpuledgerError(
                f"{self.url} is not a gpuledger: it answers {SNAPSHOT} without JSON"
            ) from None
        if not isinstance(found, dict):
            raise GpuledgerError(f"{self.url} is not a gpuledger: it answers {SNAPSHOT} with no object")
        self._newest, self._etag = found, answer.headers.get("etag", "")
        return found

    def close(self) -> None:
        """End the connection. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _get(self, path: str, headers: Mapping[str, str]) -> _Answer:
        kept = self._connection is not None
        try:
            try:
                return self._exchange(path, headers)
            except (ConnectionError, HTTPException):
                # A connection that was kept may have been closed meanwhile: that says nothing of the node.
                if not kept:
                    raise
                self.close()
                return self._exchange(path, headers)
        except (OSError, HTTPException, zlib.error, EOFError, ValueError) as error:
            self.close()
            raise GpuledgerError(self._trouble(error)) from None

    def _exchange(self, path: str, headers: Mapping[str, str]) -> _Answer:
        if self._connection is None:
            self._connection = (
                HTTPConnection(self.host, self._port, timeout=self._timeout)
                if self._context is None
                else HTTPSConnection(self.host, self._port, timeout=self._timeout, context=self._context)
            )
        until = monotonic() + self._timeout
        self._connection.request("GET", self._base + path, headers={**self._headers, **headers})
        with self._connection.getresponse() as response:
            body = _bounded(response, until)
            told = {name.lower(): value for name, value in response.getheaders()}
        if told.get("content-encoding") == "gzip":
            body = _unpacked(body)
        return _Answer(response.status, told, body)

    def _trouble(self, error: Exception) -> str:
        if isinstance(error, ssl.SSLCertVerificationError):
            why = one_line(error.verify_message or error)
            return (
                f"the certificate of {self.url} is not trusted ({why}): name the authority that signed it"
                " with --ca-file"
            )
        if isinstance(error, ssl.SSLError):
            reason = reason_of(error, str(error))
            if "wrong version number" in reason or "record layer" in reason:
                return f"{self.url} does not speak TLS: try http:// in --url"
            return f"{self.url} and this top find no common TLS ({one_line(reason)})" + (
                "" if "certificate" not in reason else ": give a certificate with --cert-file"
            )
        if isinstance(error, TimeoutError):
            return f"{self.url} did not answer within {self._timeout:g} s: {_ADVICE}"
        if isinstance(error, HTTPException):
            return (
                f"{self.url} does not speak HTTP: {'try https:// in --url' if not self._secure else _ADVICE}"
            )
        if isinstance(error, OSError):
            return f"{self.url} cannot be reached ({one_line(error.strerror or error)}): {_ADVICE}"
        return f"{self.url} answers what cannot be read: {one_line(error)}"

    def _refused(self, answer: _Answer) -> GpuledgerError:
        if answer.status == 401:
            return GpuledgerError(
                f"{self.url} wants to know who asks: give --user and --password-file, or user:password@ in"
                " --url"
            )
        if answer.status == 403:
            return GpuledgerError(f"{self.url} does not let this user in (403)")
        location = answer.headers.get("location")
        if 300 <= answer.status < 400 and location:
            return GpuledgerError(f"{self.url} sends elsewhere, to {one_line(location)}: name that as --url")
        if answer.status == 404:
            return GpuledgerError(self._not_there())
        if answer.status == 400 and not self._secure:
            return GpuledgerError(f"{self.url} does not understand the request (400): is it https://?")
        return GpuledgerError(f"{self.url} answers {answer.status} to {SNAPSHOT}{_message(answer)}")

    def _not_there(self) -> str:
        """A node that shows no page, an older one, or a wrong path: the metrics tell which."""
        with suppress(GpuledgerError):
            answer = self._get("/metrics/native", {})
            found = re.search(rb'^gpuledger_build_info\{[^}]*version="([^"]*)"', answer.body, re.MULTILINE)
            if answer.status == 200 and found:
                version = one_line(found[1].decode("utf-8", "replace"))
                return (
                    f"{self.url} is a gpuledger ({version}) that does not show who is on its GPUs: set"
                    " web.page to full there (gpuledger serve --web.page full), or bring it up to date"
                )
        if self._base:
            return f"there is no gpuledger at {self.url}: give --url without a path, such as http://node:9400"
        return f"{self.url} answers, but is no gpuledger that top knows: {_ADVICE}"


def _message(answer: _Answer) -> str:
    with suppress(ValueError, LookupError, TypeError):
        return f": {one_line(json.loads(answer.body)['error']['message'])}"
    return ""


def _bounded(response: HTTPResponse, until: float) -> bytes:
    """The body, if it has come by then (monotonic seconds): the socket's own limit is for each packet."""
    body = bytearray()
    while part := response.read1(_PIECE):
        body += part
        if len(body) > _MOST:
            raise ValueError(f"more than {_MOST >> 20} MiB")
        if monotonic() > until:
            raise TimeoutError
    if response.length:
        raise IncompleteRead(bytes(body), response.length)
    return bytes(body)


def _unpacked(body: bytes) -> bytes:
    unzip = zlib.decompressobj(zlib.MAX_WBITS | 16)
    text = unzip.decompress(body, _MOST)
    if unzip.unconsumed_tail:
        raise ValueError(f"more than {_MOST >> 20} MiB")
    if not unzip.eof:
        raise EOFError("the end is missing")
    return text


def _credentials(user: str | None, password: str | None, access: Access) -> str | None:
    if user is not None:
        return f"{unquote(user)}:{unquote(password or '')}"
    if not access.user:
        if access.password_file:
            raise UsageError("--password-file: whose password is it? give --user too")
        return None
    if not access.password_file:
        raise UsageError("--user: give the file that holds the password with --password-file")
    try:
        secret = Path(access.password_file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"--password-file: cannot read {access.password_file}: {why}") from None
    return f"{access.user}:{secret}"


def _context(access: Access) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=access.ca_file or None)
    except (OSError, ssl.SSLError) as error:
        why = one_line(error.strerror or "no certificate is in it")
        raise UsageError(f"--ca-file: cannot use {access.ca_file}: {why}") from None
    if access.key_file and not access.cert_file:
        raise UsageError("--key-file: give the certificate too, with --cert-file")
    if access.cert_file:
        try:
            context.load_cert_chain(access.cert_file, access.key_file or None)
        except (OSError, ssl.SSLError) as error:
            why = one_line(error.strerror or error)
            raise UsageError(f"--cert-file: cannot use {access.cert_file} with its key: {why}") from None
    return context

"""A client of the Prometheus HTTP API: instant queries; its errors are one line with the remedy."""

from __future__ import annotations

import json
import re
import ssl
import zlib
from collections.abc import Callable, Sequence
from email.message import Message
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPResponse, HTTPSConnection
from io import BufferedReader, RawIOBase
from math import isfinite
from socket import socket
from sys import intern
from time import monotonic
from typing import IO, Any, NoReturn, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlencode, urlunsplit
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    Request,
    build_opener,
    getproxies,
    proxy_bypass,
)

from gpuledger.http.client_messages import basic_authorization
from gpuledger.http.hosts import base_of_redirect, parse_http_url
from gpuledger.http.openssl import NOT_TLS, certificate_remedy, ssl_reason
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.text import to_short_line

Labels = dict[str, str]
T = TypeVar("T")
# Bytes of one response: some million series.
_MAX_BODY = 512 << 20
# Seconds that a response may take longer than the timeout that Prometheus is sent: it reports that, too.
_GRACE = 5.0
# No counter of joules or seconds reaches this value; larger samples are dropped.
_MAX_VALUE = 1e18
_START = "start it there, or correct the URL of --prometheus"
_CORRECT_URL = "correct the URL of --prometheus"
_CHECK_LOAD = "check its load, or query a shorter range"
_CHECK_LOG = "check its log, and that of a proxy in between"
_REPEAT = "repeat it when its stores are back: amounts would be too low"
# HTTP statuses of a request that is not understood, and of servers that have no answer now.
_BAD, _TOO_MANY, _SERVER_ERROR = 400, 429, 500
# Warnings about the query, and of Thanos about a time for which it has no store. All others say that an
# answer lacks data: Thanos and remote read send them in place of an error.
_HARMLESS = ("PromQL ", "No StoreAPIs matched")
# Exceptions raised while parsing a body that is not a response of the API.
_NOT_PROMETHEUS = (
    *(ValueError, LookupError, TypeError, AttributeError, OverflowError, EOFError, RecursionError),
    zlib.error,
)
# Characters of a header name (RFC 9110, token), and those of a URL path that need no quoting.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PLAIN = "/%:@!$&'()*+,;=~?"


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirects: credentials are for this server only, and a redirected POST loses its query."""

    def http_error_302(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage
    ) -> NoReturn:
        """Raises HTTPError without parsing the Location, which may be malformed."""
        raise HTTPError(req.full_url, code, msg, headers, fp)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


class _DeadlineReader(RawIOBase):
    """What a socket receives until a monotonic second; then, TimeoutError is raised.

    The timeout of a socket is per packet: a server that sends a byte a second would never reach it.
    """

    def __init__(self, received: BufferedReader, connected: socket, until: float) -> None:
        super().__init__()
        self._received, self._connected, self._until = received, connected, until

    def readable(self) -> bool:
        """See RawIOBase."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """See RawIOBase."""
        left = self._until - monotonic()
        if left <= 0:
            raise TimeoutError
        self._connected.settimeout(left)
        # At most one packet.
        data = self._received.read1(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """See RawIOBase."""
        self._received.close()
        super().close()


class _Response(HTTPResponse):
    """A response of which head and body must arrive within the timeout of the socket together."""

    def __init__(self, connected: socket, *arguments: Any, **named: Any) -> None:
        super().__init__(connected, *arguments, **named)
        until = monotonic() + (connected.gettimeout() or 0.0)
        self.fp = BufferedReader(_DeadlineReader(self.fp, connected, until))


class _Connection(HTTPConnection):
    response_class = _Response


class _SecureConnection(HTTPSConnection):
    response_class = _Response


class _HttpHandler(HTTPHandler):
    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_Connection, req)


class _HttpsHandler(HTTPSHandler):
    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_SecureConnection, req)


class PrometheusClient:
    """Queries the HTTP API v1 at a URL. `timeout` is seconds per query, `max_body` bytes per response.

    A whole response takes at most _GRACE longer than `timeout`.
    """

    def __init__(
        self, url: str, headers: Sequence[str] = (), timeout: float = 120.0, max_body: int = _MAX_BODY
    ) -> None:
        """`user:password@` in the URL is basic auth; `headers` are texts such as `X-Scope-OrgID: team`.

        Raises UsageError for a malformed URL or header.
        """
        parts = parse_http_url(url, "--prometheus", "http://prometheus:9090")
        self.host = parts.hostname or ""
        host = parts.netloc.rpartition("@")[2]
        path = quote(parts.path.rstrip("/"), safe=_PLAIN)
        self.url = urlunsplit((parts.scheme, host, path, "", ""))
        self._url_query = quote(parts.query, safe=_PLAIN)
        self._timeout, self._max_body = timeout, max_body
        self._headers = dict(_header(text) for text in headers)
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = basic_authorization(pair)
        self._opener = build_opener(_HttpHandler, _HttpsHandler, _NoRedirects)

    def query_vector(self, query: str, at: float) -> list[tuple[Labels, float]]:
        """The finite samples of an instant vector at a time in unix seconds. Raises GpuledgerError."""

        def sample(row: Any) -> tuple[Labels, float]:
            return _labels(row), float(row["value"][1])

        found = self._query(query, at, sample)
        return [(labels, value) for labels, value in found if isfinite(value) and abs(value) < _MAX_VALUE]

    def query_sample_times(self, query: str, at: float) -> list[tuple[Labels, list[float]]]:
        """The timestamps, in unix seconds, of the samples of a range vector. Raises GpuledgerError."""

        def timestamps(row: Any) -> tuple[Labels, list[float]]:
            return _labels(row), [float(time) for time, _ in row["values"]]

        found = self._query(query, at, timestamps)
        return [(labels, [time for time in times if abs(time) < _MAX_VALUE]) for labels, times in found]

    def _query(self, query: str, at: float, parse_row: Callable[[Any], T]) -> list[T]:
        form = {"query": query, "time": f"{at:.3f}", "timeout": f"{self._timeout:g}s"}
        path = "/api/v1/query" + (f"?{self._url_query}" if self._url_query else "")
        headers = {"User-Agent": "gpuledger", **self._headers, "Accept-Encoding": "gzip"}
        try:
            request = Request(self.url + path, urlencode(form).encode(), headers)
            status, received, body = self._exchange(request)
        except URLError as error:
            raise self._unreachable(error.reason) from None
        except TimeoutError:
            raise self._failed(f"did not answer within {self._timeout:g} s", _CHECK_LOAD) from None
        except (OSError, HTTPException) as error:
            raise self._failed(f"broke the connection ({to_short_line(error)})", _CHECK_LOG) from None
        except (ValueError, OverflowError) as error:
            # An invalid host name, an invalid proxy URL, or an invalid query.
            raise self._failed(f"cannot be queried ({to_short_line(error)})", _CORRECT_URL) from None
        return self._parse(status, received, body, parse_row)

    def _unreachable(self, reason: object) -> GpuledgerError:
        if isinstance(reason, ssl.SSLCertVerificationError):
            why = to_short_line(reason.verify_message or reason)
            remedy = certificate_remedy(reason, "set SSL_CERT_FILE to the certificate of its CA")
            return self._failed(f"has a certificate that is not trusted ({why})", remedy)
        if isinstance(reason, ssl.SSLError):
            why = ssl_reason(reason, str(reason))
            if why in NOT_TLS:
                return self._failed("does not speak TLS", "try http:// in --prometheus")
            return self._failed(f"refuses the TLS handshake ({to_short_line(why)})", _CHECK_LOG)
        why = to_short_line(getattr(reason, "strerror", None) or reason)
        scheme = self.url.partition(":")[0]
        if scheme in getproxies() and not proxy_bypass(self.host):
            remedy = f"correct {scheme}_proxy in the environment, or add the host to no_proxy"
            return self._failed(f"cannot be reached through a proxy ({why})", remedy)
        return self._failed(f"cannot be reached ({why})", _START)

    def _failed(self, why: str, remedy: str) -> GpuledgerError:
        return GpuledgerError(f"Prometheus at {self.url} {why}; {remedy}")

    def _exchange(self, request: Request) -> tuple[int, Message, bytes]:
        answer: HTTPResponse | HTTPError
        try:
            answer = self._opener.open(request, timeout=self._timeout + _GRACE)
        except HTTPError as error:
            answer = error
        with answer:
            return answer.status or 0, answer.headers, self._read_body(answer)

    def _read_body(self, answer: HTTPResponse | HTTPError) -> bytes:
        body = answer.read(self._max_body + 1)
        if len(body) > self._max_body:
            raise self._too_large()
        promised = answer.headers.get("Content-Length", "")
        if promised.isdecimal() and len(body) < int(promised):
            raise HTTPException(f"received {len(body)} of {promised} bytes")
        return body

    def _too_large(self) -> GpuledgerError:
        return GpuledgerError(
            f"Prometheus at {self.url} answers one query with more than {self._max_body >> 20} MiB; report a"
            " part of the fleet with --prometheus.match"
        )

    def _decompress(self, body: bytes) -> bytes:
        unzip = zlib.decompressobj(zlib.MAX_WBITS | 16)
        text = unzip.decompress(body, self._max_body)
        if unzip.unconsumed_tail:
            raise self._too_large()
        if not unzip.eof:
            raise EOFError
        return text

    def _parse(self, status: int, headers: Message, body: bytes, parse_row: Callable[[Any], T]) -> list[T]:
        if status in (401, 403):
            raise GpuledgerError(
                f"Prometheus at {self.url} denies access ({status}); give user:password@ in the URL, or "
                "--prometheus.header 'Authorization: Bearer TOKEN'"
            )
        location = headers.get("Location")
        if 300 <= status < 400 and location:
            raise GpuledgerError(
                f"{self.url} redirects to {to_short_line(base_of_redirect(location))}; give that URL as "
                "--prometheus"
            )
        try:
            answer = json.loads(self._decompress(body) if headers.get("Content-Encoding") == "gzip" else body)
            if answer["status"] == "success":
                missing = _missing_part(answer)
                rows = [parse_row(row) for row in answer["data"]["result"]]
                if missing:
                    raise self._failed(f"has only a part of the data: {to_short_line(missing)}", _REPEAT)
                return rows
            reason = f"{answer.get('errorType', 'error')}: {answer['error']}"
        except _NOT_PROMETHEUS:
            if status == _TOO_MANY or status >= _SERVER_ERROR:
                # Of Prometheus while it starts, or of a proxy before it.
                raise self._failed(f"answers {status}", f"try again later, and {_CHECK_LOG}") from None
            # A server with TLS answers a request without it by 400.
            plain = status == _BAD and self.url.startswith("http:")
            raise GpuledgerError(
                f"{self.url} is not a Prometheus: its answer ({status}) to /api/v1/query is malformed; "
                + ("try https:// in --prometheus" if plain else _CORRECT_URL)
            ) from None
        # The only part of a query that a user writes.
        remedy = "check --prometheus.match and --tokens.match" if "parse error" in reason else _CHECK_LOG
        raise self._failed(f"rejects the query: {to_short_line(reason)}", remedy)


def _missing_part(answer: Any) -> str:
    """Why a successful answer lacks data; empty if it does not. VictoriaMetrics says `isPartial`."""
    found = [str(one) for one in answer.get("warnings") or () if not str(one).startswith(_HARMLESS)]
    return found[0] if found else "isPartial" if answer.get("isPartial") is True else ""


def _header(text: str) -> tuple[str, str]:
    name, _, value = (part.strip() for part in text.partition(":"))
    # Headers that urllib sets itself.
    own = name.lower() in ("content-length", "transfer-encoding", "connection")
    sendable = all(sign.isprintable() and sign <= "\xff" for sign in text)
    if not _TOKEN.fullmatch(name) or own or not value or not sendable:
        raise UsageError("--prometheus.header: expected a header such as 'Authorization: Bearer TOKEN'")
    return name, value


def _labels(row: Any) -> Labels:
    # A report holds dozens of answers about the same series: it needs each text once. Others raise TypeError.
    return {name: intern(value) for name, value in row["metric"].items()}

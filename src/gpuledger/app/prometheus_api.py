"""Asking a Prometheus, or what answers like one: instant queries over HTTP, and errors in one line."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable, Sequence
from email.message import Message
from http.client import HTTPException, HTTPMessage, HTTPResponse
from math import isfinite
from typing import IO, Any, NoReturn, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlencode, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from gpuledger.http.blocking_client import one_line, split_url
from gpuledger.model.errors import GpuledgerError, UsageError

Labels = dict[str, str]
T = TypeVar("T")
# Bytes of one answer: some million series.
_MOST = 512 << 20
# No counter of joules or seconds reaches it; what is above is not a number that one can add up.
_BEYOND = 1e18
# What bytes that are no answer of its API raise, wherever they stop being one.
_NOT_PROMETHEUS = (
    *(ValueError, LookupError, TypeError, AttributeError, OverflowError, EOFError, RecursionError),
    zlib.error,
)
# What a header's name may consist of (RFC 9110, token), and what a URL's path may without being quoted.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PLAIN = "/%:@!$&'()*+,;=~?"


class _Stay(HTTPRedirectHandler):
    """Credentials are for the server that was named; and a redirected POST would lose its query."""

    def http_error_302(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage
    ) -> NoReturn:
        """Raises HTTPError; where to is not even looked at, it may be no URL."""
        raise HTTPError(req.full_url, code, msg, headers, fp)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


class Prometheus:
    """An HTTP API v1 at a URL. `timeout` is seconds for each query, `most` bytes for each answer."""

    def __init__(
        self, url: str, headers: Sequence[str] = (), timeout: float = 120.0, most: int = _MOST
    ) -> None:
        """`user:password@` in the URL is basic auth; `headers` are texts such as `X-Scope-OrgID: team`.

        Raises UsageError for what is no URL or no header.
        """
        parts = split_url(url, "--prometheus", "http://prometheus:9090")
        self.host = parts.hostname or ""
        host = parts.netloc.rpartition("@")[2]
        path = quote(parts.path.rstrip("/"), safe=_PLAIN)
        self.url = urlunsplit((parts.scheme, host, path, "", ""))
        self._query = quote(parts.query, safe=_PLAIN)
        self._timeout, self._most = timeout, most
        self._headers = dict(_header(text) for text in headers)
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        self._opener = build_opener(_Stay)

    def vector(self, query: str, at: float) -> list[tuple[Labels, float]]:
        """The samples of an instant vector at a moment (unix seconds), but for those that are no numbers.
        Raises GpuledgerError.
        """

        def sample(one: Any) -> tuple[Labels, float]:
            return _labels(one), float(one["value"][1])

        found = self._ask(query, at, sample)
        return [(labels, value) for labels, value in found if isfinite(value) and abs(value) < _BEYOND]

    def matrix(self, query: str, at: float) -> list[tuple[Labels, list[float]]]:
        """When the samples of a range vector were taken, in unix seconds. Raises GpuledgerError."""

        def times(one: Any) -> tuple[Labels, list[float]]:
            return _labels(one), [float(time) for time, _ in one["values"]]

        found = self._ask(query, at, times)
        return [(labels, [time for time in told if abs(time) < _BEYOND]) for labels, told in found]

    def _ask(self, query: str, at: float, reads: Callable[[Any], T]) -> list[T]:
        form = {"query": query, "time": f"{at:.3f}", "timeout": f"{self._timeout:g}s"}
        path = "/api/v1/query" + (f"?{self._query}" if self._query else "")
        headers = {"User-Agent": "gpuledger", **self._headers, "Accept-Encoding": "gzip"}
        try:
            request = Request(self.url + path, urlencode(form).encode(), headers)
            status, told, body = self._exchange(request)
        except URLError as error:
            reason = getattr(error.reason, "strerror", None) or error.reason
            raise GpuledgerError(f"Prometheus at {self.url} cannot be reached: {one_line(reason)}") from None
        except TimeoutError:
            raise GpuledgerError(
                f"Prometheus at {self.url} did not answer within {self._timeout:g} s"
            ) from None
        except (OSError, HTTPException) as error:
            raise GpuledgerError(f"Prometheus at {self.url} broke off: {one_line(error)}") from None
        except (ValueError, OverflowError) as error:
            # A host that is no name, a proxy that is no URL, a query that is no text.
            raise GpuledgerError(f"Prometheus at {self.url} cannot be asked: {one_line(error)}") from None
        return self._read(status, told, body, reads)

    def _exchange(self, request: Request) -> tuple[int, Message, bytes]:
        answer: HTTPResponse | HTTPError
        try:
            answer = self._opener.open(request, timeout=self._timeout + 5)
        except HTTPError as error:
            answer = error
        with answer:
            return answer.status or 0, answer.headers, self._bounded(answer)

    def _bounded(self, answer: HTTPResponse | HTTPError) -> bytes:
        body = answer.read(self._most + 1)
        if len(body) > self._most:
            raise self._too_much()
        promised = answer.headers.get("Content-Length", "")
        if promised.isdecimal() and len(body) < int(promised):
            raise HTTPException(f"{len(body)} of {promised} bytes came")
        return body

    def _too_much(self) -> GpuledgerError:
        return GpuledgerError(
            f"Prometheus at {self.url} answers more than {self._most >> 20} MiB to one query: ask for a part "
            "of the fleet with --prometheus.match"
        )

    def _unpacked(self, body: bytes) -> bytes:
        unzip = zlib.decompressobj(zlib.MAX_WBITS | 16)
        text = unzip.decompress(body, self._most)
        if unzip.unconsumed_tail:
            raise self._too_much()
        if not unzip.eof:
            raise EOFError
        return text

    def _read(self, status: int, headers: Message, body: bytes, reads: Callable[[Any], T]) -> list[T]:
        if status in (401, 403):
            raise GpuledgerError(
                f"Prometheus at {self.url} refuses ({status}): give user:password@ in the URL, or "
                "--prometheus.header 'Authorization: Bearer TOKEN'"
            )
        location = headers.get("Location")
        if 300 <= status < 400 and location:
            raise GpuledgerError(
                f"{self.url} sends elsewhere, to {one_line(location)}: name that as --prometheus"
            )
        try:
            answer = json.loads(self._unpacked(body) if headers.get("Content-Encoding") == "gzip" else body)
            if answer["status"] == "success":
                return [reads(one) for one in answer["data"]["result"]]
            reason = f"{answer.get('errorType', 'error')}: {answer['error']}"
        except _NOT_PROMETHEUS:
            raise GpuledgerError(
                f"{self.url} is not a Prometheus: it answers {status} to /api/v1/query without what one says"
            ) from None
        raise GpuledgerError(f"Prometheus at {self.url} answers {one_line(reason)}")


def _header(text: str) -> tuple[str, str]:
    name, _, value = (part.strip() for part in text.partition(":"))
    # One that the connection itself needs would break it.
    own = name.lower() in ("content-length", "transfer-encoding", "connection")
    if not _TOKEN.fullmatch(name) or own or not value or not _sendable(text):
        raise UsageError("--prometheus.header: a header such as 'Authorization: Bearer TOKEN' is wanted")
    return name, value


def _sendable(text: str) -> bool:
    return all(sign.isprintable() and sign <= "\xff" for sign in text)


def _labels(one: Any) -> Labels:
    labels = one["metric"]
    if not all(isinstance(value, str) for value in labels.values()):
        raise TypeError
    return dict(labels)

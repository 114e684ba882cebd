"""Asking a Prometheus, or what answers like one: instant queries over HTTP, and errors in one line."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Sequence
from email.message import Message
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlencode, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from gpuledger.model.errors import GpuledgerError, UsageError

Labels = dict[str, str]
_LONGEST = 300


class _Stay(HTTPRedirectHandler):
    """Credentials are for the server that was named; and a redirected POST would lose its query."""

    def redirect_request(self, *_: object) -> None:
        return None


class Prometheus:
    """An HTTP API v1 at a URL. `timeout` is seconds for each query."""

    def __init__(self, url: str, headers: Sequence[str] = (), timeout: float = 120.0) -> None:
        """`user:password@` in the URL is basic auth; `headers` are texts such as `X-Scope-OrgID: team`.

        Raises UsageError for what is no URL or no header.
        """
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--prometheus: a URL such as http://prometheus:9090 is wanted, not '{url}'")
        self.host = parts.hostname
        host = parts.netloc.rpartition("@")[2]
        self.url = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._query = parts.query
        self._timeout = timeout
        self._headers = dict(_header(text) for text in headers)
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        self._opener = build_opener(_Stay)

    def vector(self, query: str, at: float) -> list[tuple[Labels, float]]:
        """The samples of an instant vector at a moment (unix seconds). Raises GpuledgerError."""
        return [(one["metric"], float(one["value"][1])) for one in self._ask(query, at)]

    def matrix(self, query: str, at: float) -> list[tuple[Labels, list[float]]]:
        """When the samples of a range vector were taken, in unix seconds. Raises GpuledgerError."""
        return [(one["metric"], [float(time) for time, _ in one["values"]]) for one in self._ask(query, at)]

    def _ask(self, query: str, at: float) -> list[Any]:
        form = {"query": query, "time": f"{at:.3f}", "timeout": f"{self._timeout:g}s"}
        path = "/api/v1/query" + (f"?{self._query}" if self._query else "")
        headers = {"Accept-Encoding": "gzip", "User-Agent": "gpuledger", **self._headers}
        request = Request(self.url + path, urlencode(form).encode(), headers)
        try:
            with self._opener.open(request, timeout=self._timeout + 5) as answer:
                return self._read(answer.status, answer.headers, answer.read())
        except HTTPError as error:
            with error:
                return self._read(error.code, error.headers, error.read())
        except URLError as error:
            reason = getattr(error.reason, "strerror", None) or error.reason
            raise GpuledgerError(f"Prometheus at {self.url} cannot be reached: {reason}") from None
        except TimeoutError:
            raise GpuledgerError(
                f"Prometheus at {self.url} did not answer within {self._timeout:g} s"
            ) from None
        except (OSError, HTTPException) as error:
            raise GpuledgerError(f"Prometheus at {self.url} broke off: {error}") from None

    def _read(self, status: int, headers: Message, body: bytes) -> list[Any]:
        if status in (401, 403):
            raise GpuledgerError(
                f"Prometheus at {self.url} refuses ({status}): give user:password@ in the URL, or "
                "--prometheus.header 'Authorization: Bearer TOKEN'"
            )
        if 300 <= status < 400:
            raise GpuledgerError(
                f"{self.url} sends elsewhere, to {headers.get('Location')}: name that as --prometheus"
            )
        try:
            text = gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body
            answer = json.loads(text)
            if answer["status"] == "success":
                return list(answer["data"]["result"])
            reason = f"{answer.get('errorType', 'error')}: {answer['error']}"
        except (ValueError, KeyError, TypeError, EOFError, OSError, zlib.error):
            raise GpuledgerError(
                f"{self.url} is not a Prometheus: it answers {status} to /api/v1/query without what one says"
            ) from None
        raise GpuledgerError(f"Prometheus at {self.url} answers {' '.join(reason.split())[:_LONGEST]}")


def _header(text: str) -> tuple[str, str]:
    name, colon, value = (part.strip() for part in text.partition(":"))
    if not colon or not name or not value or any(sign in text for sign in "\r\n") or " " in name:
        raise UsageError("--prometheus.header: a header such as 'Authorization: Bearer TOKEN' is wanted")
    return name, value

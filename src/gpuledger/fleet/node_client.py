"""Asynchronous requests to the API of one node, and the credentials that all nodes share."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuledger import __version__
from gpuledger.fleet.node_address import NodeAddress
from gpuledger.host.files import file_signature
from gpuledger.http.async_client import HttpClient
from gpuledger.http.client_access import ClientAccessSettings, create_client_context, find_login
from gpuledger.http.client_messages import (
    HttpRequestFailed,
    HttpResponse,
    basic_authorization,
    encode_request,
    json_error,
)
from gpuledger.http.hosts import base_of_redirect, host_field
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import join_host_port, to_short_line

if TYPE_CHECKING:
    from ssl import SSLContext

_LOG = logging.getLogger("gpuledger.fleet")

# Bytes of an answer as sent, and decompressed: a node with some thousand processes.
MOST_SENT: Final = 4 << 20
MOST_DECODED: Final = 8 << 20
# Bytes of an error.
_LONGEST_ERROR: Final = 64 * 1024
# Kind of the failure, and code of the node's error, for a range in which it read no GPU.
NOT_WATCHED: Final = "not_watched"
# Servers close idle connections after minutes; a router in between can do so earlier.
_MAX_IDLE: Final = 60.0


class NodeRequestFailed(GpuledgerError):
    """A node gave no usable answer. `kind` is a short, stable code; the text says why, in one line."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


class NodeCredentials:
    """The login and the TLS context for all nodes. Raises UsageError for files that cannot be used.

    `generation` changes with the files.
    """

    def __init__(self, access: ClientAccessSettings) -> None:
        self._access = access
        self._files = [
            Path(name)
            for name in (access.password_file, access.ca_file, access.cert_file, access.key_file)
            if name
        ]
        self.generation = 0
        self.error = ""
        self._signatures = self._current_signatures()
        self._login = find_login(None, None, access)
        # A file that cannot be used is an error at the start; without files, TLS is set up when it is needed.
        self._context: SSLContext | None = create_client_context(access) if self._needs_context else None

    @property
    def _needs_context(self) -> bool:
        return bool(self._access.ca_file or self._access.cert_file or self._access.key_file)

    @property
    def context(self) -> SSLContext:
        """The context for nodes with https."""
        if self._context is None:
            self._context = create_client_context(self._access)
        return self._context

    def login_header(self, address: NodeAddress, *, is_node: bool = True) -> tuple[tuple[str, str], ...]:
        """The header with the login of a node, if it has one; of another server only that of its URL."""
        pair = address.login or (self._login if is_node else "")
        if not pair:
            return ()
        return (("Authorization", basic_authorization(pair)),)

    def reload(self) -> None:
        """Read changed files again; those that cannot be used leave the previous ones in force."""
        signatures = self._current_signatures()
        if signatures == self._signatures:
            return
        self._signatures = signatures
        try:
            login = find_login(None, None, self._access)
            context = create_client_context(self._access) if self._context is not None else None
        except GpuledgerError as error:
            self.error = str(error)
            _LOG.error("%s; the previous credentials remain in force", error)
            return
        self._login, self._context, self.error = login, context, ""
        self.generation += 1

    def _current_signatures(self) -> list[object]:
        return [file_signature(file) for file in self._files]


class NodeClient:
    """The client of one node, on the event loop's thread. `timeout` is of a whole answer, in seconds.

    `is_node` is False for a server with a list of nodes: it does not get the login of all nodes.
    """

    is_node = True

    def __init__(self, address: NodeAddress, credentials: NodeCredentials, timeout: float) -> None:
        self.address = address
        self._credentials = credentials
        self._timeout = timeout
        self._client: HttpClient | None = None
        self._generation = -1

    async def request(
        self, path: str, headers: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> HttpResponse:
        """The answer of the node, with status 200 or 304. Raises NodeRequestFailed.

        Redirects are not followed: the login would go to another server.
        """
        limit = self._timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(limit):
                response = await self._current_client().exchange(self.encode_request(path, headers))
        except TimeoutError:
            raise NodeRequestFailed(f"no complete answer within {limit:g} s", "slow") from None
        except HttpRequestFailed as error:
            raise NodeRequestFailed(str(error), error.kind) from None
        except GpuledgerError as error:
            raise NodeRequestFailed(str(error), "credentials") from None
        if response.status not in (200, 304):
            raise NodeRequestFailed(*describe_refusal(response))
        return response

    async def request_json(self, path: str, timeout: float | None = None) -> object:
        """The decoded JSON of an answer. Raises NodeRequestFailed."""
        return decode_json(await self.request(path, timeout=timeout))

    def encode_request(self, path: str, headers: Mapping[str, str] | None = None) -> bytes:
        """A GET of this path below the node's URL."""
        address = self.address
        sent = (
            ("Host", host_field(join_host_port(address.host, address.port))),
            ("User-Agent", f"gpuledger-fleet/{__version__}"),
            ("Accept-Encoding", "gzip"),
            *self._credentials.login_header(address, is_node=self.is_node),
            *(headers or {}).items(),
        )
        return encode_request("GET", f"{address.path}{path}", sent)

    async def open_stream(self, limit: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A new connection for a long answer; `limit` is the reader's. Raises OSError and UnicodeError."""
        address, context = self.address, self.context
        name = address.host if context is not None else None
        return await asyncio.open_connection(
            address.host, address.port, ssl=context, server_hostname=name, limit=limit
        )

    @property
    def context(self) -> SSLContext | None:
        """The TLS context of the node's scheme."""
        return self._credentials.context if self.address.scheme == "https" else None

    def close(self) -> None:
        """Close the connection. Idempotent."""
        closing, self._client = self._client, None
        if closing is not None:
            closing.close()

    def _current_client(self) -> HttpClient:
        if self._client is None or self._generation != self._credentials.generation:
            self.close()
            self._generation = self._credentials.generation
            self._client = HttpClient(
                self.address.host,
                self.address.port,
                self.context,
                body_limit=MOST_SENT,
                max_idle=_MAX_IDLE,
            )
        return self._client


def decode_json(response: HttpResponse, most: int = MOST_DECODED) -> object:
    """The JSON of an answer. Raises NodeRequestFailed."""
    try:
        return json.loads(response.decoded_body(most))
    except HttpRequestFailed as error:
        raise NodeRequestFailed(str(error), error.kind) from None
    except (ValueError, RecursionError):
        raise NodeRequestFailed("the answer is not JSON: is this a gpuledger?", "foreign") from None


def describe_refusal(response: HttpResponse) -> tuple[str, str]:
    """Why a node refused a request, in one line with the remedy, and the kind of the failure."""
    status, location = response.status, response.headers.get("location")
    if status == 401:
        return "the node requires a login (401): check --user and --password-file", "login"
    if status == 403:
        return f"the node denies access to this user (403){_reason(response)}", "login"
    if 300 <= status < 400 and location:
        target = to_short_line(base_of_redirect(location))
        return f"the node redirects to {target}: list that URL", "redirect"
    if status == 404:
        if refusal_error(response)[0] == NOT_WATCHED:
            return f"the node has no data{_reason(response)}", NOT_WATCHED
        reason = _reason(response) or ": it is older than this API, or serves no API (web.page: full)"
        return f"the node does not serve this (404){reason}", "old"
    return f"the node answered {status}{_reason(response)}", "refused"


def _reason(response: HttpResponse) -> str:
    """The message of the API's error, after a colon."""
    _, message = refusal_error(response)
    return f": {message}" if message else ""


def refusal_error(response: HttpResponse) -> tuple[str, str]:
    """Code and message of the API's error in a response; empty if it has none."""
    try:
        return json_error(response.decoded_body(_LONGEST_ERROR))
    except HttpRequestFailed:
        return "", ""

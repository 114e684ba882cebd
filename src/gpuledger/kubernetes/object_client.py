"""ObjectClient: asynchronous reads and writes of Kubernetes objects, for the operator."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from gpuledger import __version__
from gpuledger.http.async_client import HttpClient
from gpuledger.http.client_messages import HttpRequestFailed
from gpuledger.kubernetes.access import FIELD_MANAGER, ApiServerAccess, encode_api_request
from gpuledger.kubernetes.tls import tls_context
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import clean_name

Json = dict[str, Any]

JSON_TYPE: Final = "application/json"
APPLY_PATCH_TYPE: Final = "application/apply-patch+yaml"
MERGE_PATCH_TYPE: Final = "application/merge-patch+json"

_FIXED_HEADERS: Final = (("User-Agent", f"{FIELD_MANAGER}/{__version__}"), ("Accept-Encoding", "gzip"))
_MANAGED: Final = {"fieldManager": FIELD_MANAGER}
_TIMEOUT: Final = 30.0
_CONNECT_TIMEOUT: Final = 5.0
# Load balancers drop idle connections without notice, often after a minute.
_MAX_IDLE: Final = 15.0
# A repeated request would not have the same result.
_NOT_IDEMPOTENT: Final = frozenset({"POST", "PATCH"})
_MAX_MESSAGE_LENGTH: Final = 1000


class WriteUnreachable(GpuledgerError):
    """No response from the API server: the request may or may not have been executed."""


class WriteRefused(GpuledgerError):
    """The API server responded with an error status, to a write or a read.

    `reason` and `message` are those of the meta/v1 Status; `reason` is NotFound, AlreadyExists, Conflict,
    Invalid or Forbidden.
    """

    def __init__(self, request: str, status: int, reason: str, message: str) -> None:
        self.status = status
        self.reason = reason
        self.message = message
        denied = "; reinstall the chart, which contains the operator's ClusterRole and Roles"
        remedy = denied if self.is_permission_denied else ""
        super().__init__(f"{status} to {request}: {message or 'no reason given'}{remedy}")

    @property
    def is_permission_denied(self) -> bool:
        """Whether RBAC denies the request. Any other 403 is about content, from a quota or a policy."""
        return self.status == 403 and ('User "' in self.message or "attempting to grant" in self.message)

    @property
    def is_dry_run_unsupported(self) -> bool:
        """Whether a webhook (from before Kubernetes 1.22) rejects dry runs."""
        return self.status == 400 and "does not support dry run" in self.message

    @property
    def is_invalid_content(self) -> bool:
        """Whether the content is invalid by the rules of the object, a quota or a policy."""
        return self.reason == "Invalid" or (self.status in (400, 403) and not self.is_permission_denied)


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One request; `path` is below the server's URL, without the query."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = JSON_TYPE

    @property
    def writes(self) -> bool:
        """Whether the request can change anything."""
        return self.method != "GET" and "dryRun" not in self.query


# Status, body, and the text of each warning, if any.
ApiReply = tuple[int, bytes] | tuple[int, bytes, tuple[str, ...]]


class ApiTransport(Protocol):
    """Sends requests to one API server."""

    async def send(self, request: ApiRequest) -> ApiReply:
        """The response. Raises WriteUnreachable; GpuledgerError for bad credentials."""

    async def close(self) -> None:
        """Close the connections."""


class HttpApiTransport:
    """The API server. The token is read for every request, the CA after every failure: both rotate."""

    def __init__(self, access: ApiServerAccess, *, timeout: float = _TIMEOUT) -> None:
        self._access = access
        self._timeout = timeout
        self._client: HttpClient | None = None

    async def send(self, request: ApiRequest) -> ApiReply:
        """See ApiTransport."""
        headers = (*_FIXED_HEADERS, ("Content-Type", request.content_type))
        access = self._access
        encoded = encode_api_request(
            access, request.method, request.path, request.query, headers, request.body
        )
        if self._client is None:
            self._client = HttpClient(
                access.host,
                access.port,
                tls_context(access) if access.secure else None,
                server_name=access.server_name,
                connect_timeout=_CONNECT_TIMEOUT,
                max_idle=_MAX_IDLE,
            )
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._client.exchange(encoded, retry=request.method not in _NOT_IDEMPOTENT)
            return (
                response.status,
                response.decoded_body(),
                parse_warnings(response.headers.get("warning", "")),
            )
        except (HttpRequestFailed, TimeoutError) as error:
            # The CA may have changed: read it again.
            await self.close()
            why = str(error) or type(error).__name__
            raise WriteUnreachable(f"{self._access.url}: no response ({why}); retrying") from None

    async def close(self) -> None:
        """See ApiTransport."""
        if self._client is not None:
            self._client.close()
            self._client = None


def parse_warnings(header: str) -> tuple[str, ...]:
    """The texts in a Warning header of an API server: `299 - "text"`, several of them separated by commas."""
    found = re.findall(r'\b299 \S+ "((?:[^"\\]|\\.)*)"', header)
    return tuple(clean_name(re.sub(r"\\(.)", r"\1", text), _MAX_MESSAGE_LENGTH) for text in found)


# Called with method and status for every response.
OnResponse = Callable[[str, int], None]


class ObjectClient:
    """Reads and writes objects of one API server, with the operator's account.

    All methods raise WriteUnreachable and WriteRefused.
    """

    def __init__(self, transport: ApiTransport, on_response: OnResponse = lambda *_: None) -> None:
        self._transport = transport
        self._on_response = on_response
        # By path: the warnings of the API server about the last write, if it had any.
        self.warnings: dict[str, tuple[str, ...]] = {}

    async def get(self, path: str, **query: str) -> Json:
        """Get an object or a list of objects."""
        return await self._request("GET", path, query)

    async def create(self, path: str, body: Json) -> Json:
        """Create an object and return it. Refused with AlreadyExists if it exists."""
        return await self._request("POST", path, _MANAGED, body)

    async def apply(self, path: str, body: Json, *, dry: bool = False) -> Json:
        """Server-side apply: set the fields of `body`, and remove fields of our field manager that it lacks.

        Takes over fields of other managers. `dry` is a dry run: returns the result without changing anything.
        """
        query = {**_MANAGED, "force": "true"} | ({"dryRun": "All"} if dry else {})
        return await self._request("PATCH", path, query, body, APPLY_PATCH_TYPE)

    async def merge(self, path: str, patch: Json) -> Json:
        """JSON merge patch (RFC 7386). With a resourceVersion: refused with Conflict if it is not current."""
        return await self._request("PATCH", path, _MANAGED, patch, MERGE_PATCH_TYPE)

    async def replace(self, path: str, body: Json) -> Json:
        """PUT: refused with Conflict if the object has changed meanwhile."""
        return await self._request("PUT", path, _MANAGED, body)

    async def delete(self, path: str, uid: str, *, orphan: bool = False) -> None:
        """Delete the object with this UID, and its dependents unless `orphan`.

        Succeeds if the object is already gone.
        """
        policy = "Orphan" if orphan else "Background"
        options = {"propagationPolicy": policy, "preconditions": {"uid": uid}}
        try:
            await self._request("DELETE", path, {}, options)
        except WriteRefused as error:
            # 409: the name now belongs to an object with another UID.
            if error.status not in (404, 409):
                raise

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        content: Json | None = None,
        content_type: str = JSON_TYPE,
    ) -> Json:
        body = b"" if content is None else json.dumps(content, separators=(",", ":")).encode()
        request = ApiRequest(method, path, query, body, content_type)
        status, response, *warnings = await self._transport.send(request)
        self._on_response(method, status)
        if request.writes:
            self.warnings.pop(path, None)
            if warnings and warnings[0]:
                self.warnings[path] = warnings[0]
        try:
            found = json.loads(response) if response else {}
        except ValueError:
            found = {}
        if not isinstance(found, dict):
            found = {}
        if 200 <= status < 300:
            return found
        message = clean_name(str(found.get("message") or "").replace("\n", " "), _MAX_MESSAGE_LENGTH)
        raise WriteRefused(f"{method} {path}", status, str(found.get("reason") or ""), message)

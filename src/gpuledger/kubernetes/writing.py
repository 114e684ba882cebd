"""What the operator asks the API server for, beside the watches: JSON over one pool of connections."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import aiohttp

from gpuledger import __version__
from gpuledger.kubernetes.access import MANAGER, Access
from gpuledger.kubernetes.tls import tls_context
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import clean_name

Json = dict[str, Any]

PLAIN: Final = "application/json"
APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"

_TIMEOUT: Final = 30.0
_CONNECT_TIMEOUT: Final = 5.0
_LONGEST_MESSAGE: Final = 1000


class Unreachable(GpuledgerError):
    """No answer of the API server: it may or may not have done what was asked."""


class Refused(GpuledgerError):
    """The API server answered, but not with success.

    `reason` is its own word (meta/v1 Status): NotFound, AlreadyExists, Conflict, Invalid, Forbidden;
    `message` is its own line.
    """

    def __init__(self, asked: str, status: int, reason: str, message: str) -> None:
        self.status = status
        self.reason = reason
        self.message = message
        remedy = "; the operator's ClusterRole and Roles are the chart's, install it anew"
        super().__init__(
            f"{status} to {asked}: {message or 'no reason given'}{remedy if self.lacks_rights else ''}"
        )

    @property
    def lacks_rights(self) -> bool:
        """The account may not do it (RBAC); any other 403 is a quota's or a policy's word on the content."""
        return self.status == 403 and ('User "' in self.message or "attempting to grant" in self.message)

    @property
    def takes_no_trial(self) -> bool:
        """Refused for being a dry run: a webhook of before Kubernetes 1.22 cannot say what it would do."""
        return self.status == 400 and "does not support dry run" in self.message

    @property
    def by_content(self) -> bool:
        """What was asked for is at fault, by the object's own rules, a quota's or a policy's."""
        return self.reason == "Invalid" or (self.status in (400, 403) and not self.lacks_rights)


@dataclass(frozen=True, slots=True)
class Question:
    """One request: `path` with its query below the server's URL, and the body as it is sent."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = PLAIN

    @property
    def writes(self) -> bool:
        """Whether it may change something."""
        return self.method != "GET" and "dryRun" not in self.query


class Transport(Protocol):
    """Carries questions to one API server."""

    async def send(self, question: Question) -> tuple[int, bytes]:
        """Status and body of the answer. Raises Unreachable, GpuledgerError for unusable credentials."""

    async def close(self) -> None:
        """Let the connections go."""


class HttpTransport:
    """HTTP/1.1 by aiohttp. Token and authority are files that are rotated: they are read anew."""

    def __init__(self, access: Access, *, timeout: float = _TIMEOUT) -> None:
        self._access = access
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=_CONNECT_TIMEOUT)
        self._session: aiohttp.ClientSession | None = None
        self._tls: ssl.SSLContext | None = None

    async def send(self, question: Question) -> tuple[int, bytes]:
        """As Transport says."""
        access = self._access
        headers = {
            "Accept": "application/json",
            "Content-Type": question.content_type,
            "User-Agent": f"{MANAGER}/{__version__}",
        }
        if token := access.read_token():
            headers["Authorization"] = f"Bearer {token}"
        if access.secure and self._tls is None:
            self._tls = tls_context(access)
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout)
        try:
            async with self._session.request(
                question.method,
                f"{access.url}{question.path}",
                params=question.query,
                data=question.body or None,
                headers=headers,
                ssl=self._tls or True,
                server_hostname=access.server_name or None,
                allow_redirects=False,
            ) as answer:
                return answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # The authority may have been changed.
            self._tls = None
            why = str(error) or type(error).__name__
            raise Unreachable(f"{access.url} gave no answer ({why}); it is tried again") from None

    async def close(self) -> None:
        """As Transport says."""
        if self._session is not None:
            await self._session.close()
            self._session = None


# Called for every answered question: method, status.
Answered = Callable[[str, int], None]


class Api:
    """One API server as the operator's account sees it."""

    def __init__(self, transport: Transport, answered: Answered = lambda *_: None) -> None:
        self._transport = transport
        self._answered = answered

    async def get(self, path: str, **query: str) -> Json:
        """An object, or a list of them. Raises Unreachable, Refused."""
        return await self._ask(Question("GET", path, query))

    async def create(self, path: str, body: Json) -> Json:
        """The object as the server has it now. Raises Unreachable, Refused (AlreadyExists)."""
        return await self._ask(Question("POST", path, {"fieldManager": MANAGER}, _bytes(body)))

    async def apply(self, path: str, body: Json, *, dry: bool = False) -> Json:
        """Server-side apply: fields of `body` become so, fields of ours that it has not any more go.

        Another's claim on such a field is taken over. `dry` asks what would be, and changes nothing.
        """
        query = {"fieldManager": MANAGER, "force": "true"} | ({"dryRun": "All"} if dry else {})
        return await self._ask(Question("PATCH", path, query, _bytes(body), APPLY))

    async def merge(self, path: str, patch: Json) -> Json:
        """JSON merge patch (RFC 7386). With a resourceVersion in it, Conflict unless that is still so."""
        return await self._ask(Question("PATCH", path, {"fieldManager": MANAGER}, _bytes(patch), MERGE))

    async def replace(self, path: str, body: Json) -> Json:
        """PUT: Conflict when somebody was faster."""
        return await self._ask(Question("PUT", path, {"fieldManager": MANAGER}, _bytes(body)))

    async def delete(self, path: str, uid: str, *, orphan: bool = False) -> None:
        """Delete this very object; its dependents soon after, or not at all. Gone already is well, too."""
        policy = "Orphan" if orphan else "Background"
        options = {"propagationPolicy": policy, "preconditions": {"uid": uid}}
        try:
            await self._ask(Question("DELETE", path, {}, _bytes(options)))
        except Refused as error:
            # A conflict is another object of the same name: not the one that was meant.
            if error.status not in (404, 409):
                raise

    async def close(self) -> None:
        """Let the connections go."""
        await self._transport.close()

    async def _ask(self, question: Question) -> Json:
        status, body = await self._transport.send(question)
        self._answered(question.method, status)
        try:
            found = json.loads(body) if body else {}
        except ValueError:
            found = {}
        if not isinstance(found, dict):
            found = {}
        if 200 <= status < 300:
            return found
        raise _refused(question, status, found)


def _refused(question: Question, status: int, told: Json) -> Refused:
    reason = str(told.get("reason") or "")
    message = clean_name(str(told.get("message") or "").replace("\n", " "), _LONGEST_MESSAGE)
    return Refused(f"{question.method} {question.path}", status, reason, message)


def _bytes(body: Json) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()

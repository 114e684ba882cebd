"""URL and credentials of an API server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urlsplit

from gpuledger.http.client_messages import DEFAULT_PORTS, encode_request
from gpuledger.http.hosts import is_loopback
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.text import join_host_port


@dataclass(frozen=True, slots=True)
class ApiServerAccess:
    """URL and credentials of an API server.

    Files are read again at every connection, because tokens and CAs are rotated. `token`, `ca_data`,
    `certificate_data` and `key_data` (PEM) hold data that a kubeconfig embeds. Secrets are not in the `repr`.
    """

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None
    token: str = field(default="", repr=False)
    ca_data: str = ""
    certificate_file: Path | None = None
    key_file: Path | None = None
    certificate_data: str = field(default="", repr=False)
    key_data: str = field(default="", repr=False)
    server_name: str = ""
    verify: bool = True

    @property
    def host(self) -> str:
        """Host name or address."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """Port of the URL, or the default port of its scheme."""
        parts = urlsplit(self.url)
        return parts.port or DEFAULT_PORTS[parts.scheme]

    @property
    def secure(self) -> bool:
        """Whether the URL is https."""
        return self.url.startswith("https://")

    @property
    def prefix(self) -> str:
        """Path prefix of all requests (proxies for many clusters have one)."""
        return urlsplit(self.url).path.rstrip("/")

    def read_token(self) -> str:
        """Read the current token; empty if none is configured. Raises GpuledgerError."""
        if self.token_file is None:
            return self.token
        try:
            token = self.token_file.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise GpuledgerError(
                f"the token {self.token_file} cannot be read ({why}); in a pod set "
                "automountServiceAccountToken: true, elsewhere set --kubernetes-token-file"
            ) from None
        if not token.isprintable() or " " in token or not token:
            raise GpuledgerError(f"{self.token_file} holds no token; expected one line with only the token")
        return token


def encode_api_request(
    access: ApiServerAccess,
    method: str,
    path: str,
    query: Mapping[str, str],
    headers: Iterable[tuple[str, str]],
    body: bytes = b"",
) -> bytes:
    """A request with the current token. `path` is below the server's URL. Raises GpuledgerError."""
    every = [("Host", join_host_port(access.host, access.port)), ("Accept", "application/json"), *headers]
    if token := access.read_token():
        every.append(("Authorization", f"Bearer {token}"))
    target = f"{access.prefix}{path}?{urlencode(query)}" if query else f"{access.prefix}{path}"
    return encode_request(method, target, every, body)


def checked_access(access: ApiServerAccess) -> ApiServerAccess:
    """Return `access`; raise UsageError if its URL is invalid, or would send a token unencrypted."""
    try:
        usable = bool(access.host and access.port)
    except (ValueError, KeyError):
        usable = False
    if not usable:
        raise UsageError(f"invalid API server URL {access.url!r}; expected https://HOST:PORT")
    if not access.secure and (access.token_file or access.token) and not is_loopback(access.host):
        raise UsageError(f"a token is not sent unencrypted; use https:// for {access.url}")
    return access


# Field manager and user agent of the operator.
FIELD_MANAGER: Final = "gpuledger-operator"

"""Where an API server is, and by what it knows us."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gpuledger.model.errors import GpuledgerError, UsageError

_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Access:
    """An API server and the credentials for it.

    What is in files is read again at every connection, because tokens and authorities are rotated; `token`,
    `ca_data`, `certificate_data` and `key_data` (PEM) stand for files that a kubeconfig has within it.
    Secrets are not in the `repr`.
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
        """Name or address to connect to."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The URL's port, or its scheme's."""
        parts = urlsplit(self.url)
        return parts.port or _PORTS[parts.scheme]

    @property
    def secure(self) -> bool:
        """Whether the connection is encrypted."""
        return self.url.startswith("https://")

    @property
    def prefix(self) -> str:
        """What stands before every path (servers of many clusters have one)."""
        return urlsplit(self.url).path.rstrip("/")

    def read_token(self) -> str:
        """The token as it is now; empty where there is none. Raises GpuledgerError."""
        if self.token_file is None:
            return self.token
        try:
            token = self.token_file.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise GpuledgerError(
                f"the token {self.token_file} cannot be read ({why}); in a pod set "
                "automountServiceAccountToken: true, elsewhere name it with --kubernetes-token-file"
            ) from None
        if not token.isprintable() or " " in token or not token:
            raise GpuledgerError(f"{self.token_file} holds no token; one line with the token alone is wanted")
        return token


def checked(access: Access) -> Access:
    """The Access itself; raises UsageError when it is no URL, or would send a token in the clear."""
    try:
        usable = bool(access.host and access.port)
    except (ValueError, KeyError):
        usable = False
    if not usable:
        raise UsageError(f"the API server's URL {access.url!r} is none; https://HOST:PORT is wanted")
    if not access.secure and (access.token_file or access.token) and not _is_loopback(access.host):
        raise UsageError(f"a token is not sent unencrypted; name {access.url} with https://")
    return access


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# The operator to the API server: its field manager and its user agent.
MANAGER: Final = "gpuledger-operator"

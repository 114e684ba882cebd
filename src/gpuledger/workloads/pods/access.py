"""Where the API server is, and by what it knows us: from settings, the environment, or a kubeconfig."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.workloads.pods.settings import IN_CLUSTER, ApiServerSettings

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
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


def find_access(
    settings: ApiServerSettings, environment: Mapping[str, str], account: Path = SERVICE_ACCOUNT
) -> Access | None:
    """The API server of the settings, else the one of the cluster that this process runs in, else None.

    `account` is where the kubelet mounts the ServiceAccount. Raises UsageError for settings that contradict
    each other, GpuledgerError for a kubeconfig that cannot be used.
    """
    if settings.api:
        return _by_url(settings, account)
    if settings.kubeconfig:
        from gpuledger.workloads.pods.kubeconfig import read_kubeconfig

        return read_kubeconfig(Path(settings.kubeconfig))
    host = environment.get(IN_CLUSTER, "")
    if not host:
        return None
    bracketed = f"[{host}]" if ":" in host else host
    port = environment.get("KUBERNETES_SERVICE_PORT") or "443"
    return checked(
        Access(
            f"https://{bracketed}:{port}",
            token_file=Path(settings.token_file or account / "token"),
            ca_file=Path(settings.ca_file or account / "ca.crt"),
        )
    )


def own_namespace(named: str, environment: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> str:
    """The namespace this process is in: as named, $POD_NAMESPACE, or the ServiceAccount's; else empty."""
    found = named or environment.get("POD_NAMESPACE", "")
    if found:
        return found
    try:
        return (account / "namespace").read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _by_url(settings: ApiServerSettings, account: Path) -> Access:
    secure = settings.api.startswith("https://")
    # The ServiceAccount's are for the cluster's own server, which is what is meant inside a pod.
    token = settings.token_file or (str(account / "token") if secure and (account / "token").exists() else "")
    ca = settings.ca_file or (str(account / "ca.crt") if secure and (account / "ca.crt").exists() else "")
    return checked(
        Access(
            settings.api,
            token_file=Path(token) if token else None,
            ca_file=Path(ca) if ca else None,
        )
    )


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

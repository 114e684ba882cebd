"""Finds the API server and its credentials: settings, kubeconfig, or the ServiceAccount of the pod.

Credential plugins of a kubeconfig (`exec`, `auth-provider`) are not run.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpuledger.host.yaml_documents import DuplicateKey, InvalidYaml, parse_yaml, read_utf8
from gpuledger.http.hosts import parse_server_name
from gpuledger.kubernetes.access import ApiServerAccess, checked_access
from gpuledger.kubernetes.settings import IN_CLUSTER_VARIABLE, ApiServerSettings
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import join_host_port


def read_kubeconfig(file: Path) -> ApiServerAccess:
    """The server and credentials of the current context. Raises GpuledgerError."""
    content = _content(file)
    name = content.get("current-context")
    context = _named(file, content, "contexts", "context", name)
    cluster = _named(file, content, "clusters", "cluster", context.get("cluster"))
    user = _named(file, content, "users", "user", context["user"]) if context.get("user") else {}
    for kind in ("exec", "auth-provider"):
        if kind in user:
            raise GpuledgerError(
                f"{file}: user {context['user']} gets its credentials from a plugin ({kind}), which is not "
                "supported; create a ServiceAccount and set its token with --kubernetes-token-file"
            )
    folder = file.parent
    return checked_access(
        ApiServerAccess(
            url=str(cluster.get("server", "")).rstrip("/"),
            token_file=_file(folder, user.get("tokenFile")),
            ca_file=_file(folder, cluster.get("certificate-authority")),
            token=str(user.get("token", "")),
            ca_data=_data(file, cluster, "certificate-authority-data"),
            certificate_file=_file(folder, user.get("client-certificate")),
            key_file=_file(folder, user.get("client-key")),
            certificate_data=_data(file, user, "client-certificate-data"),
            key_data=_data(file, user, "client-key-data"),
            server_name=_server_name(file, cluster.get("tls-server-name") or ""),
            verify=cluster.get("insecure-skip-tls-verify") is not True,
        )
    )


def _content(file: Path) -> dict[str, Any]:
    try:
        content = parse_yaml(read_utf8(file))
    except OSError as error:
        raise GpuledgerError(f"--kubeconfig: {file} cannot be read: {error.strerror}") from None
    except DuplicateKey as error:
        raise GpuledgerError(f"--kubeconfig: {file}: {error}") from None
    except InvalidYaml:
        # Without the parser's message, which can contain a secret.
        raise GpuledgerError(f"--kubeconfig: {file} is not YAML") from None
    if not isinstance(content, dict):
        raise GpuledgerError(f"--kubeconfig: {file} is not a kubeconfig")
    return content


def _named(file: Path, content: dict[str, Any], plural: str, kind: str, name: object) -> dict[str, Any]:
    entries = content.get(plural)
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(kind), dict):
            found: dict[str, Any] = entry[kind]
            return found
    raise GpuledgerError(f"--kubeconfig: {file} has no {kind} named {name!r}; `kubectl config view` shows it")


def _file(folder: Path, name: object) -> Path | None:
    # Relative paths are relative to the kubeconfig.
    return folder / str(name) if name else None


def _data(file: Path, entry: dict[str, Any], key: str) -> str:
    try:
        return b64decode(str(entry.get(key) or ""), validate=True).decode("ascii")
    except ValueError:
        raise GpuledgerError(f"--kubeconfig: {file}: {key} is not base64 of PEM") from None


def _server_name(file: Path, name: object) -> str:
    try:
        return parse_server_name(str(name)) if name else ""
    except ValueError as error:
        raise GpuledgerError(f"--kubeconfig: {file}: tls-server-name: {error}") from None


SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def find_access(
    settings: ApiServerSettings, environment: Mapping[str, str], account: Path = SERVICE_ACCOUNT
) -> ApiServerAccess | None:
    """The API server of the settings, else of the cluster that this process runs in, else None.

    `account` is the directory where the kubelet mounts the ServiceAccount. Raises UsageError for
    contradicting settings, GpuledgerError for an unusable kubeconfig.
    """
    if settings.api:
        # In a pod, a URL is assumed to be the cluster's own server: use the ServiceAccount's token and CA.
        mounted = account if settings.api.startswith("https://") else None
        return checked_access(
            ApiServerAccess(
                settings.api,
                token_file=_given_or_mounted(settings.token_file, mounted, "token"),
                ca_file=_given_or_mounted(settings.ca_file, mounted, "ca.crt"),
            )
        )
    if settings.kubeconfig:
        return read_kubeconfig(Path(settings.kubeconfig))
    host = environment.get(IN_CLUSTER_VARIABLE, "")
    if not host:
        return None
    port = environment.get("KUBERNETES_SERVICE_PORT") or "443"
    return checked_access(
        ApiServerAccess(
            f"https://{join_host_port(host, port)}",
            token_file=Path(settings.token_file or account / "token"),
            ca_file=Path(settings.ca_file or account / "ca.crt"),
        )
    )


def own_namespace(configured: str, environment: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> str:
    """The namespace of this process: `configured`, $POD_NAMESPACE or the ServiceAccount's; else empty."""
    namespace = configured or environment.get("POD_NAMESPACE", "")
    if namespace:
        return namespace
    try:
        return (account / "namespace").read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _given_or_mounted(given: str, mounted: Path | None, name: str) -> Path | None:
    if given:
        return Path(given)
    return mounted / name if mounted is not None and (mounted / name).exists() else None

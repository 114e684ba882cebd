"""A kubeconfig's current context as Access. Programs and plugins that make credentials are not run."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpuledger.host.yaml_documents import NotYaml, parsed, text_of
from gpuledger.kubernetes.access import Access, checked
from gpuledger.kubernetes.settings import IN_CLUSTER, ApiServerSettings
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import host_and_port


def read_kubeconfig(file: Path) -> Access:
    """The server and credentials of the current context; raises GpuledgerError."""
    content = _content(file)
    name = content.get("current-context")
    context = _named(file, content, "contexts", "context", name)
    cluster = _named(file, content, "clusters", "cluster", context.get("cluster"))
    user = _named(file, content, "users", "user", context["user"]) if context.get("user") else {}
    for kind in ("exec", "auth-provider"):
        if kind in user:
            raise GpuledgerError(
                f"{file}: user {context['user']} gets its credentials from a program ({kind}), which is not "
                "run; make a ServiceAccount and name its token with --kubernetes-token-file"
            )
    folder = file.parent
    return checked(
        Access(
            url=str(cluster.get("server", "")).rstrip("/"),
            token_file=_file(folder, user.get("tokenFile")),
            ca_file=_file(folder, cluster.get("certificate-authority")),
            token=str(user.get("token", "")),
            ca_data=_data(file, cluster, "certificate-authority-data"),
            certificate_file=_file(folder, user.get("client-certificate")),
            key_file=_file(folder, user.get("client-key")),
            certificate_data=_data(file, user, "client-certificate-data"),
            key_data=_data(file, user, "client-key-data"),
            server_name=str(cluster.get("tls-server-name", "")),
            verify=cluster.get("insecure-skip-tls-verify") is not True,
        )
    )


def _content(file: Path) -> dict[str, Any]:
    try:
        content = parsed(text_of(file))
    except OSError as error:
        raise GpuledgerError(f"--kubeconfig: {file} cannot be read: {error.strerror}") from None
    except NotYaml:
        # Its own words may repeat a secret.
        raise GpuledgerError(f"--kubeconfig: {file} is not YAML") from None
    if not isinstance(content, dict):
        raise GpuledgerError(f"--kubeconfig: {file} is no kubeconfig")
    return content


def _named(file: Path, content: dict[str, Any], plural: str, kind: str, name: object) -> dict[str, Any]:
    entries = content.get(plural)
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(kind), dict):
            found: dict[str, Any] = entry[kind]
            return found
    raise GpuledgerError(f"--kubeconfig: {file} has no {kind} named {name!r}; `kubectl config view` shows it")


def _file(folder: Path, name: object) -> Path | None:
    # Relative names are relative to the kubeconfig.
    return folder / str(name) if name else None


def _data(file: Path, told: dict[str, Any], key: str) -> str:
    try:
        return b64decode(str(told.get(key) or ""), validate=True).decode("ascii")
    except ValueError:
        raise GpuledgerError(f"--kubeconfig: {file}: {key} is not base64 of PEM") from None


SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


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
        return read_kubeconfig(Path(settings.kubeconfig))
    host = environment.get(IN_CLUSTER, "")
    if not host:
        return None
    port = environment.get("KUBERNETES_SERVICE_PORT") or "443"
    return checked(
        Access(
            f"https://{host_and_port(host, port)}",
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

"""A kubeconfig's current context as Access. Programs and plugins that make credentials are not run."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

from gpuledger.host.documents import NotYaml, parsed, text_of
from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.pods.access import Access, checked


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

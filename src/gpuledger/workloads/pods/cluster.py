"""Which API server and namespace are ours: by settings, a kubeconfig, or the pod that we run in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpuledger.model.text import host_and_port
from gpuledger.workloads.pods.access import Access, checked
from gpuledger.workloads.pods.settings import IN_CLUSTER, ApiServerSettings

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
        from gpuledger.workloads.pods.kubeconfig import read_kubeconfig

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

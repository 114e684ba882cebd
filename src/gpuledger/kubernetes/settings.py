"""Settings of Kubernetes: the API server, and where pod names come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gpuledger.model.settings import (
    ReloadPolicy,
    auto_or_boolean,
    boolean,
    choice,
    comma_separated,
    duration,
    option,
    setting,
    text,
)
from gpuledger.model.text import name_pattern

IN_CLUSTER_VARIABLE = "KUBERNETES_SERVICE_HOST"
KUBELET_DIRECTORY = Path("/var/lib/kubelet")


_label_pattern = name_pattern("expected label names such as app or team/*")


def _url(value: object) -> str:
    url = text(value).strip().rstrip("/")
    if url and not url.startswith(("https://", "http://")):
        raise ValueError("expected a URL such as https://10.0.0.1:6443")
    return url


@dataclass(frozen=True)
class ApiServerSettings:
    """URL and credentials of the API server."""

    api: str = setting(
        "kubernetes.api",
        _url,
        "",
        "URL of the API server (default: --kubeconfig, else the one of the cluster that gpuledger runs in)",
        flags=("--kubernetes-api",),
        metavar="URL",
    )
    token_file: str = setting(
        "kubernetes.token_file",
        text,
        "",
        "file with the token for the API server, read again at every connection (default: the "
        "ServiceAccount's)",
        flags=("--kubernetes-token-file",),
        metavar="FILE",
    )
    ca_file: str = setting(
        "kubernetes.ca_file",
        text,
        "",
        "file with the CA that signed the API server's certificate (default: the ServiceAccount's)",
        flags=("--kubernetes-ca-file",),
        metavar="FILE",
    )
    kubeconfig: str = option(
        "kubernetes.kubeconfig",
        text,
        "",
        "kubeconfig with API server and credentials in its current context; credential plugins are not run",
        metavar="FILE",
    )


@dataclass(frozen=True)
class KubernetesSettings(ApiServerSettings):
    """Whether processes get pod names, and where the names come from."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy(files=("kubernetes.ca_file", "kubernetes.kubeconfig"))

    enabled: str = setting(
        "kubernetes.enabled",
        auto_or_boolean,
        "auto",
        "look up the pods of processes; auto enables it if Kubernetes is detected (its environment "
        "variables, or the kubelet's directory)",
        flags=("--kubernetes-enabled",),
        metavar="auto|true|false",
        bare=True,
    )
    names: str = setting(
        "kubernetes.names",
        choice("auto", "api", "logs", "none"),
        "auto",
        "source of pod names: api is the API server, logs are the file names under --pod-logs; auto uses the "
        "API server, and the file names while it fails",
        flags=("--kubernetes-names",),
    )
    pod_label_allowlist: tuple[str, ...] = option(
        "kubernetes.pod_label_allowlist",
        comma_separated(_label_pattern),
        (),
        "pod labels to export, comma-separated; a trailing * matches any ending",
    )
    pod_logs: str = option(
        "kubernetes.pod_logs",
        text,
        "/var/log",
        "directory with pods/ and containers/ of the kubelet; only file names are read",
        metavar="DIR",
    )


@dataclass(frozen=True)
class PodEventSettings:
    """Whether the end of a pod is reported to its namespace."""

    enabled: bool = setting(
        "kubernetes.events",
        boolean,
        False,
        "post a Kubernetes Event with the receipt of each pod that had GPUs, when it ends; needs a ledger on "
        "disk, and permission to create events",
        flags=("--kubernetes-events",),
    )
    shortest: float = setting(
        "kubernetes.events_after",
        duration("s", lowest=0.0, highest=7 * 86_400.0),
        60.0,
        "pods that had GPUs for a shorter time have no Event",
        flags=("--kubernetes-events-after",),
    )


def is_kubernetes_enabled(
    settings: KubernetesSettings, environment: Mapping[str, str], kubelet: Path = KUBELET_DIRECTORY
) -> bool:
    """Whether Kubernetes is enabled by the settings, or detected on this machine."""
    if settings.enabled != "auto":
        return settings.enabled == "true"
    return (
        bool(environment.get(IN_CLUSTER_VARIABLE) or settings.api or settings.kubeconfig) or kubelet.is_dir()
    )


def node_name(configured: str, environment: Mapping[str, str], hostname: str) -> str:
    """The Kubernetes node name of this machine: `configured` (--node-name), $NODE_NAME, or the hostname.

    The kubelet registers the hostname in lower case.
    """
    return configured or environment.get("NODE_NAME", "") or hostname.lower()

"""What a user sets about Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gpuledger.model.settings import Reload, automatic, choice, setting, text, words
from gpuledger.model.text import wanted_name

IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
KUBELET = Path("/var/lib/kubelet")


_allowed = wanted_name("names of labels such as app or team/* are wanted")


def _url(value: object) -> str:
    url = text(value).strip().rstrip("/")
    if url and not url.startswith(("https://", "http://")):
        raise ValueError("a URL such as https://10.0.0.1:6443 is wanted")
    return url


@dataclass(frozen=True, slots=True)
class ApiServerSettings:
    """Where the API server is, and by what it knows us."""

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
        "file with the authority that signed the API server's certificate (default: the ServiceAccount's)",
        flags=("--kubernetes-ca-file",),
        metavar="FILE",
    )
    kubeconfig: str = setting(
        "kubernetes.kubeconfig",
        text,
        "",
        "kubeconfig whose current context tells API server and credentials; commands that make credentials "
        "are not run",
        flags=("--kubeconfig",),
        metavar="FILE",
    )


@dataclass(frozen=True, slots=True)
class KubernetesSettings(ApiServerSettings):
    """Whether pods are named, and who is asked for their names."""

    reload: ClassVar[Reload] = Reload(files=("kubernetes.ca_file", "kubernetes.kubeconfig"))

    enabled: str = setting(
        "kubernetes.enabled",
        automatic,
        "auto",
        "give processes the names of their pods; auto does where Kubernetes is seen (its environment, or the "
        "kubelet's directory)",
        flags=("--kubernetes-enabled",),
        metavar="auto|true|false",
        bare=True,
    )
    names: str = setting(
        "kubernetes.names",
        choice("auto", "api", "logs", "none"),
        "auto",
        "where names come from: api is the API server, logs the names of files under --pod-logs; auto asks "
        "the API server, and the files for what it does not tell",
        flags=("--kubernetes-names",),
        metavar="auto|api|logs|none",
    )
    pod_label_allowlist: tuple[str, ...] = setting(
        "kubernetes.pod_label_allowlist",
        words(_allowed),
        (),
        "labels of pods that are told, comma-separated; a trailing * stands for any ending",
        flags=("--pod-label-allowlist",),
        metavar="LIST",
    )
    pod_logs: str = setting(
        "kubernetes.pod_logs",
        text,
        "/var/log",
        "directory in which the kubelet keeps pods/ and containers/; only names of files are read",
        flags=("--pod-logs",),
        metavar="DIR",
    )


def is_enabled(settings: KubernetesSettings, environment: Mapping[str, str], kubelet: Path = KUBELET) -> bool:
    """Whether this is a node of Kubernetes, or the user says so."""
    if settings.enabled != "auto":
        return settings.enabled == "true"
    return bool(environment.get(IN_CLUSTER) or settings.api or settings.kubeconfig) or kubelet.is_dir()


def node_name(given: str, environment: Mapping[str, str], hostname: str) -> str:
    """The name under which Kubernetes knows this machine: `given` (--node-name), $NODE_NAME, or the hostname.

    The kubelet registers the hostname in lower case.
    """
    return given or environment.get("NODE_NAME", "") or hostname.lower()

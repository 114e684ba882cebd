"""The maps of pods that the settings ask for. What they need is loaded only when there are any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger.host.background import PolledIndex
from gpuledger.kubernetes.settings import KubernetesSettings
from gpuledger.model.errors import UsageError
from gpuledger.model.source import Clock

if TYPE_CHECKING:
    from gpuledger.workloads.pods.logs import PodNames
    from gpuledger.workloads.pods.slices import ResourceSlices


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """What the API server and the log files are asked, not begun. `slices` is None without an API server."""

    pods: PodNames
    slices: PolledIndex[ResourceSlices] | None


def open_kubernetes(
    settings: KubernetesSettings, node: str, environment: Mapping[str, str], clock: Clock
) -> Kubernetes:
    """Maps for the node's name `node`; to be called only where Kubernetes is on (`settings.is_enabled`).

    Raises UsageError when `kubernetes.names` is `api` and there is no API server to ask, GpuledgerError for a
    kubeconfig that cannot be used.
    """
    from gpuledger.kubernetes.client import ApiClient
    from gpuledger.kubernetes.cluster import find_access
    from gpuledger.workloads.pods.labels import LabelAllowlist
    from gpuledger.workloads.pods.logs import PodNames, pod_logs, spare_logs
    from gpuledger.workloads.pods.slices import resource_slices
    from gpuledger.workloads.pods.watch import PodWatch

    root = Path(settings.pod_logs)
    access = find_access(settings, environment)
    if settings.names == "api" and access is None:
        raise UsageError(
            "--kubernetes-names api: there is no API server to ask; name one with --kubernetes-api or "
            "--kubeconfig"
        )
    # Of DRA devices only the server knows the UUIDs, whoever names the pods.
    slices = None if access is None else resource_slices(ApiClient(access), node, clock=clock)
    if settings.names == "none":
        return Kubernetes(PodNames(), slices)
    if settings.names == "logs" or access is None:
        return Kubernetes(PodNames(logs=pod_logs(root, clock=clock)), slices)
    allowed = LabelAllowlist(settings.pod_label_allowlist)
    watch = PodWatch(ApiClient(access), node, clock=clock, allowed=allowed)
    spare = spare_logs(watch, root, clock=clock) if settings.names == "auto" else None
    return Kubernetes(PodNames(watch, spare), slices)

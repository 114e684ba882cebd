"""Checks of `doctor` for pod names: the API server, the node's log files, and which of them is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.kubernetes.api_client import ApiClient, ApiServerRefused, node_selector_query
from gpuledger.kubernetes.cluster_access import find_access
from gpuledger.kubernetes.json_stream import ListReader
from gpuledger.kubernetes.settings import KUBELET_DIRECTORY, KubernetesSettings, is_kubernetes_enabled
from gpuledger.model.checks import (
    Check,
    Finding,
    Subject,
    caused_by,
    fails,
    skipped,
    split_remedy,
    warning,
    works,
)
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.workloads.pods.claims import NO_CLAIMS, ClaimUse, ResourceClaims
from gpuledger.workloads.pods.pod import NO_SLICES, ResourceSlices
from gpuledger.workloads.pods.pod_logs import read_pod_logs
from gpuledger.workloads.pods.pod_watch import PODS_PATH
from gpuledger.workloads.pods.resource_claims import ClaimReader
from gpuledger.workloads.pods.resource_slices import SliceReader

API: Final = Subject("kubernetes.api", "Kubernetes API")
PODS: Final = Subject("kubernetes.pods", "pods of this node")
NODE: Final = Subject("kubernetes.node", "node name")
LOGS: Final = Subject("kubernetes.pod_logs", "log files of pods")
NAMES: Final = Subject("kubernetes.names", "names of pods")
SLICES: Final = Subject("kubernetes.resource_slices", "DRA devices")

# Consequence of a failing API server if the log files can be read.
_LOST: Final = "names come from the log files, and labels, controllers and phases of pods are not known"


def kubernetes_checks(
    settings: KubernetesSettings,
    node: str,
    environment: Mapping[str, str],
    kubelet: Path = KUBELET_DIRECTORY,
) -> tuple[Check, ...]:
    """Checks of the Kubernetes node `node`; a single skipped one without Kubernetes on this machine."""
    if not is_kubernetes_enabled(settings, environment, kubelet):
        why = "switched off" if settings.enabled == "false" else "no Kubernetes on this machine"
        return (Check(*NAMES, lambda: [skipped(*NAMES, why)]),)
    checks = _KubernetesChecks(settings, node, environment)
    return (
        Check(*LOGS, checks.logs),
        Check(*API, checks.api, limit=45.0),
        Check(*SLICES, checks.slices, needs=(API.check,), limit=45.0),
        Check(*NAMES, checks.names),
    )


def read_slices(settings: KubernetesSettings, node: str, environment: Mapping[str, str]) -> ResourceSlices:
    """The ResourceSlices of the node; empty if they cannot be read: the check SLICES reports the reason."""
    try:
        access = find_access(settings, environment)
        return SliceReader(ApiClient(access, timeout=15.0), node).read() if access else NO_SLICES
    except GpuledgerError:
        return NO_SLICES


def read_claims(
    settings: KubernetesSettings, environment: Mapping[str, str], clock: Clock, uses: tuple[ClaimUse, ...]
) -> tuple[ResourceClaims, GpuledgerError | None]:
    """What the ResourceClaims in use say, and why some of them could not be read."""
    try:
        access = find_access(settings, environment)
    except GpuledgerError as error:
        return NO_CLAIMS, error
    if access is None:
        absent = GpuledgerError("no API server is configured; set --kubernetes-api or --kubeconfig")
        return NO_CLAIMS, absent if uses else None
    return ClaimReader(ApiClient(access, timeout=15.0), clock).read(uses)


class _KubernetesChecks:
    """The checks in order; each stores what the last one needs."""

    def __init__(self, settings: KubernetesSettings, node: str, environment: Mapping[str, str]) -> None:
        self._settings = settings
        self._node = node
        self._environment = environment
        self._pods: int | None = None
        self._files: int | None = None

    def logs(self) -> Iterator[Finding]:
        if self._settings.names not in ("auto", "logs"):
            yield skipped(*LOGS, f"not used (--kubernetes-names {self._settings.names})")
            return
        root = Path(self._settings.pod_logs)
        try:
            pods = read_pod_logs(root)
        except GpuledgerError as error:
            needed = self._settings.names == "logs" or self._access() is None
            yield (fails if needed else warning)(*LOGS, *split_remedy(error))
            return
        self._files = len(pods)
        if pods and not any(pod.containers for pod in pods):
            yield warning(
                *LOGS,
                f"{len(pods)} pods under {root}/pods, but no container links in {root}/containers: container "
                "names are not known",
                "mount all of the node's /var/log, not only pods/",
            )
            return
        yield works(*LOGS, f"{len(pods)} pods under {root}/pods")

    def api(self) -> Iterator[Finding]:
        access = self._access()
        if access is None:
            why = "no API server configured: not in a pod, no --kubernetes-api, no --kubeconfig"
            yield skipped(*API, why)
            return
        if self._settings.names in ("none", "logs"):
            yield skipped(*API, f"not used for pod names (--kubernetes-names {self._settings.names})")
            return
        client = ApiClient(access, timeout=15.0)
        query = {**node_selector_query(self._node), "resourceVersion": "0"}
        try:
            with client.get(PODS_PATH, query) as chunks:
                self._pods = sum(1 for _ in ListReader(chunks).items())
        except GpuledgerError as error:
            status = error.status if isinstance(error, ApiServerRefused) else None
            if status == 403:
                yield works(*API, f"{access.url} responds")
            yield self._api_failure(PODS if status == 403 else API, error)
            if status is None:
                yield skipped(*PODS, caused_by(API.what))
            return
        yield works(*API, f"{access.url} responds")
        yield self._watch_finding(client)
        if self._pods:
            yield works(*NODE, f"{self._pods} pods on {self._node}")
            return
        yield warning(
            *NODE,
            f"the API server lists no pod on a node named {self._node}",
            "set the name that `kubectl get nodes` shows with --node-name, or with the variable NODE_NAME "
            "from the field spec.nodeName",
        )

    def slices(self) -> Iterator[Finding]:
        access = self._access()
        if access is None:
            yield skipped(*SLICES, "no API server configured")
            return
        try:
            devices = SliceReader(ApiClient(access, timeout=15.0), self._node).read()
        except GpuledgerError as error:
            why, remedy = split_remedy(error)
            yield warning(*SLICES, f"{why}: matters only if GPUs are allocated by DRA", remedy)
            return
        if len(devices):
            yield works(*SLICES, f"{len(devices)} with a UUID in the ResourceSlices of {self._node}")
        else:
            yield skipped(*SLICES, f"no ResourceSlice of {self._node} has a UUID")

    def names(self) -> Iterator[Finding]:
        if self._settings.names == "none":
            yield warning(*NAMES, "switched off (--kubernetes-names none)", "use --kubernetes-names auto")
        elif self._pods is not None:
            yield works(*NAMES, "from the API server")
        elif self._files is not None:
            yield works(*NAMES, "from the names of log files")
        elif self._settings.names == "api":
            yield fails(*NAMES, "not known: the API server does not list pods", "see its line above")
        else:
            yield fails(
                *NAMES,
                "not known: neither the API server nor the log files can be read",
                "`kubectl apply -f deploy/rbac.yaml`, or mount the node's /var/log read-only",
            )

    def _access(self) -> ApiServerAccess | None:
        return find_access(self._settings, self._environment)

    def _watch_finding(self, client: ApiClient) -> Finding:
        query = {**node_selector_query(self._node), "watch": "1", "timeoutSeconds": "1"}
        try:
            with client.get(PODS_PATH, query) as chunks:
                for _ in chunks:
                    pass
        except GpuledgerError as error:
            why, remedy = split_remedy(error)
            return warning(*PODS, f"listed, but not watched: {why}: names are up to a minute late", remedy)
        return works(*PODS, "listed and watched")

    def _api_failure(self, subject: Subject, error: GpuledgerError) -> Finding:
        why, remedy = split_remedy(error)
        if self._files is None:
            return fails(*subject, why, remedy)
        return warning(*subject, f"{why}: {_LOST}", remedy)

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
from gpuledger.model.checks import Check, Finding, caused_by, fails, skipped, split_remedy, warning, works
from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.pods.pod_logs import read_pod_logs
from gpuledger.workloads.pods.pod_watch import PODS_PATH
from gpuledger.workloads.pods.resource_slices import DraDevice, ResourceSlices, SliceReader

API: Final = "kubernetes.api"
PODS: Final = "kubernetes.pods"
NODE: Final = "kubernetes.node"
LOGS: Final = "kubernetes.pod_logs"
NAMES: Final = "kubernetes.names"
SLICES: Final = "kubernetes.resource_slices"

_API: Final = "Kubernetes API"
_PODS: Final = "pods of this node"
_LOGS: Final = "log files of pods"
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
        return (Check(NAMES, "names of pods", lambda: (_off(settings),)),)
    checks = _KubernetesChecks(settings, node, environment)
    return (
        Check(LOGS, _LOGS, checks.logs),
        Check(API, _API, checks.api, limit=45.0),
        Check(SLICES, "DRA devices", checks.slices, needs=(API,), limit=45.0),
        Check(NAMES, "names of pods", checks.names),
    )


def device_uuids(
    settings: KubernetesSettings, node: str, environment: Mapping[str, str]
) -> tuple[Mapping[DraDevice, str], Mapping[DraDevice, str]]:
    """UUIDs of the DRA devices on the node, and of their parent Gpus.

    Empty if they cannot be read: the check SLICES reports the reason.
    """
    try:
        access = find_access(settings, environment)
        slices = SliceReader(ApiClient(access, timeout=15.0), node).read() if access else ResourceSlices()
    except GpuledgerError:
        slices = ResourceSlices()
    return slices.uuids, slices.parents


def _off(settings: KubernetesSettings) -> Finding:
    why = "switched off" if settings.enabled == "false" else "no Kubernetes on this machine"
    return skipped(NAMES, "names of pods", why)


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
            yield skipped(LOGS, _LOGS, f"not used (--kubernetes-names {self._settings.names})")
            return
        root = Path(self._settings.pod_logs)
        try:
            pods = read_pod_logs(root)
        except GpuledgerError as error:
            needed = self._settings.names == "logs" or self._access() is None
            yield (fails if needed else warning)(LOGS, _LOGS, *split_remedy(error))
            return
        self._files = len(pods)
        if pods and not any(pod.containers for pod in pods):
            yield warning(
                LOGS,
                _LOGS,
                f"{len(pods)} pods under {root}/pods, but no container links in {root}/containers: container "
                "names are not known",
                "mount all of the node's /var/log, not only pods/",
            )
            return
        yield works(LOGS, _LOGS, f"{len(pods)} pods under {root}/pods")

    def api(self) -> Iterator[Finding]:
        try:
            access = self._access()
        except GpuledgerError as error:
            yield fails(API, _API, *split_remedy(error))
            return
        if access is None:
            why = "no API server configured: not in a pod, no --kubernetes-api, no --kubeconfig"
            yield skipped(API, _API, why)
            return
        if self._settings.names in ("none", "logs"):
            yield skipped(API, _API, f"not used for pod names (--kubernetes-names {self._settings.names})")
            return
        client = ApiClient(access, timeout=15.0)
        try:
            self._pods = _count_pods(client, self._node)
        except ApiServerRefused as error:
            if error.status == 403:
                yield works(API, _API, f"{access.url} responds")
                yield self._api_failure(PODS, _PODS, error)
            else:
                yield self._api_failure(API, _API, error)
            return
        except GpuledgerError as error:
            yield self._api_failure(API, _API, error)
            yield skipped(PODS, _PODS, caused_by(_API))
            return
        yield works(API, _API, f"{access.url} responds")
        yield from self._check_watch(client)
        yield self._node_finding()

    def slices(self) -> Iterator[Finding]:
        what = "DRA devices"
        access = self._access()
        if access is None:
            yield skipped(SLICES, what, "no API server configured")
            return
        try:
            devices = SliceReader(ApiClient(access, timeout=15.0), self._node).read()
        except GpuledgerError as error:
            why, remedy = split_remedy(error)
            yield warning(SLICES, what, f"{why}: matters only if GPUs are allocated by DRA", remedy)
            return
        if len(devices):
            yield works(SLICES, what, f"{len(devices)} with a UUID in the ResourceSlices of {self._node}")
        else:
            yield skipped(SLICES, what, f"no ResourceSlice of {self._node} has a UUID")

    def names(self) -> Iterator[Finding]:
        what = "names of pods"
        if self._settings.names == "none":
            yield warning(
                NAMES, what, "switched off (--kubernetes-names none)", "use --kubernetes-names auto"
            )
        elif self._pods is not None:
            yield works(NAMES, what, "from the API server")
        elif self._files is not None:
            yield works(NAMES, what, "from the names of log files")
        elif self._settings.names == "api":
            yield fails(NAMES, what, "not known: the API server does not list pods", "see its line above")
        else:
            yield fails(
                NAMES,
                what,
                "not known: neither the API server nor the log files can be read",
                "`kubectl apply -f deploy/rbac.yaml`, or mount the node's /var/log read-only",
            )

    def _access(self) -> ApiServerAccess | None:
        return find_access(self._settings, self._environment)

    def _check_watch(self, client: ApiClient) -> Iterator[Finding]:
        query = {**node_selector_query(self._node), "watch": "1", "timeoutSeconds": "1"}
        try:
            with client.get(PODS_PATH, query) as chunks:
                for _ in chunks:
                    pass
        except GpuledgerError as error:
            why, remedy = split_remedy(error)
            yield warning(
                PODS, _PODS, f"listed, but not watched: {why}: names are up to a minute late", remedy
            )
        else:
            yield works(PODS, _PODS, "listed and watched")

    def _node_finding(self) -> Finding:
        what = "node name"
        if self._pods:
            return works(NODE, what, f"{self._pods} pods on {self._node}")
        return warning(
            NODE,
            what,
            f"the API server lists no pod on a node named {self._node}",
            "set the name that `kubectl get nodes` shows with --node-name, or with the variable NODE_NAME "
            "from the field spec.nodeName",
        )

    def _api_failure(self, check: str, what: str, error: GpuledgerError) -> Finding:
        why, remedy = split_remedy(error)
        if self._files is None:
            return fails(check, what, why, remedy)
        return warning(check, what, f"{why}: {_LOST}", remedy)


def _count_pods(client: ApiClient, node: str) -> int:
    with client.get(PODS_PATH, {**node_selector_query(node), "resourceVersion": "0"}) as chunks:
        return sum(1 for _ in ListReader(chunks).items())

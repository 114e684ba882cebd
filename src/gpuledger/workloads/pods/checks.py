"""What `doctor` says of the names of pods: the API server, the node's own log files, and which is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from gpuledger.kubernetes.access import Access
from gpuledger.kubernetes.client import ApiClient, Refused, on_node
from gpuledger.kubernetes.cluster import SERVICE_ACCOUNT, find_access
from gpuledger.kubernetes.settings import KUBELET, KubernetesSettings, is_enabled
from gpuledger.kubernetes.stream import ListReader
from gpuledger.model.checks import Check, Finding, because, fails, parted, skipped, warning, works
from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.pods.logs import read_pod_logs
from gpuledger.workloads.pods.slices import DraDevice, ResourceSlices, SliceReader
from gpuledger.workloads.pods.watch import PODS_PATH

API: Final = "kubernetes.api"
PODS: Final = "kubernetes.pods"
NODE: Final = "kubernetes.node"
LOGS: Final = "kubernetes.pod_logs"
NAMES: Final = "kubernetes.names"
SLICES: Final = "kubernetes.resource_slices"

_API: Final = "Kubernetes API"
_PODS: Final = "pods of this node"
_LOGS: Final = "log files of pods"
# What is lost without the API, where the log files tell the rest.
_LOST: Final = "names come from the log files, and labels, controllers and phases of pods are not known"


def kubernetes_checks(
    settings: KubernetesSettings,
    node: str,
    environment: Mapping[str, str],
    *,
    account: Path = SERVICE_ACCOUNT,
    kubelet: Path = KUBELET,
) -> tuple[Check, ...]:
    """Checks of a node of Kubernetes called `node`; one that says so where this is none.

    `account` is where the kubelet mounts the ServiceAccount.
    """
    if not is_enabled(settings, environment, kubelet):
        return (Check(NAMES, "names of pods", lambda: (_off(settings),)),)
    looked = _Looked(settings, node, environment, account)
    return (
        Check(LOGS, _LOGS, looked.logs),
        Check(API, _API, looked.api, limit=45.0),
        Check(SLICES, "DRA devices", looked.slices, needs=(API,), limit=45.0),
        Check(NAMES, "names of pods", looked.names),
    )


def device_uuids(
    settings: KubernetesSettings, node: str, environment: Mapping[str, str], account: Path = SERVICE_ACCOUNT
) -> tuple[Mapping[DraDevice, str], Mapping[DraDevice, str]]:
    """UUIDs of DRA's devices on the node, and of the Gpus that they are parts of.

    None where nobody tells them: the check SLICES says why.
    """
    try:
        access = find_access(settings, environment, account)
        told = SliceReader(ApiClient(access, timeout=15.0), node).read() if access else ResourceSlices()
    except GpuledgerError:
        told = ResourceSlices()
    return told.uuids, told.parents


def _off(settings: KubernetesSettings) -> Finding:
    why = "switched off" if settings.enabled == "false" else "no Kubernetes on this machine"
    return skipped(NAMES, "names of pods", why)


class _Looked:
    """The looks, each of which remembers what the last one needs to know."""

    def __init__(
        self,
        settings: KubernetesSettings,
        node: str,
        environment: Mapping[str, str],
        account: Path,
    ) -> None:
        self._settings = settings
        self._node = node
        self._environment = environment
        self._account = account
        self._pods: int | None = None
        self._files: int | None = None

    def logs(self) -> Iterator[Finding]:
        if self._settings.names not in ("auto", "logs"):
            yield skipped(LOGS, _LOGS, f"not asked (--kubernetes-names {self._settings.names})")
            return
        root = Path(self._settings.pod_logs)
        try:
            pods = read_pod_logs(root)
        except GpuledgerError as error:
            needed = self._settings.names == "logs" or self._access() is None
            yield (fails if needed else warning)(LOGS, _LOGS, *parted(error))
            return
        self._files = len(pods)
        if pods and not any(pod.containers for pod in pods):
            yield warning(
                LOGS,
                _LOGS,
                f"{len(pods)} pods under {root}/pods, but no link of a container in {root}/containers: names "
                "of containers are not known",
                "mount all of the node's /var/log, not pods/ alone",
            )
            return
        yield works(LOGS, _LOGS, f"{len(pods)} pods under {root}/pods")

    def api(self) -> Iterator[Finding]:
        try:
            access = self._access()
        except GpuledgerError as error:
            yield fails(API, _API, *parted(error))
            return
        if access is None:
            why = "there is none to ask: not in a pod, no --kubernetes-api, no --kubeconfig"
            yield skipped(API, _API, why)
            return
        if self._settings.names in ("none", "logs"):
            yield skipped(API, _API, f"not asked for pods (--kubernetes-names {self._settings.names})")
            return
        client = ApiClient(access, timeout=15.0)
        try:
            self._pods = _count(client, self._node)
        except Refused as error:
            if error.status == 403:
                yield works(API, _API, f"{access.url} answers")
                yield self._complain(PODS, _PODS, error)
            else:
                yield self._complain(API, _API, error)
            return
        except GpuledgerError as error:
            yield self._complain(API, _API, error)
            yield skipped(PODS, _PODS, because(_API))
            return
        yield works(API, _API, f"{access.url} answers")
        yield from self._watch(client)
        yield self._node_finding()

    def slices(self) -> Iterator[Finding]:
        what = "DRA devices"
        access = self._access()
        if access is None:
            yield skipped(SLICES, what, "no API server to ask")
            return
        try:
            devices = SliceReader(ApiClient(access, timeout=15.0), self._node).read()
        except GpuledgerError as error:
            why, remedy = parted(error)
            yield warning(SLICES, what, f"{why}: matters only where GPUs are handed out by DRA", remedy)
            return
        if len(devices):
            yield works(SLICES, what, f"{len(devices)} with a UUID in the ResourceSlices of {self._node}")
        else:
            yield skipped(SLICES, what, f"no ResourceSlice of {self._node} tells a UUID")

    def names(self) -> Iterator[Finding]:
        what = "names of pods"
        if self._settings.names == "none":
            yield warning(
                NAMES, what, "not asked for (--kubernetes-names none)", "use --kubernetes-names auto"
            )
        elif self._pods is not None:
            yield works(NAMES, what, "from the API server")
        elif self._files is not None:
            yield works(NAMES, what, "from the names of log files")
        elif self._settings.names == "api":
            yield fails(NAMES, what, "from nowhere: the API server does not tell them", "see its line above")
        else:
            yield fails(
                NAMES,
                what,
                "from nowhere: neither the API server nor the log files tell them",
                "`kubectl apply -f deploy/rbac.yaml`, or mount the node's /var/log read-only",
            )

    def _access(self) -> Access | None:
        return find_access(self._settings, self._environment, self._account)

    def _watch(self, client: ApiClient) -> Iterator[Finding]:
        query = {**on_node(self._node), "watch": "1", "timeoutSeconds": "1"}
        try:
            with client.get(PODS_PATH, query) as pieces:
                for _ in pieces:
                    pass
        except GpuledgerError as error:
            why, remedy = parted(error)
            yield warning(
                PODS, _PODS, f"listed, but not watched: {why}: names come up to a minute late", remedy
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
            f"the API server knows no pod on a node called {self._node}",
            "name the node as `kubectl get nodes` does: --node-name, or the variable NODE_NAME from the "
            "field spec.nodeName",
        )

    def _complain(self, check: str, what: str, error: GpuledgerError) -> Finding:
        why, remedy = parted(error)
        if self._files is None:
            return fails(check, what, why, remedy)
        return warning(check, what, f"{why}: {_LOST}", remedy)


def _count(client: ApiClient, node: str) -> int:
    with client.get(PODS_PATH, {**on_node(node), "resourceVersion": "0"}) as pieces:
        return sum(1 for _ in ListReader(pieces).items())

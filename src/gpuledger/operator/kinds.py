"""The kinds of objects that are made for a monitor, and where the API server has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpuledger.kubernetes.access import MANAGER
from gpuledger.kubernetes.writing import Json
from gpuledger.operator.facts import Owner
from gpuledger.operator.render.names import MONITOR, MONITOR_KIND
from gpuledger.operator.spec import GPU_MONITOR, WHATAP_AGENT

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
# Of everything that the operator has made and of nothing else.
OURS: Final = f"{MANAGED_BY}={MANAGER}"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind: its API version, plural, and whether it lives in namespaces."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """Empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """Without the group."""
        return self.api_version.rpartition("/")[2]

    def path(self, namespace: str = "", name: str = "") -> str:
        """Of all objects in a namespace (of all there are without), or of one."""
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        within = f"/namespaces/{namespace}" if namespace and self.namespaced else ""
        return f"{root}{within}/{self.plural}{f'/{name}' if name else ''}"


# In the order in which they are made: what others refer to comes first.
KINDS: Final = (
    Kind("v1", "ServiceAccount", "serviceaccounts"),
    Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
    Kind("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False),
    Kind("v1", "ConfigMap", "configmaps"),
    Kind("v1", "Service", "services"),
    Kind("apps/v1", "DaemonSet", "daemonsets"),
    Kind("apps/v1", "StatefulSet", "statefulsets"),
)
_BY_NAME: Final[Mapping[tuple[str, str], Kind]] = {(kind.api_version, kind.kind): kind for kind in KINDS}

# What users write.
GPU_MONITORS: Final = Kind("gpuledger.dev/v1alpha1", GPU_MONITOR, "gpumonitors", namespaced=False)
WHATAP_AGENTS: Final = Kind("monitoring.whatap.com/v2alpha1", WHATAP_AGENT, "whatapagents", namespaced=False)
EVENT: Final = Kind("v1", "Event", "events")
POD: Final = Kind("v1", "Pod", "pods")
CLAIM: Final = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
DEFINITION: Final = Kind(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Which object: order is that of making."""

    rank: int
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


def kind_of(body: Json) -> Kind:
    """The kind of an object. Raises KeyError for one that the operator does not make."""
    return _BY_NAME[body["apiVersion"], body["kind"]]


def key_of(body: Json) -> Key:
    """By what an object is told from others. Raises KeyError as `kind_of` does."""
    kind = kind_of(body)
    metadata = body["metadata"]
    return Key(KINDS.index(kind), kind.kind, metadata.get("namespace") or "", metadata["name"])


def path_of(body: Json) -> str:
    """Where the object is."""
    metadata = body["metadata"]
    return kind_of(body).path(metadata.get("namespace") or "", metadata["name"])


def resource_path(body: Json) -> str:
    """Where a resource of a user is."""
    return _RESOURCES[body["kind"]].path(name=body["metadata"]["name"])


def uid_of(body: Json) -> str:
    """What tells an object from another of the same name."""
    return str(body["metadata"].get("uid") or "")


def version_of(body: Json) -> int:
    """The resource version as a number, by which of two states of one object the newer is told; 0 without.

    Kubernetes has called it opaque until 1.35; etcd's revision it has been all along.
    """
    told = str(body["metadata"].get("resourceVersion") or "")
    return int(told) if told.isdigit() else 0


def is_ending(body: Json) -> bool:
    """Whether its deletion was asked for."""
    return bool(body["metadata"].get("deletionTimestamp"))


def owner_of(body: Json) -> str:
    """The uid of the monitor that it was made for; empty when it was not."""
    metadata = body["metadata"]
    if (metadata.get("labels") or {}).get(MANAGED_BY) != MANAGER:
        return ""
    return next(iter(_owners(body)), "")


def as_owner(monitor: Json) -> Owner:
    """A resource as its objects name it."""
    metadata = monitor["metadata"]
    return Owner(monitor["apiVersion"], monitor["kind"], metadata["name"], metadata["uid"])


def is_made_for(body: Json, owner: str, wanted: Json) -> bool:
    """Whether it was made for the monitor with this uid, which wants it to be so.

    A hand may have taken either sign from it, the labels or the reference to its owner.
    """
    owners = _owners(body)
    if owners:
        return owner in owners
    labels, claimed = body["metadata"].get("labels") or {}, wanted["metadata"]["labels"]
    return all(labels.get(name) == claimed[name] for name in (MANAGED_BY, MONITOR, MONITOR_KIND))


def _owners(body: Json) -> list[str]:
    """The uids of the monitors that it names as its owners."""
    references = body["metadata"].get("ownerReferences") or ()
    return [
        str(one.get("uid") or "") for one in references if (one.get("apiVersion"), one.get("kind")) in _OWNERS
    ]


_RESOURCES: Final = {kind.kind: kind for kind in (GPU_MONITORS, WHATAP_AGENTS)}
_OWNERS: Final = {(kind.api_version, kind.kind) for kind in (GPU_MONITORS, WHATAP_AGENTS)}

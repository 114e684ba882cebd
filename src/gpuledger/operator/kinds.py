"""The kinds of objects that the operator creates or reads, their URL paths, and their ownership."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from gpuledger.kubernetes.access import FIELD_MANAGER
from gpuledger.kubernetes.object_client import Json
from gpuledger.operator.render.naming import MONITOR, MONITOR_KIND
from gpuledger.operator.render_context import MonitorReference
from gpuledger.operator.spec import GPU_MONITOR, WHATAP_AGENT

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
# Selects the objects that the operator created.
MANAGED_SELECTOR: Final = f"{MANAGED_BY}={FIELD_MANAGER}"


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """A kind of object: its API version, its plural, and whether it is namespaced."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str = "", name: str = "") -> str:
        """The path of one object; without `name`, of all objects in the namespace, or of all without one."""
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        within = f"/namespaces/{namespace}" if namespace and self.namespaced else ""
        return f"{root}{within}/{self.plural}{f'/{name}' if name else ''}"

    def typed(self, item: Json) -> Json:
        """An object with its apiVersion and kind, which the items of a list lack."""
        return {"apiVersion": self.api_version, "kind": self.kind, **item}


CRON_JOB_KIND: Final = ObjectKind("batch/v1", "CronJob", "cronjobs")
# That of API servers before Kubernetes 1.21; removed in 1.25.
_OLD_CRON_JOB_KIND: Final = ObjectKind("batch/v1beta1", "CronJob", "cronjobs")
# In the order of creation: objects that others refer to come first.
KINDS: Final = (
    ObjectKind("v1", "ServiceAccount", "serviceaccounts"),
    ObjectKind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
    ObjectKind("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False),
    ObjectKind("v1", "ConfigMap", "configmaps"),
    ObjectKind("v1", "Service", "services"),
    ObjectKind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    ObjectKind("apps/v1", "DaemonSet", "daemonsets"),
    ObjectKind("apps/v1", "StatefulSet", "statefulsets"),
    CRON_JOB_KIND,
)
_RANKS: Final = {kind.kind: rank for rank, kind in enumerate(KINDS)}


def managed_kinds(cron_job_version: str) -> tuple[ObjectKind, ...]:
    """The kinds of objects that the operator creates, on a server with this API version of CronJobs."""
    return tuple(
        replace(kind, api_version=cron_job_version) if kind is CRON_JOB_KIND else kind for kind in KINDS
    )


# The kinds that users write.
GPU_MONITOR_KIND: Final = ObjectKind("gpuledger.dev/v1alpha1", GPU_MONITOR, "gpumonitors", namespaced=False)
WHATAP_AGENT_KIND: Final = ObjectKind(
    "monitoring.whatap.com/v2alpha1", WHATAP_AGENT, "whatapagents", namespaced=False
)
RESOURCE_KINDS: Final = (GPU_MONITOR_KIND, WHATAP_AGENT_KIND)
_BY_NAME: Final = {
    (kind.api_version, kind.kind): kind for kind in (*KINDS, _OLD_CRON_JOB_KIND, *RESOURCE_KINDS)
}
EVENT_KIND: Final = ObjectKind("v1", "Event", "events")
POD_KIND: Final = ObjectKind("v1", "Pod", "pods")
NODE_KIND: Final = ObjectKind("v1", "Node", "nodes", namespaced=False)
VOLUME_CLAIM_KIND: Final = ObjectKind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
LEASE_KIND: Final = ObjectKind("coordination.k8s.io/v1", "Lease", "leases")
CRD_KIND: Final = ObjectKind(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """Identifies an object. Keys sort in the order of creation."""

    rank: int
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


def kind_of(body: Json) -> ObjectKind:
    """The kind of an object. Raises KeyError for kinds that neither users nor the operator create."""
    return _BY_NAME[body["apiVersion"], body["kind"]]


def object_key(body: Json) -> ObjectKey:
    """The key of an object. Raises KeyError as `kind_of` does."""
    kind = kind_of(body)
    metadata = body["metadata"]
    return ObjectKey(_RANKS[kind.kind], kind.kind, metadata.get("namespace") or "", metadata["name"])


def object_path(body: Json) -> str:
    """The URL path of an object or of a user's resource."""
    metadata = body["metadata"]
    return kind_of(body).path(metadata.get("namespace") or "", metadata["name"])


def uid_of(body: Json) -> str:
    """The uid of an object; it differs from that of an earlier object of the same name."""
    return str(body["metadata"].get("uid") or "")


def resource_version(body: Json) -> int:
    """The resource version as a number, to find the newer of two states of an object; 0 if absent.

    Kubernetes defined it as opaque before 1.35, but it has always been etcd's revision.
    """
    text = str(body["metadata"].get("resourceVersion") or "")
    return int(text) if text.isdigit() else 0


def is_being_deleted(body: Json) -> bool:
    """Whether the object has a deletion timestamp."""
    return bool(body["metadata"].get("deletionTimestamp"))


def owner_uid(body: Json) -> str:
    """The uid of the monitor that owns the object; empty for objects of others."""
    metadata = body["metadata"]
    if (metadata.get("labels") or {}).get(MANAGED_BY) != FIELD_MANAGER:
        return ""
    return next(iter(_owner_uids(body)), "")


def owner_reference_of(monitor: Json) -> MonitorReference:
    """The reference to a resource that its objects contain."""
    metadata = monitor["metadata"]
    return MonitorReference(monitor["apiVersion"], monitor["kind"], metadata["name"], metadata["uid"])


def belongs_to(body: Json, owner: str, desired: Json) -> bool:
    """Whether the object was created for the monitor with the uid `owner`; `desired` is its desired content.

    Either the labels or the owner reference suffices, because a user may have removed the other.
    """
    owners = _owner_uids(body)
    if owners:
        return owner in owners
    labels, claimed = body["metadata"].get("labels") or {}, desired["metadata"]["labels"]
    return all(labels.get(name) == claimed[name] for name in (MANAGED_BY, MONITOR, MONITOR_KIND))


def _owner_uids(body: Json) -> list[str]:
    """The uids of the monitors in the owner references."""
    references = body["metadata"].get("ownerReferences") or ()
    return [
        str(reference.get("uid") or "")
        for reference in references
        if _BY_NAME.get((reference.get("apiVersion"), reference.get("kind"))) in RESOURCE_KINDS
    ]

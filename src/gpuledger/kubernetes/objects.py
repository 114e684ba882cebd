"""Kubernetes objects, their parsers and label selectors. Pure.

Only fields that target labels can use are kept. A field of an undocumented type is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from sys import intern
from typing import Any

from gpuledger.kubernetes.fields import mapping_at, mappings_at

Pairs = tuple[tuple[str, str], ...]

_HOSTNAME = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """Metadata of an object. Nodes and namespaces have no namespace. `annotations` are kept on request."""

    namespace: str
    name: str
    labels: Pairs = ()
    annotations: Pairs = ()

    @property
    def key(self) -> str:
        """The key that identifies the object among its kind."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ObjectPort:
    """A port of a container, a service or an endpoint. `target` is a service's targetPort as written."""

    name: str
    number: int
    protocol: str = "TCP"
    target: str = ""
    app_protocol: str = ""


@dataclass(frozen=True, slots=True)
class PodContainer:
    """A container in a pod's spec, with its id once it has started."""

    name: str
    image: str
    init: bool
    ports: tuple[ObjectPort, ...] = ()
    container_id: str = ""


@dataclass(frozen=True, slots=True)
class PodObject:
    """core/v1 Pod. `ready` is the condition PodReady: true, false or unknown."""

    meta: ObjectMeta
    uid: str
    ip: str
    host_ip: str
    node: str
    phase: str
    ready: str
    controller_kind: str
    controller_name: str
    containers: tuple[PodContainer, ...]


@dataclass(frozen=True, slots=True)
class ServiceObject:
    """core/v1 Service."""

    meta: ObjectMeta
    ports: tuple[ObjectPort, ...]


@dataclass(frozen=True, slots=True)
class ServiceEndpoint:
    """One endpoint of a service, with all its addresses. Unknown fields are empty."""

    addresses: tuple[str, ...]
    ready: str = ""
    serving: str = ""
    terminating: str = ""
    hostname: str = ""
    node_name: str = ""
    zone: str = ""
    target_kind: str = ""
    target_namespace: str = ""
    target_name: str = ""
    topology: Pairs = ()

    @property
    def node(self) -> str:
        """The node name: v1 has it as a field, v1beta1 in `topology`."""
        return self.node_name or next((value for name, value in self.topology if name == _HOSTNAME), "")


@dataclass(frozen=True, slots=True)
class EndpointSliceObject:
    """discovery.k8s.io EndpointSlice, or one subset of core/v1 Endpoints, which has no address type."""

    meta: ObjectMeta
    service: str
    address_type: str
    ports: tuple[ObjectPort, ...]
    endpoints: tuple[ServiceEndpoint, ...]


@dataclass(frozen=True, slots=True)
class EndpointsObject:
    """core/v1 Endpoints, with its subsets as slices."""

    meta: ObjectMeta
    slices: tuple[EndpointSliceObject, ...]


@dataclass(frozen=True, slots=True)
class LabeledObject:
    """A node, a namespace, or an object that no selector matches: only the metadata is kept."""

    meta: ObjectMeta


@dataclass(frozen=True, slots=True)
class SecretObject:
    """core/v1 Secret; `data` is base64, as in the API. Not in the `repr`."""

    meta: ObjectMeta
    data: Pairs

    def __repr__(self) -> str:
        return f"SecretObject({self.meta.key})"


@dataclass(frozen=True, slots=True)
class StatefulSetObject:
    """apps/v1 StatefulSet: the desired number of replicas, and whether so many are ready (`settled`)."""

    meta: ObjectMeta
    replicas: int
    settled: bool


def parse_meta(data: object, *, annotations: bool = False) -> ObjectMeta | None:
    """Parse the metadata of an object; None if it has no name."""
    meta = mapping_at(data, "metadata")
    name = text_at(meta, "name")
    if not name:
        return None
    return ObjectMeta(
        intern(text_at(meta, "namespace")),
        name,
        _pairs(mapping_at(meta, "labels")),
        _pairs(mapping_at(meta, "annotations")) if annotations else (),
    )


def parse_pod_object(data: object, meta: ObjectMeta) -> PodObject:
    """Parse a core/v1 Pod."""
    spec, status = mapping_at(data, "spec"), mapping_at(data, "status")
    owners = mappings_at(mapping_at(data, "metadata"), "ownerReferences")
    controller = next((owner for owner in owners if owner.get("controller") is True), {})
    ready = next((item for item in mappings_at(status, "conditions") if item.get("type") == "Ready"), {})
    ids = {
        text_at(item, "name"): text_at(item, "containerID")
        for kind in ("containerStatuses", "initContainerStatuses")
        for item in mappings_at(status, kind)
    }
    return PodObject(
        meta,
        text_at(mapping_at(data, "metadata"), "uid"),
        text_at(status, "podIP"),
        intern(text_at(status, "hostIP")),
        intern(text_at(spec, "nodeName")),
        intern(text_at(status, "phase")),
        intern((text_at(ready, "status") or "unknown").lower()),
        intern(text_at(controller, "kind")),
        intern(text_at(controller, "name")),
        tuple(
            PodContainer(
                intern(text_at(item, "name")),
                intern(text_at(item, "image")),
                kind == "initContainers",
                tuple(_ports(item, "containerPort")),
                ids.get(text_at(item, "name"), ""),
            )
            for kind in ("containers", "initContainers")
            for item in mappings_at(spec, kind)
        ),
    )


def parse_service(data: object, meta: ObjectMeta) -> ServiceObject:
    """Parse a core/v1 Service."""
    return ServiceObject(meta, tuple(_ports(mapping_at(data, "spec"), "port")))


def parse_endpoint_slice(data: object, meta: ObjectMeta) -> EndpointSliceObject:
    """Parse a discovery.k8s.io EndpointSlice, v1 or v1beta1."""
    labels = dict(meta.labels)
    return EndpointSliceObject(
        meta,
        labels.get("kubernetes.io/service-name", ""),
        text_at(data, "addressType"),
        tuple(_ports(data, "port")),
        tuple(_endpoint(endpoint) for endpoint in mappings_at(data, "endpoints")),
    )


def parse_endpoints(data: object, meta: ObjectMeta) -> EndpointsObject:
    """Parse a core/v1 Endpoints object."""
    return EndpointsObject(
        meta,
        tuple(
            EndpointSliceObject(
                meta,
                meta.name,
                "",
                tuple(_ports(subset, "port")),
                tuple(
                    replace(_endpoint(item), addresses=(text_at(item, "ip"),), ready=ready)
                    for kind, ready in (("addresses", "true"), ("notReadyAddresses", "false"))
                    for item in mappings_at(subset, kind)
                ),
            )
            for subset in mappings_at(data, "subsets")
        ),
    )


def parse_secret(data: object, meta: ObjectMeta) -> SecretObject:
    """Parse a core/v1 Secret."""
    return SecretObject(meta, _pairs(mapping_at(data, "data")))


def parse_stateful_set(data: object, meta: ObjectMeta) -> StatefulSetObject:
    """Parse an apps/v1 StatefulSet."""
    status = mapping_at(data, "status")
    replicas = _whole(mapping_at(data, "spec"), "replicas", 1)
    # The status is outdated if it is of an older generation.
    current = _whole(status, "observedGeneration", 0) >= _whole(mapping_at(data, "metadata"), "generation", 0)
    return StatefulSetObject(meta, replicas, current and _whole(status, "readyReplicas", 0) >= replicas)


def _whole(data: Mapping[str, Any], key: str, otherwise: int) -> int:
    value = data.get(key, otherwise)
    return value if isinstance(value, int) else otherwise


def parse_labeled(_: object, meta: ObjectMeta) -> LabeledObject:
    """Parse a core/v1 Node or Namespace."""
    return LabeledObject(meta)


def _endpoint(data: Mapping[str, Any]) -> ServiceEndpoint:
    target, conditions = mapping_at(data, "targetRef"), mapping_at(data, "conditions")
    topology = mapping_at(data, "topology") or mapping_at(data, "deprecatedTopology")
    return ServiceEndpoint(
        tuple(item for item in data.get("addresses") or () if isinstance(item, str)),
        _condition(conditions, "ready"),
        _condition(conditions, "serving"),
        _condition(conditions, "terminating"),
        text_at(data, "hostname"),
        intern(text_at(data, "nodeName")),
        intern(text_at(data, "zone")),
        text_at(target, "kind"),
        text_at(target, "namespace"),
        text_at(target, "name"),
        _pairs(topology),
    )


def _condition(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    return str(value).lower() if isinstance(value, bool) else ""


def _ports(data: object, number: str) -> Iterator[ObjectPort]:
    for item in mappings_at(data, "ports"):
        found = item.get(number)
        if isinstance(found, int):
            target = item.get("targetPort")
            yield ObjectPort(
                intern(text_at(item, "name")),
                found,
                intern(text_at(item, "protocol") or "TCP"),
                "" if target is None else str(target),
                text_at(item, "appProtocol"),
            )


def text_at(data: object, key: str) -> str:
    """The text at `key`; empty if there is none."""
    value = data.get(key) if isinstance(data, Mapping) else None
    return value if isinstance(value, str) else ""


def _pairs(data: Mapping[str, Any]) -> Pairs:
    return tuple((intern(name), intern(value)) for name, value in data.items() if isinstance(value, str))


Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LabelExpression:
    """One of `matchExpressions`. NotIn and DoesNotExist also match objects without the key."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Labels) -> bool:
        """Whether an object with these labels is selected."""
        value = labels.get(self.key)
        if self.operator == "In":
            return value is not None and value in self.values
        if self.operator == "NotIn":
            return value is None or value not in self.values
        return (value is not None) is (self.operator == "Exists")

    def __str__(self) -> str:
        if self.operator in ("In", "NotIn"):
            return f"{self.key} {self.operator.lower()} ({','.join(self.values)})"
        return self.key if self.operator == "Exists" else f"!{self.key}"


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Matches if all `labels` and all `expressions` match. An empty selector matches everything."""

    labels: tuple[tuple[str, str], ...] = ()
    expressions: tuple[LabelExpression, ...] = ()

    def matches(self, labels: Labels) -> bool:
        """Whether an object with these labels is selected."""
        return all(labels.get(key) == value for key, value in self.labels) and all(
            expression.matches(labels) for expression in self.expressions
        )

    def __bool__(self) -> bool:
        return bool(self.labels or self.expressions)

    def __str__(self) -> str:
        """The syntax of `kubectl -l` and of the API's labelSelector."""
        return ",".join([*(f"{key}={value}" for key, value in self.labels), *map(str, self.expressions)])


@dataclass(frozen=True, slots=True)
class NamespaceSelector:
    """Namespaces by name (`names` is None: any name) and by their labels."""

    names: frozenset[str] | None = None
    selector: LabelSelector = LabelSelector()

    def matches(self, name: str, labels: Labels) -> bool:
        """Whether the namespace is selected."""
        return (self.names is None or name in self.names) and self.selector.matches(labels)

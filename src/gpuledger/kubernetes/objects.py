"""What is kept of pods, services, their endpoints, nodes and namespaces, and how it is read: pure.

Only what a target's labels can be made of is kept. A field that is not of its documented type is lost alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from sys import intern
from typing import Any

from gpuledger.kubernetes.fields import elements, mapping

Pairs = tuple[tuple[str, str], ...]

_HOSTNAME = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class Meta:
    """Which object it is. Nodes and namespaces have no namespace. `annotations` are empty unless wanted."""

    namespace: str
    name: str
    labels: Pairs = ()
    annotations: Pairs = ()

    @property
    def key(self) -> str:
        """By what it is told from others of its kind."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Unselected:
    """An object that no selector means: that it is there is all that is known."""

    meta: Meta


@dataclass(frozen=True, slots=True)
class Port:
    """A port of a container, a service or an endpoint. `target` is a service's targetPort as written."""

    name: str
    number: int
    protocol: str = "TCP"
    target: str = ""
    app_protocol: str = ""


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a pod's spec, and its id where it has begun."""

    name: str
    image: str
    init: bool
    ports: tuple[Port, ...] = ()
    container_id: str = ""


@dataclass(frozen=True, slots=True)
class PodObject:
    """core/v1 Pod. `ready` is true, false or unknown, as the condition PodReady says."""

    meta: Meta
    uid: str
    ip: str
    host_ip: str
    node: str
    phase: str
    ready: str
    controller_kind: str
    controller_name: str
    containers: tuple[Container, ...]


@dataclass(frozen=True, slots=True)
class ServiceObject:
    """core/v1 Service."""

    meta: Meta
    ports: tuple[Port, ...]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Addresses behind a service that are one. What is not told of them is empty."""

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
        """Where it is: v1 tells the node as a field, v1beta1 in `topology`."""
        return self.node_name or next((value for name, value in self.topology if name == _HOSTNAME), "")


@dataclass(frozen=True, slots=True)
class SliceObject:
    """discovery.k8s.io EndpointSlice, or one subset of core/v1 Endpoints, which has no address type."""

    meta: Meta
    service: str
    address_type: str
    ports: tuple[Port, ...]
    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class EndpointsObject:
    """core/v1 Endpoints: its subsets as slices."""

    meta: Meta
    slices: tuple[SliceObject, ...]


@dataclass(frozen=True, slots=True)
class PlainObject:
    """A node, a namespace: its labels are all that matters."""

    meta: Meta


@dataclass(frozen=True, slots=True)
class SecretObject:
    """core/v1 Secret: its data as the API has it, in base64."""

    meta: Meta
    data: Pairs

    def __repr__(self) -> str:
        return f"SecretObject({self.meta.key})"


@dataclass(frozen=True, slots=True)
class ScaleObject:
    """apps/v1 StatefulSet: how many replicas it is to have, and whether so many are there and ready."""

    meta: Meta
    replicas: int
    settled: bool


def read_meta(told: object, *, annotations: bool = False) -> Meta | None:
    """Name and labels; None for what has no name."""
    meta = mapping(told, "metadata")
    name = text(meta, "name")
    if not name:
        return None
    return Meta(
        intern(text(meta, "namespace")),
        name,
        _pairs(mapping(meta, "labels")),
        _pairs(mapping(meta, "annotations")) if annotations else (),
    )


def read_pod(told: object, meta: Meta) -> PodObject:
    """A pod out of the API's JSON."""
    spec, status = mapping(told, "spec"), mapping(told, "status")
    owners = elements(mapping(told, "metadata"), "ownerReferences")
    controller = next((owner for owner in owners if owner.get("controller") is True), {})
    ready = next((one for one in elements(status, "conditions") if one.get("type") == "Ready"), {})
    ids = {
        text(one, "name"): text(one, "containerID")
        for kind in ("containerStatuses", "initContainerStatuses")
        for one in elements(status, kind)
    }
    return PodObject(
        meta,
        text(mapping(told, "metadata"), "uid"),
        text(status, "podIP"),
        intern(text(status, "hostIP")),
        intern(text(spec, "nodeName")),
        intern(text(status, "phase")),
        intern((text(ready, "status") or "unknown").lower()),
        intern(text(controller, "kind")),
        intern(text(controller, "name")),
        tuple(
            Container(
                intern(text(one, "name")),
                intern(text(one, "image")),
                kind == "initContainers",
                tuple(_ports(one, "containerPort")),
                ids.get(text(one, "name"), ""),
            )
            for kind in ("containers", "initContainers")
            for one in elements(spec, kind)
        ),
    )


def read_service(told: object, meta: Meta) -> ServiceObject:
    """A service out of the API's JSON."""
    return ServiceObject(meta, tuple(_ports(mapping(told, "spec"), "port")))


def read_slice(told: object, meta: Meta) -> SliceObject:
    """An EndpointSlice, v1 or v1beta1, out of the API's JSON."""
    labels = dict(meta.labels)
    return SliceObject(
        meta,
        labels.get("kubernetes.io/service-name", ""),
        text(told, "addressType"),
        tuple(_ports(told, "port")),
        tuple(_endpoint(one) for one in elements(told, "endpoints")),
    )


def read_endpoints(told: object, meta: Meta) -> EndpointsObject:
    """An Endpoints object out of the API's JSON."""
    return EndpointsObject(
        meta,
        tuple(
            SliceObject(
                meta,
                meta.name,
                "",
                tuple(_ports(subset, "port")),
                tuple(
                    _address(one, ready)
                    for kind, ready in (("addresses", "true"), ("notReadyAddresses", "false"))
                    for one in elements(subset, kind)
                ),
            )
            for subset in elements(told, "subsets")
        ),
    )


def read_secret(told: object, meta: Meta) -> SecretObject:
    """A secret out of the API's JSON."""
    return SecretObject(meta, _pairs(mapping(told, "data")))


def read_scale(told: object, meta: Meta) -> ScaleObject:
    """A StatefulSet out of the API's JSON."""
    status = mapping(told, "status")
    replicas = _whole(mapping(told, "spec"), "replicas", 1)
    # What the status says may be about the number of before.
    current = _whole(status, "observedGeneration", 0) >= _whole(mapping(told, "metadata"), "generation", 0)
    return ScaleObject(meta, replicas, current and _whole(status, "readyReplicas", 0) >= replicas)


def _whole(told: Mapping[str, Any], key: str, otherwise: int) -> int:
    value = told.get(key, otherwise)
    return value if isinstance(value, int) else otherwise


def read_plain(_: object, meta: Meta) -> PlainObject:
    """A node or a namespace."""
    return PlainObject(meta)


def _endpoint(told: Mapping[str, Any]) -> Endpoint:
    target, conditions = mapping(told, "targetRef"), mapping(told, "conditions")
    topology = mapping(told, "topology") or mapping(told, "deprecatedTopology")
    return Endpoint(
        tuple(one for one in told.get("addresses") or () if isinstance(one, str)),
        _condition(conditions, "ready"),
        _condition(conditions, "serving"),
        _condition(conditions, "terminating"),
        text(told, "hostname"),
        intern(text(told, "nodeName")),
        intern(text(told, "zone")),
        text(target, "kind"),
        text(target, "namespace"),
        text(target, "name"),
        _pairs(topology),
    )


def _condition(told: Mapping[str, Any], key: str) -> str:
    value = told.get(key)
    return str(value).lower() if isinstance(value, bool) else ""


def _address(told: Mapping[str, Any], ready: str) -> Endpoint:
    target = mapping(told, "targetRef")
    return Endpoint(
        (text(told, "ip"),),
        ready,
        hostname=text(told, "hostname"),
        node_name=intern(text(told, "nodeName")),
        target_kind=text(target, "kind"),
        target_namespace=text(target, "namespace"),
        target_name=text(target, "name"),
    )


def _ports(told: object, number: str) -> Iterator[Port]:
    for one in elements(told, "ports"):
        found = one.get(number)
        if isinstance(found, int):
            target = one.get("targetPort")
            yield Port(
                intern(text(one, "name")),
                found,
                intern(text(one, "protocol") or "TCP"),
                "" if target is None else str(target),
                text(one, "appProtocol"),
            )


def text(told: object, key: str) -> str:
    """A text below a key; empty where there is none."""
    value = told.get(key) if isinstance(told, Mapping) else None
    return value if isinstance(value, str) else ""


def _pairs(told: Mapping[str, Any]) -> Pairs:
    return tuple((intern(name), intern(value)) for name, value in told.items() if isinstance(value, str))


Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Expression:
    """One of `matchExpressions`. NotIn and DoesNotExist hold for objects without the key, too."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Labels) -> bool:
        """Whether an object with these labels is meant."""
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
class Selector:
    """All of `labels` and all of `expressions` must hold; without any it selects everything."""

    labels: tuple[tuple[str, str], ...] = ()
    expressions: tuple[Expression, ...] = ()

    def matches(self, labels: Labels) -> bool:
        """Whether an object with these labels is meant."""
        return all(labels.get(key) == value for key, value in self.labels) and all(
            expression.matches(labels) for expression in self.expressions
        )

    def __bool__(self) -> bool:
        return bool(self.labels or self.expressions)

    def __str__(self) -> str:
        """As `kubectl -l` and the API's labelSelector take it."""
        return ",".join([*(f"{key}={value}" for key, value in self.labels), *map(str, self.expressions)])


@dataclass(frozen=True, slots=True)
class NamespaceSelector:
    """Namespaces with one of `names` (None: with any) whose own labels are selected."""

    names: frozenset[str] | None = None
    selector: Selector = Selector()

    def matches(self, name: str, labels: Labels) -> bool:
        """Whether a namespace is meant."""
        return (self.names is None or name in self.names) and self.selector.matches(labels)

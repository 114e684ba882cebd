"""Prometheus's `__meta_kubernetes_*` labels of discovered targets.

https://prometheus.io/docs/prometheus/latest/configuration/configuration/#kubernetes_sd_config
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from gpuledger.kubernetes.objects import (
    EndpointSliceObject,
    LabeledObject,
    ObjectMeta,
    ObjectPort,
    PodContainer,
    PodObject,
    ServiceEndpoint,
    ServiceObject,
)

META: Final = "__meta_kubernetes_"
NAMESPACE: Final = f"{META}namespace"
POD: Final = f"{META}pod_"
SERVICE: Final = f"{META}service_"
NODE: Final = f"{META}node_"
PORT_NAME: Final = f"{POD}container_port_name"
PORT_NUMBER: Final = f"{POD}container_port_number"
PORT_PROTOCOL: Final = f"{POD}container_port_protocol"
# Prefixes of the labels made from annotations, by resource. Annotations are kept only if rules read them.
ANNOTATIONS: Final = {
    "pods": (f"{POD}annotation",),
    "services": (f"{SERVICE}annotation",),
    "endpointslices": (f"{META}endpointslice_annotation", f"{META}endpoints_annotation"),
}
# Fields of PodObject that are labels of the same name.
_POD_FIELDS: Final = ("ip", "ready", "phase", "host_ip", "uid", "controller_kind", "controller_name")
_UNFIT: Final = re.compile(r"[^a-zA-Z0-9_]")

Labels = dict[str, str]


@lru_cache(maxsize=8192)
def sanitize_label_name(name: str) -> str:
    """Return a Kubernetes label name as part of a Prometheus label name."""
    return _UNFIT.sub("_", name)


def pod_labels(pod: PodObject) -> Labels:
    """Return the labels that all containers of a pod share."""
    labels = {
        NAMESPACE: pod.meta.namespace,
        f"{POD}name": pod.meta.name,
        f"{POD}node_name": pod.node,
        **{f"{POD}{name}": getattr(pod, name) for name in _POD_FIELDS},
    }
    _own(labels, POD, pod.meta)
    return labels


def container_labels(container: PodContainer, port: ObjectPort | None) -> Labels:
    """Return the labels of a container and its port."""
    labels = {
        f"{POD}container_name": container.name,
        f"{POD}container_id": container.container_id,
        f"{POD}container_image": container.image,
        f"{POD}container_init": str(container.init).lower(),
    }
    if port is not None:
        labels[PORT_NUMBER] = str(port.number)
        labels[PORT_NAME] = port.name
        labels[PORT_PROTOCOL] = port.protocol
    return labels


def backing_labels(container: PodContainer, port: ObjectPort) -> Labels:
    """Return the labels of the container behind an endpoint: fewer than those of a pod target."""
    labels = container_labels(container, port)
    del labels[f"{POD}container_init"], labels[f"{POD}container_id"]
    return labels


def service_labels(service: ServiceObject) -> Labels:
    """Return the service labels of its endpoints."""
    labels = {NAMESPACE: service.meta.namespace, f"{SERVICE}name": service.meta.name}
    _own(labels, SERVICE, service.meta)
    return labels


def node_labels(node: LabeledObject) -> Labels:
    """Return the labels of a pod's node."""
    labels = {f"{NODE}name": node.meta.name}
    _pairs(labels, f"{NODE}label", node.meta.labels)
    return labels


def endpoint_labels(part: EndpointSliceObject, endpoint: ServiceEndpoint, port: ObjectPort) -> Labels:
    """Return the labels of an endpoint and its port; Endpoints and EndpointSlices use different names."""
    slices = f"{META}endpointslice_" if part.address_type else ""
    owner, prefix = slices or f"{META}endpoints_", slices or f"{META}endpoint_"
    end = f"{slices}endpoint_" if slices else prefix
    labels = {
        NAMESPACE: part.meta.namespace,
        f"{owner}name": part.meta.name,
        f"{prefix}port_name": port.name,
        f"{prefix}port_protocol": port.protocol,
        f"{prefix}address_target_kind": endpoint.target_kind,
        f"{prefix}address_target_name": endpoint.target_name,
        f"{end}hostname": endpoint.hostname,
        f"{end}node_name": endpoint.node_name,
    }
    _own(labels, owner, part.meta)
    if not slices:
        return {**labels, f"{end}ready": endpoint.ready}
    labels |= {
        f"{slices}address_type": part.address_type,
        f"{slices}port": str(port.number),
        f"{slices}port_app_protocol": port.app_protocol,
        f"{end}conditions_ready": endpoint.ready,
        f"{end}conditions_serving": endpoint.serving,
        f"{end}conditions_terminating": endpoint.terminating,
        f"{end}zone": endpoint.zone,
    }
    for name, value in endpoint.topology:
        labels[f"{end}topology_{sanitize_label_name(name)}"] = value
        labels[f"{end}topology_present_{sanitize_label_name(name)}"] = "true"
    return labels


def _own(labels: Labels, prefix: str, meta: ObjectMeta) -> None:
    _pairs(labels, f"{prefix}label", meta.labels)
    _pairs(labels, f"{prefix}annotation", meta.annotations)


def _pairs(labels: Labels, prefix: str, pairs: Iterable[tuple[str, str]]) -> None:
    for name, value in pairs:
        labels[f"{prefix}_{sanitize_label_name(name)}"] = value
        labels[f"{prefix}present_{sanitize_label_name(name)}"] = "true"

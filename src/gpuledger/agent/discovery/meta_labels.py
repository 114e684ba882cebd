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
        f"{POD}ip": pod.ip,
        f"{POD}ready": pod.ready,
        f"{POD}phase": pod.phase,
        f"{POD}node_name": pod.node,
        f"{POD}host_ip": pod.host_ip,
        f"{POD}uid": pod.uid,
        f"{POD}controller_kind": pod.controller_kind,
        f"{POD}controller_name": pod.controller_name,
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
    if not part.address_type:
        labels = {
            NAMESPACE: part.meta.namespace,
            f"{META}endpoints_name": part.meta.name,
            f"{META}endpoint_ready": endpoint.ready,
            f"{META}endpoint_port_name": port.name,
            f"{META}endpoint_port_protocol": port.protocol,
            f"{META}endpoint_hostname": endpoint.hostname,
            f"{META}endpoint_node_name": endpoint.node_name,
            f"{META}endpoint_address_target_kind": endpoint.target_kind,
            f"{META}endpoint_address_target_name": endpoint.target_name,
        }
        _own(labels, f"{META}endpoints_", part.meta)
        return labels
    slices = f"{META}endpointslice_"
    labels = {
        NAMESPACE: part.meta.namespace,
        f"{slices}name": part.meta.name,
        f"{slices}address_type": part.address_type,
        f"{slices}port": str(port.number),
        f"{slices}port_name": port.name,
        f"{slices}port_protocol": port.protocol,
        f"{slices}port_app_protocol": port.app_protocol,
        f"{slices}endpoint_conditions_ready": endpoint.ready,
        f"{slices}endpoint_conditions_serving": endpoint.serving,
        f"{slices}endpoint_conditions_terminating": endpoint.terminating,
        f"{slices}endpoint_hostname": endpoint.hostname,
        f"{slices}endpoint_node_name": endpoint.node_name,
        f"{slices}endpoint_zone": endpoint.zone,
        f"{slices}address_target_kind": endpoint.target_kind,
        f"{slices}address_target_name": endpoint.target_name,
    }
    _own(labels, slices, part.meta)
    for name, value in endpoint.topology:
        labels[f"{slices}endpoint_topology_{sanitize_label_name(name)}"] = value
        labels[f"{slices}endpoint_topology_present_{sanitize_label_name(name)}"] = "true"
    return labels


def _own(labels: Labels, prefix: str, meta: ObjectMeta) -> None:
    _pairs(labels, f"{prefix}label", meta.labels)
    _pairs(labels, f"{prefix}annotation", meta.annotations)


def _pairs(labels: Labels, prefix: str, pairs: Iterable[tuple[str, str]]) -> None:
    for name, value in pairs:
        labels[f"{prefix}_{sanitize_label_name(name)}"] = value
        labels[f"{prefix}present_{sanitize_label_name(name)}"] = "true"

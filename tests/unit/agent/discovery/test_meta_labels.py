"""The `__meta_kubernetes_*` labels of service endpoints, as Prometheus documents them."""

from __future__ import annotations

from typing import Any

import pytest

from gpuledger.agent.discovery.selection import SERVICE_MONITOR, EndpointSettings, Selection
from gpuledger.agent.discovery.target_finder import ClusterObjects, TargetFinder
from gpuledger.agent.relabel.rules import RelabelRule, RelabelRules
from gpuledger.agent.scrape.settings import ScrapeSettings
from gpuledger.kubernetes.object_watch import KubernetesObject, ObjectParser
from gpuledger.kubernetes.objects import (
    LabelSelector,
    NamespaceSelector,
    parse_endpoint_slice,
    parse_endpoints,
    parse_labeled,
    parse_meta,
    parse_pod_object,
    parse_service,
)

SLICE = {
    "addressType": "IPv4",
    "ports": [{"name": "web", "port": 9400, "protocol": "TCP", "appProtocol": "http"}],
    "endpoints": [
        {
            "addresses": ["10.0.0.1"],
            "conditions": {"ready": False, "serving": True, "terminating": True},
            "hostname": "h",
            "nodeName": "n1",
            "zone": "z1",
            "targetRef": {"kind": "Pod", "namespace": "a", "name": "p"},
            "deprecatedTopology": {"rack/row": "7"},
        }
    ],
}
ENDPOINTS = {
    "subsets": [
        {
            "notReadyAddresses": [
                {
                    "ip": "10.0.0.1",
                    "hostname": "h",
                    "nodeName": "n1",
                    "targetRef": {"kind": "Pod", "namespace": "a", "name": "p"},
                }
            ],
            "ports": [{"name": "web", "port": 9400, "protocol": "TCP"}],
        }
    ]
}
POD = {
    "spec": {
        "nodeName": "n1",
        "containers": [{"name": "c", "image": "i:1", "ports": [{"containerPort": 9400}]}],
    },
    "status": {"phase": "Running", "podIP": "10.0.0.1", "hostIP": "192.0.2.1"},
}
SERVICE = {"spec": {"ports": [{"name": "web", "port": 80}]}}

OF_ALL = [
    ("namespace", "a"),
    ("service_name", "s"),
    ("service_label_app", "x"),
    ("service_labelpresent_app", "true"),
    ("service_annotation_why", "y"),
    ("service_annotationpresent_why", "true"),
    ("node_name", "n1"),
    ("node_label_gpu", "h100"),
    ("node_labelpresent_gpu", "true"),
    ("pod_name", "p"),
    ("pod_ip", "10.0.0.1"),
    ("pod_container_name", "c"),
    ("pod_container_port_number", "9400"),
]
OF_A_SLICE = [
    ("endpointslice_name", "s-1"),
    ("endpointslice_label_kubernetes_io_service_name", "s"),
    ("endpointslice_labelpresent_kubernetes_io_service_name", "true"),
    ("endpointslice_annotation_why", "y"),
    ("endpointslice_annotationpresent_why", "true"),
    ("endpointslice_address_type", "IPv4"),
    ("endpointslice_address_target_kind", "Pod"),
    ("endpointslice_address_target_name", "p"),
    ("endpointslice_endpoint_conditions_ready", "false"),
    ("endpointslice_endpoint_conditions_serving", "true"),
    ("endpointslice_endpoint_conditions_terminating", "true"),
    ("endpointslice_endpoint_topology_rack_row", "7"),
    ("endpointslice_endpoint_topology_present_rack_row", "true"),
    ("endpointslice_endpoint_hostname", "h"),
    ("endpointslice_endpoint_node_name", "n1"),
    ("endpointslice_endpoint_zone", "z1"),
    ("endpointslice_port", "9400"),
    ("endpointslice_port_name", "web"),
    ("endpointslice_port_protocol", "TCP"),
    ("endpointslice_port_app_protocol", "http"),
]
OF_ENDPOINTS = [
    ("endpoints_name", "s"),
    ("endpoints_label_app", "x"),
    ("endpoints_labelpresent_app", "true"),
    ("endpoints_annotation_why", "y"),
    ("endpoints_annotationpresent_why", "true"),
    ("endpoint_ready", "false"),
    ("endpoint_port_name", "web"),
    ("endpoint_port_protocol", "TCP"),
    ("endpoint_hostname", "h"),
    ("endpoint_node_name", "n1"),
    ("endpoint_address_target_kind", "Pod"),
    ("endpoint_address_target_name", "p"),
]


def parse_item(
    read: ObjectParser, namespace: str, name: str, body: dict[str, Any], labels: dict[str, str]
) -> Any:
    metadata = {"namespace": namespace, "name": name, "labels": labels, "annotations": {"why": "y"}}
    item = {"metadata": metadata, **body}
    meta = parse_meta(item, annotations=True)
    assert meta is not None
    return read(item, meta)


def labels_of(behind: KubernetesObject) -> dict[str, str]:
    """Return the labels, without the common prefix, of the only target behind the service."""
    rules = RelabelRules([RelabelRule("labelmap", regex="__meta_kubernetes_(.+)")])
    endpoint = EndpointSettings("web", "http", "/metrics", {}, ScrapeSettings(), True)
    selection = Selection(
        "t", SERVICE_MONITOR, NamespaceSelector(), LabelSelector(), (endpoint,), rules=rules
    )
    cluster = ClusterObjects(
        [parse_item(parse_pod_object, "a", "p", POD, {})],
        services=[parse_item(parse_service, "a", "s", SERVICE, {"app": "x"})],
        slices=[behind],
        nodes={"n1": parse_item(parse_labeled, "", "n1", {}, {"gpu": "h100"})},
    )
    (target,) = TargetFinder(selection).find_targets(cluster)[0]
    return dict(target.labels)


@pytest.mark.parametrize(("label", "value"), OF_ALL + OF_A_SLICE)
def test_meta_labels_of_endpoint_slices_as_in_prometheus(label: str, value: str) -> None:
    behind = parse_item(parse_endpoint_slice, "a", "s-1", SLICE, {"kubernetes.io/service-name": "s"})
    assert labels_of(behind).get(label) == value


@pytest.mark.parametrize(("label", "value"), OF_ALL + OF_ENDPOINTS)
def test_meta_labels_of_endpoints_as_in_prometheus(label: str, value: str) -> None:
    assert labels_of(parse_item(parse_endpoints, "a", "s", ENDPOINTS, {"app": "x"})).get(label) == value

"""The targets that Kubernetes service discovery of Prometheus makes of Services and pods, with their
`__meta_kubernetes_*` labels. No cluster is involved: pods are made of a DaemonSet, as its controller would.

Source: `kubernetes_sd_config` in the documentation of Prometheus.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from monitors import label_suffix

Manifest = Mapping[str, Any]
_META = "__meta_kubernetes_"
# A target of service discovery: __address__ and labels.
Target = dict[str, str]


def daemonset_pod(workload: Manifest, *, node: str, address: str) -> dict[str, Any]:
    """A running pod of a DaemonSet on a node."""
    meta, template = workload["metadata"], workload["spec"]["template"]
    labels = {
        **template["metadata"]["labels"],
        "controller-revision-hash": "6d5f8c9b7",
        "pod-template-generation": "1",
    }
    return {
        "metadata": {"namespace": meta["namespace"], "name": f"{meta['name']}-{node}", "labels": labels},
        "spec": {**template["spec"], "nodeName": node},
        "status": {"podIP": address, "phase": "Running"},
    }


def pod_targets(pod: Manifest) -> list[Target]:
    """The targets of role `pod`: one for each port of each container."""
    return [labels for _, labels in _ports(pod)]


def endpoint_targets(service: Manifest, pod: Manifest) -> list[Target]:
    """The targets of role `endpoints`: all ports of the pod, if the Service selects it."""
    pod_meta = pod["metadata"]
    if not service["spec"].get("selector", {}).items() <= pod_meta["labels"].items():
        return []
    meta = service["metadata"]
    group = {
        f"{_META}namespace": meta["namespace"],
        f"{_META}endpoints_name": meta["name"],
        f"{_META}service_name": meta["name"],
        **_labels("service", meta["labels"]),
    }
    by_name = {port["targetPort"]: port for port in service["spec"]["ports"]}
    found = []
    for port, labels in _ports(pod):
        # Ports that the Service does not have lack these labels.
        if of_service := by_name.get(port["name"]):
            labels |= {
                f"{_META}endpoint_port_name": of_service["name"],
                f"{_META}endpoint_port_protocol": "TCP",
                f"{_META}endpoint_ready": "true",
                f"{_META}endpoint_address_target_kind": "Pod",
                f"{_META}endpoint_address_target_name": pod_meta["name"],
                f"{_META}endpoint_node_name": pod["spec"]["nodeName"],
            }
        found.append({**labels, **group})
    return found


def _ports(pod: Manifest) -> Iterator[tuple[Manifest, Target]]:
    meta, status = pod["metadata"], pod["status"]
    shared = {
        f"{_META}namespace": meta["namespace"],
        f"{_META}pod_name": meta["name"],
        f"{_META}pod_ip": status["podIP"],
        f"{_META}pod_phase": status["phase"],
        f"{_META}pod_ready": "true",
        f"{_META}pod_node_name": pod["spec"]["nodeName"],
        **_labels("pod", meta["labels"]),
    }
    for container in pod["spec"]["containers"]:
        for port in container.get("ports", ()):
            number = str(port["containerPort"])
            yield (
                port,
                {
                    **shared,
                    "__address__": f"{status['podIP']}:{number}",
                    f"{_META}pod_container_name": container["name"],
                    f"{_META}pod_container_port_name": port["name"],
                    f"{_META}pod_container_port_number": number,
                    f"{_META}pod_container_port_protocol": port.get("protocol", "TCP"),
                },
            )


def _labels(kind: str, labels: Mapping[str, str]) -> Target:
    values = {f"{_META}{kind}_label_{label_suffix(name)}": value for name, value in labels.items()}
    return values | {f"{_META}{kind}_labelpresent_{label_suffix(name)}": "true" for name in labels}

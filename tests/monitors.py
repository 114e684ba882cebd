"""Scrape configurations that Prometheus Operator makes of ServiceMonitors and PodMonitors.

With them, a Prometheus without a cluster scrapes as the chart installs it. `scrape_configs` translates a
monitor as the operator does: its relabelings in its order, and its checks. `with_static_targets` replaces
only service discovery: `service_discovery.py` makes targets with the same `__meta_kubernetes_*` labels.

Sources: pkg/prometheus/promcfg.go and pkg/prometheus/resource_selector.go of Prometheus Operator, as of 2026.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Manifest = Mapping[str, Any]
Relabeling = dict[str, Any]
# Namespace, name and key of a Secret's entry.
SecretKey = tuple[str, str, str]

_META = "__meta_kubernetes_"
# What a copied field is called in the configuration, in the order of the operator's output.
_ENDPOINT_FIELDS = {
    "interval": "scrape_interval",
    "scrapeTimeout": "scrape_timeout",
    "path": "metrics_path",
    "params": "params",
    "scheme": "scheme",
    "followRedirects": "follow_redirects",
    "enableHttp2": "enable_http2",
    "honorTimestamps": "honor_timestamps",
}
_RELABELING_FIELDS = {
    "sourceLabels": "source_labels",
    "separator": "separator",
    "targetLabel": "target_label",
    "regex": "regex",
    "modulus": "modulus",
    "replacement": "replacement",
    "action": "action",
}
_TLS_FILES = {"caFile": "ca_file", "certFile": "cert_file", "keyFile": "key_file"}
_SPEC_LIMITS = {
    "sampleLimit": "sample_limit",
    "targetLimit": "target_limit",
    "labelLimit": "label_limit",
    "labelNameLengthLimit": "label_name_length_limit",
    "labelValueLengthLimit": "label_value_length_limit",
}
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class MonitorRejectedError(Exception):
    """Prometheus Operator ignores a monitor, and only its log says why."""


@dataclass(frozen=True)
class OperatedPrometheus:
    """The fields of a Prometheus object that change the configuration; defaults as in its CRD."""

    namespace: str = "monitoring"
    name: str = "k8s"
    interval: str = "30s"
    override_honor_labels: bool = False
    enforced_namespace_label: str = ""
    pod_target_labels: Sequence[str] = ()
    # Folder for files of certificates, and content of Secrets.
    certificates: str = "/etc/prometheus/certs"
    secrets: Mapping[SecretKey, str] = field(default_factory=dict)

    def global_section(self) -> dict[str, Any]:
        """The section `global` of the configuration of the first replica."""
        return {
            "scrape_interval": self.interval,
            "evaluation_interval": self.interval,
            "external_labels": {
                "prometheus": f"{self.namespace}/{self.name}",
                "prometheus_replica": f"prometheus-{self.name}-0",
            },
        }


# User-workload monitoring of OpenShift.
OPENSHIFT_USER_WORKLOAD = OperatedPrometheus(
    namespace="openshift-user-workload-monitoring",
    name="user-workload",
    override_honor_labels=True,
    enforced_namespace_label="namespace",
)


DEFAULT = OperatedPrometheus()


def scrape_configs(monitor: Manifest, operated: OperatedPrometheus = DEFAULT) -> list[dict[str, Any]]:
    """One scrape configuration per endpoint of a ServiceMonitor or PodMonitor.

    Raises MonitorRejectedError for what the operator refuses.
    """
    kind = monitor["kind"]
    assert kind in ("ServiceMonitor", "PodMonitor"), kind
    endpoints = monitor["spec"]["endpoints" if kind == "ServiceMonitor" else "podMetricsEndpoints"]
    return [_scrape_config(monitor, endpoint, number, operated) for number, endpoint in enumerate(endpoints)]


def _scrape_config(
    monitor: Manifest, endpoint: Manifest, number: int, operated: OperatedPrometheus
) -> dict[str, Any]:
    meta, spec = monitor["metadata"], monitor["spec"]
    _check_timeout(endpoint, operated)
    kind = monitor["kind"][0].lower() + monitor["kind"][1:]
    config: dict[str, Any] = {
        "job_name": f"{kind}/{meta['namespace']}/{meta['name']}/{number}",
        "honor_labels": bool(endpoint.get("honorLabels")) and not operated.override_honor_labels,
        "kubernetes_sd_configs": [_discovery(monitor)],
    }
    for key, name in _ENDPOINT_FIELDS.items():
        # The operator omits empty strings, but not `false`.
        if endpoint.get(key) not in (None, ""):
            config[name] = endpoint[key]
    if "scheme" in config:
        config["scheme"] = config["scheme"].lower()
    if "tlsConfig" in endpoint:
        config["tls_config"] = _tls_config(endpoint["tlsConfig"], meta["namespace"], operated)
    if "basicAuth" in endpoint:
        config["basic_auth"] = {
            part: _secret_value(endpoint["basicAuth"][part], meta["namespace"], operated)
            for part in ("username", "password")
        }
    relabelings = _service_relabelings if kind == "serviceMonitor" else _pod_relabelings
    enforced = _enforced_namespace(monitor, operated)
    config["relabel_configs"] = [
        {"source_labels": ["job"], "target_label": "__tmp_prometheus_job_name"},
        *relabelings(monitor, endpoint, operated),
        *map(_relabeling, endpoint.get("relabelings", ())),
        *enforced,
        *_sharding(),
    ]
    config.update({name: spec[key] for key, name in _SPEC_LIMITS.items() if key in spec})
    if after := [*map(_relabeling, endpoint.get("metricRelabelings", ())), *enforced]:
        config["metric_relabel_configs"] = after
    return config


def milliseconds(duration: str) -> int:
    """A duration such as `1m30s`."""
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)(ms|s|m|h|d)", duration))


def _check_timeout(endpoint: Manifest, operated: OperatedPrometheus) -> None:
    timeout, interval = endpoint.get("scrapeTimeout"), endpoint.get("interval") or operated.interval
    if timeout and milliseconds(timeout) > milliseconds(interval):
        raise MonitorRejectedError(f"scrapeTimeout {timeout} is greater than scrapeInterval {interval}")


def _discovery(monitor: Manifest) -> dict[str, Any]:
    spec = monitor["spec"]
    selector = spec.get("namespaceSelector", {})
    made: dict[str, Any] = {"role": "endpoints" if monitor["kind"] == "ServiceMonitor" else "pod"}
    if not selector.get("any"):
        made["namespaces"] = {"names": selector.get("matchNames") or [monitor["metadata"]["namespace"]]}
    if "attachMetadata" in spec:
        made["attach_metadata"] = {"node": bool(spec["attachMetadata"].get("node"))}
    return made


def _tls_config(tls: Manifest, namespace: str, operated: OperatedPrometheus) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if "insecureSkipVerify" in tls:
        made["insecure_skip_verify"] = tls["insecureSkipVerify"]
    references = {"ca": tls.get("ca"), "cert": tls.get("cert"), "key": {"secret": tls.get("keySecret")}}
    for name, reference in references.items():
        for source in ("secret", "configMap"):
            if entry := (reference or {}).get(source):
                file = f"{source.lower()}_{namespace}_{entry['name']}_{entry['key']}"
                made[f"{name}_file"] = f"{operated.certificates}/{file}"
    if tls.get("serverName"):
        made["server_name"] = tls["serverName"]
    return made | {name: tls[key] for key, name in _TLS_FILES.items() if tls.get(key)}


def _secret_value(reference: Manifest, namespace: str, operated: OperatedPrometheus) -> str:
    key = (namespace, reference["name"], reference["key"])
    if key not in operated.secrets:
        raise MonitorRejectedError(f"Secret {namespace}/{reference['name']} has no key {reference['key']}")
    return operated.secrets[key]


def label_suffix(name: str) -> str:
    """The name of a Kubernetes label as a part of a Prometheus label."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


def _relabeling(given: Manifest) -> Relabeling:
    made = {name: given[key] for key, name in _RELABELING_FIELDS.items() if key in given}
    if "action" in made:
        made["action"] = made["action"].lower()
    return made


def _selected(kind: str, selector: Manifest) -> Iterator[Relabeling]:
    """Keeps objects that the selector matches; `kind` is service or pod."""

    def present(key: str) -> str:
        return f"{_META}{kind}_labelpresent_{label_suffix(key)}"

    def both(key: str) -> list[str]:
        return [f"{_META}{kind}_label_{label_suffix(key)}", present(key)]

    for key, value in sorted(selector.get("matchLabels", {}).items()):
        yield {"action": "keep", "source_labels": both(key), "regex": f"({value});true"}
    for one in selector.get("matchExpressions", ()):
        action = "keep" if one["operator"] in ("In", "Exists") else "drop"
        if one["operator"] in ("In", "NotIn"):
            regex = f"({'|'.join(one['values'])});true"
            yield {"action": action, "source_labels": both(one["key"]), "regex": regex}
        else:
            yield {"action": action, "source_labels": [present(one["key"])], "regex": "true"}


def _port_kept(endpoint: Manifest, label: str) -> Iterator[Relabeling]:
    if endpoint.get("port"):
        yield {"action": "keep", "source_labels": [label], "regex": endpoint["port"]}
    elif target := endpoint.get("targetPort"):
        part = "name" if isinstance(target, str) else "number"
        label = f"{_META}pod_container_port_{part}"
        yield {"action": "keep", "source_labels": [label], "regex": str(target)}


def _copied(source: str, target: str) -> Relabeling:
    return {"source_labels": [_META + source], "target_label": target}


def _copied_if_set(source: str, target: str) -> Relabeling:
    return {**_copied(source, target), "regex": "(.+)", "replacement": "${1}"}


def _running() -> Relabeling:
    return {"action": "drop", "source_labels": [f"{_META}pod_phase"], "regex": "(Failed|Succeeded)"}


def _endpoint_label(endpoint: Manifest) -> Iterator[Relabeling]:
    if port := endpoint.get("port") or endpoint.get("targetPort"):
        yield {"target_label": "endpoint", "replacement": str(port)}


def _service_relabelings(
    monitor: Manifest, endpoint: Manifest, operated: OperatedPrometheus
) -> Iterator[Relabeling]:
    spec = monitor["spec"]
    yield from _selected("service", spec["selector"])
    yield from _port_kept(endpoint, f"{_META}endpoint_port_name")
    address = [f"{_META}endpoint_address_target_{part}" for part in ("kind", "name")]
    for kind in ("Node", "Pod"):
        yield {
            "source_labels": address,
            "separator": ";",
            "regex": f"{kind};(.*)",
            "replacement": "${1}",
            "target_label": kind.lower(),
        }
    yield _copied("namespace", "namespace")
    yield _copied("service_name", "service")
    yield _copied("pod_name", "pod")
    yield _copied("pod_container_name", "container")
    if endpoint.get("filterRunning", True):
        yield _running()
    for label in spec.get("targetLabels", ()):
        yield _copied_if_set(f"service_label_{label_suffix(label)}", label_suffix(label))
    for label in (*spec.get("podTargetLabels", ()), *operated.pod_target_labels):
        yield _copied_if_set(f"pod_label_{label_suffix(label)}", label_suffix(label))
    yield {**_copied("service_name", "job"), "replacement": "${1}"}
    if spec.get("jobLabel"):
        yield _copied_if_set(f"service_label_{label_suffix(spec['jobLabel'])}", "job")
    yield from _endpoint_label(endpoint)


def _pod_relabelings(
    monitor: Manifest, endpoint: Manifest, operated: OperatedPrometheus
) -> Iterator[Relabeling]:
    spec, meta = monitor["spec"], monitor["metadata"]
    if endpoint.get("filterRunning", True):
        yield _running()
    yield from _selected("pod", spec["selector"])
    yield from _port_kept(endpoint, f"{_META}pod_container_port_name")
    yield _copied("namespace", "namespace")
    yield _copied("pod_container_name", "container")
    yield _copied("pod_name", "pod")
    for label in (*spec.get("podTargetLabels", ()), *operated.pod_target_labels):
        yield _copied_if_set(f"pod_label_{label_suffix(label)}", label_suffix(label))
    yield {"target_label": "job", "replacement": f"{meta['namespace']}/{meta['name']}"}
    if spec.get("jobLabel"):
        yield _copied_if_set(f"pod_label_{label_suffix(spec['jobLabel'])}", "job")
    yield from _endpoint_label(endpoint)


def _enforced_namespace(monitor: Manifest, operated: OperatedPrometheus) -> list[Relabeling]:
    """Last, so that no relabeling of the monitor replaces it."""
    if not (label := operated.enforced_namespace_label):
        return []
    return [{"target_label": label, "replacement": monitor["metadata"]["namespace"]}]


def _sharding() -> Iterator[Relabeling]:
    """Of the only shard."""
    yield {
        "source_labels": ["__address__", "__tmp_hash"],
        "target_label": "__tmp_hash",
        "regex": "(.+);",
        "replacement": "$1",
        "action": "replace",
    }
    hashed = {"source_labels": ["__tmp_hash"], "target_label": "__tmp_hash"}
    yield {**hashed, "modulus": 1, "action": "hashmod"}
    kept = {"source_labels": ["__tmp_hash", "__tmp_disable_sharding"], "regex": "0;|.+;.+"}
    yield {**kept, "action": "keep"}


def with_static_targets(config: Mapping[str, Any], targets: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """The scrape configuration with these targets instead of service discovery."""
    made = {key: value for key, value in config.items() if key != "kubernetes_sd_configs"}
    made["static_configs"] = [
        {
            "targets": [target["__address__"]],
            "labels": {name: value for name, value in target.items() if name != "__address__"},
        }
        for target in targets
    ]
    return made

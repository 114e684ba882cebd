"""Monitors as Prometheus Operator understands them (tests/monitors.py), and what the chart rejects."""

from __future__ import annotations

from typing import Any

import pytest

from chart import files, of_kind
from monitors import (
    OPENSHIFT_USER_WORKLOAD,
    MonitorRejectedError,
    OperatedPrometheus,
    milliseconds,
    scrape_configs,
    with_static_targets,
)
from service_discovery import daemonset_pod, endpoint_targets, pod_targets

META = "__meta_kubernetes_"
SERVICE_MONITOR: dict[str, Any] = {
    "kind": "ServiceMonitor",
    "metadata": {"namespace": "gpus", "name": "exporter"},
    "spec": {
        "selector": {"matchLabels": {"b/x": "2", "a": "1"}},
        "endpoints": [{"port": "metrics"}],
    },
}
POD_MONITOR: dict[str, Any] = {
    "kind": "PodMonitor",
    "metadata": {"namespace": "gpus", "name": "exporter"},
    "spec": {"selector": {"matchLabels": {"a": "1"}}, "podMetricsEndpoints": [{"port": "metrics"}]},
}
BOTH = pytest.mark.parametrize("monitor", [SERVICE_MONITOR, POD_MONITOR], ids=lambda monitor: monitor["kind"])


def changed(monitor: dict[str, Any], spec: dict[str, Any], **endpoint: Any) -> dict[str, Any]:
    """The monitor with other fields in its specification and in its only endpoint."""
    key = "endpoints" if "endpoints" in monitor["spec"] else "podMetricsEndpoints"
    endpoints = [{**monitor["spec"][key][0], **endpoint}]
    return {**monitor, "spec": {**monitor["spec"], **spec, key: endpoints}}


def translated(monitor: dict[str, Any], operated: OperatedPrometheus | None = None) -> dict[str, Any]:
    (config,) = scrape_configs(monitor, operated or OperatedPrometheus())
    return config


def test_a_service_monitor_sets_labels_of_pod_and_service_and_then_the_job() -> None:
    config = translated(SERVICE_MONITOR)
    assert config["job_name"] == "serviceMonitor/gpus/exporter/0"
    assert config["honor_labels"] is False
    assert config["kubernetes_sd_configs"] == [{"role": "endpoints", "namespaces": {"names": ["gpus"]}}]
    rules = config["relabel_configs"]
    assert [rule.get("target_label", rule.get("action")) for rule in rules] == [
        "__tmp_prometheus_job_name",
        *("keep", "keep", "keep"),
        *("node", "pod", "namespace", "service", "pod", "container"),
        "drop",
        *("job", "endpoint"),
        *("__tmp_hash", "__tmp_hash", "keep"),
    ]
    assert [rule["regex"] for rule in rules[1:4]] == ["(1);true", "(2);true", "metrics"]
    assert rules[2]["source_labels"] == [f"{META}service_label_b_x", f"{META}service_labelpresent_b_x"]


def test_a_pod_monitor_sets_labels_of_the_pod_and_a_job_of_the_monitor() -> None:
    config = translated(POD_MONITOR)
    assert config["job_name"] == "podMonitor/gpus/exporter/0"
    assert config["kubernetes_sd_configs"] == [{"role": "pod", "namespaces": {"names": ["gpus"]}}]
    rules = config["relabel_configs"]
    assert [rule.get("target_label", rule.get("action")) for rule in rules] == [
        "__tmp_prometheus_job_name",
        *("drop", "keep", "keep"),
        *("namespace", "container", "pod", "job", "endpoint"),
        *("__tmp_hash", "__tmp_hash", "keep"),
    ]
    assert {"target_label": "job", "replacement": "gpus/exporter"} in rules


@pytest.mark.parametrize(("monitor", "of"), [(SERVICE_MONITOR, "service"), (POD_MONITOR, "pod")])
def test_the_job_label_replaces_the_job_if_it_is_set(monitor: dict[str, Any], of: str) -> None:
    rules = translated(changed(monitor, {"jobLabel": "app.kubernetes.io/name"}))["relabel_configs"]
    jobs = [rule for rule in rules if rule.get("target_label") == "job"]
    assert len(jobs) == 2
    assert jobs[1]["source_labels"] == [f"{META}{of}_label_app_kubernetes_io_name"]
    assert jobs[1]["regex"] == "(.+)"


@BOTH
def test_relabelings_of_the_monitor_follow_those_of_the_operator(monitor: dict[str, Any]) -> None:
    own = {"sourceLabels": ["x"], "targetLabel": "job", "action": "Replace", "regex": "(a)"}
    after = {"action": "drop", "regex": "y"}
    config = translated(changed(monitor, {}, relabelings=[own], metricRelabelings=[after]))
    assert config["relabel_configs"][-4] == {
        "source_labels": ["x"],
        "target_label": "job",
        "action": "replace",
        "regex": "(a)",
    }
    assert config["metric_relabel_configs"] == [after]


def test_target_labels_are_copied_from_service_and_pod() -> None:
    spec = {"targetLabels": ["team/a"], "podTargetLabels": ["tier"]}
    rules = translated(changed(SERVICE_MONITOR, spec))["relabel_configs"]
    copied = {rule["target_label"]: rule["source_labels"] for rule in rules if rule.get("regex") == "(.+)"}
    assert copied == {"team_a": [f"{META}service_label_team_a"], "tier": [f"{META}pod_label_tier"]}


@pytest.mark.parametrize(
    ("operator", "action", "regex"),
    [
        ("In", "keep", "(x|y);true"),
        ("NotIn", "drop", "(x|y);true"),
        ("Exists", "keep", "true"),
        ("DoesNotExist", "drop", "true"),
    ],
)
def test_expressions_of_a_selector_keep_or_drop(operator: str, action: str, regex: str) -> None:
    expression = {"key": "app", "operator": operator, "values": ["x", "y"]}
    rules = translated(changed(POD_MONITOR, {"selector": {"matchExpressions": [expression]}}))[
        "relabel_configs"
    ]
    assert (rules[2]["action"], rules[2]["regex"]) == (action, regex)


@BOTH
def test_fields_of_the_endpoint_have_their_names_in_prometheus(monitor: dict[str, Any]) -> None:
    config = translated(
        changed(
            monitor,
            {"attachMetadata": {"node": True}, "namespaceSelector": {"any": True}, "sampleLimit": 5},
            interval="1m",
            scrapeTimeout="20s",
            path="/gpu",
            scheme="HTTPS",
            honorLabels=True,
            tlsConfig={
                "ca": {"configMap": {"name": "ca", "key": "ca.crt"}},
                "keySecret": {"name": "client", "key": "tls.key"},
                "serverName": "gpu",
                "insecureSkipVerify": False,
            },
        )
    )
    assert config["kubernetes_sd_configs"][0]["attach_metadata"] == {"node": True}
    assert "namespaces" not in config["kubernetes_sd_configs"][0]
    assert (config["scrape_interval"], config["scrape_timeout"]) == ("1m", "20s")
    assert (config["metrics_path"], config["scheme"], config["honor_labels"]) == ("/gpu", "https", True)
    assert config["sample_limit"] == 5
    assert config["tls_config"] == {
        "insecure_skip_verify": False,
        "ca_file": "/etc/prometheus/certs/configmap_gpus_ca_ca.crt",
        "key_file": "/etc/prometheus/certs/secret_gpus_client_tls.key",
        "server_name": "gpu",
    }


@BOTH
def test_an_enforced_namespace_is_set_last_and_labels_are_not_honored(monitor: dict[str, Any]) -> None:
    own = {"targetLabel": "namespace", "replacement": "elsewhere"}
    config = translated(changed(monitor, {}, relabelings=[own], honorLabels=True), OPENSHIFT_USER_WORKLOAD)
    assert config["honor_labels"] is False
    enforced = {"target_label": "namespace", "replacement": "gpus"}
    assert config["relabel_configs"][-4] == enforced
    assert config["metric_relabel_configs"] == [enforced]


@BOTH
@pytest.mark.parametrize("interval", ["5s", None])
def test_a_timeout_above_the_interval_is_rejected(monitor: dict[str, Any], interval: str | None) -> None:
    """Without an interval, that of Prometheus counts."""
    with pytest.raises(MonitorRejectedError, match="greater than scrapeInterval"):
        translated(changed(monitor, {}, interval=interval, scrapeTimeout="31s"))


@BOTH
def test_a_missing_secret_is_rejected(monitor: dict[str, Any]) -> None:
    password = {part: {"name": "scrape", "key": part} for part in ("username", "password")}
    broken = changed(monitor, {}, basicAuth=password)
    with pytest.raises(MonitorRejectedError, match="Secret gpus/scrape has no key username"):
        translated(broken)
    secrets = {("gpus", "scrape", "username"): "u", ("gpus", "scrape", "password"): "p"}
    config = translated(broken, OperatedPrometheus(secrets=secrets))
    assert config["basic_auth"] == {"username": "u", "password": "p"}


@pytest.mark.parametrize(("text", "number"), [("1m30s", 90_000), ("500ms", 500), ("2h", 7_200_000)])
def test_durations_are_read(text: str, number: int) -> None:
    assert milliseconds(text) == number


def discovered(values: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Targets of the chart's Service and pod by port name of the container."""
    (workload,), (service,) = of_kind("DaemonSet", values), of_kind("Service", values)
    pod = daemonset_pod(workload, node="node-1", address="10.0.0.7")
    found = endpoint_targets(service, pod)
    assert [target["__address__"] for target in found] == [
        target["__address__"] for target in pod_targets(pod)
    ]
    return {target[f"{META}pod_container_port_name"]: target for target in found}


def test_a_target_has_the_labels_of_its_service_pod_and_port() -> None:
    target = discovered({"extraPorts": [{"name": "smi", "port": 9835, "dialects": ["smi"]}]})["smi"]
    assert target["__address__"] == "10.0.0.7:9835"
    assert target[f"{META}endpoint_port_name"] == "smi"
    assert target[f"{META}pod_node_name"] == "node-1"
    assert target[f"{META}service_labelpresent_app_kubernetes_io_name"] == "true"
    assert target[f"{META}pod_label_app_kubernetes_io_name"] == "gpuledger"


def test_a_service_that_does_not_select_the_pod_has_no_targets() -> None:
    (workload,), (service,) = of_kind("DaemonSet"), of_kind("Service", {"fullnameOverride": "other"})
    assert endpoint_targets(service, daemonset_pod(workload, node="n", address="10.0.0.7")) == []


def test_static_targets_replace_only_the_service_discovery() -> None:
    config = translated(SERVICE_MONITOR)
    static = with_static_targets(config, [{"__address__": "a:1", "__meta_x": "y"}])
    assert static.pop("static_configs") == [{"targets": ["a:1"], "labels": {"__meta_x": "y"}}]
    assert {**static, "kubernetes_sd_configs": config["kubernetes_sd_configs"]} == config


@pytest.mark.parametrize("kind", ["serviceMonitor", "podMonitor"])
@pytest.mark.parametrize(
    ("interval", "timeout", "accepted"),
    [
        ("5s", "10s", False),
        ("500ms", "1s", False),
        ("1m30s", "91s", False),
        ("1m30s", "90s", True),
        ("5s", "5s", True),
        ("5s", "", True),
        ("", "30s", True),
        ("1h", "1000ms", True),
    ],
)
def test_the_chart_rejects_a_timeout_that_the_operator_would_ignore(
    kind: str, interval: str, timeout: str, accepted: bool
) -> None:
    import helm_python

    values = {kind: {"enabled": True, "interval": interval, "scrapeTimeout": timeout}}
    if accepted:
        (monitor,) = of_kind(kind[0].upper() + kind[1:], values)
        scrape_configs(monitor)
    else:
        with pytest.raises(helm_python.HelmError, match=f"{kind}.scrapeTimeout: {timeout} is longer than"):
            files(values)


@pytest.mark.parametrize("kind", ["serviceMonitor", "podMonitor"])
def test_without_an_interval_the_timeout_is_compared_with_that_of_the_prometheus_by_the_operator(
    kind: str,
) -> None:
    values = {kind: {"enabled": True, "interval": "", "scrapeTimeout": "45s"}}
    assert of_kind(kind[0].upper() + kind[1:], values)

"""Objects of the chart for Prometheus Operator and Grafana: rules, dashboards and monitors."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from chart import MATRIX, ROOT, main_container, notes, of_kind, render
from yaml_files import load_yaml

PROMETHEUS = ROOT / "deploy/prometheus"
AGENT = PROMETHEUS / "rules/agent.yml"
RULES = [file for file in sorted((PROMETHEUS / "rules").glob("*.yml")) if file != AGENT]
DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
MONITORED = MATRIX["monitoring"]


def groups(values: Any) -> list[dict[str, Any]]:
    (rule,) = of_kind("PrometheusRule", values)
    return list(rule["spec"]["groups"])


def groups_of_files(files: list[Path]) -> list[dict[str, Any]]:
    return [group for file in files for group in load_yaml(file.read_text(encoding="utf-8"))["groups"]]


def test_the_rules_equal_those_of_the_compose_stack() -> None:
    assert groups({"rules": {"enabled": True}}) == groups_of_files(RULES)


def alerts(made: list[dict[str, Any]]) -> set[str]:
    return {rule["alert"] for group in made for rule in group["rules"] if "alert" in rule}


def warnings(values: dict[str, Any]) -> list[str]:
    return [
        line.removeprefix("WARNING: ") for line in notes(values).splitlines() if line.startswith("WARNING")
    ]


EVERYTHING = groups_of_files(RULES)
SESSIONS = [*groups_of_files([PROMETHEUS / "activity.yml"]), *EVERYTHING]
NATIVE_PORT = {"name": "native", "port": 9401, "dialects": ["native"]}
# Values, and the groups of rules that can be evaluated with the dialects that they scrape.
SCRAPED: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "default": ({}, EVERYTHING),
    "dcgm too": ({"dialect": ["dcgm", "native"]}, EVERYTHING),
    "in config": ({"dialect": ["dcgm"], "config": {"dialect": "native,dcgm"}}, EVERYTHING),
    "another port": ({"dialect": ["dcgm"], "extraPorts": [NATIVE_PORT]}, EVERYTHING),
    "collector": ({"mode": "collect", "dialect": ["native", "process"]}, EVERYTHING),
    "renamed": ({"config": {"metric_prefix": "gpu"}}, EVERYTHING),
    "sessions": ({"gpu-session-monitoring": {"enabled": True}, "mode": "daemonset"}, SESSIONS),
    "agent": ({**MATRIX["agent"]}, [groups_of_files([AGENT])[0], *EVERYTHING]),
    "operator": ({"operator": {"enabled": True}}, [*groups_of_files([AGENT]), *EVERYTHING]),
    "dcgm": ({"dialect": ["dcgm"]}, []),
    "dcgm and a count": ({"dialect": ["dcgm"], "gpu": {"count": 8}}, []),
    "smi": ({"image": {"variant": "smi"}}, []),
    "port without a scrape": ({"dialect": ["dcgm"], "extraPorts": [{**NATIVE_PORT, "scrape": False}]}, []),
    "collector of sessions": ({"mode": "collect"}, []),
    "CronJob": ({"gpu-session-monitoring": {"enabled": True}, "cronjob": {"nodes": ["a"]}}, []),
}


@pytest.mark.parametrize(("values", "expected"), SCRAPED.values(), ids=SCRAPED)
def test_only_rules_with_scraped_families_are_rendered(
    values: dict[str, Any], expected: list[dict[str, Any]]
) -> None:
    enabled = {**values, "rules": {"enabled": True}, "dashboards": {"enabled": True}}
    assert groups(enabled) == expected
    found = [line for line in warnings(enabled) if line.startswith("rules:")]
    if expected:
        assert not found
        return
    # The notes name each alert that is missing.
    (line,) = found
    count = {"GPUCountUnexpected"} if values.get("gpu") else set()
    missing = SESSIONS if values.get("gpu-session-monitoring") else EVERYTHING
    assert set(re.findall(r"\w*GPU\w+", line)) == alerts(missing) | count
    assert "without native the panels are empty" in "".join(warnings(enabled))


def test_agent_and_operator_are_scraped_with_the_exporters() -> None:
    values = {**MATRIX["agent"], "operator": {"enabled": True}, "mode": "daemonset"}
    assert not of_kind("PodMonitor", values)
    (monitor,) = of_kind(
        "PodMonitor", {**values, "serviceMonitor": {"enabled": True, "labels": {"release": "p"}}}
    )
    assert monitor["metadata"]["labels"]["release"] == "p"
    pods = [
        item["spec"]["template"] for kind in ("StatefulSet", "Deployment") for item in of_kind(kind, values)
    ]
    assert len(pods) == 2
    selected = {each["key"]: each["values"] for each in monitor["spec"]["selector"]["matchExpressions"]}
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for pod in pods:
        assert all(pod["metadata"]["labels"][key] in allowed for key, allowed in selected.items())
        assert endpoint["port"] in [port["name"] for port in pod["spec"]["containers"][0]["ports"]]
    (exporter,) = of_kind("DaemonSet", values)
    labels = exporter["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/component"] not in selected["app.kubernetes.io/component"]


def test_an_alert_can_be_disabled_by_name() -> None:
    less = alerts(groups({"rules": {"enabled": True, "disabled": ["GPUXidFatal", "GPULost"]}}))
    assert alerts(groups_of_files(RULES)) - less == {"GPUXidFatal", "GPULost"}


@pytest.mark.parametrize("values", [MONITORED, MATRIX["rules of a collector"]], ids=["exporter", "collector"])
def test_promtool_accepts_the_rules(values: Any, tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": groups(values)}), encoding="utf-8")
    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


NATIVE_SERIES = 'gpuledger_device_info{job="g", instance="n", uuid="%d", mig_instance=""}'
COUNTED = {
    "exporter": (
        MONITORED,
        8,
        NATIVE_SERIES,
        # MIG instances are not counted as GPUs.
        ['gpuledger_device_info{job="g", instance="n", uuid="0", mig_instance="2_0"}'],
    ),
    "operator's exporters": (
        {**MATRIX["operator"], "gpu": {"count": 2}, "rules": {"enabled": True}},
        2,
        NATIVE_SERIES,
        [],
    ),
    "native collector": ({**MATRIX["rules of a collector"], "dialect": ["native"]}, 4, NATIVE_SERIES, []),
    "collector of sessions": (
        {**MATRIX["rules of a collector"], "dialect": ["session"]},
        4,
        'gpu_session_count{job="g", instance="n", gpu="%d"}',
        [],
    ),
    "another cluster": (
        MONITORED,
        8,
        NATIVE_SERIES,
        [NATIVE_SERIES.replace("{", '{cluster="b", ', 1) % gpu for gpu in range(8, 16)],
    ),
    "collector": (
        MATRIX["rules of a collector"],
        4,
        'gpu_process_count{job="g", instance="n", gpu="%d"}',
        [
            'gpu_process_count{job="g", instance="n", gpu="0_2_0"}',
            'gpu_process_count{job="g", instance="n", gpu="0_3_0"}',
        ],
    ),
}


@pytest.mark.parametrize(("values", "count", "series", "instances"), COUNTED.values(), ids=COUNTED)
def test_a_node_with_another_number_of_gpus_fires_an_alert(
    values: Any, count: int, series: str, instances: list[str], tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yml"
    made = groups(values)
    (rule,) = [rule for group in made for rule in group["rules"] if rule.get("alert") == ALERT]
    # JSON is YAML, and written faster.
    rules.write_text(json.dumps({"groups": made}), encoding="utf-8")
    cases = []
    for has, fires in ((count, False), (count - 1, True), (count + 1, True)):
        names = [*(series % index for index in range(has)), *instances]
        input_series = [{"series": name, "values": "1x20"} for name in names]
        # Checks only whether the alert fires, not its labels and annotations.
        expected = [{"labels": {"job": "g", "instance": "n"}, "value": has}] if fires else []
        cases.append(
            {
                "interval": "1m",
                "input_series": input_series,
                "promql_expr_test": [
                    {
                        "expr": rule["expr"],
                        "eval_time": "10m",
                        "exp_samples": [sample(item) for item in expected],
                    }
                ],
            }
        )
    test = tmp_path / "test.yml"
    test.write_text(json.dumps({"rule_files": [str(rules)], "tests": cases}), encoding="utf-8")
    done = subprocess.run(["promtool", "test", "rules", test], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


ALERT = "GPUCountUnexpected"


def sample(item: dict[str, Any]) -> dict[str, Any]:
    labels = ", ".join(f'{name}="{value}"' for name, value in item["labels"].items())
    return {"labels": f"{{{labels}}}", "value": item["value"]}


def test_without_an_expected_count_there_is_no_alert() -> None:
    assert ALERT not in json.dumps(groups({"rules": {"enabled": True}}))
    assert ALERT not in json.dumps(groups({**MONITORED, "rules": {"enabled": True, "disabled": [ALERT]}}))


def test_each_dashboard_is_a_configmap_that_grafanas_sidecar_finds() -> None:
    maps = [
        item for item in of_kind("ConfigMap", MONITORED) if "grafana_dashboard" in item["metadata"]["labels"]
    ]
    texts = {name: json.loads(text) for item in maps for name, text in item["data"].items()}
    assert texts == {file.name: json.loads(file.read_text(encoding="utf-8")) for file in DASHBOARDS}
    for item in maps:
        assert item["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert item["metadata"]["annotations"] == {"grafana_folder": "GPUs"}
        # The API server allows 1 MiB, but the annotation of kubectl apply only 256 KiB.
        assert len(json.dumps(item)) < 250_000


def endpoint(values: Any) -> dict[str, Any]:
    (found,) = [item for item in render(values) if item["kind"] in ("ServiceMonitor", "PodMonitor")]
    (only,) = found["spec"].get("endpoints") or found["spec"]["podMetricsEndpoints"]
    return dict(only)


@pytest.mark.parametrize("kind", ["serviceMonitor", "podMonitor"])
def test_workload_labels_are_kept_by_the_scrape(kind: str) -> None:
    found = endpoint({kind: {"enabled": True}})
    assert found == {
        "port": "metrics",
        "path": "/metrics",
        "scheme": "http",
        "honorLabels": True,
        "interval": "30s",
        "scrapeTimeout": "10s",
        "relabelings": [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}],
    }


def test_a_monitor_has_the_configured_settings() -> None:
    rules = [{"action": "labeldrop", "regex": "pid"}]
    found = endpoint(
        {
            "metricsPath": "/gpu",
            "podMonitor": {
                "enabled": True,
                "interval": "15s",
                "scrapeTimeout": "",
                "honorLabels": False,
                "relabelings": [],
                "metricRelabelings": rules,
            },
        }
    )
    assert found == {
        "port": "metrics",
        "path": "/gpu",
        "scheme": "http",
        "honorLabels": False,
        "interval": "15s",
        "metricRelabelings": rules,
    }


def test_a_monitor_uses_tls_and_the_password() -> None:
    found = endpoint(MATRIX["TLS"])
    assert found["scheme"] == "https"
    assert found["tlsConfig"] == {"insecureSkipVerify": True}
    assert set(found["basicAuth"]) == {"username", "password"}


AGENT = {"agent": {"enabled": True, "config": {"remote_write": [{"url": "http://store/write"}]}}}


@pytest.mark.parametrize("kind", ["serviceMonitor", "podMonitor"])
@pytest.mark.parametrize(
    "values",
    [{"operator": {"enabled": True}}, {"mode": "none", **AGENT}, {"mode": "collect", **AGENT}],
    ids=["operator", "agent", "agent beside a collector"],
)
def test_agent_and_operator_are_scraped_without_an_exporter_of_the_chart(values: Any, kind: str) -> None:
    made = render({**values, kind: {"enabled": True}, "service": {"enabled": False}})
    (monitor,) = [one for one in made if one["kind"] in ("ServiceMonitor", "PodMonitor")]
    assert (monitor["kind"], monitor["metadata"]["name"]) == ("PodMonitor", "gpuledger-agents")
    (pods,) = [one for one in made if one["kind"] in ("StatefulSet", "Deployment")]
    labels = pods["spec"]["template"]["metadata"]["labels"]
    for expression in monitor["spec"]["selector"]["matchExpressions"]:
        assert labels[expression["key"]] in expression["values"]


@pytest.mark.parametrize(("values", "of"), [(MONITORED, "Service"), (MATRIX["pod monitor"], "DaemonSet")])
def test_a_monitor_selects_its_target(values: Any, of: str) -> None:
    (monitor,) = [item for item in render(values) if item["kind"] in ("ServiceMonitor", "PodMonitor")]
    (target,) = of_kind(of, values)
    labels = (target["spec"]["template"] if of == "DaemonSet" else target)["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["gpus"]}
    ports = [
        port["name"] for port in (main_container(values) if of == "DaemonSet" else target["spec"])["ports"]
    ]
    assert endpoint(values)["port"] in ports


def test_a_monitor_has_the_namespace_and_labels_that_prometheus_selects() -> None:
    (monitor,) = of_kind("ServiceMonitor", MONITORED)
    assert monitor["metadata"]["namespace"] == "monitoring"
    assert monitor["metadata"]["labels"]["release"] == "kube-prometheus-stack"

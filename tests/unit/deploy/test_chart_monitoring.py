"""What the chart makes for Prometheus Operator and Grafana: files of deploy/, where they look for them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart import MATRIX, ROOT, of_kind, program, render

RULES = sorted((ROOT / "deploy/prometheus/rules").glob("*.yml"))
DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
MONITORED = MATRIX["monitoring"]


def groups(values: Any) -> list[dict[str, Any]]:
    (rule,) = of_kind("PrometheusRule", values)
    return list(rule["spec"]["groups"])


def kept(files: list[Path]) -> list[dict[str, Any]]:
    return [one for file in files for one in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]]


def test_the_rules_are_all_those_of_the_stack_word_for_word() -> None:
    assert groups({"rules": {"enabled": True}}) == kept(RULES)


def test_an_alert_can_be_left_out_by_name() -> None:
    def alerts(made: list[dict[str, Any]]) -> set[str]:
        return {rule["alert"] for group in made for rule in group["rules"] if "alert" in rule}

    less = alerts(groups({"rules": {"enabled": True, "disabled": ["GPUXidFatal", "GPULost"]}}))
    assert alerts(kept(RULES)) - less == {"GPUXidFatal", "GPULost"}


@pytest.mark.parametrize("values", [MONITORED, MATRIX["rules of a collector"]], ids=["exporter", "collector"])
def test_prometheus_takes_the_rules(values: Any, tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": groups(values)}), encoding="utf-8")
    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


COUNTED = {
    "exporter": (
        MONITORED,
        8,
        'gpuledger_device_info{job="g", instance="n", uuid="%d", mig_instance=""}',
        # Instances of a GPU are none of their own.
        ['gpuledger_device_info{job="g", instance="n", uuid="0", mig_instance="2_0"}'],
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
def test_a_node_with_another_number_of_gpus_is_told(
    values: Any, count: int, series: str, instances: list[str], tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text(yaml.safe_dump({"groups": groups(values)}), encoding="utf-8")
    cases = []
    for has, fires in ((count, False), (count - 1, True), (count + 1, True)):
        told = [
            {"series": name, "values": "1x20"} for name in [*(series % one for one in range(has)), *instances]
        ]
        (rule,) = [rule for group in groups(values) for rule in group["rules"] if rule.get("alert") == ALERT]
        # Labels and words are looked at where a person reads them: here only whether it fires.
        expected = [{"labels": {"job": "g", "instance": "n"}, "value": has}] if fires else []
        cases.append(
            {
                "interval": "1m",
                "input_series": told,
                "promql_expr_test": [
                    {
                        "expr": rule["expr"],
                        "eval_time": "10m",
                        "exp_samples": [sample(one) for one in expected],
                    }
                ],
            }
        )
    test = tmp_path / "test.yml"
    test.write_text(yaml.safe_dump({"rule_files": [str(rules)], "tests": cases}), encoding="utf-8")
    done = subprocess.run(["promtool", "test", "rules", test], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


ALERT = "GPUCountUnexpected"


def sample(one: dict[str, Any]) -> dict[str, Any]:
    labels = ", ".join(f'{name}="{value}"' for name, value in one["labels"].items())
    return {"labels": f"{{{labels}}}", "value": one["value"]}


def test_without_a_count_nothing_is_counted() -> None:
    assert ALERT not in json.dumps(groups({"rules": {"enabled": True}}))
    assert ALERT not in json.dumps(groups({**MONITORED, "rules": {"enabled": True, "disabled": [ALERT]}}))


def test_each_dashboard_is_a_configmap_that_grafanas_sidecar_finds() -> None:
    made = [
        one for one in of_kind("ConfigMap", MONITORED) if "grafana_dashboard" in one["metadata"]["labels"]
    ]
    texts = {name: json.loads(text) for one in made for name, text in one["data"].items()}
    assert texts == {file.name: json.loads(file.read_text(encoding="utf-8")) for file in DASHBOARDS}
    for one in made:
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert one["metadata"]["annotations"] == {"grafana_folder": "GPUs"}
        # The API server's bound is 1 MiB, and kubectl apply's, of its annotation, 256 KiB.
        assert len(json.dumps(one)) < 250_000


def endpoint(values: Any) -> dict[str, Any]:
    (found,) = [one for one in render(values) if one["kind"] in ("ServiceMonitor", "PodMonitor")]
    (only,) = found["spec"].get("endpoints") or found["spec"]["podMetricsEndpoints"]
    return dict(only)


@pytest.mark.parametrize("kind", ["serviceMonitor", "podMonitor"])
def test_the_workloads_labels_survive_the_scrape(kind: str) -> None:
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


def test_a_monitor_says_what_it_is_told() -> None:
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


def test_a_monitor_follows_tls_and_brings_the_password() -> None:
    found = endpoint(MATRIX["TLS"])
    assert found["scheme"] == "https"
    assert found["tlsConfig"] == {"insecureSkipVerify": True}
    assert set(found["basicAuth"]) == {"username", "password"}


@pytest.mark.parametrize(("values", "of"), [(MONITORED, "Service"), (MATRIX["pod monitor"], "DaemonSet")])
def test_a_monitor_finds_what_it_is_to_scrape(values: Any, of: str) -> None:
    (monitor,) = [one for one in render(values) if one["kind"] in ("ServiceMonitor", "PodMonitor")]
    (target,) = of_kind(of, values)
    labels = (target["spec"]["template"] if of == "DaemonSet" else target)["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["gpus"]}
    ports = [port["name"] for port in (program(values) if of == "DaemonSet" else target["spec"])["ports"]]
    assert endpoint(values)["port"] in ports


def test_a_monitor_stands_where_and_with_the_labels_that_prometheus_chooses_by() -> None:
    (monitor,) = of_kind("ServiceMonitor", MONITORED)
    assert monitor["metadata"]["namespace"] == "monitoring"
    assert monitor["metadata"]["labels"]["release"] == "kube-prometheus-stack"

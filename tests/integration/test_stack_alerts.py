"""Prometheus and Alertmanager of the compose stack: a fault of a GPU becomes a notification."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import yaml

from running import get, serving_prepared, wait_until
from stack import (
    COMPOSE,
    DEPLOY,
    EXPORTER,
    RULES,
    Alertmanager,
    StackPrometheus,
    alertmanager,
    alerts,
    stack_prometheus,
)

# One worker starts the shared processes.
pytestmark = pytest.mark.group("stack-alerts")

SCENARIO = """
gpus:
  - model: NVIDIA H100 80GB HBM3
    processes: [{name: python3, load: 0.5, pod: {namespace: ml, name: train-0, container: main}}]
  - model: NVIDIA H100 80GB HBM3
faults:
  - {kind: gpu_lost, gpu: 1, at: 2s, for: 10h}
  - {kind: xid, gpu: 1, xid: 79, at: 2s, every: 10h}
"""
LOST = 'ALERTS{alertname="GPULost"}'


class Stack(NamedTuple):
    real: StackPrometheus
    manager: Alertmanager
    faulty: str
    healthy: str

    def names(self, instance: str) -> set[str]:
        return {labels["alertname"] for labels in self.real.labels(f'ALERTS{{instance="{instance}"}}')}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Scrapes a node with a GPU that fell off the bus, and one with MIG, MPS and pods."""
    folder = tmp_path_factory.mktemp("stack")
    (folder / "scenario.yaml").write_text(SCENARIO)
    with (
        serving_prepared("--source", f"simulator:{folder / 'scenario.yaml'}", *EXPORTER) as faulty,
        serving_prepared("--source", "simulator", *EXPORTER) as healthy,
        alertmanager(folder / "alertmanager") as manager,
        stack_prometheus(
            folder, [f"127.0.0.1:{node.port}" for node in (faulty, healthy)], manager.address
        ) as real,
    ):
        for alert in (LOST, 'ALERTS{alertname="LongRunningGPUProcess"}'):
            wait_until(lambda alert=alert: real.query(alert), "the rules to be evaluated")
        yield Stack(real, manager, *(f"127.0.0.1:{node.port}" for node in (faulty, healthy)))


def test_a_fatal_xid_reaches_the_alertmanager(stack: Stack) -> None:
    (alert,) = wait_until(lambda: stack.manager.alert("GPUXidFatal"), "the alert")
    labels = alert["labels"]
    assert (labels["xid"], labels["gpu"], labels["severity"]) == ("79", "1", "critical")
    # Labels of the target, of prometheus.yml and of the group.
    assert (labels["instance"], labels["service"], labels["job"]) == (
        stack.faulty,
        "monitor-1",
        "monitoring-item",
    )
    assert labels["monitor"] == "codelab-monitor"
    assert [receiver["name"] for receiver in alert["receivers"]] == ["on-call"]
    assert alert["annotations"]["summary"] == f"Fatal Xid 79 on GPU 1 of {stack.faulty}"
    assert "NVIDIA H100 80GB HBM3" in alert["annotations"]["description"]
    assert alert["annotations"]["runbook"]


def test_only_alerts_of_actual_faults_fire(stack: Stack) -> None:
    # Only the fault and the simulation. Groups are evaluated at different times.
    faulty = {"GPULost", "GPUXidFatal", "GPUDataSimulated"}
    healthy = {"LongRunningGPUProcess", "GPUDataSimulated"}
    # Owners that are unknown in the first seconds only make an alert pending.
    wait_until(
        lambda: (stack.names(stack.faulty), stack.names(stack.healthy)) == (faulty, healthy),
        "only these alerts",
    )
    assert [labels["gpu"] for labels in stack.real.labels(LOST)] == ["1"]


def test_the_alert_of_a_long_running_process_names_its_owner(stack: Stack) -> None:
    alerts = wait_until(lambda: stack.manager.alert("LongRunningGPUProcess"), "the alerts")
    texts = {alert["labels"]["pid"]: alert["annotations"] for alert in alerts}
    assert re.fullmatch(
        r"tritonserver of pod vision/detector-api-6c9d7f5b8-x2k4m started 1d 2h \d+m \d+s ago\. Stop .*",
        texts["20351"]["description"],
    )
    # A process on a MIG instance, and one of a systemd unit.
    summary = f"Process 20360 on GPU 6_2_0 of {stack.healthy} has run for 5h"
    assert texts["20360"]["summary"].startswith(summary)
    assert texts["20356"]["description"].startswith("nvidia-cuda-mps-server of nvidia-mps.service started")


def test_every_rule_is_evaluated_without_error(stack: Stack) -> None:
    page = get(stack.real.url + "/metrics").text
    name = "prometheus_rule_evaluation_failures_total{"
    failures = [line for line in page.splitlines() if line.startswith(name)]
    groups = [group for file in RULES for group in yaml.safe_load(file.read_text())["groups"]]
    assert len(failures) == len(groups)
    assert all(line.endswith(" 0") for line in failures)


def test_all_annotations_are_rendered_without_error(stack: Stack) -> None:
    (groups,) = [get(stack.real.url + "/api/v1/alerts").json()["data"]["alerts"]]
    texts = [text for alert in groups for text in alert["annotations"].values()]
    assert texts
    assert not [text for text in texts if "<no value>" in text or "error" in text.lower().split()]


def test_queries_are_logged_in_the_data_folder(stack: Stack) -> None:
    stack.real.query("vector(42)")
    log = stack.real.folder / "query_log_file.log"
    wait_until(lambda: "vector(42)" in log.read_text(), "the query in the log")


def check(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_accepts_rules_and_configuration() -> None:
    assert "FAILED" not in check("promtool", "check", "rules", "--lint=all", "--lint-fatal", *map(str, RULES))
    check("promtool", "check", "config", str(DEPLOY / "prometheus/prometheus.yml"))


def test_amtool_accepts_the_configuration_of_the_alertmanager() -> None:
    check("amtool", "check-config", str(COMPOSE / "alertmanager/alertmanager.yml"))


@pytest.mark.parametrize("name", sorted(alerts()))
def test_the_alert_has_a_severity_and_all_annotations(name: str) -> None:
    rule = alerts()[name]
    assert rule["labels"]["severity"] in {"info", "warning", "critical", "page"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert all(len(text) > 20 for text in rule["annotations"].values())
    # vmalert refuses to replay rules with texts that query.
    assert not any("query" in re.findall(r"\w+", text) for text in re.findall(r"\{\{.*?\}\}", str(rule)))
    assert re.search(rf"See docs/alerts.md#{name.lower()}\b", rule["annotations"]["runbook"])


def test_the_docs_describe_each_alert() -> None:
    page = (DEPLOY.parent / "docs/alerts.md").read_text(encoding="utf-8")
    described = re.findall(r"^### (\w+)$", page, re.MULTILINE)
    assert sorted(described) == sorted({*alerts(), "GPUCountUnexpected"})
    for name, rule in alerts().items():
        severity = rule["labels"]["severity"]
        assert re.search(rf"^\| \[`{name}`\]\(#{name.lower()}\) \| {severity} \|", page, re.MULTILINE), name

"""The stack's own Prometheus and Alertmanager: a fault of a GPU becomes an alert that somebody is told of."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import yaml

from running import PATIENCE, get, serving, wait_until
from stack import (
    COMPOSE,
    DEPLOY,
    EXPORTER,
    RULES,
    Alertmanager,
    StackPrometheus,
    alertmanager,
    alerts,
    watching,
)

# One process starts what these are about.
pytestmark = pytest.mark.xdist_group("stack-alerts")

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
    ill: str
    well: str

    def names(self, instance: str) -> set[str]:
        return {labels["alertname"] for labels in self.real.labels(f'ALERTS{{instance="{instance}"}}')}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A node with a GPU that fell off the bus, and one with MIG, MPS and pods, watched by the stack."""
    folder = tmp_path_factory.mktemp("stack")
    (folder / "scenario.yaml").write_text(SCENARIO)
    with (
        serving("--source", f"simulator:{folder / 'scenario.yaml'}", *EXPORTER) as ill,
        serving("--source", "simulator", *EXPORTER) as well,
        alertmanager(folder / "alertmanager") as manager,
        watching(folder, [f"127.0.0.1:{node.port}" for node in (ill, well)], manager.address) as real,
    ):
        # The rules' groups are evaluated every 30 seconds, and one begins with what another recorded.
        for alert in (LOST, 'ALERTS{alertname="LongRunningGPUProcess"}'):
            wait_until(
                lambda alert=alert: real.query(alert), "the rules to be evaluated", patience=2 * PATIENCE
            )
        yield Stack(real, manager, *(f"127.0.0.1:{node.port}" for node in (ill, well)))


def test_a_fatal_xid_reaches_the_alertmanager(told: Stack) -> None:
    (alert,) = wait_until(lambda: told.manager.alert("GPUXidFatal"), "the alert")
    labels = alert["labels"]
    assert (labels["xid"], labels["gpu"], labels["severity"]) == ("79", "1", "critical")
    # Of the target, of prometheus.yml, and of the group.
    assert (labels["instance"], labels["service"], labels["job"]) == (
        told.ill,
        "monitor-1",
        "monitoring-item",
    )
    assert labels["monitor"] == "codelab-monitor"
    assert [receiver["name"] for receiver in alert["receivers"]] == ["on-call"]
    assert alert["annotations"]["summary"] == f"Xid 79 on GPU 1 of {told.ill}"
    assert "NVIDIA H100 80GB HBM3" in alert["annotations"]["description"]
    assert alert["annotations"]["runbook"]


def test_what_is_well_is_not_told(told: Stack) -> None:
    # The fault, and that it is made up: nothing else, of all the rules. Each group has a time of its own.
    ill = {"GPULost", "GPUXidFatal", "GPUDataSimulated"}
    well = {"LongRunningGPUProcess", "GPUDataSimulated"}
    # A process whose owner is not known in its first seconds is pending, and then nobody's alert.
    wait_until(
        lambda: (told.names(told.ill), told.names(told.well)) == (ill, well), "these and no others", 90
    )
    assert [labels["gpu"] for labels in told.real.labels(LOST)] == ["1"]


def test_a_long_running_process_is_told_with_its_owner(told: Stack) -> None:
    alerts = wait_until(lambda: told.manager.alert("LongRunningGPUProcess"), "the alerts")
    texts = {alert["labels"]["pid"]: alert["annotations"] for alert in alerts}
    assert re.fullmatch(
        r"tritonserver of pod vision/detector-api-6c9d7f5b8-x2k4m began 1d 2h \d+m \d+s ago\.",
        texts["20351"]["description"],
    )
    # On an instance of MIG, and a unit of systemd.
    summary = f"Process 20360 on GPU 6_2_0 of {told.well} has run for 5h"
    assert texts["20360"]["summary"].startswith(summary)
    assert texts["20356"]["description"].startswith("nvidia-cuda-mps-server of nvidia-mps.service began")


def test_every_rule_is_evaluated_without_error(told: Stack) -> None:
    page = get(told.real.url + "/metrics").text
    name = "prometheus_rule_evaluation_failures_total{"
    failures = [line for line in page.splitlines() if line.startswith(name)]
    assert len(failures) == len(RULES)
    assert all(line.endswith(" 0") for line in failures)


def test_no_annotation_failed_to_be_filled_in(told: Stack) -> None:
    (groups,) = [get(told.real.url + "/api/v1/alerts").json()["data"]["alerts"]]
    texts = [text for alert in groups for text in alert["annotations"].values()]
    assert texts
    assert not [text for text in texts if "<no value>" in text or "error" in text.lower().split()]


def test_queries_are_logged_where_data_is_kept(told: Stack) -> None:
    told.real.query("vector(42)")
    log = told.real.folder / "query_log_file.log"
    wait_until(lambda: "vector(42)" in log.read_text(), "the query in the log")


def check(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_finds_nothing_in_rules_and_configuration() -> None:
    assert "FAILED" not in check("promtool", "check", "rules", "--lint=all", "--lint-fatal", *map(str, RULES))
    check("promtool", "check", "config", str(DEPLOY / "prometheus/prometheus.yml"))


def test_amtool_finds_nothing_in_the_alertmanagers_configuration() -> None:
    check("amtool", "check-config", str(COMPOSE / "alertmanager/alertmanager.yml"))


@pytest.mark.parametrize("name", sorted(alerts()))
def test_the_alert_is_told_when_it_should_be_and_not_else(name: str) -> None:
    file = DEPLOY / f"prometheus/tests/{name}.yml"
    check("promtool", "test", "rules", str(file))
    # The file asks for alerts of all names at once, so that one too many fails it; and it has both outcomes.
    (test,) = yaml.safe_load(file.read_text())["tests"]
    steps = test["promql_expr_test"]
    assert all('(ALERTS{alertstate="firing"})' in step["expr"] for step in steps)
    told = [[sample["labels"] for sample in step["exp_samples"]] for step in steps]
    assert {label for labels in told for label in labels if f'alertname="{name}"' in label}
    assert [] in told or name == "GPUDataSimulated"


@pytest.mark.parametrize("name", sorted(alerts()))
def test_the_alert_says_what_how_grave_and_what_to_do(name: str) -> None:
    rule = alerts()[name]
    assert rule["labels"]["severity"] in {"info", "warning", "critical", "page"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert all(len(text) > 20 for text in rule["annotations"].values())

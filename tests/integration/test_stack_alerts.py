"""The stack's own Prometheus and Alertmanager: a fault of a GPU becomes an alert that somebody is told of."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import yaml

from running import PATIENCE, serving, wait_until
from stack import (
    COMPOSE,
    DEPLOY,
    EXPORTER,
    RULES,
    Alertmanager,
    StackPrometheus,
    alertmanager,
    alerts,
    get,
    watching,
)

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


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A node with a GPU that fell off the bus, watched by the stack."""
    folder = tmp_path_factory.mktemp("stack")
    (folder / "scenario.yaml").write_text(SCENARIO)
    with (
        serving("--source", f"simulator:{folder / 'scenario.yaml'}", *EXPORTER) as server,
        alertmanager(folder / "alertmanager") as manager,
        watching(folder, [f"127.0.0.1:{server.port}"], manager.address) as real,
    ):
        # The rules' groups are evaluated every 30 seconds, and one begins with what another recorded.
        wait_until(lambda: real.query(LOST), "the rules to be evaluated", patience=2 * PATIENCE)
        yield Stack(real, manager)


def test_a_fatal_xid_reaches_the_alertmanager(told: Stack) -> None:
    (alert,) = wait_until(lambda: told.manager.alert("GPUXidFatal"), "the alert")
    (instance,) = (labels["instance"] for labels in told.real.labels("up"))
    labels = alert["labels"]
    assert (labels["xid"], labels["gpu"], labels["severity"]) == ("79", "1", "critical")
    # Of the target, of prometheus.yml, and of the group.
    assert (labels["instance"], labels["service"], labels["job"]) == (
        instance,
        "monitor-1",
        "monitoring-item",
    )
    assert labels["monitor"] == "codelab-monitor"
    assert [receiver["name"] for receiver in alert["receivers"]] == ["on-call"]
    assert alert["annotations"]["summary"] == f"Xid 79 on GPU 1 of {instance}"
    assert "NVIDIA H100 80GB HBM3" in alert["annotations"]["description"]
    assert alert["annotations"]["runbook"]


def test_what_is_well_is_not_told(told: Stack) -> None:
    # The fault, and that it is made up: nothing else, of all the rules.
    names = {labels["alertname"] for labels in told.real.labels("ALERTS")}
    assert names == {"GPULost", "GPUXidFatal", "GPUDataSimulated"}
    assert [labels["gpu"] for labels in told.real.labels(LOST)] == ["1"]


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

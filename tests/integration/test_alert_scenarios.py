"""Each alert fires in its scenario and nothing else does: in Prometheus, and in VictoriaMetrics (vmalert)."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

import busy_fleet
from alert_page import STEP, Series, import_lines, rules_of, specs
from alert_scenarios import SCENARIOS
from alert_targets import Scenario
from busy_fleet import fleet_series
from dashboards import AGENTS, substituted
from running import PATIENCE, assert_each, failures, get, victoria_metrics
from stack import RULES, copy_rules

pytestmark = pytest.mark.group("alert-scenarios")

# Without a quiet minute.
ALWAYS = {"simulated", "account-lost", "maintenance"}
H100 = "NVIDIA H100 80GB HBM3"
POD = {"owner_kind": "pod", "namespace": "ml", "pod": "train-0", "container": "main"}
# A replay evaluates each rule over the whole range with what earlier ones recorded: chains need several.
# The longest one has five links: names of devices, their clusters, GPUs of pods, those of models, the alert.
STATES = ("recording", "hardware", "exporter", "agent")
REPLAYS = (
    (*STATES, "tokens"),
    (*STATES, "tokens"),
    ("hardware", "exporter", "agent", "tokens", "activity", "rule", "use"),
    ("use", "tokens", "activity"),
    ("activity",),
)
# Evaluated again where a link was late.
CHAINS = 3 * (
    (*STATES, "tokens"),
    ("use", "tokens", "activity"),
    ("activity",),
)
ALERTS = {str(rule["alert"]) for rule in rules_of() if "alert" in rule}


def rule_test(
    folder: Path, *parts: tuple[Iterable[Series], list[dict[str, Any]]], every: int = 60, step: int = STEP
) -> dict[str, Any]:
    """A test file of promtool. JSON is YAML, and fast. One evaluation a minute saves CPU time."""
    return {
        "rule_files": copy_rules(folder, f"{every}s"),
        "evaluation_interval": f"{every}s",
        "tests": [
            {
                "interval": f"{step}s",
                "input_series": [{"series": str(one), "values": one.values} for one in series],
                "promql_expr_test": checks,
            }
            for series, checks in parts
        ],
    }


def promtool(folder: Path, content: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    file = folder / "test.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    return subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, check=False)


def checks(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """The alerts of a scenario at each of its minutes, and their labels."""
    own = f'alertstate="firing",cluster="{scenario.name}"'
    for minute, names in scenario.firing.items():
        yield {
            "expr": f"group by (alertname) (ALERTS{{{own}}})",
            "eval_time": f"{minute}m",
            "exp_samples": [
                {"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names.split())
            ],
        }
        if names and scenario.labels:
            labels = ",".join(f'{key}="{value}"' for key, value in scenario.labels.items())
            yield {
                "expr": f"group (ALERTS{{{own},{labels}}})",
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": "{}", "value": 1}],
            }


def test_each_alert_fires_in_its_scenario_and_no_other_does(tmp_path: Path) -> None:
    short = [one for one in SCENARIOS if max(one.firing) <= 30]
    long = [one for one in SCENARIOS if max(one.firing) > 30]
    parts = [
        ([one for each in part for one in each.series()], [check for each in part for check in checks(each)])
        for part in (short, long)
    ]
    done = promtool(tmp_path, rule_test(tmp_path, *parts))
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_rule_fails_while_several_exporters_of_a_node_overlap(tmp_path: Path) -> None:
    """They differ in labels of their targets, and in what they know of the GPU."""
    faulty = {"lost", "xid-79", "ecc", "remap-failed", "repair", "power-brake", "process", "idle"}
    scenarios = [one for one in SCENARIOS if one.name in faulty]
    same = {"job": "gpuledger", "cluster": "", "node": "n1", "instance": "n1"}
    revisions: list[dict[str, str]] = [{}, {"revision": "2", "pod": "gpuledger-2"}, {"revision": "3"}]
    known = [{}, {"gpu": "7", "name": "another", "user": "ann"}, {"meaning": "another", "reason": "another"}]
    series = {
        str(twin): twin
        for one in scenarios
        for revision, differs in zip(revisions, known, strict=True)
        for each in one.series()
        for labels in [{**revision, **each.labels, **same}]
        for twin in [replace(each, labels=labels | {k: v for k, v in differs.items() if labels.get(k)})]
    }
    query = 'count by (alertname) (ALERTS{alertstate="firing",alertname="GPURowRemapFailed"})'
    rows = [{"labels": '{alertname="GPURowRemapFailed"}', "value": 3}]
    checks = [{"expr": query, "eval_time": "25m", "exp_samples": rows}]
    done = promtool(tmp_path, rule_test(tmp_path, (series.values(), checks)))
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_scenario_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    fired = {name for one in SCENARIOS for names in one.firing.values() for name in names.split()}
    assert fired == ALERTS
    quiet = {one.name for one in SCENARIOS if "" in one.firing.values()}
    assert {one.name for one in SCENARIOS} - quiet == ALWAYS


def test_the_alert_of_an_idle_owner_says_what_it_costs_and_what_to_do(tmp_path: Path) -> None:
    """With a price, without one, and for a batch job."""
    (idle,) = (one for one in SCENARIOS if one.name == "idle")
    unpriced = replace(idle, name="unpriced", changes={**idle.changes, "gpuledger_gpu_price": None})
    job = {"owner_kind": "slurm", "namespace": "", "pod": "", "container": "", "slurm_job": "4711"}
    batch = replace(idle, name="batch", relabel=job)
    stop = "Ask the owner, then run `kubectl -n ml delete pod train-0` or scale down its controller."
    cost = "This cost 2.00 in that hour (in price.currency). "
    cases = (
        (idle, POD, "pod ml/train-0", cost + stop),
        (unpriced, POD, "pod ml/train-0", stop),
        (batch, job, "job 4711", cost + "Ask the owner, then run `scancel 4711`."),
    )
    (rule,) = (one for one in rules_of() if one.get("alert") == "GPUHeldIdle")
    expected = [
        {
            "exp_labels": {
                **scenario.target,
                **{key: value for key, value in owner.items() if value},
                **({} if scenario is unpriced else {"priced": "true"}),
                "severity": "warning",
                "uuid": f"GPU-{scenario.name}",
                "gpu": "0",
                "name": H100,
            },
            "exp_annotations": {
                "summary": f"GPU 0 of node-{scenario.name} is allocated but idle: {held}",
                "description": f"For over 90 % of the last hour the owner had {H100}  while no GPU engine "
                f"was active for this owner. {text}",
                "runbook": rule["annotations"]["runbook"],
            },
        }
        for scenario, owner, held, text in cases
    ]
    content = rule_test(tmp_path, ([one for scenario, *_ in cases for one in scenario.series()], []))
    content["tests"][0]["alert_rule_test"] = [
        {"alertname": "GPUHeldIdle", "eval_time": "75m", "exp_alerts": expected}
    ]
    done = promtool(tmp_path, content)
    assert done.returncode == 0, done.stdout + done.stderr


PANELS = {"cluster": "panels", "job": "gpus/gpuledger-agents", "instance": "10.0.0.9:9401"}
DEFAULT_RULES = [file.name for file in RULES if file.parent.name == "rules"]


def check_busy_fleet(folder: Path, hours: int) -> None:
    """Fails if an alert of `rules/` fires in these hours of a healthy busy fleet."""
    window = f"[{hours}h]"
    queries: dict[str, list[dict[str, Any]]] = {
        f'max by (alertname, node) (max_over_time(ALERTS{{alertstate="firing"}}{window}))': [],
        # All nodes are seen, and the rule of idle owners had what it reads.
        f'count by (node) (max_over_time(gpuledger:device:info{{mig_instance=""}}{window}))': [
            {"labels": f'{{node="{name}"}}', "value": value}
            for name, value in (("exchanged", 8), ("drained", 4), ("updated", 4))
        ],
        f"count(max_over_time(gpuledger:owner_held:ratio1h{window}) > 0.5)": [{"labels": "{}", "value": 3}],
    }
    checks = [
        {"expr": query, "eval_time": f"{hours}h", "exp_samples": rows} for query, rows in queries.items()
    ]
    content = rule_test(folder, (fleet_series(hours), checks), every=busy_fleet.STEP, step=busy_fleet.STEP)
    content["rule_files"] = [file for file in content["rule_files"] if Path(file).name in DEFAULT_RULES]
    done = promtool(folder, content)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_healthy_busy_fleet_fires_nothing(tmp_path: Path) -> None:
    """A whole day is in tests/release."""
    check_busy_fleet(tmp_path, 6)


@dataclass(frozen=True)
class Evaluated:
    """A VictoriaMetrics, the begin of all scenarios in it, and a folder for their rules."""

    url: str
    begins: int
    folder: Path

    def replay(self, names: Iterable[str]) -> None:
        """Evaluate these files of rules over all scenarios; raises if vmalert fails."""
        files = {Path(file).stem: file for file in copy_rules(self.folder, "1m")}
        within = (self.begins, self.begins + 100 * 60)
        begin, end = (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) for at in within)
        command = [
            "vmalert",
            *(f"-rule={files[name]}" for name in names),
            f"-datasource.url={self.url}",
            f"-remoteWrite.url={self.url}",
            "-replay.rulesDelay=10ms",
            f"-replay.timeFrom={begin}",
            f"-replay.timeTo={end}",
            f"-datasource.queryStep={STEP}s",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr[-4000:]
        get(f"{self.url}/internal/force_flush")


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluated]:
    """A VictoriaMetrics with all scenarios, and with what vmalert recorded and found."""
    folder = tmp_path_factory.mktemp("rules")
    with victoria_metrics("-search.disableCache") as url:
        found = Evaluated(url, int(time.time() // 3600 - 3) * 3600, folder)
        scenarios = (one for scenario in SCENARIOS for one in scenario.series())
        lines = import_lines((*scenarios, *every_family_of_agent_and_operator()), found.begins)
        content = "\n".join(lines)
        httpx.post(f"{url}/api/v1/import", content=content, timeout=PATIENCE).raise_for_status()
        get(f"{url}/internal/force_flush")
        for names in REPLAYS:
            found.replay(names)
        yield found


def every_family_of_agent_and_operator() -> Iterator[Series]:
    """A series of each family, with the values of labels that panels select."""
    selected = {"state": ("up", "down"), "condition": ("Available", "Progressing", "Degraded")}
    for name, spec in specs().items():
        if name.startswith(("gpuledger_agent_", "gpuledger_operator_")):
            label = next((label for label in spec.labels if label in selected), "")
            for value in selected.get(label, ("",)):
                labels = {each: value if each == label else each for each in spec.labels}
                yield Series(name, {**PANELS, **labels}, "0+1x200" if spec.type == "counter" else "1x200")


def test_every_query_of_the_dashboard_of_agents_returns_data(evaluated: Evaluated) -> None:
    url, begins = evaluated.url, evaluated.begins
    queries = [
        target["expr"] for panel in AGENTS["panels"] if panel["type"] != "row" for target in panel["targets"]
    ]
    assert len(queries) > 40

    def has_data(query: str, cluster: str, expected: bool) -> None:
        values = {"cluster": cluster, "__range": "10m", "__rate_interval": "2m"}
        form = {"query": substituted(query, values), "time": begins + 1800, "nocache": 1}
        answer = get(f"{url}/api/v1/query", params=form).json()
        assert answer["status"] == "success", answer
        assert bool(answer["data"]["result"]) == expected

    assert_each(queries, lambda query: has_data(query, ".*", expected=True))
    assert_each(queries, lambda query: has_data(query, PANELS["cluster"], expected=True))
    assert_each(queries, lambda query: has_data(query, "nowhere", expected=False))


def firing(url: str, query: str, at: int) -> set[str]:
    form = {"query": query, "time": at, "nocache": 1}
    rows = get(f"{url}/api/v1/query", params=form).json()["data"]["result"]
    return {row["metric"]["alertname"] for row in rows}


def test_vmalert_fires_the_same(evaluated: Evaluated) -> None:
    """A rule misses a record that VictoriaMetrics shows late, until the rule is evaluated again.

    An alert that fired wrongly is kept: more evaluations only add.
    """
    url, begins = evaluated.url, evaluated.begins

    def is_same(scenario: Scenario) -> None:
        query = f'last_over_time(ALERTS{{alertstate="firing",cluster="{scenario.name}"}}[90s])'
        found = {minute: firing(url, query, begins + minute * 60) for minute in scenario.firing}
        assert found == {minute: set(names.split()) for minute, names in scenario.firing.items()}

    for names in CHAINS:
        if failures(SCENARIOS, is_same):
            evaluated.replay(names)
    assert_each(SCENARIOS, is_same)

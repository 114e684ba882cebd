"""Recorded counters go on when target labels change: in Prometheus, and in VictoriaMetrics (MetricsQL).

After half of the time, the exporter's pod is replaced by one with another address, which exports the same
counters at their values. An agent scrapes both pods as well, less often.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
import yaml

from dashboards import EVERYTHING, FIXED, PanelQuery, each_dashboard, panel_queries, substituted
from gpuledger.agent import families as agent_families
from gpuledger.dialects.catalogue import create_dialects
from gpuledger.dialects.settings import DialectSettings
from gpuledger.ledger.report.tokens.token_sources import DEFAULT_SOURCES
from gpuledger.operator import families as operator_families
from running import PATIENCE, assert_each, get, victoria_metrics
from stack import DEPLOY, RULES

pytestmark = pytest.mark.group("recorded-counters")

STEP, HALF = 15, 2400
OWNER = 'owner_kind="pod",namespace="ml",pod="t",container="main"'
# Counters with their value at the beginning and their rise in a second.
COUNTERS = {
    f'gpuledger_owner_held_seconds_total{{uuid="GPU-0",{OWNER}}}': (50_000.0, 1.0),
    f'gpuledger_owner_resident_seconds_total{{uuid="GPU-0",{OWNER}}}': (60_000.0, 1.0),
    f'gpuledger_owner_allocated_seconds_total{{uuid="GPU-0",{OWNER}}}': (70_000.0, 1.0),
    f'gpuledger_energy_joules_total{{uuid="GPU-0",account="process",method="measured",{OWNER}}}': (
        7e6,
        300.0,
    ),
    'gpuledger_device_energy_joules_total{uuid="GPU-0"}': (9e6, 300.0),
    f'gpuledger_gpu_seconds_total{{uuid="GPU-0",account="owner",{OWNER}}}': (90_000.0, 0.5),
    'gpuledger_gpu_seconds_total{uuid="GPU-0",account="idle"}': (50_000.0, 0.5),
    'gpuledger_gpu_watched_seconds_total{uuid="GPU-0"}': (140_000.0, 1.0),
    'gpuledger_gpu_price{uuid="GPU-0"}': (2.0, 0.0),
}
EXPECTED = {
    "gpuledger:owner_held:ratio1h": 1.0,
    "gpuledger:namespace_power:watts5m": 300.0,
    'gpuledger:namespace_gpus:mean5m{account="owner"}': 0.5,
    'gpuledger:namespace_gpus:mean5m{account="idle"}': 0.5,
    'gpuledger:namespace_gpu_cost:per_hour5m{account="owner"}': 1.0,
}
INCREASES = {
    "gpuledger:device_energy_joules:max": 300.0,
    'gpuledger:energy_joules:max{account="process"}': 300.0,
    "gpuledger:gpu_watched_seconds:max": 1.0,
    "gpuledger:owner_resident_seconds:max": 1.0,
    "gpuledger:owner_allocated_seconds:max": 1.0,
    'gpuledger:gpu_seconds:max{account="owner"}': 0.5,
}


def exposition(begins: int) -> str:
    """The samples of both pods, with timestamps."""
    lines = []
    for series, (first, rate) in COUNTERS.items():
        for job, step, offset in (("gpuledger", STEP, 0), ("agent", 4 * STEP, 7)):
            for second in range(offset, 2 * HALF, step):
                instance = "a:9400" if second < HALF else "b:9400"
                labels = f'job="{job}",instance="{instance}",pod_of_target="gpuledger-{instance[0]}",'
                value = first + rate * second
                lines.append(f"{series.replace('{', '{' + labels)} {value} {(begins + second) * 1000}")
    return "\n".join((*lines, ""))


@pytest.fixture(scope="module")
def recorded() -> Iterator[tuple[str, int]]:
    """The URL of a VictoriaMetrics with these samples and what vmalert recorded, and their begin."""
    begins = int(time.time() // 3600 - 2) * 3600
    with victoria_metrics("-search.disableCache") as url:
        answer = httpx.post(f"{url}/api/v1/import/prometheus", content=exposition(begins), timeout=PATIENCE)
        assert answer.status_code < 300, answer.text
        get(f"{url}/internal/force_flush")
        file = DEPLOY / "prometheus/rules/recording.yml"
        within = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) for at in (begins, begins + 2 * HALF)]
        command = ["vmalert", f"-rule={file}", f"-datasource.url={url}", f"-remoteWrite.url={url}"]
        command += [
            f"-replay.timeFrom={within[0]}",
            f"-replay.timeTo={within[1]}",
            "-replay.rulesDelay=10ms",
            f"-datasource.queryStep={STEP}s",
        ]
        # The second replay finds the recorded counters that the first one wrote.
        for _ in range(2):
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
            assert done.returncode == 0, done.stderr
            get(f"{url}/internal/force_flush")
        yield url, begins


def values(url: str, query: str, begins: int, ends: int) -> list[float]:
    form = {"query": query, "start": begins, "end": ends, "step": 30, "nocache": 1}
    rows = get(f"{url}/api/v1/query_range", params=form).json()["data"]["result"]
    return [float(value) for row in rows for _, value in row["values"]]


@pytest.mark.parametrize("record", EXPECTED)
def test_a_recorded_mean_does_not_change_with_target_labels_in_victoria_metrics(
    recorded: tuple[str, int], record: str
) -> None:
    url, begins = recorded
    window = 3600 if "1h" in record else 300
    found = values(url, record, begins + HALF + 60, begins + HALF + 240)
    assert found
    # An hour is longer than the time before the change.
    low = EXPECTED[record] * min(HALF / window, 1.0)
    assert min(found) >= 0.9 * low
    assert max(found) <= 1.1 * EXPECTED[record]


@pytest.mark.parametrize("record", INCREASES)
def test_an_increase_over_a_change_of_target_labels_is_right_in_victoria_metrics(
    recorded: tuple[str, int], record: str
) -> None:
    url, begins = recorded
    found = values(url, f"increase({record}[40m])", begins + HALF + 900, begins + HALF + 1500)
    assert found == pytest.approx([INCREASES[record] * 2400] * len(found), rel=0.02)
    assert found


@each_dashboard
def test_victoria_metrics_accepts_the_queries_of_a_dashboard(recorded: tuple[str, int], uid: str) -> None:
    url, begins = recorded

    def is_accepted(query: PanelQuery) -> None:
        expression = substituted(query.expression, {**FIXED, **EVERYTHING})
        form = {"query": expression, "time": begins + HALF, "nocache": 1}
        answer = get(f"{url}/api/v1/query", params=form).json()
        assert answer["status"] == "success", answer

    assert_each(panel_queries(uid), is_accepted)


def test_prometheus_records_the_same() -> None:
    file = DEPLOY / "prometheus/tests/TargetLabels.yml"
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_rule_computes_an_increase_of_an_exported_counter() -> None:
    """Only recorded counters are without target labels. Agents and operators are one target each."""
    rules: list[dict[str, Any]] = [
        rule
        for file in RULES
        for group in yaml.safe_load(file.read_text())["groups"]
        for rule in group["rules"]
    ]
    for rule in rules:
        # A counter is recorded without target labels, but not its increase.
        functions = INCREASING if rule.get("record") in RECORDED_COUNTERS else (*INCREASING, "min_over_time")
        assert refused(rule["expr"], functions) == [], rule["expr"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("increase(gpuledger:gpu_seconds:max[5m])", []),
        ("rate(gpuledger_agent_scrapes_total[5m])", []),
        ("sum(increase( vllm:prompt_tokens_total[5m]))", []),
        ('increase(prompt_tokens_total{model_name!=""}[5m])', []),
        ("increase(gpuledger_owner_resident_seconds_total[5m])", ["gpuledger_owner_resident_seconds_total"]),
        ("increase(\n  my_gpu_process_energy_joules_total[5m])", ["my_gpu_process_energy_joules_total"]),
        (
            "increase(vllm:prompt_tokens_total[5m]) + irate(DCGM_FI_DEV_POWER_USAGE[5m])",
            ["DCGM_FI_DEV_POWER_USAGE"],
        ),
        ("increase(vllm:prompt_tokens[5m])", ["vllm:prompt_tokens"]),
        ('increase({__name__=~"gpuledger_.+"}[5m])', [""]),
        ("increase((gpuledger_gpu_seconds_total)[5m:15s])", [""]),
    ],
)
def test_an_increase_of_anything_else_is_refused(expression: str, expected: list[str]) -> None:
    assert refused(expression, INCREASING) == expected


def test_no_counter_of_an_inference_server_is_exported_here() -> None:
    dialects = create_dialects(DialectSettings(), "0").values()
    specs = [spec for dialect in dialects for spec in dialect.specs]
    exported = {spec.name for spec in (*specs, *agent_families.SPECS, *operator_families.SPECS)}
    assert exported
    assert exported & SERVERS == set()
    assert not any(name.startswith("gpuledger") for name in SERVERS)


INCREASING = ("increase", "rate", "delta")
# Counters of inference servers: none of this program's targets exports them, and no rule can record a 0
# before their first sample. Each server is one target.
SERVERS = {metric.name for source in DEFAULT_SOURCES for metric in source.metrics()}


def refused(expression: str, functions: Sequence[str]) -> list[str]:
    """What these functions read, also as the end of a longer name, and may not; "" if it is no name."""
    allowed = ("gpuledger:", "gpuledger_agent_", "gpuledger_operator_")
    read = re.findall(rf"(?:{'|'.join(functions)})\(\s*([a-zA-Z_:][\w:]*)?", expression)
    return [name for name in read if not name.startswith(allowed) and name not in SERVERS]


RECORDED_COUNTERS = {
    rule["record"]
    for group in yaml.safe_load((DEPLOY / "prometheus/rules/recording.yml").read_text())["groups"]
    if group["name"] == "gpuledger-counters"
    for rule in group["rules"]
}

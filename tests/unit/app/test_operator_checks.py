"""What the programs themselves would refuse is told before a pod runs them, at the field that says it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from gpuledger.app.operator_checks import check_agent, check_exporter
from gpuledger.operator.render.objects import render
from unit.operator.support import Json, facts_of, gpu_monitor, monitor_of, whatap

SIMULATED = {"source": "simulator"}
SECRET = {"name": "store", "key": "user"}
BY_NODE = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}


def said(resource: Json) -> list[str]:
    monitor = monitor_of(resource)
    facts = facts_of(monitor, check_agent=check_agent, check_exporter=check_exporter)
    return [str(one) for one in render(monitor, facts).problems]


def exporter(**keys: object) -> Json:
    return gpu_monitor({"exporter": keys, "agent": {"enabled": False}})


def agent(**keys: object) -> Json:
    return gpu_monitor({"exporter": {"enabled": False}, "agent": keys})


def variables(**values: str) -> list[Json]:
    return [{"name": name, "value": value} for name, value in values.items()]


REFUSED: dict[str, tuple[Json, str]] = {
    "an unknown flag": (
        exporter(args=["--intervall=5s"]),
        "spec.exporter.args: unknown flag '--intervall'; did you mean '--interval'?",
    ),
    "a flag without its value": (
        exporter(args=["--interval"]),
        "spec.exporter.args: argument --interval/--dcgm-update-frequency: expected one argument; "
        "see gpuledger serve --help",
    ),
    "a value that is none": (
        exporter(args=["--interval=often"]),
        "spec.exporter.args: --interval: a duration such as 500ms, 10s or 1m30s is wanted, not 'often'",
    ),
    "a word": (
        exporter(args=["fast"]),
        "spec.exporter.args: serve takes no 'fast'; see gpuledger serve --help",
    ),
    "help": (exporter(args=["--help"]), "spec.exporter.args: --help: tells the flags and ends"),
    "another configuration": (
        exporter(args=["-config", "/mine.yaml"]),
        "spec.exporter.args: --config: the configuration is written by the operator; set its keys instead",
    ),
    "a dialect that there is not": (
        exporter(args=["--dialect=prose"]),
        "spec.exporter.args: unknown dialect 'prose'; did you mean 'process'?",
    ),
    "a dialect of its settings that there is not": (
        exporter(config={"dialect": ["prose"]}),
        "spec.exporter.config: unknown dialect 'prose'; did you mean 'process'?",
    ),
    "a dialect of a variable that there is not": (
        exporter(env=variables(GPULEDGER_DIALECT="prose")),
        "spec.exporter.env: unknown dialect 'prose'; did you mean 'process'?",
    ),
    "a scenario of a flag that there is not": (
        exporter(args=["--source=simulator:desert"]),
        "spec.exporter.args: unknown scenario 'desert'; valid: k8s-node, workstation",
    ),
    "a path that is another page's": (
        exporter(metricsPath="/health"),
        "spec.exporter.metricsPath: /health is another page of gpuledger; a path such as /metrics is wanted, "
        "not '/health'",
    ),
    "a scenario that there is not": (
        exporter(source="simulator:desert"),
        "spec.exporter.source: unknown scenario 'desert'; valid: k8s-node, workstation",
    ),
    "a simulated GPU that there is not": (
        exporter(source="simulator:workstation", devices=[7]),
        "spec.exporter.devices: unknown device '7'; valid: 0, 1",
    ),
    "a variable": (
        exporter(env=variables(OTHER="x", GPULEDGER_INTERVAL="often")),
        "spec.exporter.env[1].value: a duration such as 500ms, 10s or 1m30s is wanted, not 'often'",
    ),
    "a variable that another one says": (
        exporter(env=variables(EVERY="often", GPULEDGER_INTERVAL="$(EVERY)")),
        "spec.exporter.env[1].value: a duration such as 500ms, 10s or 1m30s is wanted, not 'often'",
    ),
    "collectors of which nothing can be told": (
        exporter(dialects=["dcgm"], collectors="nothing at all"),
        "spec.exporter.collectors: /etc/gpuledger/config/collectors.csv names no field that can be told "
        "(/etc/gpuledger/config/collectors.csv line 1 is skipped: FIELD, TYPE, HELP is wanted); a line such "
        "as 'DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).' is wanted",
    ),
    "an agent's flag": (
        agent(args=["--page-memory=lots"]),
        "spec.agent.args: --page-memory: a size such as 512MB or 2GiB is wanted, not 'lots'",
    ),
    "an agent's variable": (
        agent(env=variables(GPULEDGER_AGENT_LOOK_INTERVAL="often")),
        "spec.agent.env[0].value: a duration such as 500ms, 10s or 1m30s is wanted, not 'often'",
    ),
    "a header that Prometheus would not be told": (
        agent(
            engine="prometheus",
            remoteWrite=[{"url": "http://store/", "name": "store", "headers": {"X-Key": "abc"}}],
        ),
        "spec.agent.remoteWrite[0]: what the header X-Key says may be a secret and is not printed; leave it "
        "out here, and add it to what is printed",
    ),
    "a WhatapAgent's variable": (
        whatap(
            k8sAgent={"gpuMonitoring": {"enabled": True, "envs": variables(DCGM_EXPORTER_INTERVAL="often")}}
        ),
        "spec.features.k8sAgent.gpuMonitoring.envs[0].value: a whole number is wanted, not 'often'",
    ),
    "a WhatapAgent's collectors": (
        whatap(k8sAgent={"gpuMonitoring": {"enabled": True, "collectors": "# none"}}),
        "spec.features.k8sAgent.gpuMonitoring.collectors: /etc/dcgm-exporter/whatap-dcgm-exporter.csv names "
        "no field that can be told; a line such as 'DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).' is "
        "wanted",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_program_would_refuse_is_said_at_its_field(case: str) -> None:
    resource, line = REFUSED[case]
    assert said(resource) == [line]


TAKEN: dict[str, Json] = {
    "nothing said": gpu_monitor(),
    "flags": exporter(args=["--interval=5s", "-log-level", "debug", "--listen-address=:9500=native"]),
    "a value that reads like the name of a flag": exporter(args=["--node-name", "config"]),
    "settings of other commands in its configuration": exporter(config={"textfile": {"file": "/tmp/a.prom"}}),
    "GPUs of a node that nobody knows here": exporter(devices=[0, "GPU-5c1b8e8e", "0000:17:00.0"]),
    "simulated GPUs": exporter(**SIMULATED, devices=[0, 7]),
    "a flag whose value only the pod knows": exporter(env=[BY_NODE], args=["--node-name", "$(NODE)"]),
    "a variable whose value only the pod knows": exporter(
        env=[BY_NODE, *variables(GPULEDGER_INTERVAL="$(NODE)")]
    ),
    "a dollar sign": exporter(env=[BY_NODE], args=["--node-name=$$(NODE)"]),
    "a reference to nothing, which stays as it is": exporter(args=["--node-name=$(NOTHING)"]),
    "collectors": exporter(dialects=["dcgm"], collectors="DCGM_FI_DEV_GPU_TEMP, gauge, t\nwhat, is, this\n"),
    "a receiver's login, by either engine": agent(
        engine="prometheus",
        remoteWrite=[{"url": "http://store/", "basicAuth": {"username": SECRET, "password": SECRET}}],
    ),
    "a Prometheus's own flags": agent(engine="prometheus", args=["--web.enable-lifecycle"]),
    "several that print": agent(engine="prometheus", replicas=3),
    "an agent's flags": agent(args=["--page-memory=64MB"]),
    "a WhatapAgent": whatap(openAgent={"enabled": True}, k8sAgent={"gpuMonitoring": {"enabled": True}}),
    "another program's variables": whatap(
        k8sAgent={
            "gpuMonitoring": {
                "enabled": True,
                "customImageFullName": "nvcr.io/nvidia/k8s/dcgm-exporter:4",
                "envs": variables(DCGM_EXPORTER_INTERVAL="its own affair"),
            }
        }
    ),
}


@pytest.mark.parametrize("case", TAKEN)
def test_what_the_programs_take_is_taken(
    case: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """And nothing of the trial shows in the operator's own output."""
    caplog.set_level(logging.DEBUG)
    assert said(TAKEN[case]) == []
    assert (caplog.text, *capfd.readouterr()) == ("", "", "")


@pytest.mark.parametrize(
    "keys",
    [
        {"dialects": ["dcgm"], "args": ["--collectors=FILE"]},
        {"dialects": ["dcgm"], "config": {"dcgm": {"collectors": "FILE"}}},
        {"dialects": ["dcgm"], "env": [{"name": "DCGM_EXPORTER_COLLECTORS", "value": "FILE"}]},
        {"source": "simulator:FILE"},
        {"args": ["--source=replay:FILE"]},
    ],
    ids=lambda keys: next(reversed(keys)),
)
def test_no_file_of_the_operators_own_machine_is_looked_into(keys: Json, tmp_path: Path) -> None:
    """Whoever may write a resource would read in its status what the operator alone may read."""
    file = tmp_path / "token"
    file.write_text("sesame: open\n")
    found = json.loads(json.dumps(keys).replace("FILE", str(file)))
    assert said(exporter(**found)) == []


def test_what_is_wrong_with_an_agents_configuration_is_told_without_a_path_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    endpoint = {"address": "a:1", "interval": "often"}
    target = {"targetName": "t", "type": "StaticEndpoints", "endpoints": [{**endpoint, "interval": "15s"}]}
    rule = {"regex": "(", "target_label": "a"}
    (line,) = said(agent(targets=[{**target, "relabelConfigs": [rule]}]))
    assert line.startswith("spec.agent.targets[0].relabelConfigs[0].regex: ")
    assert str(tmp_path) not in line
    assert list(tmp_path.iterdir()) == []

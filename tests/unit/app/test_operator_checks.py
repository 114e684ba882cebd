"""Invalid input of the programs is reported before a pod runs them, at its field of the resource."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from gpuledger.app.operator_checks import check_agent, check_exporter
from gpuledger.operator.render.objects import render_objects
from unit.operator.support import Json, context_of, gpu_monitor, valid_monitor, whatap

SIMULATED = {"source": "simulator"}
SECRET = {"name": "store", "key": "user"}
BY_NODE = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}


def problems_of(resource: Json) -> list[str]:
    monitor = valid_monitor(resource)
    context = context_of(monitor, check_agent=check_agent, check_exporter=check_exporter)
    return [str(problem) for problem in render_objects(monitor, context).problems]


def exporter(**keys: object) -> Json:
    return gpu_monitor({"exporter": keys, "agent": {"enabled": False}})


def agent(**keys: object) -> Json:
    return gpu_monitor({"exporter": {"enabled": False}, "agent": keys})


def variables(**values: str) -> list[Json]:
    return [{"name": name, "value": value} for name, value in values.items()]


INVALID: dict[str, tuple[Json, str]] = {
    "an unknown flag": (
        exporter(args=["--intervall=5s"]),
        "spec.exporter.args: unknown flag '--intervall'; did you mean '--interval'?",
    ),
    "a flag without its value": (
        exporter(args=["--interval"]),
        "spec.exporter.args: argument --interval/--dcgm-update-frequency: expected one argument; "
        "see gpuledger serve --help",
    ),
    "an invalid value": (
        exporter(args=["--interval=often"]),
        "spec.exporter.args: --interval: expected a duration such as 500ms, 10s or 1m30s, not 'often'",
    ),
    "a positional argument": (
        exporter(args=["fast"]),
        "spec.exporter.args: serve takes no argument 'fast'; see gpuledger serve --help",
    ),
    "help": (exporter(args=["--help"]), "spec.exporter.args: --help: prints the help and exits; remove it"),
    "help page": (
        exporter(args=["-help-compat"]),
        "spec.exporter.args: -help-compat: prints the help and exits; remove it",
    ),
    "another configuration": (
        exporter(args=["-config", "/mine.yaml"]),
        "spec.exporter.args: --config: the operator writes the configuration file; set its keys instead",
    ),
    "an unknown dialect": (
        exporter(args=["--dialect=prose"]),
        "spec.exporter.args: unknown dialect 'prose'; did you mean 'process'?",
    ),
    "an unknown dialect in the settings": (
        exporter(config={"dialect": ["prose"]}),
        "spec.exporter.config: unknown dialect 'prose'; did you mean 'process'?",
    ),
    "an invalid entry of a price list": (
        exporter(config={"price": {"gpu_hour": [{"gpu": "*H100*", "price": 2.4}, {"price": -1}]}}),
        "spec.exporter.config: price.gpu_hour: entry 2 (price -1): price: expected a price of one "
        "GPU-hour of at least 0 and below 1000000000, such as 1.20, not -1",
    ),
    "an unknown dialect in a variable": (
        exporter(env=variables(GPULEDGER_DIALECT="prose")),
        "spec.exporter.env: unknown dialect 'prose'; did you mean 'process'?",
    ),
    "an unknown scenario in a flag": (
        exporter(args=["--source=simulator:desert"]),
        "spec.exporter.args: unknown scenario 'desert'; valid: demo, faulty-node, k8s-node, mixed-lab, "
        "workstation",
    ),
    "a path of another page": (
        exporter(metricsPath="/health"),
        "spec.exporter.metricsPath: /health is another page of gpuledger; expected a path such as /metrics, "
        "not '/health'",
    ),
    "an unknown scenario": (
        exporter(source="simulator:desert"),
        "spec.exporter.source: unknown scenario 'desert'; valid: demo, faulty-node, k8s-node, mixed-lab, "
        "workstation",
    ),
    "an unknown simulated GPU": (
        exporter(source="simulator:workstation", devices=[7]),
        "spec.exporter.devices: unknown device '7'; valid: 0, 1",
    ),
    "a variable": (
        exporter(env=variables(OTHER="x", GPULEDGER_INTERVAL="often")),
        "spec.exporter.env[1].value: expected a duration such as 500ms, 10s or 1m30s, not 'often'",
    ),
    "a variable with a reference": (
        exporter(env=variables(EVERY="often", GPULEDGER_INTERVAL="$(EVERY)")),
        "spec.exporter.env[1].value: expected a duration such as 500ms, 10s or 1m30s, not 'often'",
    ),
    "collectors without a supported field": (
        exporter(dialects=["dcgm"], collectors="nothing at all"),
        "spec.exporter.collectors: /etc/gpuledger/config/collectors.csv has no field that can be exported "
        "(/etc/gpuledger/config/collectors.csv line 1 is skipped: expected FIELD, TYPE, HELP); expected a "
        "line such as 'DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).'",
    ),
    "an agent's flag": (
        agent(args=["--page-memory=lots"]),
        "spec.agent.args: --page-memory: expected a size such as 512MB or 2GiB, not 'lots'",
    ),
    "an agent's variable": (
        agent(env=variables(GPULEDGER_AGENT_LOOK_INTERVAL="often")),
        "spec.agent.env[0].value: expected a duration such as 500ms, 10s or 1m30s, not 'often'",
    ),
    "a header that may be a secret": (
        agent(
            engine="prometheus",
            remoteWrite=[{"url": "http://store/"}, {"url": "http://other/", "headers": {"X-Key": "abc"}}],
        ),
        "spec.agent.remoteWrite[1].headers.X-Key: may be a secret and is not printed; remove it here and "
        "add it to the printed configuration",
    ),
    "a WhatapAgent's variable": (
        whatap(
            k8sAgent={"gpuMonitoring": {"enabled": True, "envs": variables(DCGM_EXPORTER_INTERVAL="often")}}
        ),
        "spec.features.k8sAgent.gpuMonitoring.envs[0].value: expected an integer, not 'often'",
    ),
    "a WhatapAgent's collectors": (
        whatap(k8sAgent={"gpuMonitoring": {"enabled": True, "collectors": "# none"}}),
        "spec.features.k8sAgent.gpuMonitoring.collectors: /etc/dcgm-exporter/whatap-dcgm-exporter.csv has "
        "no field that can be exported; expected a line such as 'DCGM_FI_DEV_GPU_TEMP, gauge, GPU "
        "temperature (in C).'",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_an_invalid_input_of_a_program_is_reported_at_its_field(case: str) -> None:
    resource, line = INVALID[case]
    assert problems_of(resource) == [line]


VALID: dict[str, Json] = {
    "no settings": gpu_monitor(),
    "flags": exporter(args=["--interval=5s", "-log-level", "debug", "--listen-address=:9500=native"]),
    "a value that looks like a flag name": exporter(args=["--node-name", "config"]),
    "settings of other commands in its configuration": exporter(config={"textfile": {"file": "/tmp/a.prom"}}),
    "a price list": exporter(
        config={"price": {"gpu_hour": [{"gpu": "*", "from": "2026-01-01", "price": 2.4}]}}
    ),
    "GPUs of a real node": exporter(devices=[0, "GPU-5c1b8e8e", "0000:17:00.0"]),
    "simulated GPUs": exporter(**SIMULATED, devices=[0, 7]),
    "a flag with a value that only the pod knows": exporter(env=[BY_NODE], args=["--node-name", "$(NODE)"]),
    "a variable with a value that only the pod knows": exporter(
        env=[BY_NODE, *variables(GPULEDGER_INTERVAL="$(NODE)")]
    ),
    "a dollar sign": exporter(env=[BY_NODE], args=["--node-name=$$(NODE)"]),
    "an unresolved reference": exporter(args=["--node-name=$(NOTHING)"]),
    "collectors": exporter(dialects=["dcgm"], collectors="DCGM_FI_DEV_GPU_TEMP, gauge, t\nwhat, is, this\n"),
    "credentials of a receiver, with either engine": agent(
        engine="prometheus",
        remoteWrite=[{"url": "http://store/", "basicAuth": {"username": SECRET, "password": SECRET}}],
    ),
    "a Prometheus's own flags": agent(engine="prometheus", args=["--web.enable-lifecycle"]),
    "several replicas that print": agent(engine="prometheus", replicas=3),
    "an agent's flags": agent(args=["--page-memory=64MB"]),
    "a WhatapAgent": whatap(openAgent={"enabled": True}, k8sAgent={"gpuMonitoring": {"enabled": True}}),
    "another program's variables": whatap(
        k8sAgent={
            "gpuMonitoring": {
                "enabled": True,
                "customImageFullName": "nvcr.io/nvidia/k8s/dcgm-exporter:4",
                "envs": variables(DCGM_EXPORTER_INTERVAL="anything"),
            }
        }
    ),
}


@pytest.mark.parametrize("case", VALID)
def test_valid_input_of_the_programs_is_accepted(
    case: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """The checks write nothing to the log and the output of the operator."""
    caplog.set_level(logging.DEBUG)
    assert problems_of(VALID[case]) == []
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
def test_no_file_of_the_operators_machine_is_read(keys: Json, tmp_path: Path) -> None:
    """Otherwise the status would disclose files of the operator to authors of resources."""
    file = tmp_path / "token"
    file.write_text("sesame: open\n")
    found = json.loads(json.dumps(keys).replace("FILE", str(file)))
    assert problems_of(exporter(**found)) == []


def test_an_error_in_an_agent_configuration_does_not_name_paths_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    endpoint = {"address": "a:1", "interval": "often"}
    target = {"targetName": "t", "type": "StaticEndpoints", "endpoints": [{**endpoint, "interval": "15s"}]}
    rule = {"regex": "(", "target_label": "a"}
    (line,) = problems_of(agent(targets=[{**target, "relabelConfigs": [rule]}]))
    assert line.startswith("spec.agent.targets[0].relabelConfigs[0].regex: ")
    assert str(tmp_path) not in line
    assert list(tmp_path.iterdir()) == []

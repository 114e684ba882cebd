"""What the operator renders, run by the real engines, with a real Prometheus as the receiver."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuledger.app.operator_checks import check_agent, check_exporter
from gpuledger.operator.judged_spec import JudgedSpec, judge_spec
from gpuledger.operator.monitor_parser import parse_monitor
from gpuledger.operator.render.objects import render_objects
from running import Program, free_port, get, prometheus, wait_until
from scripted_target import Answer, scripted
from unit.operator.support import Json, context_of, gpu_monitor

IMAGES = {"builtin": "", "prometheus": "prometheus:v2.42.0"}
GOOD = 20


def static(name: str, **endpoint: object) -> Json:
    return {"targetName": name, "type": "StaticEndpoints", "endpoints": [endpoint]}


def monitor_with_bad_targets(engine: str, receiver: str, address: str) -> Json:
    """Twenty good targets, and among them five that are bad for different reasons."""
    good = [static(f"good-{number}", address=address, path=f"/{number}") for number in range(GOOD)]
    bad = [
        static("address", address="http://bad:1"),
        static("interval", address=address, interval="often"),
        static("regex", address=address, metricRelabelConfigs=[{"action": "keep", "regex": "("}]),
        {"targetName": "operator", "type": "PodMonitor", "selector": {"matchExpressions": "a"}},
        "no mapping",
    ]
    agent = {
        "engine": engine,
        "prometheusImage": IMAGES[engine] or None,
        "globalInterval": "500ms" if engine == "builtin" else "1s",
        "externalLabels": {"engine": engine},
        "remoteWrite": [{"url": receiver, "queueConfig": {"batchSendDeadline": "200ms"}}],
        "targets": [*good[:7], *bad[:2], *good[7:], *bad[2:]],
    }
    return gpu_monitor({"exporter": {"enabled": False}, "agent": agent})


def judge(resource: Json) -> JudgedSpec:
    """As the operator does, for the first apply."""
    checks: Json = {"check_agent": check_agent, "check_exporter": check_exporter}
    return judge_spec(
        resource,
        parse_monitor(resource),
        None,
        lambda _, monitor: render_objects(monitor, context_of(monitor, **checks)),
    )


@contextmanager
def pod(judged: JudgedSpec, folder: Path) -> Iterator[None]:
    """The containers of the StatefulSet, run as processes with their own commands and arguments."""
    assert judged.spec is not None
    assert judged.spec.rendered is not None
    by_kind = {one["kind"]: one for one in judged.spec.rendered.objects}
    spec = by_kind["StatefulSet"]["spec"]["template"]["spec"]
    ((name, text),) = by_kind["ConfigMap"]["data"].items()
    (folder / name).write_text(text)
    port = free_port()

    def here(word: str) -> str:
        """The word with paths and addresses of this machine."""
        for path in ("/etc/gpuledger-agent", "/etc/prometheus-made", "/var/lib/gpuledger-agent"):
            word = word.replace(path, str(folder))
        return word.replace("=:9401", f"=127.0.0.1:{port}")

    program = folder / "gpuledger"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gpuledger "$@"\n')
    program.chmod(0o755)
    # Without a cluster, the number of replicas is not known.
    environment = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "POD_NAME": "agent-0",
        "GPULEDGER_AGENT_SHARD": "0/1",
    }
    for container in spec.get("initContainers", ()):
        subprocess.run([here(word) for word in container["command"]], env=environment, check=True)
    (container,) = spec["containers"]
    start = ["prometheus"] if "initContainers" in spec else [str(program)]
    running = Program([*start, *map(here, container["args"])], environment)
    try:
        for probe in ("startupProbe", "readinessProbe"):
            running.wait_answer(f"http://127.0.0.1:{port}{container[probe]['httpGet']['path']}")
        yield
    finally:
        running.stop()


@pytest.mark.parametrize("engine", IMAGES)
def test_twenty_targets_are_scraped_beside_five_bad_ones(engine: str, tmp_path: Path) -> None:
    with (
        scripted(lambda path: Answer(f"page {path.strip('/')}\n")) as target,
        prometheus("global: {scrape_interval: 1m}", "--web.enable-remote-write-receiver") as store,
    ):
        resource = monitor_with_bad_targets(engine, f"{store.url}/api/v1/write", f"127.0.0.1:{target.port}")
        judged = judge(resource)
        assert sorted(problem.path for problem in judged.problems) == [
            "spec.agent.targets[22].endpoints[0].metricRelabelConfigs[0].regex",
            "spec.agent.targets[23].selector.matchExpressions",
            "spec.agent.targets[24]",
            "spec.agent.targets[7].endpoints[0]",
            "spec.agent.targets[8].endpoints[0].interval",
        ]

        def pages() -> set[tuple[str, str]]:
            found = get(f"{store.url}/api/v1/query", params={"query": f'page{{engine="{engine}"}}'})
            return {(row["metric"]["job"], row["value"][1]) for row in found.json()["data"]["result"]}

        with pod(judged, tmp_path):
            expected = {(f"good-{number}", str(number)) for number in range(GOOD)}
            wait_until(lambda: pages() == expected, "all twenty targets in the store")

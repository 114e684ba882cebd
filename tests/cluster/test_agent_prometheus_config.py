"""Compares the agent with another scraper that runs the configuration printed by `--engine prometheus`.

Debian builds Prometheus and promtool without Kubernetes support, so vmagent discovers the targets, and
promtool checks the configuration without service discovery.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from cluster.agents import CUSTOM, IGNORED_LABELS, WHATAP, Agents, FakeExporters, Objects, endpoint, monitor
from running import Program, free_port, get, gpuledger, wait_until

# Copies all discovery labels of a target to its series, so that they are compared too.
COPY_META_LABELS = [{"regex": "__meta_kubernetes_(.+)", "action": "labelmap", "replacement": "k8s_$1"}]


def series(store: str, agent: str) -> set[str]:
    found = get(f"{store}/api/v1/series", params={"match[]": f'{{agent="{agent}"}}'}).json()["data"]
    return {
        json.dumps({name: value for name, value in row.items() if name not in IGNORED_LABELS}, sort_keys=True)
        for row in found
        if row["__name__"] != "scrape_timeout_seconds"
    }


def test_agent_and_vmagent_find_the_same_targets_and_deliver_the_same_series(
    objects: Objects, agents: Agents, fake_exporters: FakeExporters, store: str, tmp_path: Path
) -> None:
    port = fake_exporters.port
    for name in ("both", "services"):
        objects.namespace(name)
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    objects.create("api/v1/nodes", {"metadata": {"name": "gpu-1", "labels": {"zone": "z1"}}})
    objects.pod(
        *("both", "owned", "127.0.6.1", {**WHATAP, "example.com/unit": "a-b"}),
        ports={"metrics": port, "other": 9},
        annotations={"note/here": "x"},
        ownerReferences=[owner],
    )
    objects.pod("both", "undeclared", "127.0.6.2", WHATAP)
    objects.pod("both", "ended", "127.0.6.3", WHATAP, ports={"metrics": port}, phase="Failed")
    objects.pod("both", "behind", "127.0.6.4", CUSTOM, ports={"metrics": port})
    metadata = {"name": "exporters", "labels": {"app": "exporters"}, "annotations": {"a": "b"}}
    objects.create(
        "api/v1/namespaces/both/services",
        {"metadata": metadata, "spec": {"ports": [{"name": "web", "port": 80, "targetPort": port}]}},
    )
    objects.create(
        "apis/discovery.k8s.io/v1beta1/namespaces/both/endpointslices",
        {
            "metadata": {"name": "e-1", "labels": {"kubernetes.io/service-name": "exporters"}},
            "addressType": "IPv4",
            "ports": [{"name": "web", "port": port}],
            "endpoints": [
                {
                    "addresses": ["127.0.6.4"],
                    "conditions": {"ready": True},
                    "hostname": "h",
                    "targetRef": {"kind": "Pod", "namespace": "both", "name": "behind"},
                    "topology": {"kubernetes.io/hostname": "gpu-1"},
                }
            ],
        },
    )
    named = {**endpoint("metrics"), "addNodeLabel": True}
    labels = {"matchLabels": WHATAP}
    expressions = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["exporters", "x"]}]}
    targets: list[dict[str, Any]] = [
        monitor("named", ["both"], labels, named, relabelConfigs=COPY_META_LABELS),
        monitor("numbered", ["both"], labels, {**endpoint(port), "params": {"a": ["b"]}}),
        monitor("service", ["both"], expressions, named | {"port": "web"}, relabelConfigs=COPY_META_LABELS)
        | {"type": "ServiceMonitor"},
        {
            "targetName": "static",
            "type": "StaticEndpoints",
            "endpoints": [{"address": f"127.0.6.9:{port}", "interval": "1s"}],
        },
    ]
    write = f"{store}/api/v1/write"
    ours = agents.file({"targets": targets}, write, labels={"agent": "ours"})
    theirs = agents.file({"targets": targets}, write, labels={"agent": "theirs"})
    printed = gpuledger("agent", "--config", str(theirs), *agents.flags, "--engine", "prometheus")
    assert printed.returncode == 0, printed.stderr
    file = tmp_path / "prometheus.yml"
    without_discovery = yaml.safe_load(printed.stdout)
    for job in without_discovery["scrape_configs"]:
        job.pop("kubernetes_sd_configs", None)
    file.write_text(yaml.safe_dump(without_discovery))
    checked = subprocess.run(
        ["promtool", "check", "config", file], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    file.write_text(printed.stdout)
    agent = agents.start(ours)
    web = free_port()
    other = Program(
        [
            *("vmagent", f"-promscrape.config={file}", "-promscrape.config.strictParse=false"),
            *(f"-httpListenAddr=127.0.0.1:{web}", f"-remoteWrite.url={write}"),
            *(f"-remoteWrite.tmpDataPath={tmp_path / 'queue'}", "-remoteWrite.flushInterval=200ms"),
        ]
    )
    try:
        hosts = ["127.0.6.1", "127.0.6.1", "127.0.6.2", "127.0.6.4", "127.0.6.9"]
        wait_until(lambda: agent.hosts() == [f"{host}:{port}" for host in hosts], "the agent's targets")

        def settled() -> bool:
            mine = series(store, "ours")
            return len(mine) >= 5 * 7 and mine == series(store, "theirs")

        try:
            wait_until(settled, "the same series", 45)
        except AssertionError:
            mine, their = series(store, "ours"), series(store, "theirs")
            assert sorted(mine - their) == sorted(their - mine)
            raise
    finally:
        other.stop()

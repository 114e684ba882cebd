"""From `kubectl apply` to series in a store: controllers, scheduler and kubelet make of objects what runs.

Debian has no Prometheus with Kubernetes in it, and no image of one is to be had here: beside the agent's pod,
vmagent reads the very configuration that the other engine's pod would print for itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.agents import APART
from cluster.control_plane import ControlPlane, Json
from cluster.node import Node
from cluster.operators import WHATAP, Installed, installed
from running import Program, free_port, get, gpuledger, victoria_metrics, wait_until
from unit.operator.support import SIMPLE

EXPORTER = "whatap-node-agent"
AGENT = "whatap-open-agent"
FAMILY = "DCGM_FI_DEV_GPU_TEMP"


class Store:
    """A VictoriaMetrics."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.write = f"{url}/api/v1/write"

    def series(self) -> set[str]:
        """Those that have not ended: the node tells other ones after a while, and one engine came later."""
        query = {"query": '{__name__!=""}'}
        answer = get(f"{self.url}/api/v1/query", params=query, timeout=30)
        return {
            json.dumps({name: value for name, value in row.items() if name not in APART}, sort_keys=True)
            for row in (one["metric"] for one in answer.json()["data"]["result"])
            # Only vmagent tells it.
            if row["__name__"] != "scrape_timeout_seconds"
        }


@pytest.fixture(scope="module")
def stores() -> Iterator[tuple[Store, Store]]:
    flag = "-maxLabelsPerTimeseries=100"
    with victoria_metrics(flag) as one, victoria_metrics(flag) as other:
        yield Store(one), Store(other)


@pytest.fixture(scope="module")
def release(
    gpu_node: Node,
    program_image: str,
    control_plane: ControlPlane,
    stores: tuple[Store, Store],
    folder: Path,
) -> Iterator[Installed]:
    repository, _, tag = program_image.rpartition(":")
    receiver = {"url": stores[0].write, "queueConfig": {"batchSendDeadline": "200ms"}}
    values = {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "operator": {"defaultRemoteWrite": [receiver]},
    }
    with installed(control_plane, folder / "pods", **values) as made:
        # It runs here, with the same rights: pods of this node have no network of their own.
        made.api.call("PATCH", f"{_deployment(made)}/scale", {"spec": {"replicas": 0}})
        yield made


def _deployment(release: Installed) -> str:
    metadata = release.deployment["metadata"]
    return f"apis/apps/v1/namespaces/{metadata['namespace']}/deployments/{metadata['name']}"


def run_here(release: Installed) -> None:
    """What this machine lacks, by hand: a network of pods, and a GPU. What other hands add stays."""
    network = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    simulated = [{"name": "GPULEDGER_SOURCE", "value": "simulator"}]
    parts: dict[str, tuple[str, str, Json]] = {
        "DaemonSet": (EXPORTER, "dcgm-exporter", {"env": simulated}),
        "StatefulSet": (AGENT, "agent", {}),
    }
    for kind, (name, container, more) in parts.items():
        spec = {**network, "containers": [{"name": container, **more}]}
        patch = json.dumps({"spec": {"template": {"spec": spec}}})
        release.plane.kubectl("-n", WHATAP, "patch", kind.lower(), name, "--type=strategic", "-p", patch)


def replaced(release: Installed) -> bool:
    """Whether all pods are on the node's network; the first ones never ran, and cannot end by themselves."""
    pods = release.api.call("GET", f"api/v1/namespaces/{WHATAP}/pods")["items"]
    first = [one["metadata"]["name"] for one in pods if not one["spec"].get("hostNetwork")]
    for name in first:
        release.api.ask("DELETE", f"api/v1/namespaces/{WHATAP}/pods/{name}", gracePeriodSeconds="0")
    return len(pods) == 2 and not first


@pytest.fixture(scope="module")
def applied(release: Installed, folder: Path) -> Iterator[Installed]:
    file = folder / "pods" / "simple.yaml"
    file.write_text(SIMPLE)
    with release.operators() as start:
        start("--status-interval=500ms", "--agent-interval=1s").wait_leads()
        release.plane.kubectl("apply", f"--filename={file}")
        release.wait_condition("WhatapAgent", "whatap", "Degraded", "False", "AsWanted")
        run_here(release)
        wait_until(lambda: replaced(release), "pods that this machine can run")
        yield release
        release.delete_all()


def counts(release: Installed) -> tuple[object, ...]:
    status = (release.read("WhatapAgent", "whatap") or {}).get("status") or {}
    return tuple(
        status.get(name) for name in ("gpuNodes", "exportersReady", "targetsFound", "targetsUp", "lastError")
    )


@contextmanager
def other_engine(release: Installed, config: Path, store: Store, folder: Path) -> Iterator[None]:
    """vmagent with the configuration that the init container of engine prometheus prints."""
    token = folder / "token"
    token.write_text(release.plane.token_of(WHATAP, "whatap-open-agent-sa"))
    printed = gpuledger(
        *("agent", "--config", str(config), "--engine", "prometheus", "--shard", "0/1"),
        *("--kubernetes-api", release.plane.url, "--kubernetes-ca-file", str(release.plane.ca_file)),
        *("--kubernetes-token-file", str(token), "--namespace", WHATAP),
        env={"GPULEDGER_STATE_DIR": "none"},
    )
    assert printed.returncode == 0, printed.stderr
    file = folder / "prometheus.yml"
    file.write_text(printed.stdout)
    program = Program(
        [
            *("vmagent", f"-promscrape.config={file}", "-promscrape.config.strictParse=false"),
            *(f"-httpListenAddr=127.0.0.1:{free_port()}", f"-remoteWrite.url={store.write}"),
            *(f"-remoteWrite.tmpDataPath={folder / 'queue'}", "-remoteWrite.flushInterval=200ms"),
        ]
    )
    try:
        yield
    finally:
        program.stop()


def test_the_simple_example_brings_series_by_either_engine_and_the_same(
    applied: Installed, stores: tuple[Store, Store], tmp_path: Path
) -> None:
    wait_until(lambda: counts(applied) == (1, 1, 1, 1, None), f"the status to count, {counts(applied)}", 180)
    conditions = applied.conditions("WhatapAgent", "whatap")
    assert conditions["Available"] == ("True", "Running")
    assert conditions["Progressing"] == ("False", "Complete")
    assert conditions["Degraded"] == ("False", "AsWanted")
    ours, theirs = stores
    wait_until(lambda: any(f'"{FAMILY}"' in one for one in ours.series()), f"{FAMILY} in the store", 90)
    config = tmp_path / "scrape_config.yaml"
    data = applied.get("ConfigMap", "whatap-open-agent-config", WHATAP)["data"]
    config.write_text(data["scrape_config.yaml"])
    with other_engine(applied, config, theirs, tmp_path):
        try:
            wait_until(lambda: ours.series() == theirs.series() != set(), "the same series", 90)
        except AssertionError:
            mine, other = ours.series(), theirs.series()
            assert sorted(mine - other)[:10] == sorted(other - mine)[:10]
            raise
    told = [json.loads(one) for one in ours.series()]
    # The simulated node has eight, some of them in instances.
    assert len({one["UUID"] for one in told if one["__name__"] == FAMILY}) == 8


def test_deleted_nothing_of_it_is_left(applied: Installed) -> None:
    applied.delete("WhatapAgent", "whatap")
    assert applied.made() == []

    def gone() -> bool:
        pods = applied.api.call("GET", f"api/v1/namespaces/{WHATAP}/pods")["items"]
        return not pods

    wait_until(gone, "the pods to be gone", 90)

"""From `kubectl apply` to series in a store: operator, controllers, scheduler and kubelet run as on a node.

Debian's Prometheus has no Kubernetes support, and no Prometheus image is available here. For the engine
`prometheus`, vmagent therefore runs the configuration that the init container of that engine prints.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.agents import IGNORED_LABELS
from cluster.control_plane import ControlPlane, Json
from cluster.node import Node
from cluster.operators import NAMESPACE, WHATAP, OperatorRelease, operator_release
from running import Program, free_port, get, gpuledger, victoria_metrics, wait_until
from unit.operator.support import SIMPLE

EXPORTER = "whatap-node-agent"
AGENT = "whatap-open-agent"
FAMILY = "DCGM_FI_DEV_GPU_TEMP"


class Store:
    """A VictoriaMetrics server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.write = f"{url}/api/v1/write"

    def series(self) -> set[str]:
        """Current series as JSON. Excludes ended series, since the engines did not start at the same time."""
        query = {"query": '{__name__!=""}'}
        response = get(f"{self.url}/api/v1/query", params=query)
        return {
            json.dumps(
                {name: value for name, value in row.items() if name not in IGNORED_LABELS}, sort_keys=True
            )
            for row in (item["metric"] for item in response.json()["data"]["result"])
            # Only vmagent exports it.
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
) -> Iterator[OperatorRelease]:
    repository, _, tag = program_image.rpartition(":")
    receiver = {"url": stores[0].write, "queueConfig": {"batchSendDeadline": "200ms"}}
    values = {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "operator": {
            "defaultRemoteWrite": [receiver],
            "extraArgs": ["--status-interval=500ms", "--agent-interval=1s"],
        },
    }
    with operator_release(control_plane, folder / "pods", **values) as made:
        patch_template(made, "deployment", made.name, NAMESPACE, HOST_NETWORK)
        wait_until(lambda: replaced(made, NAMESPACE, 1), "a pod of the operator that this machine can run")
        yield made


# There is no pod network.
HOST_NETWORK: Json = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}


def patch_template(release: OperatorRelease, kind: str, name: str, namespace: str, spec: Json) -> None:
    patch = json.dumps({"spec": {"template": {"spec": spec}}})
    release.plane.kubectl("-n", namespace, "patch", kind, name, "--type=strategic", "-p", patch)


def adapt_pods(release: OperatorRelease) -> None:
    """Patch workloads for this machine: host network, simulated GPUs. The operator keeps such fields."""
    simulated = [{"name": "GPULEDGER_SOURCE", "value": "simulator"}]
    parts: dict[str, tuple[str, str, Json]] = {
        "DaemonSet": (EXPORTER, "dcgm-exporter", {"env": simulated}),
        "StatefulSet": (AGENT, "agent", {}),
    }
    for kind, (name, container, more) in parts.items():
        spec = {**HOST_NETWORK, "containers": [{"name": container, **more}]}
        patch_template(release, kind.lower(), name, WHATAP, spec)


def replaced(release: OperatorRelease, namespace: str, number: int) -> bool:
    """True if all pods use the host's network. Deletes the original pods, which could not start."""
    pods = release.api.call("GET", f"api/v1/namespaces/{namespace}/pods")["items"]
    first = [one["metadata"]["name"] for one in pods if not one["spec"].get("hostNetwork")]
    for name in first:
        release.api.request("DELETE", f"api/v1/namespaces/{namespace}/pods/{name}", gracePeriodSeconds="0")
    return len(pods) == number and not first


@pytest.fixture(scope="module")
def applied(release: OperatorRelease, folder: Path) -> Iterator[OperatorRelease]:
    file = folder / "pods" / "simple.yaml"
    file.write_text(SIMPLE)
    release.plane.kubectl("apply", f"--filename={file}")
    release.wait_condition("WhatapAgent", "whatap", "Degraded", "False", "AsWanted", 180.0)
    adapt_pods(release)
    wait_until(lambda: replaced(release, WHATAP, 2), "pods that this machine can run")
    yield release
    release.delete_all()


def counts(release: OperatorRelease) -> tuple[object, ...]:
    status = (release.read("WhatapAgent", "whatap") or {}).get("status") or {}
    return tuple(
        status.get(name) for name in ("gpuNodes", "exportersReady", "targetsFound", "targetsUp", "lastError")
    )


@contextmanager
def other_engine(release: OperatorRelease, config: Path, store: Store, folder: Path) -> Iterator[None]:
    """Run vmagent with the configuration that the init container of the engine prometheus prints."""
    token = folder / "token"
    token.write_text(release.plane.create_token(WHATAP, "whatap-open-agent-sa"))
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


def node_status(applied: OperatorRelease) -> dict[str, Any]:
    """The status of the one node."""
    found: dict[str, Any]
    (found,) = (applied.read("WhatapAgent", "whatap") or {})["status"]["nodes"]
    return found


def test_both_engines_deliver_the_same_series_for_the_simple_example(
    applied: OperatorRelease, stores: tuple[Store, Store], tmp_path: Path
) -> None:
    wait_until(lambda: counts(applied) == (1, 1, 1, 1, None), f"the status to count, {counts(applied)}", 180)
    conditions = applied.conditions("WhatapAgent", "whatap")
    assert conditions["Available"] == ("True", "Running")
    assert conditions["Progressing"] == ("False", "Complete")
    assert conditions["Degraded"] == ("False", "AsWanted")
    wait_until(lambda: "gpus" in node_status(applied), "the exporter to name its GPUs")
    node = node_status(applied)
    assert (node["ready"], node["gpus"]) == (True, 8)
    assert node["driver"]
    ours, theirs = stores
    wait_until(lambda: any(f'"{FAMILY}"' in one for one in ours.series()), f"{FAMILY} in the store")
    config = tmp_path / "scrape_config.yaml"
    data = applied.get("ConfigMap", "whatap-open-agent-config", WHATAP)["data"]
    config.write_text(data["scrape_config.yaml"])
    with other_engine(applied, config, theirs, tmp_path):
        try:
            wait_until(lambda: ours.series() == theirs.series() != set(), "the same series")
        except AssertionError:
            mine, other = ours.series(), theirs.series()
            assert sorted(mine - other)[:10] == sorted(other - mine)[:10]
            raise
    series = [json.loads(text) for text in ours.series()]
    # The simulated node has eight GPUs, some of them with MIG instances.
    assert len({row["UUID"] for row in series if row["__name__"] == FAMILY}) == 8


def test_deleting_the_resource_leaves_nothing(applied: OperatorRelease) -> None:
    applied.delete("WhatapAgent", "whatap")
    assert applied.managed_objects() == []

    def gone() -> bool:
        pods = applied.api.call("GET", f"api/v1/namespaces/{WHATAP}/pods")["items"]
        return not pods

    wait_until(gone, "the pods to be gone")

"""The chart's agent on the real cluster: it scrapes the exporter, delivers, scales, and uninstalls."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import sub
from pathlib import Path

import pytest

from cluster.agents import FakeExporters
from cluster.control_plane import ControlPlane, Json
from cluster.helm import Helm
from cluster.node import GPUS, Node
from cluster.release import Driver, node_values
from running import free_port, get, wait_until

RELEASE_NAMESPACE = "agents"
RELEASE = "fleet"
NAME = f"{RELEASE}-gpuledger-agent"
SETS = f"apis/apps/v1/namespaces/{RELEASE_NAMESPACE}/statefulsets/{NAME}"
# Address of each replica: in this test, the replicas share the host's network.
ADDRESSES = ("127.0.0.31", "127.0.0.32")
INTERVAL = 2


@dataclass
class AgentRelease:
    """The release and the store of its agent. `port` is the agent's, `exporter` the exporter's port."""

    helm: Helm
    plane: ControlPlane
    store: str
    port: int
    exporter: int

    def stateful_set(self) -> Json:
        return self.plane.admin.call("GET", SETS)

    def replace_pod_spec(self, changed: Json) -> None:
        """Replace the pod specification of the StatefulSet."""
        found = self.stateful_set()
        found["spec"]["template"]["spec"] = changed
        self.plane.admin.call("PUT", SETS, found)

    def pod_spec(self) -> Json:
        return dict(self.stateful_set()["spec"]["template"]["spec"])

    def delete_pod(self, ordinal: int) -> None:
        """Delete a pod that the StatefulSet created before its change."""
        path = f"api/v1/namespaces/{RELEASE_NAMESPACE}/pods/{NAME}-{ordinal}"
        wait_until(lambda: self.plane.admin.request("DELETE", path).is_success, "the old pod")

    def wait_ready(self, replicas: int) -> None:
        """Wait until this number of replicas of the newest template is ready."""

        def ready() -> bool:
            found = self.stateful_set()
            status = found["status"]
            return bool(
                status.get("observedGeneration") == found["metadata"]["generation"]
                and status.get("readyReplicas") == status.get("updatedReplicas") == replicas
                and status["currentRevision"] == status["updateRevision"]
            )

        wait_until(ready, f"{replicas} agents to be ready")

    def page(self, address: str) -> str:
        return get(f"http://{address}:{self.port}/").text

    def values(self, query: str) -> list[tuple[Json, str]]:
        response = get(f"{self.store}/api/v1/query", params={"query": query})
        return [(row["metric"], row["value"][1]) for row in response.json()["data"]["result"]]

    def scrape_times(self, since: float) -> dict[str, list[float]]:
        """Sorted times of the scrapes of each target since a time, in Unix seconds."""
        parameters = {"match[]": "up", "start": str(since)}
        response = get(f"{self.store}/api/v1/export", params=parameters)
        rows = [json.loads(line) for line in response.text.splitlines()]
        return {row["metric"]["instance"]: sorted(at / 1000 for at in row["timestamps"]) for row in rows}


@pytest.fixture
def release(
    gpu_node: Node,
    control_plane: ControlPlane,
    program_image: str,
    store: str,
    fake_exporters: FakeExporters,
    tmp_path: Path,
) -> Iterator[AgentRelease]:
    values = node_values(program_image, Driver(tmp_path / "driver", GPUS))
    port = free_port()
    static = [{"address": f"127.0.8.{number}:{fake_exporters.port}"} for number in range(1, 9)]
    several = {"targetName": "static", "type": "StaticEndpoints", "endpoints": static}
    open_agent = {"globalInterval": f"{INTERVAL}s", "autoTargets": True, "targets": [several]}
    values["agent"] = {
        "enabled": True,
        "port": port,
        "persistence": {"enabled": False},
        "config": {
            "features": {"openAgent": open_agent},
            "remote_write": [{"url": f"{store}/api/v1/write"}],
        },
    }
    helm = Helm(control_plane, RELEASE, RELEASE_NAMESPACE)
    try:
        with unschedulable(control_plane, gpu_node.name):
            # Pods need the host's network from the start: there is no pod network.
            helm.install(values, wait=False)
            release = AgentRelease(helm, control_plane, store, port, values["port"])
            release.replace_pod_spec({**release.pod_spec(), "hostNetwork": True})
            release.delete_pod(0)
        yield release
        helm.uninstall()
    finally:
        helm.close()


@contextmanager
def unschedulable(plane: ControlPlane, node: str) -> Iterator[None]:
    """Cordon the node within: only pods of DaemonSets start."""
    plane.admin.call("PATCH", f"api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    try:
        yield
    finally:
        plane.admin.call("PATCH", f"api/v1/nodes/{node}", {"spec": {"unschedulable": None}})


def separate_addresses(release: AgentRelease) -> None:
    """Make each replica listen at a different address, and probe it there: they share the host's network."""
    found = release.pod_spec()
    (container,) = found["containers"]
    listen = f"--listen-address=$(POD_NAME):{release.port}"
    container["args"] = [listen if "listen-address" in one else one for one in container["args"]]
    del container["ports"]
    url = f"'http://%s:{release.port}%s' % (os.environ['POD_NAME'], path)"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        path = container[probe].pop("httpGet")["path"]
        script = f"import os, urllib.request; path = '{path}'; urllib.request.urlopen({url})"
        container[probe] |= {"exec": {"command": ["python3", "-c", script]}, "timeoutSeconds": 10}
    aliases = [{"ip": ip, "hostnames": [f"{NAME}-{number}"]} for number, ip in enumerate(ADDRESSES)]
    release.replace_pod_spec({**found, "hostAliases": aliases})


def test_the_agent_scrapes_the_exporter_scales_without_gaps_and_uninstalls(release: AgentRelease) -> None:
    release.wait_ready(1)
    found = wait_until(lambda: release.values('up{job="gpuledger"} == 1'), "the exporter's series")
    ((labels, _),) = found
    assert labels["instance"].endswith(f":{release.exporter}")
    assert labels["node"] == "node-1"
    devices = wait_until(
        lambda: release.values('count(gpuledger_device_info{job="gpuledger"})'), "the exporter's GPUs"
    )
    assert [value for _, value in devices] == [str(len(GPUS))]

    separate_addresses(release)
    release.wait_ready(1)
    wait_until(lambda: "This is shard" not in release.page(ADDRESSES[0]), "the agent to be the only shard")
    since = time.time()
    wait_until(lambda: len(release.scrape_times(since)) == 9, "all targets to be scraped")
    release.plane.kubectl("scale", f"--namespace={RELEASE_NAMESPACE}", f"statefulset/{NAME}", "--replicas=2")
    release.wait_ready(2)

    def shares() -> list[list[str]]:
        return [re.findall(r">http://([^/<]+)/metrics<", release.page(address)) for address in ADDRESSES]

    def shared() -> bool:
        one, other = shares()
        return bool(one and other) and len(one) + len(other) == len({*one, *other}) == 9

    wait_until(shared, "each target to be scraped by one agent")
    settled = time.time()
    wait_until(
        lambda: all(len(found) > 2 for found in release.scrape_times(settled).values()), "more scrapes"
    )
    # A missed scrape is a gap of two intervals.
    gaps = {host: max(map(sub, times[1:], times)) for host, times in release.scrape_times(since).items()}
    assert not {host: gap for host, gap in gaps.items() if gap > 1.9 * INTERVAL}

    release.helm.uninstall()
    wait_until(lambda: not release.helm.remaining_objects(), "everything of the release to be gone")

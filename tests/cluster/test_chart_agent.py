"""The chart's agent on the real cluster: it finds the exporter, delivers, shares its work, and goes."""

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

from cluster.agents import Everywhere
from cluster.control_plane import ControlPlane, Json
from cluster.helm import Helm
from cluster.node import GPUS, Node
from cluster.release import Driver, node_values
from running import free_port, get, wait_until

IN = "agents"
RELEASE = "fleet"
NAME = f"{RELEASE}-gpuledger-agent"
SETS = f"apis/apps/v1/namespaces/{IN}/statefulsets/{NAME}"
# Where each replica listens: they share one network here, which pods otherwise do not.
PLACES = ("127.0.0.31", "127.0.0.32")
INTERVAL = 2


@dataclass
class Installed:
    """The release, with the store that its agent delivers to; `port` is the agent's."""

    helm: Helm
    plane: ControlPlane
    store: str
    port: int
    exporter: int

    def stateful_set(self) -> Json:
        return self.plane.admin.call("GET", SETS)

    def change(self, changed: Json) -> None:
        """Put the StatefulSet as it is now, with this pod specification."""
        found = self.stateful_set()
        found["spec"]["template"]["spec"] = changed
        self.plane.admin.call("PUT", SETS, found)

    def pod_spec(self) -> Json:
        return dict(self.stateful_set()["spec"]["template"]["spec"])

    def end_pod(self, ordinal: int) -> None:
        """What was made of it before the StatefulSet was changed."""
        path = f"api/v1/namespaces/{IN}/pods/{NAME}-{ordinal}"
        wait_until(lambda: self.plane.admin.ask("DELETE", path).is_success, "the pod of before")

    def wait_ready(self, replicas: int) -> None:
        """As many are ready as are wanted, of the newest template, and the API says so of this generation."""

        def ready() -> bool:
            found = self.stateful_set()
            status = found["status"]
            return bool(
                status.get("observedGeneration") == found["metadata"]["generation"]
                and status.get("readyReplicas") == status.get("updatedReplicas") == replicas
                and status["currentRevision"] == status["updateRevision"]
            )

        wait_until(ready, f"{replicas} agents to be ready", 180)

    def page(self, place: str) -> str:
        return get(f"http://{place}:{self.port}/", timeout=30).text

    def values(self, query: str) -> list[tuple[Json, str]]:
        answer = get(f"{self.store}/api/v1/query", params={"query": query}, timeout=30)
        return [(row["metric"], row["value"][1]) for row in answer.json()["data"]["result"]]

    def beats(self, since: float) -> dict[str, list[float]]:
        """When each target was scraped, from a moment on, in seconds and in order."""
        asked = {"match[]": "up", "start": str(since)}
        answer = get(f"{self.store}/api/v1/export", params=asked, timeout=30)
        told = [json.loads(line) for line in answer.text.splitlines()]
        return {one["metric"]["instance"]: sorted(at / 1000 for at in one["timestamps"]) for one in told}


@pytest.fixture
def installed(
    gpu_node: Node,
    control_plane: ControlPlane,
    program_image: str,
    store: str,
    everywhere: Everywhere,
    tmp_path: Path,
) -> Iterator[Installed]:
    values = node_values(program_image, Driver(tmp_path / "driver", GPUS))
    port = free_port()
    static = [{"address": f"127.0.8.{number}:{everywhere.port}"} for number in range(1, 9)]
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
    helm = Helm(control_plane, RELEASE, IN)
    try:
        with unschedulable(control_plane, gpu_node.name):
            # Its pods are on the host's network from the first on: none has one of its own here.
            helm.install(values, wait=False)
            installed = Installed(helm, control_plane, store, port, values["port"])
            installed.change({**installed.pod_spec(), "hostNetwork": True})
            installed.end_pod(0)
        yield installed
        helm.uninstall()
    finally:
        helm.close()


@contextmanager
def unschedulable(plane: ControlPlane, node: str) -> Iterator[None]:
    """No pod but a DaemonSet's begins on the node within."""
    plane.admin.call("PATCH", f"api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    try:
        yield
    finally:
        plane.admin.call("PATCH", f"api/v1/nodes/{node}", {"spec": {"unschedulable": None}})


def side_by_side(installed: Installed) -> None:
    """Let replicas share the host's network: each listens at an address of its own, and is asked there."""
    found = installed.pod_spec()
    (container,) = found["containers"]
    listen = f"--listen-address=$(POD_NAME):{installed.port}"
    container["args"] = [listen if "listen-address" in one else one for one in container["args"]]
    del container["ports"]
    url = f"'http://%s:{installed.port}%s' % (os.environ['POD_NAME'], path)"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        path = container[probe].pop("httpGet")["path"]
        ask = f"import os, urllib.request; path = '{path}'; urllib.request.urlopen({url})"
        container[probe] |= {"exec": {"command": ["python3", "-c", ask]}, "timeoutSeconds": 10}
    aliases = [{"ip": ip, "hostnames": [f"{NAME}-{number}"]} for number, ip in enumerate(PLACES)]
    installed.change({**found, "hostAliases": aliases})


def test_the_agent_is_ready_finds_the_exporter_delivers_is_scaled_and_goes(installed: Installed) -> None:
    installed.wait_ready(1)
    found = wait_until(lambda: installed.values('up{job="gpuledger"} == 1'), "the exporter's series", 120)
    ((labels, _),) = found
    assert labels["instance"].endswith(f":{installed.exporter}")
    assert labels["node"] == "node-1"
    devices = wait_until(
        lambda: installed.values('count(gpuledger_device_info{job="gpuledger"})'), "the exporter's GPUs"
    )
    assert [value for _, value in devices] == [str(len(GPUS))]

    side_by_side(installed)
    installed.wait_ready(1)
    wait_until(lambda: "This is shard" not in installed.page(PLACES[0]), "the agent to be alone")
    since = time.time()
    wait_until(lambda: len(installed.beats(since)) == 9, "all targets to be scraped")
    installed.plane.kubectl("scale", f"--namespace={IN}", f"statefulset/{NAME}", "--replicas=2")
    installed.wait_ready(2)

    def shares() -> list[list[str]]:
        return [re.findall(r">http://([^/<]+)/metrics<", installed.page(place)) for place in PLACES]

    def shared() -> bool:
        one, other = shares()
        return bool(one and other) and len(one) + len(other) == len({*one, *other}) == 9

    wait_until(shared, "each target to be one agent's")
    settled = time.time()
    wait_until(lambda: all(len(found) > 2 for found in installed.beats(settled).values()), "more scrapes")
    # A beat that is missed is a gap of two intervals.
    gaps = {host: max(map(sub, times[1:], times)) for host, times in installed.beats(since).items()}
    assert not {host: gap for host, gap in gaps.items() if gap > 1.9 * INTERVAL}

    installed.helm.uninstall()
    wait_until(lambda: not installed.helm.left(), "everything of the release to be gone", 120)

"""Two thousand nodes: what they say of themselves costs the operator memory, little of it, and no more."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from cluster.control_plane import Client, ControlPlane, Json
from cluster.operators import Installed, RunningOperator, installed
from cluster.release import GPU_LABEL
from running import wait_until

NODES = 2_000
EXPORTER = "gpumonitor-main-exporter"
INTERVAL = 2.0


@pytest.fixture(scope="module")
def release(control_plane: ControlPlane, folder: Path) -> Iterator[Installed]:
    with installed(control_plane, folder / "scale") as made:
        yield made
        made.api.ask("DELETE", "api/v1/nodes", labelSelector="made-for=scale")


@pytest.fixture(scope="module")
def operator(release: Installed) -> Iterator[RunningOperator]:
    with release.operators() as start:
        running = start(f"--status-interval={INTERVAL}s").wait_leads()
        release.apply("GpuMonitor", "main", {"agent": {"enabled": False}})
        release.wait_made("GpuMonitor", "main")
        yield running
        release.delete_all()


def node(number: int) -> Json:
    labels = {**GPU_LABEL, "made-for": "scale"}
    return {"metadata": {"name": f"gpu-{number}", "labels": labels}}


def beat(api: Client, number: int) -> None:
    condition = {"type": "Ready", "status": "True", "reason": f"Beat{number}", "message": ""}
    api.call("PATCH", f"api/v1/nodes/gpu-{number}/status", {"status": {"conditions": [condition]}})


def test_two_thousand_nodes_that_tell_of_themselves_cause_no_request(
    release: Installed, operator: RunningOperator
) -> None:
    before = len(release.asked())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: release.api.call("POST", "api/v1/nodes", node(number)), range(NODES)))
        list(pool.map(lambda number: beat(release.api, number), range(NODES)))
    # A hand edit after them shows that the operator looks at what comes.
    release.api.call("DELETE", release.path("Service", EXPORTER))
    wait_until(lambda: release.api.ask("GET", release.path("Service", EXPORTER)).is_success, "a repair")
    asked = [one for one in release.asked()[before:] if one["verb"] != "watch"]
    counted = Counter((one["verb"], one["objectRef"]["resource"]) for one in asked)
    assert not {what for what in counted if what[1] in ("nodes", "pods")}
    # The repair: a look whether it is there, and the making of it.
    assert counted == {("get", "services"): 1, ("patch", "services"): 1, ("create", "events"): 1}


def test_two_thousand_exporters_that_become_ready_are_a_few_writes(
    release: Installed, operator: RunningOperator
) -> None:
    before = len(release.asked())
    writes = operator.value("gpuledger_operator_status_writes_total")
    # One state after the other, as a rollout goes; each is an event of the watch.
    for ready in range(0, NODES + 1, 2):
        release.daemon_set_status(
            EXPORTER, desiredNumberScheduled=NODES, updatedNumberScheduled=NODES, numberReady=ready
        )
    release.wait_condition("GpuMonitor", "main", "Progressing", "False", "Complete")
    status = (release.read("GpuMonitor", "main") or {})["status"]
    assert (status["gpuNodes"], status["exportersReady"]) == (NODES, NODES)
    asked = [one for one in release.asked()[before:] if one["verb"] != "watch"]
    verbs = Counter((one["verb"], one["objectRef"].get("subresource", "")) for one in asked)
    assert set(verbs) == {("patch", "status")}
    took = _seconds(asked[0], asked[-1])
    # At each turn of a condition (made, available, complete), and once an interval between them.
    assert verbs["patch", "status"] <= 3 + took / INTERVAL + 1
    assert operator.value("gpuledger_operator_status_writes_total") - writes == verbs["patch", "status"]


def _seconds(first: Json, last: Json) -> float:
    times = [datetime.fromisoformat(one["requestReceivedTimestamp"]) for one in (first, last)]
    return (times[1] - times[0]).total_seconds()


def test_it_does_so_in_little_memory(release: Installed, operator: RunningOperator) -> None:
    limit = release.deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
    assert limit == "256Mi"
    resident = psutil.Process(operator.pid).memory_info().rss
    assert resident < 128 * 2**20, json.dumps({"resident MiB": resident / 2**20})

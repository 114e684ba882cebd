"""2,000 nodes: their status updates cost the operator little memory and no requests."""

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
from cluster.operators import EXPORTER, OperatorRelease, RunningOperator, operator_release
from cluster.release import GPU_LABEL
from running import wait_until

NODES = 2_000
INTERVAL = 2.0
# Seconds between two lists of pods.
LISTS = 30


@pytest.fixture(scope="module")
def release(control_plane: ControlPlane, folder: Path) -> Iterator[OperatorRelease]:
    with operator_release(control_plane, folder / "scale") as made:
        yield made
        made.api.request("DELETE", "api/v1/nodes", labelSelector="made-for=scale")


@pytest.fixture(scope="module")
def operator(release: OperatorRelease) -> Iterator[RunningOperator]:
    with release.operators() as start:
        running = start(f"--status-interval={INTERVAL}s").wait_leads()
        release.apply("GpuMonitor", "main", {"agent": {"enabled": False}})
        release.wait_applied("GpuMonitor", "main")
        yield running
        release.delete_all()


def node(number: int) -> Json:
    labels = {**GPU_LABEL, "made-for": "scale"}
    return {"metadata": {"name": f"gpu-{number}", "labels": labels}}


def update_status(api: Client, number: int) -> None:
    condition = {"type": "Ready", "status": "True", "reason": f"Update{number}", "message": ""}
    api.call("PATCH", f"api/v1/nodes/gpu-{number}/status", {"status": {"conditions": [condition]}})


def test_status_updates_of_2000_nodes_cause_no_requests(
    release: OperatorRelease, operator: RunningOperator
) -> None:
    before = len(release.audited_requests())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: release.api.call("POST", "api/v1/nodes", node(number)), range(NODES)))
        list(pool.map(lambda number: update_status(release.api, number), range(NODES)))
    # A later manual deletion shows that the operator still handles events.
    release.api.call("DELETE", release.path("Service", EXPORTER))
    wait_until(lambda: release.api.request("GET", release.path("Service", EXPORTER)).is_success, "a repair")
    events = [event for event in release.audited_requests()[before:] if event["verb"] != "watch"]
    counted = Counter((event["verb"], event["objectRef"]["resource"]) for event in events)
    # The watch of the operator's own resources begins again after some minutes, with a list.
    del counted["list", "gpumonitors"]
    assert not {what for what in counted if what[1] in ("nodes", "pods")}
    # The repair reads and creates the Service.
    assert counted == {("get", "services"): 1, ("patch", "services"): 1, ("create", "events"): 1}


def test_2000_exporters_that_become_ready_cause_few_status_writes(
    release: OperatorRelease, operator: RunningOperator
) -> None:
    before = len(release.audited_requests())
    writes = operator.value("gpuledger_operator_status_writes_total")
    # The steps of a rollout; each is a watch event.
    for ready in range(0, NODES + 1, 2):
        release.set_daemon_set_status(
            EXPORTER, desiredNumberScheduled=NODES, updatedNumberScheduled=NODES, numberReady=ready
        )
    release.wait_condition("GpuMonitor", "main", "Progressing", "False", "Complete")
    status = (release.read("GpuMonitor", "main") or {})["status"]
    assert (status["gpuNodes"], status["exportersReady"]) == (NODES, NODES)
    events = [event for event in release.audited_requests()[before:] if event["verb"] != "watch"]
    verbs = Counter((event["verb"], event["objectRef"].get("subresource", "")) for event in events)
    took = _seconds(events[0], events[-1])
    # The pods of the exporters, while their numbers change.
    assert verbs.pop(("list", ""), 0) <= 1 + took / LISTS
    assert set(verbs) == {("patch", "status")}
    # One write per change of a condition (created, available, complete), and one per interval between them.
    assert verbs["patch", "status"] <= 3 + took / INTERVAL + 1
    assert operator.value("gpuledger_operator_status_writes_total") - writes == verbs["patch", "status"]


def _seconds(first: Json, last: Json) -> float:
    times = [datetime.fromisoformat(one["requestReceivedTimestamp"]) for one in (first, last)]
    return (times[1] - times[0]).total_seconds()


def test_its_memory_is_below_the_limit(release: OperatorRelease, operator: RunningOperator) -> None:
    limit = release.deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
    assert limit == "256Mi"
    resident = psutil.Process(operator.pid).memory_info().rss
    assert resident < 128 * 2**20, json.dumps({"resident MiB": resident / 2**20})

"""The numbers of the chart's dashboards are those of the ledger, while the exporter's pods are replaced.

Real: the chart's objects on the API server, kubelet, pods with GPUs, Prometheus with the configuration of
`monitoring.py`. Time is compressed: Prometheus scrapes every second, and the rules' windows of five minutes
are seconds. `tests/release` runs this with Prometheus 3.5.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.control_plane import ControlPlane, Json
from cluster.helm import Helm
from cluster.monitoring import chart_prometheus, monitoring_crds
from cluster.node import GPUS, Node
from cluster.panel_numbers import (
    GRAPHS,
    OTHERS,
    PRICES,
    QUERIES,
    TABLE,
    WATTS,
    Place,
    Posting,
    Rows,
    postings,
)
from cluster.pods import NAMESPACE, Pods, container, pod
from cluster.release import GPU_LABEL, Driver, node_values
from dashboards import EVERYTHING, FIXED, substituted
from running import Prometheus, assert_each, free_port, get, gpuledger, wait_until

RELEASE, RELEASE_NAMESPACE, NAME = "ledger", "numbers", "ledger-gpuledger"
STATE = "/var/lib/gpuledger-numbers"
PODS = f"api/v1/namespaces/{RELEASE_NAMESPACE}/pods"
# Seconds: new counters are 0; the rules' windows in place of five minutes. Scrapes of each pod.
HOLD, WINDOW, SCRAPES = 6, 12, 16
# Seconds of rates in graphs.
RATE = 10
VALUES: Json = {
    "serviceMonitor": {"enabled": True, "interval": "1s", "scrapeTimeout": "1s"},
    "rules": {"enabled": True},
    "state": {"dir": STATE},
    "config": {"energy.zero_hold": f"{HOLD}s", "interval": "500ms", **PRICES},
}


def in_seconds(rules: Json) -> Json:
    """The rules with windows of seconds, evaluated every second."""
    text = json.dumps(rules).replace("[5m]", f"[{WINDOW}s]").replace("/ 300", f"/ {WINDOW}")
    groups: list[Json] = json.loads(text)["groups"]
    return {"groups": [{**group, "interval": "1s"} for group in groups]}


@dataclass
class Workload:
    """Pods on the node, and the processes that the driver reports on their GPUs."""

    node: Node
    driver: Driver
    pods: Pods

    def start(self, name: str, *, works: bool = True) -> str:
        """Run a pod with a GPU; returns the UUID of the GPU."""
        self.pods.create(pod(name, container("main", gpus=1), node=self.node.name))
        running = self.pods.wait_running(name, "main")
        (uuid,) = running.devices
        if works:
            self.driver.set_processes(uuid, self.node.namespaced_pid(running.pid))
        return uuid

    def end(self, name: str, uuid: str) -> None:
        self.driver.set_processes(uuid)
        self.pods.delete(name)


Labels = Mapping[str, str]


@dataclass(frozen=True)
class Scraped:
    """What a Prometheus has at the last scrape: rows of all panels, labels of the target and of an owner, and
    watched GPU-seconds. The run took `seconds`.
    """

    panels: Mapping[Place, Sequence[tuple[Labels, float]]]
    target: Labels
    owner: Labels
    watched: float
    seconds: float


@dataclass(frozen=True)
class Measured:
    """What a Prometheus has of the run, and what the ledger has of it at the end."""

    scraped: Scraped
    postings: Sequence[Posting]
    # Relative: what the ledger booked after the last scrape, a scrape at each end of the three pods
    # (states are counted again from 0), and what increase() extrapolates.
    bound: float


@pytest.fixture(scope="module")
def measured(
    node: Node, controllers: None, control_plane: ControlPlane, program_image: str, folder: Path
) -> Iterator[Measured]:
    driver = Driver(folder / "numbers-driver", GPUS)
    for gpu, watts in zip(driver.state.gpus, WATTS.values(), strict=True):
        gpu.numbers["power"] = watts * 1000
    # As in a driver, counters go on while no program reads them.
    driver.state.energy_since = time.monotonic()
    driver.state.write()
    work = Workload(node, driver, Pods(control_plane.admin))
    helm = Helm(control_plane, RELEASE, RELEASE_NAMESPACE)
    try:
        with monitoring_crds(control_plane):
            helm.install({**node_values(program_image, driver), **VALUES}, wait=False)
            with chart_prometheus(control_plane, RELEASE_NAMESPACE, in_seconds) as server:
                replace_pods(server, helm, work, control_plane)
                at_the_end = query_panels(server)
        report = final_report(node.folder)
        booked = sum(gpu["watched_microseconds"] for gpu in report["gpus"]) / 1e6
        late = (booked - at_the_end.watched) / booked
        yield Measured(at_the_end, postings(report), 0.01 + 5 / at_the_end.seconds + late)
    finally:
        work.pods.delete_all()
        helm.uninstall()
        helm.close()


def replace_pods(server: Prometheus, helm: Helm, work: Workload, plane: ControlPlane) -> None:
    """Run the exporter, replace its pod, replace it by one with another address, uninstall it."""
    work.start("train")
    work.start("notebook", works=False)
    with labeled(plane, work.node.name):
        first = wait_scraped(server, plane)
        plane.admin.call("DELETE", f"{PODS}/{first}")
        build = work.start("build")
        second = wait_scraped(server, plane, first)
        work.end("build", build)
        port = free_port()
        helm.upgrade({"port": port}, reuse_values=True, wait=False)
        wait_scraped(server, plane, second)
        # Rates of the last seconds no longer have the first value of a counter.
        held = f'gpuledger_owner_held_seconds_total{{pod="notebook", instance=~".+:{port}"}}'
        server.wait_query(f"count_over_time(({held} > 0)[10m:1s]) > {RATE}")
        helm.uninstall()
        wait_until(lambda: not plane.admin.call("GET", PODS)["items"], "the exporter's pod to end")


@contextmanager
def labeled(plane: ControlPlane, node: str) -> Iterator[None]:
    """The node has the label of GPU nodes within: the exporter starts when Prometheus runs."""
    path = f"api/v1/nodes/{node}"
    plane.admin.call("PATCH", path, {"metadata": {"labels": GPU_LABEL}})
    try:
        yield
    finally:
        plane.admin.call("PATCH", path, {"metadata": {"labels": dict.fromkeys(GPU_LABEL)}})


def wait_scraped(server: Prometheus, plane: ControlPlane, old: str = "") -> str:
    """Wait until another pod of the exporter was scraped for a while; returns its name."""

    def new() -> str:
        found = plane.admin.call("GET", PODS, labelSelector=f"app={NAME}")["items"]
        names = [one["metadata"]["name"] for one in found if "deletionTimestamp" not in one["metadata"]]
        return "".join(name for name in names if name != old)

    name = wait_until(new, "a new pod of the exporter")
    server.wait_query(f'count_over_time(gpuledger_ticks_total{{pod="{name}"}}[10m]) >= {SCRAPES}')
    # The names of all owners are known.
    server.wait_query(f'max(gpuledger_energy_pending_joules{{pod="{name}"}}) == 0')
    return name


def query_panels(server: Prometheus) -> Scraped:
    def rows(expression: str, at: float) -> list[tuple[Labels, float]]:
        answer = get(server.url + "/api/v1/query", params={"query": expression, "time": at}).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        return [(row["metric"], float(row["value"][1])) for row in answer["data"]["result"]]

    scrapes = "over_time(timestamp(gpuledger_ticks_total)[10m:1s]))"
    ((_, begins),) = rows(f"min(min_{scrapes}", time.time())
    ((_, ends),) = rows(f"max(max_{scrapes}", time.time())
    window = f"{ends - begins + 2:.0f}"
    times = {"__range": f"{window}s", "__range_s": window, "__rate_interval": f"{RATE}s"}
    values = {**EVERYTHING, **FIXED, **times}
    found = {place: rows(substituted(query.expression, values), ends) for place, query in QUERIES.items()}
    ((_, watched),) = rows("sum(max by (uuid) (gpuledger_gpu_watched_seconds_total))", ends)
    (((target, _),), ((owner, _),)) = (
        rows(selector, ends) for selector in ("up == 1", 'gpuledger_device_owner_info{pod="train"}')
    )
    return Scraped(found, target, owner, watched, ends - begins)


def final_report(folder: Path) -> Json:
    """The report of the ledger that the last pod left on the node."""
    place, keys = f"--state-dir={folder}{STATE}", "--by=gpu,namespace,pod,user"
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in PRICES.items()]
    done = gpuledger("report", place, "--since=1h", keys, "--format=json", *flags)
    assert done.returncode == 0, done.stderr
    report: Json = json.loads(done.stdout)
    return report


def test_every_query_of_energy_time_and_cost_is_compared() -> None:
    assert set(QUERIES) - OTHERS == set(TABLE)


def test_panels_have_the_numbers_of_the_ledger(measured: Measured) -> None:
    def is_equal(place: Place) -> None:
        labels, expected = TABLE[place]
        found: Rows = {}
        for row, value in measured.scraped.panels[place]:
            key = tuple(row.get(label, "").replace("(none)", "") for label in labels)
            assert key not in found
            if (place[1], key) != ("GPU-hours by account", ("unobserved",)):
                found[key] = value
        wanted = expected(measured.postings)
        nothing = dict.fromkeys({*found, *wanted}, 0.0)
        bound = measured.bound + (0.2 if place in GRAPHS else 0.0)
        # Held time is counted in ticks: of a job, the first and the last one can differ.
        ticks = 1 / 3600 if re.search("held idle|idle gpu-hours", "".join(place).lower()) else 1e-6
        assert {**nothing, **found} == pytest.approx({**nothing, **wanted}, rel=bound, abs=ticks)

    assert_each(TABLE, is_equal)


def test_owners_keep_their_labels_and_the_target_has_those_of_its_pod(measured: Measured) -> None:
    assert measured.scraped.owner["namespace"] == NAMESPACE
    assert (measured.scraped.owner["node"], measured.scraped.target["node"]) == ("node-1", "node-1")
    assert measured.scraped.target["namespace"] == RELEASE_NAMESPACE

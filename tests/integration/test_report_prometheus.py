"""`report --prometheus` on a real Prometheus, against two nodes' ledgers: a pod moves, a node restarts."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from focus_rules import broken_rules
from lab import FleetServer
from running import Prometheus, Server, free_port, gpuledger, prometheus, serving_prepared, wait_until

# One worker, with one set of nodes and one Prometheus for all tests.
pytestmark = pytest.mark.group("fleet")

# The simulators run at four times the speed of Prometheus.
SPEED = 4
GPU = """
  - model: NVIDIA H100 80GB HBM3
    empty_watts: 60
    resident_watts: 90
    load_watts: 500
    limit_watts: 700
    processes:
"""
POD = "      - {{name: python3, load: {load}, {when} pod: {{namespace: {0}, name: {1}, container: main}}}}\n"


def pod(namespace: str, name: str, load: float, when: str = "") -> str:
    return POD.format(namespace, name, load=load, when=when)


BEFORE = "gpus:" + GPU + pod("ml", "train-0", 0.6, "stop: 32,") + pod("web", "api-0", 0.2) + GPU
BEFORE += pod("ml", "steady-0", 0.9)
AFTER = "gpus:" + GPU + pod("web", "api-0", 0.3) + GPU + pod("ml", "steady-0", 0.4)
OTHER = "gpus:" + GPU + pod("ml", "train-0", 0.8, "start: 60, stop: 100,") + pod("web", "api-1", 0.1)

# The targets of the first job have labels with the names of ours; the second job honors ours.
CONFIG = """\
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: kubernetes
    static_configs:
      - targets: ["127.0.0.1:{0}"]
        labels: {{node: a, namespace: monitoring, pod: gpuledger-x, user: ops}}
      - targets: ["127.0.0.1:{1}"]
        labels: {{node: a, namespace: monitoring, pod: gpuledger-y, user: ops}}
  - job_name: static
    honor_labels: true
    static_configs: [{{targets: ["127.0.0.1:{2}"], labels: {{node: b, namespace: monitoring}}}}]
"""
ENERGY = "gpuledger_energy_joules_total"


class Sides(NamedTuple):
    """The fleet's report, and the sums of the nodes' ledgers just before and just after it."""

    before: Counter[tuple[str, ...]]
    fleet: dict[str, Any]
    after: Counter[tuple[str, ...]]


class Fleet:
    """Two nodes with ledgers and their Prometheus, and reports from both."""

    def __init__(self, folder: Path, real: Prometheus, ports: Sequence[int]) -> None:
        self.folder, self.real, self.ports = folder, real, ports

    def fleet(self, *arguments: str) -> dict[str, Any]:
        done = gpuledger("report", "--prometheus", self.real.url, "--format", "json", *arguments)
        assert done.returncode == 0, done.stderr
        assert "of a simulator" in done.stderr
        return dict(json.loads(done.stdout))

    def node_report(self, node: str, by: str) -> dict[str, Any]:
        # Simulated time is ahead of real time, so --until is in the future.
        state = str(self.folder / node)
        done = gpuledger(
            "report", "--state-dir", state, "--by", by, "--until", "2099-01-01", "--format", "json"
        )
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def sides(self, by: str, amount: str = "millijoules") -> Sides:
        before = self.sum_of_nodes(by, amount)
        return Sides(before, self.fleet("--by", by), self.sum_of_nodes(by, amount))

    def sum_of_nodes(self, by: str, amount: str) -> Counter[tuple[str, ...]]:
        """The millijoules or gpu_microseconds of both nodes' ledgers by row."""
        sums: Counter[tuple[str, ...]] = Counter()
        for node in "ab":
            found = self.node_report(node, by)
            for row in (*found["rows"], *found["own"]):
                sums[row_key(row, by)] += row[amount] or 0
        return sums


def row_key(row: dict[str, Any], by: str) -> tuple[str, ...]:
    names = ("namespace", "pod") if by == "pod" else (by,)
    return (row["account"], *(row[name] for name in names))


def node_flags(folder: Path, node: str, scenario: str) -> tuple[str, ...]:
    (folder / node).mkdir(exist_ok=True)
    file = folder / f"{node}.yaml"
    file.write_text(scenario)
    seed = str(ord(node))
    held = ("--energy.zero-hold", "12s", "--metric-retention", "24s")
    state = ("--state-dir", str(folder / node))
    return ("--source", f"simulator:{file}", "--seed", seed, "--speed", str(SPEED), *held, *state, *TICK)


TICK = ("--interval", "250ms")


def on_port(port: int, flags: tuple[str, ...]) -> tuple[str, ...]:
    return ("--listen-address", f"127.0.0.1:{port}", *flags)


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The fleet after train-0 ran on node a, a restarted on another port, and train-0 ran and ended on b."""
    folder = tmp_path_factory.mktemp("fleet")
    ports = [free_port() for _ in range(3)]
    with ExitStack() as stack:
        real = stack.enter_context(prometheus(CONFIG.format(*ports)))
        # Energy before the first scrape is not in the fleet's report.
        wait_until(lambda: len(real.query("up")) == len(ports), "Prometheus to scrape every node")
        stack.enter_context(serving_prepared(*on_port(ports[2], node_flags(folder, "b", OTHER))))
        first = Server(*on_port(ports[0], node_flags(folder, "a", BEFORE)), prepared=True)
        try:
            wait_gone(real, "a", "train-0", label="exported_pod")
        finally:
            first.stop()
        stack.enter_context(serving_prepared(*on_port(ports[1], node_flags(folder, "a", AFTER))))
        wait_gone(real, "b", "train-0", label="pod")
        real.wait_query(f"{ENERGY}{{instance='127.0.0.1:{ports[1]}', exported_pod='api-0'}} > 0")
        yield Fleet(folder, real, ports[1:])


def wait_gone(real: Prometheus, node: str, name: str, label: str) -> None:
    """Wait until the pod's energy has been exported and its series have ended."""
    series = f"{ENERGY}{{node='{node}', {label}='{name}'}}"
    ended = f"count(max_over_time({series}[10m]) > 0) unless count({series})"
    wait_until(lambda: real.query(ended), f"the series of {name} on {node} to end")


@pytest.mark.parametrize(
    ("amount", "bound_name"),
    [("millijoules", "bound_millijoules"), ("gpu_microseconds", "bound_microseconds")],
)
@pytest.mark.parametrize("by", ["namespace", "pod"])
def test_rows_of_a_fleet_are_the_sums_of_the_nodes_within_the_reported_bound(
    moved: Fleet, by: str, amount: str, bound_name: str
) -> None:
    before, fleet, after = moved.sides(by, amount)
    rows = {row_key(row, by): row for row in (*fleet["rows"], *fleet["own"])}
    assert {key for key in before if before[key]} <= set(rows)
    # The bound is for one GPU-second a second; the simulated nodes have SPEED of them.
    pace = SPEED if amount == "gpu_microseconds" else 1
    for key, row in rows.items():
        found, bound = row[amount] or 0, pace * row.get(bound_name, 0)
        assert before[key] - bound <= found <= after[key] + bound, key
    total, bound = fleet["total"][amount], fleet["total"][bound_name]
    assert before.total() - pace * bound <= total <= after.total() + pace * bound
    assert 0 < bound < total * 0.75
    assert not any("monitoring" in key or "gpuledger-x" in key for key in rows)


@pytest.mark.parametrize("by", ["namespace", "pod"])
def test_the_ledgers_of_all_nodes_without_prometheus_agree_within_the_bound(moved: Fleet, by: str) -> None:
    listed = moved.folder / "listed"
    listed.write_text("".join(f"127.0.0.1:{port}\n" for port in moved.ports))
    fleet = FleetServer(listed)
    try:
        wait_until(
            lambda: all(node["up"] for node in fleet.get("/api/v1/fleet").json()["nodes"]), "both nodes"
        )
        before, scraped, _ = moved.sides(by)
        words = ("--by", by, "--until", "2099-01-01", "--format", "json")
        done = gpuledger("report", "--fleet", fleet.url, *words)
        assert done.returncode == 0, done.stderr
        after = moved.sum_of_nodes(by, "millijoules")
    finally:
        fleet.stop()
    content = json.loads(done.stdout)
    exact = {row_key(row, by): row["millijoules"] or 0 for row in (*content["rows"], *content["own"])}
    # The nodes post while they are read.
    assert all(before[key] <= exact[key] <= after[key] for key in exact)
    assert {key for key in before if before[key]} <= set(exact)
    for row in (*scraped["rows"], *scraped["own"]):
        key = row_key(row, by)
        slack = row["bound_millijoules"] + after[key] - before[key]
        assert abs(exact.get(key, 0) - (row["millijoules"] or 0)) <= slack, key


def test_a_pod_that_moved_and_has_ended_is_one_exact_row(moved: Fleet) -> None:
    before, fleet, _ = moved.sides("pod")
    (row,) = (row for row in fleet["rows"] if row["pod"] == "train-0")
    assert row["bound_millijoules"] == 0
    assert row["bound_microseconds"] == 0
    assert row["millijoules"] == before["process", "ml", "train-0"] > 0
    assert row["sessions"] is None and row["high_kwh"] is None


def test_gpu_hours_are_the_sum_of_the_nodes(moved: Fleet) -> None:
    fleet = moved.fleet("--by", "pod")
    (row,) = (row for row in fleet["rows"] if row["pod"] == "train-0")
    hours = 0.0
    for node in "ab":
        rows = moved.node_report(node, "pod")["rows"]
        hours += sum(one["gpu_hours"] for one in rows if one["pod"] == "train-0")
    # On each node Prometheus missed a scrape or two at the start of the pod.
    assert row["gpu_hours"] * 3600 == pytest.approx(hours * 3600, abs=2 * 2 * SPEED)


def test_node_names_come_from_the_scrape_and_gpu_names_from_the_nodes(moved: Fleet) -> None:
    assert {row["node"] for row in moved.fleet("--by", "node")["rows"]} == {"a", "b"}
    gpus = moved.fleet("--by", "gpu")["gpus"]
    assert len(gpus) == 3
    assert {(gpu["gpu"], gpu["model"]) for gpu in gpus} == {
        ("0", "NVIDIA H100 80GB HBM3"),
        ("1", "NVIDIA H100 80GB HBM3"),
    }


def test_the_table_names_its_source_and_accuracy(moved: Fleet) -> None:
    done = gpuledger(
        "report", "--prometheus", moved.real.url, "--price.kwh", "0.3", "--price.currency", "EUR"
    )
    assert done.returncode == 0, done.stderr
    for words in (
        "± kWh",
        "cost EUR",
        f"From Prometheus at {moved.real.url}, scraped every ",
        "± hours",
        "are sums over owners, without ±",
    ):
        assert words in done.stdout
    # The usual interval between its samples: a busy machine scrapes late.
    assert re.search(r"scraped every \d+(\.\d+)? s\b", done.stdout)


def test_in_focus_the_billing_account_of_a_fleet_is_the_prometheus(moved: Fleet) -> None:
    prices = ("--price.kwh", "0.3", "--price.currency", "EUR", "--format", "focus")
    done = gpuledger("report", "--prometheus", moved.real.url, *prices)
    assert done.returncode == 0, done.stderr
    charges = list(csv.DictReader(done.stdout.splitlines()))
    assert {charge["BillingAccountId"] for charge in charges} == {"127.0.0.1"}
    assert {charge["SkuId"] for charge in charges} == {"gpu-energy"}
    assert broken_rules(charges) == []


def test_only_matching_series_are_counted(moved: Fleet) -> None:
    fleet = moved.fleet("--by", "node", "--prometheus.match", 'node="b"')
    assert [row["node"] for row in fleet["rows"]] == ["b"]


def test_a_prometheus_without_gpuledger_is_an_error_in_one_line(moved: Fleet) -> None:
    done = gpuledger("report", "--prometheus", moved.real.url, "--prometheus.match", 'node="none"')
    assert done.returncode == 1
    assert "has no gpuledger_device_energy_joules_total in this period" in done.stderr
    assert done.stderr.count("\n") == 1

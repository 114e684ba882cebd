"""Every query of every dashboard on a real Prometheus that scrapes a fleet: busy, idle, empty, seen twice."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from dashboards import (
    DASHBOARDS,
    EVERYTHING,
    FIXED,
    GRAFANA,
    batch_node,
    column,
    each_panel,
    each_range,
    each_table,
    escaped,
    panel,
    substituted,
)
from running import prometheus, serving, wait_until

pytestmark = pytest.mark.xdist_group("grafana")

IDLE = """
gpus:
  - {model: NVIDIA A100-SXM4-80GB, architecture: Ampere, memory: 80GB, empty_watts: 60, resident_watts: 90,
     load_watts: 340, limit_watts: 400, count: 2}
"""
CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: gpuledger
    honor_labels: false
    static_configs:
      - {{targets: ["{busy}"], labels: {{cluster: west, node: node-1}}}}
      - {{targets: ["{desk}"], labels: {{cluster: west, node: desk}}}}
      - {{targets: ["{job}"], labels: {{cluster: west}}}}
      - {{targets: ["{idle}"], labels: {{cluster: north}}}}
  - job_name: again
    honor_labels: true
    static_configs:
      - {{targets: ["{busy}", "{busy_again}"], labels: {{cluster: twice}}}}
"""
ZERO_WHEN_IDLE = {
    "gpuledger-usage": ("Active", "Held idle", "Open sessions", "Owners", "Owner not known"),
    "gpuledger-energy": ("Used by owners", "Nobody's"),
    "gpuledger-health": (
        "GPUs lost",
        "GPUs with Xid errors",
        "Uncorrected ECC errors",
        "GPUs at their power limit",
    ),
    "gpuledger-fleet": ("Targets down", "GPUs lost", "Active", "Held idle", "Stalled", "Parts that fail"),
}


@dataclass(frozen=True)
class Fleet:
    """A Prometheus, and the addresses of the nodes that it scrapes."""

    prometheus: httpx.Client
    addresses: Mapping[str, str]

    def ask(self, expression: str, **choice: str) -> list[dict[str, Any]]:
        """What a panel would be answered with this choice, All where none is named."""
        values = {**FIXED, **EVERYTHING, **{name: escaped(text) for name, text in choice.items()}}
        return self.query("query", query=substituted(expression, values))

    def query(self, kind: str, **asked: str | float) -> list[dict[str, Any]]:
        answer = self.prometheus.post(f"/api/v1/{kind}", data=asked).json()
        assert answer["status"] == "success", answer
        return list(answer["data"]["result"])

    def values(self, label: str) -> list[str]:
        """The values of a label of devices and owners."""
        expression = f"count by ({label}) ({{__name__=~'gpuledger_device_(info|owner_info)'}})"
        return sorted({row["metric"][label] for row in self.ask(expression) if row["metric"].get(label)})


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A Kubernetes node, a workstation, a node with a batch job, an idle node."""
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "idle.yaml").write_text(IDLE)
    batch, driver = batch_node(folder)
    often = ("--interval", "500ms", "--energy.zero-hold", "2s")
    with ExitStack() as running:

        def start(*arguments: str, env: Mapping[str, str] | None = None) -> int:
            return running.enter_context(serving(*arguments, *often, env=env)).port

        dialects = ("--dialect", "process,session,energy,native,dcgm")
        collectors = ("--dcgm.collectors", str(GRAFANA / "dcgm-collectors.csv"))
        fast = ("--speed", "20")
        ports = {
            "busy": start("--source", "simulator", *fast, *dialects, *collectors),
            "desk": start("--source", "simulator:workstation", *fast),
            "job": start(*batch, env=driver),
            "idle": start("--source", f"simulator:{folder / 'idle.yaml'}"),
        }
        addresses = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        again = f"localhost:{ports['busy']}"
        real = running.enter_context(prometheus(CONFIG.format(**addresses, busy_again=again)))
        for ready in ("count(up == 1) == 6", "gpuledger_device_xid_errors_total", "gpuledger_map_success"):
            real.wait_query(ready)
        real.wait_query("min(count_over_time(gpuledger_ticks_total[5m])) > 15")
        client = running.enter_context(httpx.Client(base_url=real.url, trust_env=False, timeout=30))
        yield Fleet(client, addresses)


@each_panel
def test_every_query_is_answered(fleet: Fleet, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        wait_until(lambda asked=target["expr"]: fleet.ask(asked), f"an answer to {target['expr']}")


@each_table
def test_every_column_of_a_table_has_a_heading(fleet: Fleet, panel: dict[str, Any]) -> None:
    """A label that nobody named would stand at the table's end under its raw name."""
    named = panel["transformations"][1]["options"]["renameByName"].keys()
    for target in panel["targets"]:
        told = {label for row in fleet.ask(target["expr"]) for label in row["metric"]}
        assert told <= named


@each_range
def test_a_range_is_answered(fleet: Fleet, panel: dict[str, Any]) -> None:
    """What holds now must hold at each step: a join that was ambiguous for a moment fails the whole panel."""
    for target in panel["targets"]:
        now = time.time()
        query = substituted(target["expr"], {**FIXED, **EVERYTHING})
        assert fleet.query("query_range", query=query, start=now - 10, end=now, step=1)


@each_panel
@pytest.mark.parametrize("variable", ["cluster", "node", "namespace", "gpu"])
def test_a_single_choice_is_answered(fleet: Fleet, panel: dict[str, Any], variable: str) -> None:
    """Not every GPU or namespace has what each panel shows, but some one has."""
    label = {"node": "instance", "gpu": "uuid"}.get(variable, variable)
    choices = fleet.values(label)
    assert len(choices) > 1
    for target in panel["targets"]:

        def some_answer(asked: str = target["expr"]) -> bool:
            return any(fleet.ask(asked, **{variable: choice}) for choice in choices)

        wait_until(some_answer, f"an answer for one {variable} to {target['expr']}")


@each_panel
def test_an_idle_node_is_no_error(fleet: Fleet, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        fleet.ask(target["expr"], node=fleet.addresses["idle"])


@pytest.mark.parametrize(
    ("uid", "title"), [(uid, title) for uid in ZERO_WHEN_IDLE for title in ZERO_WHEN_IDLE[uid]]
)
def test_an_idle_node_has_zeros_where_zero_is_the_truth(fleet: Fleet, uid: str, title: str) -> None:
    (target,) = panel(uid, title)["targets"]
    (row,) = fleet.ask(target["expr"], node=fleet.addresses["idle"])
    assert float(row["value"][1]) == 0


def test_an_idle_nodes_gpus_are_free_and_its_energy_is_nobodys(fleet: Fleet) -> None:
    def number(uid: str, title: str) -> float:
        (target,) = panel(uid, title)["targets"]
        (row,) = fleet.ask(target["expr"], node=fleet.addresses["idle"])
        return float(row["value"][1])

    assert number("gpuledger-usage", "GPUs") == number("gpuledger-usage", "Free") == 2
    assert number("gpuledger-energy", "Idle") == 1


@each_panel
def test_where_nothing_is_scraped_nothing_is_told(fleet: Fleet, panel: dict[str, Any]) -> None:
    """Not even zeros: no GPU was looked at. The panel says so with its own words."""
    for target in panel["targets"]:
        assert fleet.ask(target["expr"], cluster="nowhere") == []


@each_panel
def test_a_node_that_is_scraped_twice_is_no_error(fleet: Fleet, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        fleet.ask(target["expr"], cluster="twice")


def test_what_is_scraped_twice_is_counted_once(fleet: Fleet) -> None:
    (once,) = (float(row["value"][1]) for row in fleet.ask(_only("gpuledger-usage", "GPUs"), cluster="twice"))
    told = fleet.ask(column("gpuledger-fleet", "Every node", "GPUs"), cluster="twice")
    assert once == sum(float(row["value"][1]) for row in told) == 8
    states = [_only("gpuledger-usage", title) for title in ("Active", "Held idle", "Free")]
    devices = sum(float(row["value"][1]) for state in states for row in fleet.ask(state, cluster="twice"))
    assert 6 < devices <= 8, "six GPUs, and the parts of two that MIG has cut"
    limit = 8 * 700
    (power,) = fleet.ask(_only("gpuledger-fleet", "Power"), cluster="twice")
    assert float(power["value"][1]) <= limit


def _only(uid: str, title: str) -> str:
    (target,) = panel(uid, title)["targets"]
    return str(target["expr"])


def columns(fleet: Fleet, rows: str, *headings: str) -> list[dict[frozenset[tuple[str, str]], float]]:
    """Columns of a table of energy by row, all of one moment that every scrape is in by now."""
    at = f"[$__range] @ {time.time() - 5:.3f}"
    found = []
    for heading in headings:
        answer = fleet.ask(column("gpuledger-energy", rows, heading).replace("[$__range]", at))
        found.append({frozenset(row["metric"].items()): float(row["value"][1]) for row in answer})
    return found


@pytest.mark.parametrize("rows", ["By namespace", "By pod or job", "By user"])
def test_measured_and_apportioned_sum_to_energy_which_is_within_its_bounds(fleet: Fleet, rows: str) -> None:
    told = columns(fleet, rows, "Energy", "Measured", "Apportioned", "At most")
    energy, measured, apportioned, most = told
    assert energy
    assert energy.keys() == measured.keys() == apportioned.keys() == most.keys()
    for row, used in energy.items():
        assert measured[row] + apportioned[row] == pytest.approx(used)
        assert measured[row] <= used + 1e-9
        assert used <= most[row] + 1e-9


@pytest.mark.parametrize("rows", ["By namespace", "By pod or job"])
def test_cost_is_of_energy_and_of_gpu_hours(fleet: Fleet, rows: str) -> None:
    energy, hours, cost = columns(fleet, rows, "Energy", "GPU-hours", "Cost")
    assert max(cost.values()) > 0
    assert cost.keys() == energy.keys()
    for row, used in energy.items():
        assert cost[row] == pytest.approx(used * 1.4 * 0.30 + hours.get(row, 0) * 1.5)


def test_held_devices_are_told_with_their_holder(fleet: Fleet) -> None:
    held = column("gpuledger-usage", "Who has which device", "Held idle, last hour")
    rows = fleet.ask(held, node=fleet.addresses["busy"], cluster="west")
    shares = {row["metric"].get("pod", ""): float(row["value"][1]) for row in rows}
    (row,) = (row for row in rows if row["metric"].get("pod") == "jupyter-pavel")
    assert (row["metric"]["node"], row["metric"]["gpu"]) == ("node-1", "4")
    assert shares["jupyter-pavel"] == pytest.approx(max(shares.values()))
    assert shares["llama-pretrain-worker-0"] < shares["jupyter-pavel"] / 2


def options(fleet: Fleet, name: str) -> set[tuple[str, str]]:
    """Text and value of a variable's options, as Grafana takes them from the rows of query_result()."""
    (made,) = (one for one in DASHBOARDS["gpuledger-usage"]["templating"]["list"] if one["name"] == name)
    asked = re.fullmatch(r"query_result\((.*)\)", made["query"]["query"])
    assert asked is not None
    pattern = re.sub(r"\(\?<(\w)", r"(?P<\1", made["regex"].removeprefix("/").removesuffix("/g"))
    found = set()
    for row in fleet.ask(asked[1]):
        labels = ",".join(f'{key}="{text}"' for key, text in row["metric"].items())
        told = [match.groupdict() for match in re.finditer(pattern, f"{{{labels}}} 1 1700000000000")]
        value = next((one["value"] for one in told if one["value"]), "")
        found.add((next((one["text"] for one in told if one["text"]), value), value))
    return found


def test_nodes_are_shown_by_name_where_the_scrape_has_one_and_chosen_by_address(fleet: Fleet) -> None:
    there = fleet.addresses
    assert options(fleet, "node") >= {
        ("node-1", there["busy"]),
        ("desk", there["desk"]),
        (there["job"], there["job"]),
        (there["idle"], there["idle"]),
    }


def test_gpus_are_shown_by_node_number_and_model_and_chosen_by_uuid(fleet: Fleet) -> None:
    (uuid,) = fleet.ask('count by (uuid) (gpuledger_device_info{node="node-1",gpu="6",mig_instance=""})')
    assert ("node-1 6 NVIDIA H100 80GB HBM3", uuid["metric"]["uuid"]) in options(fleet, "gpu")


def test_a_target_that_stops_answering_is_counted() -> None:
    asked = substituted(_only("gpuledger-fleet", "Targets down"), {**FIXED, **EVERYTHING})
    config = """
global: {{scrape_interval: 1s}}
scrape_configs: [{{job_name: gpuledger, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}]
"""
    with (
        serving("--source", "simulator:workstation") as gone,
        prometheus(config.format(port=gone.port)) as real,
    ):
        real.wait_query(f"({asked}) == 0")
        gone.stop()
        real.wait_query(f"({asked}) == 1")

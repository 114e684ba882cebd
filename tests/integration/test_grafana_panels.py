"""All queries of all dashboards on a real Prometheus that has scraped busy, idle and duplicated nodes.

All queries are of one moment at which every panel has data. After it nothing is scraped, no rule evaluated.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from dashboards import (
    DASHBOARDS,
    EVERYTHING,
    FIXED,
    GRAFANA,
    PanelQuery,
    batch_node,
    column,
    each_dashboard,
    escaped,
    panel,
    panel_queries,
    substituted,
)
from running import PATIENCE, assert_each, prometheus, serving_prepared, wait_until
from stack import copy_rules

pytestmark = pytest.mark.group("grafana")

IDLE = """
gpus:
  - {model: NVIDIA A100-SXM4-80GB, architecture: Ampere, memory: 80GB, empty_watts: 60, resident_watts: 90,
     load_watts: 340, limit_watts: 400, count: 2}
"""
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: {rules}
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
    "gpuledger-usage": (
        "Active GPUs",
        "Idle but allocated GPUs",
        "Open sessions",
        "Owners",
        "Processes without owner",
    ),
    "gpuledger-energy": (
        "Energy of owners",
        "Unattributed energy",
        "GPU-hours of owners",
        "Held idle GPU-hours",
    ),
    "gpuledger-health": (
        "GPUs lost",
        "GPUs with Xid errors",
        "Uncorrected ECC errors",
        "GPUs at power limit",
    ),
    "gpuledger-fleet": (
        "Targets down",
        "GPUs lost",
        "Active GPUs",
        "Idle but allocated GPUs",
        "Stalled nodes",
        "Failing collectors",
    ),
}


@dataclass
class Fleet:
    """A Prometheus, the addresses of the nodes that it scrapes, and the moment of queries (unix seconds)."""

    prometheus: httpx.Client
    addresses: Mapping[str, str]
    at: float = 0.0

    def query_panel(self, expression: str, **choice: str) -> list[dict[str, Any]]:
        """Queries like a panel with these values of variables; the default is All."""
        values = {**FIXED, **EVERYTHING, **{name: escaped(text) for name, text in choice.items()}}
        return self.query("query", query=substituted(expression, values), time=self.at)

    def query(self, kind: str, **parameters: str | float) -> list[dict[str, Any]]:
        response = self.prometheus.post(f"/api/v1/{kind}", data=parameters).json()
        assert response["status"] == "success", response
        return list(response["data"]["result"])

    def move_to(self, queries: list[PanelQuery]) -> None:
        """Wait for a moment at which each of these queries has data."""

        def all_have_data() -> bool:
            self.at = time.time()
            # A busy machine misses scrapes.
            if not self.query_panel("count(min_over_time(up[6s]) == 1) == 6"):
                return False
            for query in queries:
                if not self.query_panel(query.expression):
                    # The first of the next time, so that waiting costs little.
                    queries.remove(query)
                    queries.insert(0, query)
                    return False
            return True

        # Those that never have data are named by the tests.
        with suppress(AssertionError):
            wait_until(all_have_data, "data of all panels")

    def values(self, label: str) -> list[str]:
        """Returns the values of a label of devices and owners."""
        expression = f"count by ({label}) ({{__name__=~'gpuledger_device_(info|owner_info)'}})"
        return sorted(
            {row["metric"][label] for row in self.query_panel(expression) if row["metric"].get(label)}
        )


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A Kubernetes node, a workstation, a node with a batch job, an idle node."""
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "idle.yaml").write_text(IDLE)
    batch, driver = batch_node(folder)
    fast_ticks = ("--interval", "500ms", "--energy.zero-hold", "2s")
    with ExitStack() as running:
        nodes = running.enter_context(ExitStack())

        def start(*arguments: str, env: Mapping[str, str] | None = None) -> int:
            return nodes.enter_context(serving_prepared(*arguments, *fast_ticks, env=env)).port

        dialects = ("--dialect", "process,session,energy,native,dcgm")
        collectors = ("--dcgm.collectors", str(GRAFANA / "dcgm-collectors.csv"))
        fast = ("--speed", "20")
        ports = {
            "busy": start("--source", "simulator", *fast, *dialects, *collectors),
            # Other seeds: no GPU of one node has the UUID of another's.
            "desk": start("--source", "simulator:workstation", "--seed", "7", *fast),
            "job": start(*batch, env=driver),
            "idle": start("--source", f"simulator:{folder / 'idle.yaml'}", "--seed", "8"),
        }
        addresses = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        again = f"localhost:{ports['busy']}"
        real = running.enter_context(
            prometheus(CONFIG.format(**addresses, busy_again=again, rules=copy_rules(folder, "1s")))
        )
        for ready in ("gpuledger_device_xid_errors_total", "gpuledger_map_success"):
            real.wait_query(ready)
        real.wait_query("min(count_over_time(gpuledger_ticks_total[5m])) > 20")
        client = running.enter_context(httpx.Client(base_url=real.url, trust_env=False, timeout=PATIENCE))
        found = Fleet(client, addresses)
        found.move_to([query for uid in DASHBOARDS for query in panel_queries(uid)])
        real.reload("global: {}\n")
        nodes.close()
        yield found


@each_dashboard
def test_every_query_returns_data(fleet: Fleet, uid: str) -> None:
    def has_data(query: PanelQuery) -> None:
        assert fleet.query_panel(query.expression), "no data"

    assert_each(panel_queries(uid), has_data)


@each_dashboard
def test_every_column_of_a_table_has_a_heading(fleet: Fleet, uid: str) -> None:
    """A label without heading would be shown at the end of the table under its raw name."""

    def has_headings(query: PanelQuery) -> None:
        named = query.panel["transformations"][1]["options"]["renameByName"].keys()
        labels = {label for row in fleet.query_panel(query.expression) for label in row["metric"]}
        assert labels <= named

    assert_each((query for query in panel_queries(uid) if query.panel["type"] == "table"), has_headings)


@each_dashboard
def test_a_range_query_returns_data(fleet: Fleet, uid: str) -> None:
    """Every step must succeed: a join that is ambiguous at one step fails the whole panel."""
    ranges = [query for query in panel_queries(uid) if query.panel["targets"][0]["range"]]
    assert ranges

    def has_data(query: PanelQuery) -> None:
        expression = substituted(query.expression, {**FIXED, **EVERYTHING})
        between = {"start": fleet.at - 5, "end": fleet.at, "step": 1}
        assert fleet.query("query_range", query=expression, **between), "no data"

    assert_each(ranges, has_data)


@each_dashboard
@pytest.mark.parametrize("variable", ["cluster", "node", "namespace", "gpu"])
def test_a_single_value_of_a_variable_returns_data(fleet: Fleet, uid: str, variable: str) -> None:
    """Not every GPU or namespace has data for each panel, but at least one has."""
    label = {"node": "instance", "gpu": "uuid"}.get(variable, variable)
    choices = fleet.values(label)
    assert len(choices) > 1

    def has_data(query: PanelQuery) -> None:
        assert any(fleet.query_panel(query.expression, **{variable: choice}) for choice in choices), "no data"

    assert_each(panel_queries(uid), has_data)


@each_dashboard
def test_an_idle_node_causes_no_query_error(fleet: Fleet, uid: str) -> None:
    idle = fleet.addresses["idle"]
    assert_each(panel_queries(uid), lambda query: fleet.query_panel(query.expression, node=idle))


@pytest.mark.parametrize(
    ("uid", "title"), [(uid, title) for uid in ZERO_WHEN_IDLE for title in ZERO_WHEN_IDLE[uid]]
)
def test_an_idle_node_has_zeros(fleet: Fleet, uid: str, title: str) -> None:
    (target,) = panel(uid, title)["targets"]
    (row,) = fleet.query_panel(target["expr"], node=fleet.addresses["idle"])
    assert float(row["value"][1]) == 0


def test_gpus_of_an_idle_node_are_free_and_their_energy_is_idle(fleet: Fleet) -> None:
    def number(uid: str, title: str) -> float:
        (target,) = panel(uid, title)["targets"]
        (row,) = fleet.query_panel(target["expr"], node=fleet.addresses["idle"])
        return float(row["value"][1])

    assert number("gpuledger-usage", "GPUs") == number("gpuledger-usage", "Free GPUs") == 2
    assert number("gpuledger-energy", "Idle energy") == 1


@each_dashboard
def test_without_scraped_nodes_there_is_no_data(fleet: Fleet, uid: str) -> None:
    """There are no zeros either, because no GPU was read; the panel shows its text for no data."""

    def has_no_data(query: PanelQuery) -> None:
        assert fleet.query_panel(query.expression, cluster="nowhere") == []

    assert_each(panel_queries(uid), has_no_data)


@each_dashboard
def test_a_node_that_is_scraped_twice_causes_no_query_error(fleet: Fleet, uid: str) -> None:
    assert_each(panel_queries(uid), lambda query: fleet.query_panel(query.expression, cluster="twice"))


def test_nodes_that_are_scraped_twice_count_once(fleet: Fleet) -> None:
    (once,) = (
        float(row["value"][1]) for row in fleet.query_panel(_only("gpuledger-usage", "GPUs"), cluster="twice")
    )
    rows = fleet.query_panel(
        column("gpuledger-fleet", "GPUs, power and energy by node", "GPUs"), cluster="twice"
    )
    assert once == sum(float(row["value"][1]) for row in rows) == 8
    titles = ("Active GPUs", "Idle but allocated GPUs", "Free GPUs")
    states = [_only("gpuledger-usage", title) for title in titles]
    devices = sum(
        float(row["value"][1]) for state in states for row in fleet.query_panel(state, cluster="twice")
    )
    assert 6 < devices <= 8, "six GPUs, and the MIG instances of two GPUs"
    limit = 8 * 700
    (power,) = fleet.query_panel(_only("gpuledger-fleet", "Power draw"), cluster="twice")
    assert float(power["value"][1]) <= limit


def _only(uid: str, title: str) -> str:
    (target,) = panel(uid, title)["targets"]
    return str(target["expr"])


def columns(fleet: Fleet, rows: str, *headings: str) -> list[dict[frozenset[tuple[str, str]], float]]:
    """Returns columns of an energy table by row, all for one time that is old enough for all scrapes."""
    at = f"[$__range] @ {fleet.at - 5:.3f}"
    found = []
    for heading in headings:
        result = fleet.query_panel(column("gpuledger-energy", rows, heading).replace("[$__range]", at))
        found.append({frozenset(row["metric"].items()): float(row["value"][1]) for row in result})
    return found


@pytest.mark.parametrize("rows", ["Energy by namespace", "Energy by pod or job", "Energy by user"])
def test_measured_and_apportioned_sum_to_energy_which_is_within_its_bounds(fleet: Fleet, rows: str) -> None:
    energy, measured, apportioned, upper = columns(
        fleet, rows, "Energy", "Measured", "Apportioned", "Upper bound"
    )
    assert energy
    assert energy.keys() == measured.keys() == apportioned.keys() == upper.keys()
    for row, used in energy.items():
        assert measured[row] + apportioned[row] == pytest.approx(used)
        assert measured[row] <= used + 1e-9
        assert used <= upper[row] + 1e-9


@pytest.mark.parametrize("rows", ["Energy by namespace", "Energy by pod or job"])
def test_cost_is_that_of_energy_and_gpu_hours(fleet: Fleet, rows: str) -> None:
    energy, hours, cost = columns(fleet, rows, "Energy", "GPU-hours", "Cost")
    assert max(cost.values()) > 0
    assert cost.keys() == energy.keys() | hours.keys()
    for row, amount in cost.items():
        assert amount == pytest.approx(energy.get(row, 0) * 1.4 * 0.30 + hours.get(row, 0) * 1.5)


def test_accounts_of_gpu_time_add_up_to_the_watched_time(fleet: Fleet) -> None:
    (target,) = panel("gpuledger-energy", "GPU-hours by account")["targets"]
    at = f"[$__range] @ {fleet.at - 5:.3f}"
    rows = fleet.query_panel(target["expr"].replace("[$__range]", at))
    watched = f"sum(increase(gpuledger:gpu_watched_seconds:max{at})) / 3600"
    (row,) = fleet.query_panel(watched)
    accounts = {row["metric"]["account"]: float(row["value"][1]) for row in rows}
    assert {"owner", "idle"} <= accounts.keys()
    # New series are 0 for the zero hold, and increase() extrapolates each of them.
    assert sum(accounts.values()) == pytest.approx(float(row["value"][1]), rel=0.1)


def test_idle_but_allocated_devices_are_shown_with_their_owner(fleet: Fleet) -> None:
    held = column("gpuledger-usage", "Owners by GPU", "Idle but allocated, last hour")
    rows = fleet.query_panel(held, node=fleet.addresses["busy"], cluster="west")
    shares = {row["metric"].get("pod", ""): float(row["value"][1]) for row in rows}
    (row,) = (row for row in rows if row["metric"].get("pod") == "jupyter-pavel")
    assert (row["metric"]["node"], row["metric"]["gpu"]) == ("node-1", "4")
    assert shares["jupyter-pavel"] == pytest.approx(max(shares.values()))
    assert shares["llama-pretrain-worker-0"] < shares["jupyter-pavel"] / 2


def options(fleet: Fleet, name: str) -> set[tuple[str, str]]:
    """Returns text and value of the options of a variable, computed like Grafana from query_result()."""
    (made,) = (item for item in DASHBOARDS["gpuledger-usage"]["templating"]["list"] if item["name"] == name)
    query = re.fullmatch(r"query_result\((.*)\)", made["query"]["query"])
    assert query is not None
    pattern = re.sub(r"\(\?<(\w)", r"(?P<\1", made["regex"].removeprefix("/").removesuffix("/g"))
    found = set()
    for row in fleet.query_panel(query[1]):
        labels = ",".join(f'{key}="{text}"' for key, text in row["metric"].items())
        matches = [match.groupdict() for match in re.finditer(pattern, f"{{{labels}}} 1 1700000000000")]
        value = next((item["value"] for item in matches if item["value"]), "")
        found.add((next((item["text"] for item in matches if item["text"]), value), value))
    return found


def test_nodes_are_shown_by_name_if_known_and_selected_by_address(fleet: Fleet) -> None:
    addresses = fleet.addresses
    assert options(fleet, "node") >= {
        ("node-1", addresses["busy"]),
        ("desk", addresses["desk"]),
        (addresses["job"], addresses["job"]),
        (addresses["idle"], addresses["idle"]),
    }


def test_gpus_are_shown_by_node_index_and_model_and_selected_by_uuid(fleet: Fleet) -> None:
    (uuid,) = fleet.query_panel(
        'count by (uuid) (gpuledger_device_info{node="node-1",gpu="6",mig_instance=""})'
    )
    assert ("node-1 6 NVIDIA H100 80GB HBM3", uuid["metric"]["uuid"]) in options(fleet, "gpu")


def test_a_target_that_stops_responding_is_counted() -> None:
    down = substituted(_only("gpuledger-fleet", "Targets down"), {**FIXED, **EVERYTHING})
    config = """
global: {{scrape_interval: 1s}}
scrape_configs: [{{job_name: gpuledger, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}]
"""
    with (
        serving_prepared("--source", "simulator:workstation") as gone,
        prometheus(config.format(port=gone.port)) as real,
    ):
        real.wait_query(f"({down}) == 0")
        gone.stop()
        real.wait_query(f"({down}) == 1")

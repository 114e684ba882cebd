"""The dashboards in Grafana's own code, with responses of a real Prometheus that scrapes simulated nodes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from dashboards import DASHBOARDS, EVERYTHING, FIXED, GRAFANA, batch_node, each_dashboard, substituted
from release import grafana
from running import Prometheus, prometheus, serving, wait_until
from stack import copy_rules

CONFIG = """
global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}
rule_files: {rules}
scrape_configs:
  - job_name: gpuledger
    static_configs:
      - {{targets: ["{busy}", "{desk}"], labels: {{cluster: west}}}}
      - {{targets: ["{job}"], labels: {{cluster: north}}}}
"""
# As a user has chosen them.
VARIABLES = {
    "__url_time_range": "from=now-1h&to=now",
    "datasource:queryparam": "var-datasource=prometheus",
    "cluster:queryparam": "var-cluster=west",
}
PANELS = {
    (uid, panel["title"]): panel
    for uid, dashboard in DASHBOARDS.items()
    for panel in dashboard["panels"]
    if panel["type"] != "row"
}


def panels_of_type(*types: str) -> pytest.MarkDecorator:
    keys = [key for key, panel in PANELS.items() if panel["type"] in types]
    return pytest.mark.parametrize(("uid", "title"), keys)


each_table = panels_of_type("table")
Shown = Mapping[tuple[str, str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def known() -> dict[str, list[str]]:
    return grafana.identifiers()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that scrapes a Kubernetes node, a workstation and a node with a batch job."""
    batch, driver = batch_node(tmp_path_factory.mktemp("batch"))
    dialects = ("--dialect", "process,session,energy,native,dcgm")
    collectors = ("--dcgm.collectors", str(GRAFANA / "dcgm-collectors.csv"))
    kinds: dict[str, tuple[tuple[str, ...], dict[str, str] | None]] = {
        "busy": (("--source", "simulator", "--speed", "20", *dialects, *collectors), None),
        "desk": (("--source", "simulator:workstation", "--speed", "20", "--seed", "2"), None),
        "job": (tuple(batch), driver),
    }
    fast = ("--interval", "500ms", "--energy.zero-hold", "2s")
    with ExitStack() as running:
        addresses = {}
        for name, (arguments, env) in kinds.items():
            server = running.enter_context(serving(*arguments, *fast, env=env))
            addresses[name] = f"127.0.0.1:{server.port}"
        rules = copy_rules(tmp_path_factory.mktemp("rules"), "500ms")
        real = running.enter_context(prometheus(CONFIG.format(rules=rules, **addresses)))
        real.wait_query("count(up == 1) == 3")
        real.wait_query("min(count_over_time(gpuledger_ticks_total[5m])) > 15")
        yield real


@pytest.fixture(scope="module")
def shown(nodes: Prometheus) -> Shown:
    """What each panel shows, by dashboard and title."""
    keys = {"/".join(key): key for key in PANELS}
    with httpx.Client(base_url=nodes.url, trust_env=False, timeout=30) as client:
        given = [
            {"key": name, "panel": PANELS[key], "frames": _frames(client, PANELS[key])}
            for name, key in keys.items()
        ]
    answers = grafana.show(given, VARIABLES)
    warnings = {name: answer["warnings"] for name, answer in answers.items() if answer["warnings"]}
    assert warnings == {}
    return {keys[name]: answer["rows"] for name, answer in answers.items()}


def _frames(client: httpx.Client, panel: dict[str, Any]) -> list[dict[str, Any]]:
    """Frames of all queries of a panel, once all have data. Grafana sends them with one time range."""

    def all_with_data() -> list[dict[str, Any]] | None:
        now = time.time()
        found = [(target, _response(client, target, now)) for target in panel["targets"]]
        if not all(response["result"] for _, response in found):
            return None
        return [frame for target, response in found for frame in grafana.frames(target, response)]

    return wait_until(all_with_data, f"data of all queries of {panel['title']}")


def _response(client: httpx.Client, target: dict[str, Any], now: float) -> dict[str, Any]:
    """The response to a query of the last seconds, or of this moment."""
    span = {"start": now - 5, "end": now, "step": 1} if target["range"] else {"time": now}
    query = substituted(target["expr"], {**FIXED, **EVERYTHING})
    answer = client.post(
        "/api/v1/query_range" if target["range"] else "/api/v1/query", data={"query": query, **span}
    ).json()
    assert answer["status"] == "success", answer
    return dict(answer["data"])


@each_dashboard
def test_grafana_knows_every_identifier(known: dict[str, list[str]], uid: str) -> None:
    used: dict[str, set[str]] = {kind: set() for kind in known}
    for panel in DASHBOARDS[uid]["panels"]:
        if panel["type"] == "row":
            continue
        config = panel["fieldConfig"]
        overrides = [item for rule in config["overrides"] for item in rule["properties"]]
        values = [*config["defaults"].items(), *((item["id"], item["value"]) for item in overrides)]
        used["units"] |= {value for name, value in values if name == "unit"}
        used["colorModes"] |= {value["mode"] for name, value in values if name == "color"}
        used["mappings"] |= {item["type"] for name, value in values if name == "mappings" for item in value}
        used["properties"] |= {name for name, _ in values} - {"custom"}
        used["matchers"] |= {rule["matcher"]["id"] for rule in config["overrides"]}
        used["transformations"] |= {item["id"] for item in panel.get("transformations", [])}
        used["reducers"] |= {*panel["options"].get("reduceOptions", {}).get("calcs", [])}
        used["reducers"] |= {*panel["options"].get("legend", {}).get("calcs", [])}
    assert used["units"]
    assert used["reducers"]
    unknown = {kind: names - set(known[kind]) for kind, names in used.items()}
    assert not any(unknown.values()), unknown


def test_every_panel_shows_values(shown: Shown) -> None:
    empty = [
        key for key, rows in shown.items() if not any(cell["text"] for row in rows for cell in row.values())
    ]
    assert empty == []


@each_table
def test_a_table_has_the_headings_of_the_dashboard_in_its_order(shown: Shown, uid: str, title: str) -> None:
    """Grafana must not show a raw label or `Value #A`, nor leave a column out."""
    organize = PANELS[uid, title]["transformations"][1]["options"]
    headings = [organize["renameByName"][name] for name in organize["indexByName"]]
    columns = list(shown[uid, title][0])
    assert columns == [heading for heading in dict.fromkeys(headings) if heading in columns]
    matchers = [rule["matcher"] for rule in PANELS[uid, title]["fieldConfig"]["overrides"]]
    assert {matcher["options"] for matcher in matchers if matcher["id"] == "byName"} <= set(columns)
    assert PANELS[uid, title]["options"]["sortBy"][0]["displayName"] in columns


@each_table
def test_a_table_has_one_row_for_each_object(shown: Shown, uid: str, title: str) -> None:
    """Results of several queries are merged into rows, not appended below each other."""
    panel = PANELS[uid, title]
    numbers = [name for name in panel["transformations"][1]["options"]["renameByName"] if name[:5] == "Value"]
    headings = {panel["transformations"][1]["options"]["renameByName"][name] for name in numbers}
    objects = [
        tuple(cell["text"] for heading, cell in row.items() if heading not in headings)
        for row in shown[uid, title]
    ]
    assert len(objects) == len(set(objects))


@pytest.mark.parametrize(
    ("uid", "title"),
    [
        key
        for key, panel in PANELS.items()
        if any(
            item["id"] == "links" for rule in panel["fieldConfig"]["overrides"] for item in rule["properties"]
        )
    ],
)
def test_links_name_the_object_of_their_row(shown: Shown, uid: str, title: str) -> None:
    links = [link for row in shown[uid, title] for cell in row.values() for link in cell["links"]]
    assert links
    for link in links:
        chosen = re.fullmatch(
            r"/d/(gpuledger-\w+)\?var-(\w+)=([^&]*)&from=now-1h&to=now"
            r"&var-datasource=prometheus&var-cluster=west",
            link["href"],
        )
        assert chosen is not None, link["href"]
        variables = {item["name"] for item in DASHBOARDS[chosen[1]]["templating"]["list"]}
        assert chosen[2] in variables


@panels_of_type("timeseries", "state-timeline", "bargauge", "piechart")
def test_series_have_distinct_names(shown: Shown, uid: str, title: str) -> None:
    # A browser shows several blanks as one.
    names = [" ".join(name.split()) for row in shown[uid, title] for name in row]
    assert all(names)
    assert not any(re.search(r"[{}]|undefined|Value", name) for name in names), names
    assert len(names) == len(set(names))


@each_table
def test_an_empty_cell_is_empty(shown: Shown, uid: str, title: str) -> None:
    """The text for no data is for the whole table."""
    text = PANELS[uid, title]["fieldConfig"]["defaults"]["noValue"]
    assert text not in {cell["text"] for row in shown[uid, title] for cell in row.values()}


def test_labels_that_look_like_numbers_are_not_rounded(shown: Shown) -> None:
    jobs = {row["Slurm job"]["text"] for row in shown["gpuledger-energy", "Energy by pod or job"]}
    assert jobs == {"", "4711"}
    pids = [row["PID"]["text"] for row in shown["gpuledger-usage", "GPU processes"]]
    assert all(re.fullmatch(r"\d+", pid) for pid in pids)


# The clock of a simulation that is faster than time is ahead.
_FROM_NOW = r"in (a|an|a few|\d+) \w+|(a|an|a few|\d+) \w+ ago"


@pytest.mark.parametrize(
    ("uid", "title", "heading", "form"),
    [
        ("gpuledger-fleet", "GPUs, power and energy by node", "Power draw", r"[\d.]+ k?W"),
        ("gpuledger-fleet", "GPUs, power and energy by node", "Memory used", r"\d+%"),
        ("gpuledger-fleet", "Exporters", "Settings", "ok"),
        ("gpuledger-fleet", "Collectors", "Duration", r"[\d.]+ (ns|µs|ms|s)"),
        ("gpuledger-energy", "Energy by namespace", "Energy", r"([\d.]+ (m|k|M)?Wh)?"),
        ("gpuledger-health", "GPUs", "Temperature", r"\d+ °C"),
        ("gpuledger-health", "GPUs", "Memory size", r"[\d.]+ GiB"),
        ("gpuledger-health", "Xid errors", "Last", r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"),
        ("gpuledger-usage", "GPU processes", "Started", _FROM_NOW),
        ("gpuledger-usage", "GPU state", "", "active|idle but allocated|free"),
    ],
)
def test_values_are_shown_with_their_unit(
    shown: Shown, uid: str, title: str, heading: str, form: str
) -> None:
    cells = [
        cell for row in shown[uid, title] for name, cell in row.items() if not heading or name == heading
    ]
    assert cells
    assert [cell["text"] for cell in cells if not re.fullmatch(form, cell["text"])] == []


def test_a_state_has_the_color_of_its_mapping(shown: Shown) -> None:
    theme = {"active": "#73BF69", "idle but allocated": "#FF9830", "free": "#5794F2"}
    for row in shown["gpuledger-usage", "GPU state"]:
        for cell in row.values():
            assert cell["color"] == theme[cell["text"]]

"""The dashboards in deploy/grafana: generated, valid for Grafana, with queries of existing families."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from gpuledger.agent import families as agent_families
from gpuledger.dialects.catalogue import create_dialects
from gpuledger.dialects.native.ledger import STATES
from gpuledger.dialects.native.quantity_metrics import QUANTITY_METRICS
from gpuledger.dialects.settings import DialectSettings
from gpuledger.ledger.report.tokens.token_sources import DEFAULT_SOURCES
from gpuledger.operator import families as operator_families
from yaml_files import load_yaml

GRAFANA = Path(__file__).parents[3] / "deploy" / "grafana"
FILES = sorted((GRAFANA / "dashboards").glob("*.json"))
DASHBOARDS: list[dict[str, Any]] = [json.loads(file.read_text(encoding="utf-8")) for file in FILES]
PANELS = [
    pytest.param(panel, id=f"{dashboard['uid']}: {panel['title']}")
    for dashboard in DASHBOARDS
    for panel in dashboard["panels"]
    if panel["type"] != "row"
]
each_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=[made["uid"] for made in DASHBOARDS])
each_panel = pytest.mark.parametrize("panel", PANELS)
each_table = pytest.mark.parametrize("panel", [item for item in PANELS if item.values[0]["type"] == "table"])
SCHEMA: dict[str, Any] = json.loads((GRAFANA / "schema.json").read_text(encoding="utf-8"))
KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}
COLLECTED = re.findall(r"^DCGM_\w+", (GRAFANA / "dcgm-collectors.csv").read_text("utf-8"), re.MULTILINE)
SPECS = [spec for dialect in create_dialects(DialectSettings(), "0").values() for spec in dialect.specs]
SPECS += [*agent_families.SPECS, *operator_families.SPECS]
EXPORTED = {spec.name for spec in SPECS} | {f"{spec.name}_bucket" for spec in SPECS} | set(COLLECTED)
RECORDED = {
    rule["record"]
    for file in (GRAFANA.parent / "prometheus/rules").glob("*.yml")
    for group in load_yaml(file.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
    if "record" in rule
}
# What Prometheus itself writes.
OF_PROMETHEUS = {"up"}
OF_SERVERS = {metric.name for source in DEFAULT_SOURCES for metric in source.metrics()}
# The rows of this dashboard are models, which only rules can join: it needs them. The others work without.
(NEEDS_RULES,) = (made["panels"] for made in DASHBOARDS if made["uid"] == "gpuledger-tokens")
BUILT_IN = {"__range", "__range_s", "__rate_interval", "__interval"}
# Panels that show totals of counters.
TOTALS = {
    "Ledger balance by GPU",
    "Xid errors",
    "ECC errors",
    "PCIe replays",
    "Remapped memory rows",
    "Energy without owner by GPU",
    "Exporters",
}


def problems(value: Any, schema: dict[str, Any], at: str = "$") -> Iterator[str]:
    """Yields violations of the schema, for the keywords of JSON Schema that it uses."""
    if "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].removeprefix("#/definitions/")]
    if "anyOf" in schema and all(any(problems(value, choice, at)) for choice in schema["anyOf"]):
        yield f"{at}: none of {len(schema['anyOf'])} choices fits"
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        yield f"{at}: {value!r} is not of type {kinds}"
        return
    if "const" in schema and value != schema["const"]:
        yield f"{at}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and (isinstance(value, bool) or value not in schema["enum"]):
        yield f"{at}: {value!r} is none of {schema['enum']}"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{at}: {value!r} does not look like {schema['pattern']}"
    number = value if isinstance(value, int | float) else None
    if number is not None and not schema.get("minimum", number) <= number <= schema.get("maximum", number):
        yield f"{at}: {value} is out of range"
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            yield f"{at}: {len(value)} items"
        for index, item in enumerate(value):
            yield from problems(item, schema.get("items", {}), f"{at}[{index}]")
    if isinstance(value, dict):
        yield from _of_object(value, schema, at)


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _of_object(value: dict[str, Any], schema: dict[str, Any], at: str) -> Iterator[str]:
    known = schema.get("properties", {})
    others = schema.get("additionalProperties", True)
    yield from (f"{at}: {key} is missing" for key in schema.get("required", ()) if key not in value)
    for key, item in value.items():
        if key in known:
            yield from problems(item, known[key], f"{at}.{key}")
        elif others is False:
            yield f"{at}: {key} is not known"
        elif isinstance(others, dict):
            yield from problems(item, others, f"{at}.{key}")


def expressions(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


def queries_of_panels(dashboard: dict[str, Any]) -> list[str]:
    return [text for panel in dashboard["panels"] for text in map(str, expressions_or_none(panel))]


def queries_of(dashboard: dict[str, Any]) -> list[str]:
    variables = dashboard["templating"]["list"]
    return [
        *queries_of_panels(dashboard),
        *(item["query"]["query"] for item in variables if item["type"] == "query"),
    ]


def expressions_or_none(panel: dict[str, Any]) -> list[str]:
    return [] if panel["type"] == "row" else expressions(panel)


def test_the_dashboards_are_up_to_date(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-B", str(GRAFANA / "make"), str(tmp_path)], check=True)
    made = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    kept = {file.name: file.read_text(encoding="utf-8") for file in FILES}
    assert kept == made, "run `make dashboards`"


@each_dashboard
def test_a_dashboard_fits_the_schema(dashboard: dict[str, Any]) -> None:
    assert list(problems(dashboard, SCHEMA)) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("id",), 7),
        (("graphTooltip",), 3),
        (("nonsense",), 1),
        (("panels", 1, "type"), "graph"),
        (("panels", 1, "gridPos", "w"), 25),
        (("panels", 1, "targets", 0, "expr"), ""),
        (("panels", 1, "targets", 0, "datasource", "uid"), "${DS_PROMETHEUS}"),
        (("panels", 1, "options", "colorMode"), "blue"),
        (("panels", 1, "fieldConfig", "defaults", "unit"), "furlong"),
        (("templating", "list", 1, "hide"), True),
    ],
)
def test_the_schema_rejects_what_grafana_does_not_accept(path: tuple[Any, ...], value: object) -> None:
    invalid: Any = deepcopy(DASHBOARDS[0])
    place = invalid
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert list(problems(invalid, SCHEMA))


def test_dashboards_have_unique_uids_and_titles() -> None:
    assert len(DASHBOARDS) == 6
    for what in ("uid", "title"):
        assert max(Counter(made[what] for made in DASHBOARDS).values()) == 1
    assert [file.stem for file in FILES] == [made["uid"] for made in DASHBOARDS]


@each_dashboard
def test_panels_have_unique_titles_and_ids(dashboard: dict[str, Any]) -> None:
    for what in ("id", "title"):
        counted = Counter(panel[what] for panel in dashboard["panels"])
        assert max(counted.values()) == 1, counted.most_common(1)


@each_dashboard
def test_panels_do_not_overlap_or_exceed_the_grid(dashboard: dict[str, Any]) -> None:
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)


@each_dashboard
def test_every_used_variable_is_defined_and_every_visible_one_used(dashboard: dict[str, Any]) -> None:
    defined = {made["name"] for made in dashboard["templating"]["list"]}
    assert defined >= {"datasource", "cluster", "node", "gpu", "namespace"}
    titles = [panel["title"] for panel in dashboard["panels"]]
    used = set(re.findall(r"\$(?!\d)\{?(\w+)", " ".join([*queries_of(dashboard), *titles])))
    assert used - BUILT_IN <= defined
    unused = [made for made in dashboard["templating"]["list"] if made["name"] not in used | {"datasource"}]
    assert all(made["hide"] == 2 for made in unused), "a visible variable without effect"


@each_dashboard
def test_multi_value_variables_are_only_used_in_regular_expressions(dashboard: dict[str, Any]) -> None:
    """Several values, or All, are `a|b` or `.*` with escaped special characters: `=` would match nothing."""
    many = {made["name"] for made in dashboard["templating"]["list"] if made.get("multi")}
    for query in queries_of(dashboard):
        for before, name in re.findall(r"(.{2,4})\$(?!\d)\{?(\w+)", query):
            assert (name in many) == before.endswith('=~"'), query


@each_dashboard
def test_links_use_existing_dashboards_and_variables(dashboard: dict[str, Any]) -> None:
    uids = {made["uid"] for made in DASHBOARDS}
    headings = re.compile(r"\$\{__data\.fields\.(\w+)\}")
    for panel in dashboard["panels"]:
        shown = {
            heading
            for step in panel.get("transformations", ())
            for heading in step["options"].get("renameByName", {}).values()
        }
        for url in re.findall(r'"url": "(/d/[^"]*)"', json.dumps(panel)):
            assert url.split("?")[0].removeprefix("/d/") in uids
            assert set(re.findall(r"var-(\w+)=", url)) <= {"node", "gpu", "namespace"}
            assert set(headings.findall(url)) <= shown


@each_panel
def test_a_panel_queries_families_that_are_exported(panel: dict[str, Any]) -> None:
    for expression in expressions(panel):
        without_texts = re.sub(r'"[^"]*"', '""', expression)
        ours = re.findall(r"(?<![\w:])(?:gpuledger[_:]|DCGM_)[\w:]+", without_texts)
        names = {*ours, *re.findall(r"[a-zA-Z_:][\w:]*(?=\{)", without_texts)}
        assert names
        assert names & EXPORTED or panel in NEEDS_RULES
        assert names <= EXPORTED | RECORDED | OF_SERVERS | OF_PROMETHEUS


RULES = [
    str(rule["expr"])
    for file in sorted((GRAFANA.parent / "prometheus").glob("**/*.yml"))
    for group in load_yaml(file.read_text(encoding="utf-8")).get("groups", ())
    for rule in group["rules"]
]


@pytest.mark.parametrize("queries", [RULES, *(map(queries_of_panels, DASHBOARDS))])
def test_equal_addresses_in_two_clusters_are_two_targets(queries: list[str]) -> None:
    for query in queries:
        for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", query):
            named = {label.strip() for label in labels.split(",")}
            assert "instance" not in named or "cluster" in named, query


@each_panel
def test_counters_are_shown_as_rate_or_increase(panel: dict[str, Any]) -> None:
    counters = re.compile(r"(\w+\()?(gpuledger_\w+_(?:total|bucket))\{")
    for expression in expressions(panel):
        for function, name in counters.findall(expression):
            assert function in {"rate(", "increase("} or panel["title"] in TOTALS, name


@each_table
def test_overrides_refer_to_existing_columns(panel: dict[str, Any]) -> None:
    merge, organize = deepcopy(panel["transformations"])
    renamed = organize["options"]["renameByName"]
    alone = renamed.pop("Value") if len(panel["targets"]) > 1 else None
    assert alone in (None, renamed.get("Value #A"))
    headings = Counter(renamed.values())
    assert merge["id"] == "merge"
    assert max(headings.values()) == 1
    by_name = [
        made["matcher"] for made in panel["fieldConfig"]["overrides"] if "byName" in made["matcher"].values()
    ]
    assert {matcher["options"] for matcher in by_name} <= headings.keys()
    assert {made["displayName"] for made in panel["options"]["sortBy"]} <= headings.keys()
    letters = [target["refId"] for target in panel["targets"]]
    values = [f"Value #{letter}" for letter in letters] if len(letters) > 1 else ["Value"]
    assert [name for name in renamed if name.startswith("Value")] == values


@each_table
def test_labels_are_shown_as_they_are_and_empty_cells_are_empty(panel: dict[str, Any]) -> None:
    """Grafana formats a label that looks like a number, and puts the text for no data into empty cells."""
    config = panel["fieldConfig"]
    assert config["defaults"]["unit"] == "string"
    assert config["overrides"][0] == {
        "matcher": {"id": "byRegexp", "options": "/.*/"},
        "properties": [{"id": "noValue", "value": ""}],
    }
    with_unit = {
        made["matcher"]["options"]
        for made in config["overrides"]
        if any(item["id"] == "unit" for item in made["properties"])
    }
    renamed = panel["transformations"][1]["options"]["renameByName"]
    assert with_unit == {heading for name, heading in renamed.items() if name.startswith("Value")}


def test_every_field_of_the_collectors_file_is_shown() -> None:
    shown = " ".join(query for made in DASHBOARDS for query in queries_of(made))
    assert COLLECTED
    assert [field for field in COLLECTED if not re.search(rf"\b{field}\b", shown)] == []


def test_provisioning_has_the_data_source_that_dashboards_use() -> None:
    (source,) = load_yaml((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert (source["uid"], source["type"], source["isDefault"]) == ("prometheus", "prometheus", True)
    for dashboard in DASHBOARDS:
        assert dashboard["templating"]["list"][0]["current"]["value"] == source["uid"]


def test_provisioning_reads_dashboards_from_files() -> None:
    config = load_yaml((GRAFANA / "provisioning/dashboards/gpuledger.yaml").read_text())
    (provider,) = config["providers"]
    assert config["apiVersion"] == 1
    assert provider["type"] == "file"
    assert Path(provider["options"]["path"]).is_absolute()


THROTTLED = "gpuledger_device_throttled_seconds_total"
REASONS = {metric.label for metric in QUANTITY_METRICS if metric.spec.name == THROTTLED} - {"low_utilization"}


@pytest.mark.parametrize(
    ("title", "label", "exported"),
    [("Throttled GPUs by reason", "reason", REASONS), ("GPUs by state", "state", {*STATES})],
)
def test_a_panel_with_a_sum_for_each_value_of_a_label_has_all_that_are_exported(
    title: str, label: str, exported: set[str]
) -> None:
    (panel,) = (item.values[0] for item in PANELS if item.values[0]["title"] == title)
    (expression,) = expressions(panel)
    sums = expression.split(f" or sum by ({label}) ")
    assert [re.findall(rf'{label}="(\w+)"', one) for one in sums] == [[value] for value in sorted(exported)]

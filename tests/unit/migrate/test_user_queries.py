"""Queries of rules and dashboards in all forms in which people have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuledger.migrate.user_queries import UserQueries, read_user_queries
from gpuledger.model.errors import UsageError

RULES = """
groups:
- name: gpu
  rules:
  - {record: "a:b", expr: avg(a), labels: {team: x}}
  - alert: Hot
    expr: a > 1
    annotations: {summary: "{{ $labels.gpu }} of {{$labels.node}} at {{ $value }}"}
"""


def dashboards(folder: Path, *documents: Any) -> UserQueries:
    for number, document in enumerate(documents):
        (folder / f"d{number}.json").write_text(json.dumps(document))
    return read_user_queries([], [folder])


def rules(folder: Path, text: str) -> UserQueries:
    (folder / "r.yml").write_text(text)
    return read_user_queries([folder / "r.yml"], [])


def test_rules_of_prometheus(tmp_path: Path) -> None:
    record, alert = rules(tmp_path, RULES).queries
    assert (record.record, record.added, record.expression) == ("a:b", {"team": "x"}, "avg(a)")
    assert alert.where == "r.yml: gpu: alert Hot"
    assert alert.shown == {"gpu", "node"}


def indented(text: str, blanks: int) -> str:
    return "\n".join(" " * blanks + line for line in text.strip().splitlines())


@pytest.mark.parametrize(
    "text",
    [
        f"apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nspec:\n{indented(RULES, 2)}",
        f"kind: List\nitems:\n- kind: PrometheusRule\n  spec:\n{indented(RULES, 4)}",
        f"---\n# nothing\n---\nkind: ConfigMap\ndata:\n  a.yml: |\n{indented(RULES, 4)}\n  other: text\n",
        f"kind: ConfigMapList\nitems:\n- kind: ConfigMap\n  data:\n    a.rules: |\n{indented(RULES, 6)}",
    ],
    ids=["PrometheusRule", "List", "ConfigMap", "ConfigMapList"],
)
def test_rules_in_kubernetes_objects(tmp_path: Path, text: str) -> None:
    assert [query.expression for query in rules(tmp_path, text).queries] == ["avg(a)", "a > 1"]


def target(expression: str, **more: Any) -> Any:
    return {"targets": [{"expr": expression, **more}]}


@pytest.mark.parametrize(
    "document",
    [
        {"panels": [{"title": "P", **target("a")}]},
        {"panels": [{"type": "row", "title": "R", "panels": [{"title": "P", **target("a")}]}]},
        {"rows": [{"title": "R", "panels": [{"title": "P", **target("a")}]}]},
        {"dashboard": {"title": "D", "panels": [{"title": "P", **target("a")}]}, "meta": {}},
        {"panels": [], "__elements": {"u": {"name": "L", "model": {"title": "P", **target("a")}}}},
        {
            "kind": "Dashboard",
            "spec": {
                "elements": {
                    "panel-1": {
                        "kind": "Panel",
                        "spec": {
                            "title": "P",
                            "data": {"spec": {"queries": [{"spec": {"query": {"spec": {"expr": "a"}}}}]}},
                        },
                    }
                }
            },
        },
    ],
    ids=["panels", "rows as panels", "rows", "answer of the API", "library panel", "version 2"],
)
def test_dashboards_of_all_versions(tmp_path: Path, document: Any) -> None:
    (query,) = dashboards(tmp_path, document).queries
    assert (query.where, query.expression) == ("d0.json: P", "a")


def test_a_dashboard_in_a_config_map(tmp_path: Path) -> None:
    text = json.dumps({"panels": [{"title": "P", **target("a", legendFormat="{{pod}} {{ gpu }}")}]})
    file = tmp_path / "c.yaml"
    file.write_text(json.dumps({"kind": "ConfigMap", "data": {"gpu.json": text}}))
    (query,) = read_user_queries([], [file]).queries
    assert (query.expression, query.shown) == ("a", {"pod", "gpu"})


@pytest.mark.parametrize(
    ("source", "read"),
    [
        (None, True),
        ("Prometheus", True),
        ({"type": "prometheus", "uid": "x"}, True),
        ({"uid": "${DS_PROMETHEUS}"}, True),
        ("$datasource", True),
        ({"type": "victoriametrics-metrics-datasource"}, True),
        ("-- Mixed --", True),
        ({"type": "loki", "uid": "y"}, False),
        ("$logs", False),
        ("-- Grafana --", False),
    ],
)
def test_only_data_sources_with_promql_are_read(tmp_path: Path, source: Any, read: bool) -> None:
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus"},
        {"name": "logs", "type": "datasource", "query": "loki"},
    ]
    panel = {"title": "P", "datasource": source, **target("a")}
    other = {"title": "Q", **target("b")}
    found = dashboards(tmp_path, {"panels": [panel, other], "templating": {"list": variables}})
    assert ("a" in [query.expression for query in found.queries]) is read
    assert any("no Prometheus" in note for note in found.notes) is not read


def test_a_library_panel_that_the_file_lacks_is_named(tmp_path: Path) -> None:
    panels = [{"title": "L", "libraryPanel": {"name": "GPU", "uid": "u"}}, {"title": "P", **target("a")}]
    (note,) = dashboards(tmp_path, {"panels": panels}).notes
    assert "library panel GPU is not in this file" in note


@pytest.mark.parametrize(
    ("entry", "kind", "query", "values"),
    [
        ({"type": "query", "query": "label_values(a, gpu)"}, "query", "label_values(a, gpu)", ()),
        (
            {"type": "query", "query": {"query": "label_values(gpu)", "refId": "x"}},
            "query",
            "label_values(gpu)",
            (),
        ),
        ({"type": "query", "query": {"metric": "a", "label": "gpu"}}, "query", "label_values(a, gpu)", ()),
        ({"type": "custom", "query": "a, x : b"}, "custom", "a, x : b", ("a", "b")),
        ({"type": "interval", "query": "1m,5m", "current": {"value": "5m"}}, "interval", "1m,5m", ("5m",)),
        ({"type": "textbox", "query": "90"}, "textbox", "90", ("90",)),
        ({"type": "constant", "query": "x"}, "constant", "x", ("x",)),
    ],
)
def test_variables_of_all_kinds(tmp_path: Path, entry: Any, kind: str, query: str, values: Any) -> None:
    document = {"panels": [{"title": "P", **target("a")}], "templating": {"list": [{"name": "v", **entry}]}}
    found = dashboards(tmp_path, document).queries[-1]
    (variable,) = found.variables
    assert (variable.kind, variable.query, variable.values) == (kind, query, values)


def test_rules_of_grafana_have_their_queries_in_models(tmp_path: Path) -> None:
    text = """
groups:
- name: gpu
  rules:
  - title: Hot
    data:
    - {refId: A, datasourceUid: x, model: {expr: a > 1}}
    - {refId: B, datasourceUid: __expr__, model: {type: reduce, expression: A}}
    annotations: {summary: "{{ $labels.gpu }}"}
"""
    (query,) = rules(tmp_path, text).queries
    assert (query.where, query.expression, query.shown) == ("r.yml: gpu: alert Hot", "a > 1", {"gpu"})


def test_anchors_and_merged_rules(tmp_path: Path) -> None:
    text = """
x: &base {for: 5m, labels: &labels {severity: page}}
groups: [{name: g, rules: [{<<: *base, alert: A, expr: &e a > 1}, {alert: B, expr: *e, labels: *labels}]}]
"""
    assert [query.expression for query in rules(tmp_path, text).queries] == ["a > 1", "a > 1"]


def test_texts_in_objects_are_read_whatever_their_names_and_bad_ones_are_noted(tmp_path: Path) -> None:
    text = json.dumps({"panels": [{"title": "P", **target("a")}]})
    objects = [
        {"kind": "ConfigMap", "data": {"bad.json": '{"expr', "gpu": text, "none": "x"}},
        {"kind": "GrafanaDashboard", "spec": {"json": text}},
    ]
    file = tmp_path / "c.yaml"
    file.write_text(json.dumps({"kind": "List", "items": objects}))
    found = read_user_queries([], [file])
    assert [query.expression for query in found.queries] == ["a", "a"]
    assert [note.partition(" is skipped")[0] for note in found.notes] == [f"{file}: bad.json"]


def test_variables_of_other_data_sources_are_no_queries(tmp_path: Path) -> None:
    entries = [
        {"name": "l", "type": "query", "query": "label_values(app)", "datasource": {"type": "loki"}},
        {"name": "v", "type": "query", "query": "label_values(a, gpu)", "regex": "/(.*):/"},
    ]
    document = {"panels": [{"title": "P: variable x", **target("a")}], "templating": {"list": entries}}
    variable, panel = dashboards(tmp_path, document).queries
    assert (variable.expression, variable.is_variable, panel.is_variable) == (
        "label_values(a, gpu)",
        True,
        False,
    )
    assert [(one.name, one.pattern) for one in panel.variables] == [("v", "/(.*):/")]


@pytest.mark.parametrize("content", ["{", "[]", "null", '{"panels": []}'])
def test_a_file_without_queries_is_an_error_and_in_a_directory_a_note(tmp_path: Path, content: str) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(content)
    with pytest.raises(UsageError) as caught:
        read_user_queries([], [bad])
    assert str(bad) in str(caught.value)
    found = dashboards(tmp_path, {"panels": [{"title": "P", **target("a")}]})
    assert [query.expression for query in found.queries] == ["a"]
    assert [str(bad) in note for note in found.notes] == [True]

"""What a move would change: each kind of finding, with its reason, settings and query."""

from __future__ import annotations

from typing import Any

import pytest

from gpuledger.migrate.check import check_migration
from gpuledger.migrate.page import parse_page
from gpuledger.migrate.report import MigrationReport
from gpuledger.migrate.user_queries import UserQueries, UserQuery, Variable


def check(old: str, new: str, *expressions: str, **more: Any) -> MigrationReport:
    queries = [UserQuery(f"r.yml: g: alert A{index}", text, **more) for index, text in enumerate(expressions)]
    return check_queries(old, new, *queries)


def check_queries(old: str, new: str, *queries: UserQuery) -> MigrationReport:
    user = UserQueries(list(queries)) if queries else None
    return check_migration(parse_page(old.encode(), "old"), parse_page(new.encode(), "new"), user)


def only(report: MigrationReport) -> tuple[str, str, list[str], str]:
    (found,) = report.queries
    return found.kind, found.reason, found.settings, found.instead


OLD = """
# TYPE pcie counter
pcie{gpu="0"} 5
# HELP mem Memory (in MiB).
mem{gpu="0",node="n1.example",UUID="GPU-AA"} 1000
mem{gpu="1",node="n1.example",UUID="GPU-BB"} 2000
util{gpu="0",pod="a"} 50
util{gpu="1",pod="b"} 70
gone 1
milli{gpu="0"} 250000
milli{gpu="1"} 260000
same{gpu="0"} 1
"""
NEW = """
# TYPE pcie gauge
pcie{gpu="0"} 5
# HELP mem Memory (in bytes).
mem{gpu="nvidia0",hostname="n1",uuid="aa"} 1048576000
mem{gpu="nvidia1",hostname="n1",uuid="bb"} 2097152000
util{gpu="0"} 0.5
util{gpu="1"} 0.7
milli{gpu="0"} 250
milli{gpu="1"} 260
same{gpu="0"} 1
"""


@pytest.mark.parametrize(
    ("query", "kind", "reason"),
    [
        ("gone", "empty", "gone is not on the new page"),
        ("gone or same", "part", "gone is not on the new page"),
        ("absent(gone)", "fires", "gone is not on the new page"),
        ('mem{gpu="0"}', "empty", 'gpu: "0" becomes "nvidia0"'),
        ('mem{UUID="GPU-AA"}', "empty", "mem has no label UUID, but uuid"),
        ('mem{UUID=~"GPU-.*"}', "empty", 'UUID: "GPU-AA" becomes "aa"'),
        ("sum by (pod) (util)", "labels", "label pod is gone"),
        ("util * on (pod) util", "labels", "label pod is gone"),
        ("milli > 300", "unit", "milli: a thousandth, such as mW to W or mJ to J"),
        ("rate(pcie[5m])", "type", "pcie is a gauge now"),
        ("mem / on (gpu) util", "empty", "its parts no longer match each other"),
        ("sum(", "unread", "unclosed left parenthesis"),
    ],
)
def test_each_kind_of_change_has_its_reason(query: str, kind: str, reason: str) -> None:
    found = only(check(OLD, NEW, query))
    assert found[0] == kind
    assert reason in found[1]


@pytest.mark.parametrize(
    "query",
    [
        "same",
        "same > 1",
        "gone unless gone",
        "count(mem)",
        "up == 0",
        "missing or same",
        'same{job="dcgm", instance=~"a.*"}',
        "absent(new)",
        "avg_over_time(pcie[5m])",
    ],
)
def test_what_does_not_change_is_no_finding(query: str) -> None:
    report = check(OLD, NEW, query)
    assert (report.queries, report.failed) == ([], False)


def test_a_query_in_another_unit_gets_its_factor() -> None:
    assert only(check(OLD, NEW, "milli > 300"))[3] == "(milli * 1000) > 300"
    assert only(check(OLD, NEW, "sum(mem) > 900"))[3] == "sum ((mem / 1048576)) > 900"


def test_a_single_value_that_doubled_a_hundred_times_is_no_new_unit() -> None:
    report = check("util 1\n", "util 100\n", "util > 90")
    assert report.queries == []


def test_a_renamed_label_is_renamed_in_the_query() -> None:
    old, new = 'a{Hostname="n1"} 1\n', 'a{hostname="n1"} 1\n'
    kind, _, settings, instead = only(check(old, new, "sum by (Hostname) (a)"))
    assert (kind, instead) == ("labels", "sum by (hostname) (a)")
    assert settings == ["--dcgm.schema 4.8"]


def test_labels_that_people_see_matter_and_others_do_not() -> None:
    assert only(check(OLD, NEW, "util", shown=frozenset({"pod"})))[0] == "labels"
    assert [one.kind for one in check(OLD, NEW, "util", shown=frozenset({"gpu"})).queries] == ["unit"]


def test_rules_feed_other_rules_in_any_order() -> None:
    alert = UserQuery("r.yml: g: alert A", 'team:gone{team="x"} > 1')
    record = UserQuery("r.yml: g: record", "sum(gone)", record="team:gone", added={"team": "x"})
    second, first = check_queries(OLD, NEW, alert, record).queries
    assert second.reason == "team:gone: the rule that records it returns nothing"
    assert (first.kind, first.subject) == ("empty", "sum(gone)")


def test_labels_of_the_scrape_are_noted_and_match() -> None:
    report = check(OLD, NEW, 'same{job="x"}', 'util{exported_pod="a"}')
    assert any("neither page has the labels job" in note for note in report.notes)
    assert any("exported_pod: a scrape with honor_labels: false makes them" in note for note in report.notes)
    assert [one.kind for one in report.queries] == ["empty"]


GPU = Variable("gpu", "query", "label_values(mem, UUID)")


def test_a_variable_without_values_is_a_finding_and_so_are_its_panels() -> None:
    variable = UserQuery("d.json: variable gpu", GPU.query, variables=(GPU,))
    panel = UserQuery("d.json: P", 'same * on () mem{UUID=~"$gpu"}', variables=(GPU,))
    found = check_queries(OLD, NEW, variable, panel).queries
    assert [one.kind for one in found] == ["empty", "empty"]
    assert "label UUID is gone" in found[0].reason


def test_variables_of_variables_have_the_values_of_each_page() -> None:
    node = Variable("node", "query", "label_values(same, gpu)")
    gpu = Variable("gpu", "query", 'label_values(util{gpu="$node"}, gpu)')
    panel = UserQuery("d.json: P", 'same{gpu=~"${gpu:regex}"}', variables=(node, gpu))
    assert check_queries(OLD, NEW, panel).queries == []


def test_what_was_empty_before_is_only_counted() -> None:
    report = check(OLD, NEW, "never_there", "same")
    assert (report.empty_before, report.checked, report.failed) == (["r.yml: g: alert A0"], 2, False)


def test_without_queries_the_pages_decide() -> None:
    report = check_queries(OLD, NEW)
    subjects = [one.subject for one in report.metrics]
    assert "gone" in subjects
    assert "label pod of util" in subjects
    assert report.failed
    assert not check_queries(OLD, OLD).failed
    assert not check_queries("go_threads 1\nsame 1\n", "same 1\n").failed


def test_a_job_of_another_name_has_the_relabeling_that_keeps_it() -> None:
    report = check('a{job="dcgm"} 1\n', 'a{job="gpuledger"} 1\n', 'a{job="dcgm"}')
    kind, reason, _, _ = only(report)
    assert kind == "empty"
    assert 'job: "dcgm" against "gpuledger"' in reason
    assert "{targetLabel: job, replacement: dcgm}" in reason


def test_exported_labels_are_renamed_in_the_query_if_the_scrape_honors_labels() -> None:
    old = 'a{pod="exporter-1",exported_pod="train"} 1\n'
    report = check(old, 'a{pod="train"} 1\n', 'sum by (exported_pod) (a{exported_pod!=""})')
    assert only(report)[3] == 'sum by (pod) (a{pod!=""})'

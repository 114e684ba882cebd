"""What a move would change: each kind of finding, with its reason, settings and query."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.migrate.check import check_migration
from gpuledger.migrate.formats import FORMATS
from gpuledger.migrate.page import parse_page, with_target_labels
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
same{gpu="0",zone="b"} 1
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
        ("util * on (pod) util", "empty", "several series of the new page match one"),
        ("gone unless gone", "empty", "gone is not on the new page"),
        ("same unless gone", "part", "gone is not on the new page"),
        ("same unless on () gone", "fires", "gone is not on the new page"),
        ("sum(gone) or vector(0)", "part", "gone is not on the new page"),
        ("same > 1 or gone > 1", "part", "gone is not on the new page"),
        ("absent(same) or absent(gone)", "fires", "gone is not on the new page"),
        ("same / scalar(gone)", "part", "gone is not on the new page"),
        ('count({__name__=~"same|gone"})', "part", "gone is not on the new page"),
        ('{__name__="gone"}', "empty", "gone is not on the new page"),
        ("gone * on (pod) group_left (node) kube_pod_info", "empty", "gone is not on the new page"),
        ('gone{zone="a"}', "empty", "gone is not on the new page"),
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
        "count(mem)",
        "up == 0",
        "missing or same",
        'same{job="dcgm", instance=~"a.*"}',
        "same unless on (gpu) same == 0",
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
    assert any("the old page has no labels job" in note for note in report.notes)
    assert any("exported_pod: a scrape with honor_labels: false makes them" in note for note in report.notes)
    assert [one.kind for one in report.queries] == ["empty"]


GPU = Variable("gpu", "query", "label_values(mem, UUID)")


def test_a_variable_without_values_is_a_finding_and_so_are_its_panels() -> None:
    variable = UserQuery("d.json: variable gpu", GPU.query, variables=(GPU,), is_variable=True)
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


def test_a_variable_that_the_old_page_cannot_fill_accepts_everything() -> None:
    """Other exporters fill it, so panels that use it are still judged."""
    node = Variable("node", "query", "label_values(kube_node_info, node)")
    panel = UserQuery("d.json: P", 'gone{zone=~"$node"} or vector(1)', variables=(node,))
    assert [one.kind for one in check_queries(OLD, NEW, panel).queries] == ["part"]


def test_the_pattern_of_a_variable_takes_its_values() -> None:
    short = Variable("n", "query", "label_values(mem, node)", pattern=r"/^([^.]+)\..*/")
    panel = UserQuery("d.json: P", 'mem{node="$n.example"}', variables=(short,))
    (found,) = check_queries(OLD, NEW, panel).queries
    assert found.kind == "empty"


@pytest.mark.parametrize("variable", ["label_names()", "same", 'same{gpu="0"}', "metrics(sa.*)"])
def test_all_queries_of_grafana_are_read(variable: str) -> None:
    query = UserQuery("d.json: variable v", variable, variables=(), is_variable=True)
    assert check_queries(OLD, NEW, query).queries == []


def test_names_of_metrics_and_labels_may_be_variables() -> None:
    metric = Variable("metric", "custom", "same,gone", ("same", "gone"))
    label = Variable("label", "custom", "gpu", ("gpu",))
    queries = [
        UserQuery(f"d.json: {text}", text, variables=(metric, label))
        for text in ("$metric", 'gone{$label="0"}')
    ]
    assert [one.kind for one in check_queries(OLD, NEW, *queries).queries] == ["part", "empty"]


@pytest.mark.parametrize("query", ["same or gone", "same or same", "avg(same) or avg(gone)"])
def test_the_second_side_of_an_or_does_not_matter_where_the_first_has_all_series(query: str) -> None:
    text = 'same{gpu="0"} 1\n'
    assert check(text + 'gone{gpu="0"} 1\n', text, query).queries == []


def test_two_names_of_one_metric_replace_each_other() -> None:
    query = 'a{gpu="0"} or b{gpu="0"}'
    assert check('a{gpu="0"} 1\n', 'b{gpu="0"} 1\n', query, '{__name__=~"a|b"}').queries == []


def test_a_join_that_prometheus_refuses_on_the_new_page_is_empty() -> None:
    old, new = 'a{g="0"} 1\nb{g="0"} 1\n', 'a{g="0"} 1\nb{g="0",o="x"} 1\nb{g="0",o="y"} 1\n'
    assert only(check(old, new, "a * on (g) group_left () b"))[:2] == (
        "empty",
        "several series of the new page match one, and Prometheus refuses that",
    )
    # A filter may leave one of them.
    assert check(old, new, "a * on (g) group_left () (b > 5)", "b * on (g) group_left () a").queries == []


def test_metrics_with_one_reason_are_named_together() -> None:
    reason = only(check('a 1\nb{x="1"} 1\n', "c 1\n", "sum(a) + sum(b)"))[1]
    assert reason == "a, b are not on the new page: gpuledger has nothing of this name"


def test_alerts_about_up_follow_the_labels_of_the_scrapes() -> None:
    old, new = (
        with_target_labels(parse_page(b"a 1\n", "x"), {"job": job}, honor_labels=False)
        for job in ("dcgm", "gpuledger")
    )
    query = UserQuery("r.yml: g: alert Down", 'up{job="dcgm"} == 0')
    (found,) = check_migration(old, new, UserQueries([query])).queries
    assert found.kind == "empty"
    assert "{targetLabel: job, replacement: dcgm}" in found.reason


def test_what_the_old_page_does_not_have_is_named_as_not_judged() -> None:
    report = check(OLD, NEW, "missing")
    for write in FORMATS.values():
        assert "r.yml: g: alert A0" in write(report)


def test_metrics_that_appear_with_an_event_need_their_dialect() -> None:
    xids = "nvidia_smi_xid_errors_total > 0"
    kind, _, settings, _ = only(check("nvidia_smi_index 1\n", "gpuledger_device_up 1\n", xids))
    assert (kind, settings) == ("empty", ["--dialect smi"])
    assert check("nvidia_smi_index 1\n", "nvidia_smi_index 1\n", xids).queries == []


def wrapped(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    one = [
        "sum({})",
        "sum by (gpu) ({})",
        "-({})",
        "({}) > 5",
        "count_over_time(({})[1h:5m])",
        "topk(3, {})",
        "scalar({})",
        "absent({})",
        'label_replace({}, "x", "$1", "gpu", "(.*)")',
        "({}) unless same",
        "same unless ({})",
        "same * on () group_left () ({})",
        "missing * ({})",
        "sum({}) or vector(0)",
        "({}) offset 5m",
    ]
    return st.builds(str.format, st.sampled_from(one), inner)


@given(
    st.recursive(
        st.sampled_from(["gone", 'gone{gpu!="7"}', '{__name__=~"same|gone"}', '{"gone"}']),
        wrapped,
        max_leaves=4,
    )
)
def test_no_query_of_a_metric_that_is_gone_is_silent(query: str) -> None:
    assert [one.where for one in check(OLD, NEW, query).queries] == ["r.yml: g: alert A0"]

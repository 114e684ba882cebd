"""Queries with Grafana's variables are parsed, and written again as they were."""

from __future__ import annotations

import pytest

from gpuledger.migrate.promql import Rewriting, UnreadableQuery, parse_query, write_query


@pytest.mark.parametrize(
    "text",
    [
        "sum by (gpu) (rate(a[5m]))",
        "topk(3, a) / on (gpu) group_left (name) b",
        'a{gpu=~"$gpu", node="${node:regex}"} > bool 3',
        "rate(a[$__rate_interval])",
        "sum without (pod) (a unless b)",
        "a offset 5m and ignoring (x) b @ end()",
        'label_replace(a, "dst", "$1", "src", "(.*)")',
        "max_over_time(rate(a[${window}])[1h:5m] offset 1d)",
        'count_values("v", a)',
        "quantile by (gpu) (0.9, a)",
        "-a",
        "(a + b) * 2",
        'a{x="b" or y="c"}',
        "vector(1)",
        'absent(a{job="[[job]]"})',
        "histogram_quantile(0.9, sum by (le) (rate(a_bucket[5m])))",
        "rate(a[5m] offset 5m)",
        "a offset -1h30m",
        "a @ 1700000000",
        "rate(a[1d2h] @ start() offset 5m)",
        '{__name__=~"a.*", x!=""}',
        'a{x="q\\"uo\\nte\\\\"}',
    ],
)
def test_a_query_without_changes_keeps_its_meaning(text: str) -> None:
    written = write_query(parse_query(text), Rewriting())
    # The same to the parser, which writes each query in one form.
    assert _plain(written) == _plain(text)


def _plain(text: str) -> str:
    return str(parse_query(text).node.prettify())


def test_variables_come_back_as_they_were_written() -> None:
    text = 'rate(a{gpu=~"$gpu", node="${node:pipe}", job="[[job]]"}[$__rate_interval])'
    written = write_query(parse_query(text), Rewriting())
    for variable in ('"$gpu"', '"${node:pipe}"', '"[[job]]"', "[$__rate_interval]"):
        assert variable in written


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("topk($n, a)", {}),
        ("a > $limit", {"limit": "90"}),
        ("a * $__interval_ms", {}),
        ("$metric{gpu='0'}", {}),
        ("sum by ($group) (a)", {}),
        ("rate(a[${w}])", {}),
        ("rate(a[[[w]]])", {}),
        ("sum(rate(${metric}_total[5m]))", {}),
    ],
)
def test_variables_may_stand_for_numbers_names_labels_and_durations(
    text: str, numbers: dict[str, str]
) -> None:
    assert parse_query(text, numbers).node is not None


@pytest.mark.parametrize("text", ["", "sum(", "foo bar", "rollup_rate(a[5m])", "(" * 300 + "a" + ")" * 300])
def test_what_is_no_promql_is_one_line(text: str) -> None:
    with pytest.raises(UnreadableQuery) as caught:
        parse_query(text)
    assert "\n" not in str(caught.value)


CHANGES = Rewriting(
    label={"Hostname": "hostname"},
    metric={"mem": "mem_bytes", "joules": "mj"},
    factor={"mem": "/ 1048576", "joules": "* 1000"},
    matchers={"clock": {"kind": "sm"}},
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mem > 3", "(mem_bytes / 1048576) > 3"),
        ('mem{Hostname="a"}', '(mem_bytes{hostname="a"} / 1048576)'),
        ("rate(joules[5m])", "(rate(mj[5m]) * 1000)"),
        ("increase(joules[1h] offset 5m) / 2", "(increase(mj[1h] offset 5m) * 1000) / 2"),
        ("sum by (Hostname, gpu) (x)", "sum by (hostname, gpu) (x)"),
        ("x * on (gpu) group_left (Hostname) y", "x * on (gpu) group_left (hostname) y"),
        ("x == bool on (Hostname) y", "x == bool on (hostname) y"),
        ('x{Hostname="a" or gpu="b"}', 'x{hostname="a" or gpu="b"}'),
        (
            'label_replace(x, "n", "$1", "Hostname", "(.*)")',
            'label_replace(x, "n", "$1", "hostname", "(.*)")',
        ),
        ("clock", 'clock{kind="sm"}'),
        ("avg_over_time(mem[5m:1m])", "avg_over_time((mem_bytes / 1048576)[5m:1m])"),
    ],
)
def test_names_labels_and_units_are_rewritten(text: str, expected: str) -> None:
    written = write_query(parse_query(text), CHANGES)
    assert written == expected
    parse_query(written)

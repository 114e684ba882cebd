"""Which series queries return on a page, as Prometheus would."""

from __future__ import annotations

import pytest

from gpuledger.migrate.evaluation import ANY, Evaluation, SeriesStore
from gpuledger.migrate.page import parse_page
from gpuledger.migrate.promql import parse_query

PAGE = b"""
temp{gpu="0",node="a"} 50
temp{gpu="1",node="a"} 60
power{gpu="0",node="a",name="L4"} 70
info{gpu="0",node="a",model="L4",zone="x"} 1
count_bucket{le="1",gpu="0"} 1
count_bucket{le="+Inf",gpu="0"} 2
"""
STORE = SeriesStore.of_page(parse_page(PAGE, "page"), added=("job",))


def rows(query: str, **variables: tuple[str, ...] | None) -> list[dict[str, str]]:
    """The labels of the result, without the unknown job."""
    found = Evaluation(STORE, parse_query(query), variables).result()
    plain = [{name: text for name, text in row if text != ANY} for row in found]
    return sorted(plain, key=lambda row: sorted(row.items()))


@pytest.mark.parametrize(
    ("query", "gpus"),
    [
        ('temp{gpu="0"}', ["0"]),
        ('temp{gpu=~"0|1"}', ["0", "1"]),
        ('temp{gpu!="0"}', ["1"]),
        ('temp{gpu!~"0|1"}', []),
        ('temp{missing=""}', ["0", "1"]),
        ('temp{missing!=""}', []),
        ('temp{job="anything", gpu="1"}', ["1"]),
        ('temp{gpu=~"["}'.replace("[", "(?i)0"), ["0"]),
        ('{__name__=~"te.*", gpu="0"}', ["0"]),
        ('temp{gpu="0" or gpu="1"}', ["0", "1"]),
        ("temp > 90", ["0", "1"]),
        ("temp and power", []),
        ("temp and on (gpu) power", ["0"]),
        ("temp unless on (gpu) power", ["1"]),
        ("power or on (gpu) temp", ["0", "1"]),
        ("temp * on (gpu) group_left (model) info", ["0"]),
        ("info * on (gpu) group_right () temp", ["0"]),
        ("temp / ignoring (name) power", ["0"]),
        ("missing or temp", ["0", "1"]),
        ("missing + temp", []),
        ("rate(temp[5m])", ["0", "1"]),
        ("max_over_time(temp[1h:5m])", ["0", "1"]),
        ("topk(1, temp)", ["0", "1"]),
        ("temp * 2", ["0", "1"]),
        ("2 - temp", ["0", "1"]),
        ("-temp", ["0", "1"]),
        ("histogram_quantile(0.9, count_bucket)", ["0"]),
        ("sort_desc(temp)", ["0", "1"]),
    ],
)
def test_series_of_queries(query: str, gpus: list[str]) -> None:
    assert sorted({row["gpu"] for row in rows(query)}) == gpus


@pytest.mark.parametrize(
    ("query", "labels"),
    [
        ("sum(temp)", [{}]),
        ("sum by (node) (temp)", [{"node": "a"}]),
        ("sum by (absent) (temp)", [{}]),
        ("sum without (gpu) (temp)", [{"node": "a"}]),
        ("count(missing)", []),
        ("absent(temp)", []),
        ("absent(missing)", [{}]),
        ("vector(1)", [{}]),
        ("time()", [{}]),
        ("1 + 1", [{}]),
        ("missing or vector(0)", [{}]),
        ("temp * on (gpu) group_left (model) info", [{"gpu": "0", "node": "a", "model": "L4"}]),
        ("temp * on (gpu) info", [{"gpu": "0"}]),
        (
            'label_replace(info, "m", "x-$1", "model", "(L.)")',
            [{"__name__": "info", "gpu": "0", "node": "a", "model": "L4", "zone": "x", "m": "x-L4"}],
        ),
        (
            'label_join(power, "id", "/", "node", "gpu")',
            [{"__name__": "power", "gpu": "0", "node": "a", "name": "L4", "id": "a/0"}],
        ),
    ],
)
def test_labels_of_results(query: str, labels: list[dict[str, str]]) -> None:
    assert rows(query) == labels


def test_variables_match_their_values_and_unknown_ones_match_all() -> None:
    assert [row["gpu"] for row in rows('temp{gpu=~"$gpu"}', gpu=("1", "7"))] == ["1"]
    assert [row["gpu"] for row in rows('temp{gpu="$gpu"}', gpu=None)] == ["0", "1"]
    assert rows('temp{gpu=~"$gpu"}', gpu=()) == []
    assert [row["gpu"] for row in rows('$metric{gpu="0"}', metric=("temp",))] == ["0"]
    assert rows("sum by ($group) (temp)", group=("node",)) == [{"node": "a"}]


def test_exported_labels_are_copies_of_those_of_the_page() -> None:
    page = parse_page(b'a{pod="x"} 1\n', "page")
    store = SeriesStore.of_page(page, copied=("exported_pod",))
    found = Evaluation(store, parse_query('a{exported_pod="x"}'), {}).result()
    assert len(found) == 1

"""Several resources: whose nodes may be another's, whatever nodes there are."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.operator.overlap import Claim, overlaps
from gpuledger.operator.spec import GpuMonitor
from unit.operator.support import SIMPLE, Json, gpu_monitor, monitor_of

NODE = "requiredDuringSchedulingIgnoredDuringExecution"


def affine(*terms: list[Json]) -> Json:
    return {
        "affinity": {
            "nodeAffinity": {NODE: {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}}
        }
    }


def one(key: str, operator: str, *values: str) -> Json:
    return {"key": key, "operator": operator, "values": list(values)}


def monitors(*exporters: Json) -> list[GpuMonitor]:
    """By age: a, b, c."""
    found = [
        monitor_of(gpu_monitor({"exporter": exporter}, name))
        for name, exporter in zip("abc", exporters, strict=False)
    ]
    return [replace(monitor, created=f"2026-01-0{at + 1}") for at, monitor in enumerate(found)]


def refused(asked: list[GpuMonitor]) -> list[str]:
    return list(overlaps(map(Claim, asked)).refused)


A, B = {"nodeSelector": {"pool": "a"}}, {"nodeSelector": {"pool": "b"}}
PAIRS: list[tuple[str, Json, Json, bool]] = [
    ("no selector in either", {}, {}, True),
    ("one of two without a selector", {}, A, True),
    ("the same label", A, A, True),
    ("two values of one label", A, B, False),
    ("two labels", A, {"nodeSelector": {"zone": "a"}}, True),
    (
        "one of three labels differs",
        {"nodeSelector": {"pool": "a", "x": "1"}},
        {"nodeSelector": {"pool": "b", "x": "1"}},
        False,
    ),
    ("two of a set", affine([one("pool", "In", "a", "c")]), affine([one("pool", "In", "b", "c")]), True),
    ("two sets", affine([one("pool", "In", "a", "c")]), affine([one("pool", "In", "b", "d")]), False),
    ("a value and all others", A, affine([one("pool", "NotIn", "a")]), False),
    ("a value and those without another", A, affine([one("pool", "NotIn", "b")]), True),
    ("with a label and without", affine([one("gpu", "Exists")]), affine([one("gpu", "DoesNotExist")]), False),
    (
        "without a label, both",
        affine([one("gpu", "DoesNotExist")]),
        affine([one("gpu", "DoesNotExist")]),
        True,
    ),
    ("by number, apart", affine([one("n", "Gt", "4")]), affine([one("n", "Lt", "5")]), False),
    ("by number, with one between", affine([one("n", "Gt", "4")]), affine([one("n", "Lt", "6")]), True),
    (
        "that one excluded",
        affine([one("n", "Gt", "4"), one("n", "NotIn", "5")]),
        affine([one("n", "Lt", "6")]),
        False,
    ),
    ("one of several alternatives", affine([one("pool", "In", "a")], [one("zone", "In", "x")]), B, True),
    ("none of several", affine([one("pool", "In", "a")], [one("pool", "In", "c")]), B, False),
    ("a selector beside an affinity", {**A, **affine([one("zone", "Exists")])}, B, False),
]


@pytest.mark.parametrize(
    ("first", "second", "meet"), [case[1:] for case in PAIRS], ids=[case[0] for case in PAIRS]
)
def test_two_resources_may_choose_one_node(first: Json, second: Json, meet: bool) -> None:
    assert refused(monitors(first, second)) == (["GpuMonitor/b"] if meet else [])
    # Whichever is the older.
    assert refused(monitors(second, first)) == (["GpuMonitor/b"] if meet else [])


def test_the_older_keeps_its_nodes_in_whatever_order_they_come() -> None:
    older, younger = monitors({}, {})
    for listed in ([older, younger], [younger, older]):
        assert overlaps(map(Claim, listed)).refused == {
            "GpuMonitor/b": "may choose the same nodes as GpuMonitor a, which is older; set "
            "spec.exporter.nodeSelector in both, with different values of one label"
        }


def test_who_is_refused_refuses_nobody() -> None:
    """b has no nodes, because a has them; so c, which is apart from a, may have b's."""
    a, b, c = monitors(
        A, {"nodeSelector": {"pool": "a", "zone": "x"}}, {"nodeSelector": {"zone": "x", "pool": "c"}}
    )
    assert refused([a, b, c]) == ["GpuMonitor/b"]


def test_what_runs_keeps_its_nodes_while_something_else_is_asked_for() -> None:
    (older, younger) = monitors(A, B)
    (elsewhere,) = monitors({"nodeSelector": {"pool": "c"}})
    assert list(overlaps([Claim(elsewhere, older), Claim(replace(younger, exporter=older.exporter))]).refused)
    # Of a specification that cannot be read, only what runs is known.
    assert list(overlaps([Claim(None, older), Claim(replace(younger, exporter=older.exporter))]).refused)


def test_what_runs_is_ousted_by_older_ones_that_run_and_by_nothing_that_is_only_asked_for() -> None:
    (older, younger) = monitors(A, B)
    wide = replace(older, exporter=monitors({})[0].exporter)
    asked = overlaps([Claim(wide, older), Claim(younger, younger)])
    assert (list(asked.refused), asked.ousted) == (["GpuMonitor/b"], set())
    applied = overlaps([Claim(wide, wide), Claim(younger, younger)])
    assert (list(applied.refused), applied.ousted) == (["GpuMonitor/b"], {"GpuMonitor/b"})


def test_two_that_exchange_their_nodes_come_to_it() -> None:
    """The older moves first, and the younger, which goes on until then, after it."""
    (older, younger) = monitors(A, B)
    a, b = replace(older, exporter=younger.exporter), replace(younger, exporter=older.exporter)
    before = overlaps([Claim(a, older), Claim(b, younger)])
    assert (list(before.refused), before.ousted) == (["GpuMonitor/b"], set())
    after = overlaps([Claim(a, a), Claim(b, younger)])
    assert (list(after.refused), after.ousted) == ([], {"GpuMonitor/b"})


def test_who_is_ousted_has_no_nodes() -> None:
    wide, young, youngest = monitors({}, B, {"nodeSelector": {"pool": "b", "zone": "x"}})
    narrow = replace(wide, exporter=monitors(A)[0].exporter)
    both = overlaps([Claim(narrow, wide), Claim(young, young), Claim(youngest)])
    assert both.ousted == {"GpuMonitor/b"}
    assert list(both.refused) == ["GpuMonitor/b", "GpuMonitor/c"]


def test_without_exporters_there_is_nothing_to_overlap() -> None:
    assert refused(monitors({}, {"enabled": False})) == []


def test_a_whatap_agent_and_a_gpu_monitor_of_one_name_are_two() -> None:
    whatap = replace(monitor_of(SIMPLE), created="2026-02-01")
    (ours,) = [replace(one, name="whatap") for one in monitors({})]
    assert refused([whatap, ours]) == ["WhatapAgent/whatap"]


# Every node that may be, with two labels of a few values each: what the rules say is held against it.
KEYS, VALUES = ("x", "y"), ("1", "2", "3", "a")
NODES = [
    {key: value for key, value in zip(KEYS, values, strict=True) if value is not None}
    for values in product((*VALUES, "other", None), repeat=len(KEYS))
]
_requirement = st.one_of(
    st.builds(
        lambda key, operator, values: {"key": key, "operator": operator, "values": values},
        st.sampled_from(KEYS),
        st.sampled_from(["In", "NotIn"]),
        st.lists(st.sampled_from(VALUES), min_size=1, max_size=2),
    ),
    st.builds(
        lambda key, operator: {"key": key, "operator": operator},
        st.sampled_from(KEYS),
        st.sampled_from(["Exists", "DoesNotExist"]),
    ),
)
_exporter = st.builds(
    lambda selector, terms: {"nodeSelector": selector, **(affine(*terms) if terms else {})},
    st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), min_size=1, max_size=1),
    st.lists(st.lists(_requirement, min_size=1, max_size=2), max_size=2),
)


def chooses(exporter: Json, node: Json) -> bool:
    if any(node.get(key) != value for key, value in exporter["nodeSelector"].items()):
        return False
    if "affinity" not in exporter:
        return True
    terms: list[Any] = exporter["affinity"]["nodeAffinity"][NODE]["nodeSelectorTerms"]
    return any(all(holds(each, node) for each in term["matchExpressions"]) for term in terms)


def holds(requirement: Json, node: Json) -> bool:
    there = node.get(requirement["key"])
    return {
        "In": there in requirement.get("values", ()),
        "NotIn": there not in requirement.get("values", ()),
        "Exists": there is not None,
        "DoesNotExist": there is None,
    }[requirement["operator"]]


@settings(deadline=None, max_examples=150)
@given(_exporter, _exporter)
def test_they_overlap_exactly_when_some_node_would_have_two(first: Json, second: Json) -> None:
    two = any(chooses(first, node) and chooses(second, node) for node in NODES)
    assert bool(refused(monitors(first, second))) is two

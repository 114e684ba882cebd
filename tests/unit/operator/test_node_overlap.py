"""Resources that can select the same nodes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.operator.node_overlap import NodeClaim, find_overlaps
from gpuledger.operator.spec import GpuMonitor
from unit.operator.support import SIMPLE, Json, gpu_monitor, valid_monitor

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
    """Monitors a, b, c; a is the oldest."""
    found = [
        valid_monitor(gpu_monitor({"exporter": exporter}, name))
        for name, exporter in zip("abc", exporters, strict=False)
    ]
    return [replace(monitor, created=f"2026-01-0{at + 1}") for at, monitor in enumerate(found)]


def rejected(monitors: list[GpuMonitor]) -> list[str]:
    return list(find_overlaps(map(NodeClaim, monitors)).rejected)


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
def test_two_resources_can_select_the_same_node(first: Json, second: Json, meet: bool) -> None:
    assert rejected(monitors(first, second)) == (["GpuMonitor/b"] if meet else [])
    # The younger one is rejected, whichever it is.
    assert rejected(monitors(second, first)) == (["GpuMonitor/b"] if meet else [])


def test_the_older_resource_keeps_its_nodes_in_any_order() -> None:
    older, younger = monitors({}, {})
    for listed in ([older, younger], [younger, older]):
        assert find_overlaps(map(NodeClaim, listed)).rejected == {
            "GpuMonitor/b": "can select the same nodes as GpuMonitor a, which is older; set "
            "spec.exporter.nodeSelector in both, with different values of one label"
        }


def test_a_rejected_resource_claims_no_nodes() -> None:
    """b is rejected because of a, so c, which overlaps only with b, is accepted."""
    a, b, c = monitors(
        A, {"nodeSelector": {"pool": "a", "zone": "x"}}, {"nodeSelector": {"zone": "x", "pool": "c"}}
    )
    assert rejected([a, b, c]) == ["GpuMonitor/b"]


def test_running_exporters_keep_their_nodes_after_a_new_spec() -> None:
    (older, younger) = monitors(A, B)
    (elsewhere,) = monitors({"nodeSelector": {"pool": "c"}})
    assert list(
        find_overlaps(
            [NodeClaim(elsewhere, older), NodeClaim(replace(younger, exporter=older.exporter))]
        ).rejected
    )
    # Of an invalid spec, only the running exporters count.
    assert list(
        find_overlaps([NodeClaim(None, older), NodeClaim(replace(younger, exporter=older.exporter))]).rejected
    )


def test_only_running_exporters_of_an_older_resource_displace_exporters() -> None:
    (older, younger) = monitors(A, B)
    wide = replace(older, exporter=monitors({})[0].exporter)
    requested = find_overlaps([NodeClaim(wide, older), NodeClaim(younger, younger)])
    assert (list(requested.rejected), requested.displaced) == (["GpuMonitor/b"], set())
    applied = find_overlaps([NodeClaim(wide, wide), NodeClaim(younger, younger)])
    assert (list(applied.rejected), applied.displaced) == (["GpuMonitor/b"], {"GpuMonitor/b"})


def test_two_resources_can_swap_their_nodes() -> None:
    """The older one moves first; the younger one keeps running until then and moves afterwards."""
    (older, younger) = monitors(A, B)
    a, b = replace(older, exporter=younger.exporter), replace(younger, exporter=older.exporter)
    before = find_overlaps([NodeClaim(a, older), NodeClaim(b, younger)])
    assert (list(before.rejected), before.displaced) == (["GpuMonitor/b"], set())
    after = find_overlaps([NodeClaim(a, a), NodeClaim(b, younger)])
    assert (list(after.rejected), after.displaced) == ([], {"GpuMonitor/b"})


def test_displaced_exporters_claim_no_nodes() -> None:
    wide, young, youngest = monitors({}, B, {"nodeSelector": {"pool": "b", "zone": "x"}})
    narrow = replace(wide, exporter=monitors(A)[0].exporter)
    both = find_overlaps([NodeClaim(narrow, wide), NodeClaim(young, young), NodeClaim(youngest)])
    assert both.displaced == {"GpuMonitor/b"}
    assert list(both.rejected) == ["GpuMonitor/b", "GpuMonitor/c"]


def test_resources_without_exporters_do_not_overlap() -> None:
    assert rejected(monitors({}, {"enabled": False})) == []


def test_a_whatap_agent_and_a_gpu_monitor_of_the_same_name_are_different() -> None:
    whatap = replace(valid_monitor(SIMPLE), created="2026-02-01")
    (ours,) = [replace(one, name="whatap") for one in monitors({})]
    assert rejected([whatap, ours]) == ["WhatapAgent/whatap"]


# All possible nodes with two labels of a few values each, as the reference for the rules.
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


def selects(exporter: Json, node: Json) -> bool:
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


@given(_exporter, _exporter)
def test_resources_overlap_exactly_if_both_select_some_possible_node(first: Json, second: Json) -> None:
    overlap = any(selects(first, node) and selects(second, node) for node in NODES)
    assert bool(rejected(monitors(first, second))) is overlap

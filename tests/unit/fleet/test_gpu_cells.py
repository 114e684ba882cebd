"""Snapshots of nodes as cells: of this version, of others, and of what is no node."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.fleet.gpu_cells import MOST_CELLS, GpuCell, parse_node_report
from gpuledger.fleet.node_client import NodeRequestFailed
from unit.fleet.support import body
from unit.terminal.support import GIB, device, holder


def cells(*devices: dict[str, Any]) -> tuple[GpuCell, ...]:
    return parse_node_report(body("gpu-1", *devices)).cells


@pytest.mark.parametrize(
    ("state", "shown"),
    [("idle", "free"), ("held", "held"), ("active", "active"), ("unknown", "unknown"), (None, "unknown")],
)
def test_states_have_the_words_of_people(state: str | None, shown: str) -> None:
    assert [cell.state for cell in cells(device(state=state))] == [shown]
    assert [cell.state for cell in cells(device(state=state, up=False))] == ["down"]


def test_a_gpu_with_instances_is_its_instances() -> None:
    parent = device("1", holds_processes=False, state=None)
    found = cells(parent, device("1", "2_0"), device("1", "3_0"))
    assert [(cell.gpu, cell.instance) for cell in found] == [("1", "2_0"), ("1", "3_0")]
    assert [cell.state for cell in cells({**parent, "up": False})] == ["down"]


@pytest.mark.parametrize(
    ("owner", "name", "group"),
    [
        ({"namespace": "ml", "pod": "train-0"}, "ml/train-0", "ml"),
        ({"job": "4711", "user": "dan"}, "job 4711 (dan)", "dan"),
        ({"container": "nb"}, "nb", "nb"),
        ({"user": "ann"}, "ann", "ann"),
        ({}, "unknown owner", "unknown owner"),
    ],
)
def test_owners_have_a_name_and_a_group(owner: dict[str, str], name: str, group: str) -> None:
    (cell,) = cells(device(owners=[holder(**owner), holder(present=False, user="gone")]))
    assert [(one.name, one.group) for one in cell.owners] == [(name, group)]


def test_absent_values_are_absent_not_zero() -> None:
    bare = {"uuid": "GPU-1", "gpu": "0", "state": "idle"}
    (cell,) = cells(bare)
    assert (cell.memory_total, cell.utilization, cell.power, cell.processes) == (None,) * 4
    assert cells(device(memory_used_bytes=0))[0].memory_used == 0
    assert cells(device(memory_total_bytes=80 * GIB))[0].memory_total == 80 * GIB


@pytest.mark.parametrize("wrong", ["12", True, float("nan"), -1, float("inf"), [], 10**400])
def test_a_wrong_value_costs_that_value_only(wrong: object) -> None:
    (cell,) = cells(device(memory_used_bytes=wrong, utilization_ratio=wrong, power_watts=wrong))
    assert (cell.memory_used, cell.utilization, cell.power) == (None, None, None)
    assert cell.state == "free"


def test_one_malformed_device_costs_only_itself() -> None:
    assert len(cells(device("0"), 7, None, device("1"))) == 2  # type: ignore[arg-type]


def test_names_are_cut_and_printable() -> None:
    (cell,) = cells(device(name="H\x1b[2J" + "x" * 5000, owners=[holder(user="a\nb\x00")]))
    assert len(cell.model) <= 128
    assert "\x1b" not in cell.model
    assert "\n" not in cell.owners[0].name
    assert "\x00" not in cell.owners[0].name


def test_more_devices_than_a_node_has_are_cut_and_that_is_known() -> None:
    found = parse_node_report(body("x", *(device(str(number)) for number in range(MOST_CELLS + 1))))
    assert (len(found.cells), found.complete) == (MOST_CELLS, False)


@pytest.mark.parametrize("version", ["v2", "v0", None, 1])
def test_another_version_of_the_api_is_named_with_the_remedy(version: object) -> None:
    with pytest.raises(NodeRequestFailed, match="upgrade the older one") as refused:
        parse_node_report(body(version=version))
    assert refused.value.kind == "version"


@pytest.mark.parametrize("content", [[], "x", None, {"version": "v1"}, {"version": "v1", "devices": {}}])
def test_what_is_no_snapshot_is_no_gpuledger(content: object) -> None:
    with pytest.raises(NodeRequestFailed) as refused:
        parse_node_report(content)
    assert refused.value.kind in ("foreign", "version")


@pytest.mark.parametrize("changes", [{"readings": False}, {"paused": True}])
def test_a_node_that_reads_nothing_says_why(changes: dict[str, bool]) -> None:
    made = body()
    made["status"] = {**made["status"], "text": "paused by root", **changes}
    assert parse_node_report(made).trouble == "paused by root"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*device(), "availability", "problems"]), JSON), JSON)
def test_any_device_is_a_cell_or_none(changes: dict[str, Any], status: Any) -> None:
    found = parse_node_report({**body("x", {**device(), **changes}), "status": status})
    assert len(found.cells) <= 1

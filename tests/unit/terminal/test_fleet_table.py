"""A fleet in the terminal: free GPUs first, one symbol for each GPU, who holds most, what is missing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.model.errors import GpuledgerError
from gpuledger.terminal.fleet_picture import FleetPicture, parse_fleet
from gpuledger.terminal.fleet_table import fleet_lines, is_shown
from gpuledger.terminal.layout import ASCII, UNICODE, plain_text, width_of
from unit.terminal.support import GIB, NOW


def cell(gpu: str = "0", state: str = "free", *owners: str, **more: Any) -> dict[str, Any]:
    return {
        "uuid": f"GPU-{gpu}",
        "gpu": gpu,
        "instance": "",
        "model": "NVIDIA H100",
        "profile": "",
        "state": state,
        "free_now": state == "free",
        "memory_total_bytes": 80 * GIB,
        "owners": [{"name": f"{name}/x", "group": name, "held_seconds": 60} for name in owners],
        **more,
    }


def node(name: str, *cells: dict[str, Any], reason: str = "", **more: Any) -> dict[str, Any]:
    up = {"up": not reason, "reason": reason, "since": NOW - 90 if reason else None}
    return {"key": f"http://{name}:9400", "name": name, "gpus": list(cells), **up, **more}


def fleet(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"version": "v1", "now": NOW, "keys": [one["key"] for one in nodes], "nodes": list(nodes), **more}


LAB = fleet(
    node("gpu-1", cell("0"), cell("1", "held", "ann"), cell("2", "active", "ann", "bob")),
    node("gpu-2", cell("0"), cell("1", "down"), cell("2", memory_total_bytes=24 * GIB, model="NVIDIA A10")),
    node("gpu-3", cell("0", "unknown"), reason="no complete answer within 5 s"),
    week={
        "idle_gpu_microseconds": 7_200_000_000,
        "idle_cost": "5.00",
        "held_gpu_seconds": 3600,
        "held_cost": None,
        "currency": "EUR",
        "nodes": 2,
    },
)


def text(body: dict[str, Any] = LAB, *words: str, width: int | None = None) -> list[str]:
    lines = fleet_lines(parse_fleet(body), words, "http://lab:9410", width, UNICODE)
    return [plain_text(line) for line in lines]


def test_the_whole_view() -> None:
    found = text()
    assert found[0].endswith("http://lab:9410 \u00b7 3 nodes 1 not read")
    assert (
        found[1]
        == "3 free now of 7 GPUs \u00b7 1 idle but allocated \u00b7 1 active \u00b7 1 down \u00b7 1 unknown"
    )
    assert found[2] == (
        "this week (2 of 3 nodes): idle 2.0 GPU-hours, 5.00 EUR \u00b7 allocated, unused 1.0 GPU-hours"
    )
    free = found.index("Free now")
    assert found[free + 2].split() == ["H100", "80.0G", "2", "of", "6", "gpu-1:", "0", "gpu-2:", "0"]
    assert found[free + 3].split()[:5] == ["A10", "24.0G", "1", "of", "1"]
    rows = found[found.index("Nodes") + 2 :][:3]
    assert rows[0].split() == ["gpu-1", "\u25cb\u25d0\u25cf", "1"]
    assert rows[2].split(None, 3)[3] == "no complete answer within 5 s, for 1m30s"
    holders = [line.split() for line in found[found.index("Who holds most") + 2 :][:2]]
    assert holders == [
        ["ann", "2", "1", "1", "2", "x", "H100"],
        ["bob", "1", "1", "0", "1", "x", "H100"],
    ]


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (("state:free",), 3),
        (("!state:free",), 4),
        (("node:gpu-1",), 3),
        (("gpu-1", "ann"), 2),
        (("owner:bob",), 1),
        (("model:a10",), 1),
        (("h100", "!ann"), 4),
        (("gpu:2",), 2),
        (("nothing",), 0),
        (("!",), 0),
    ],
)
def test_words_filter_gpus_by_any_field(words: tuple[str, ...], count: int) -> None:
    assert sum(is_shown(gpu, words) for gpu in parse_fleet(LAB).gpus) == count


def test_a_filter_hides_nodes_without_a_match() -> None:
    found = text(LAB, "node:gpu-2")
    assert not any(line.startswith("gpu-1") for line in found)
    assert "filter: node:gpu-2" in found[1]


def test_without_a_free_gpu_that_is_said() -> None:
    found = text(fleet(node("a", cell("0", "active", "ann"))))
    assert found[found.index("Free now") + 1].strip() == "none"


def test_an_unused_gpu_that_is_reserved_is_not_free() -> None:
    found = text(fleet(node("a", cell("0", free_now=False, reserved_by="ann"))))
    assert found[1] == "0 free now of 1 GPUs (1 unused, not available)"


def test_lists_and_simulated_nodes_are_notes() -> None:
    found = text(fleet(node("a", simulated=True), lists=[{"error": "no such file"}, {"error": ""}]))
    assert found[-2:] == ["no such file", "Simulated data: a"]
    found = text(fleet(*(node(name, simulated=True) for name in "abcdef")))
    assert found[-1] == "Simulated data: a, b, c, d, e and 1 more"


@pytest.mark.parametrize("width", [20, 40, 79, 200])
def test_no_line_of_the_tables_is_wider_than_the_terminal(width: int) -> None:
    lines = fleet_lines(parse_fleet(LAB), (), "http://lab:9410", width, ASCII)
    assert all(width_of(line) <= width for line in lines)


def test_names_cannot_move_the_cursor() -> None:
    evil = "\x1b[2J\u202egpu"
    found = text(fleet(node(evil, cell("0", "held", evil, model=evil), reason=evil)))
    assert "\x1b" not in "".join(found)
    assert "\u202e" not in "".join(found)


@pytest.mark.parametrize(
    "body", [[], {}, {"version": "v2", "nodes": []}, {"version": "v1"}, {**LAB, "nodes": [1]}]
)
def test_what_is_no_fleet_is_one_error(body: Any) -> None:
    with pytest.raises(GpuledgerError):
        parse_fleet(body)


def test_a_gpu_of_a_node_that_is_not_read_is_unknown_whatever_is_sent() -> None:
    (gpu,) = parse_fleet(fleet(node("a", cell("0"), reason="gone"))).gpus
    assert (gpu.state, gpu.free_now) == ("unknown", False)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=5,
)


@given(
    st.dictionaries(st.sampled_from([*cell(), "power_watts"]), JSON),
    st.dictionaries(st.sampled_from([*node("a")]), JSON),
)
def test_any_answer_is_a_picture_or_an_error(of_cell: dict[str, Any], of_node: dict[str, Any]) -> None:
    body = fleet({**node("a", {**cell(), **of_cell}), **of_node, "key": "http://a:9400"})
    try:
        picture = parse_fleet(body)
    except GpuledgerError:
        return
    assert isinstance(picture, FleetPicture)
    fleet_lines(picture, (), "lab", 80, UNICODE)


def test_nodes_of_one_name_are_distinguished_by_their_addresses() -> None:
    """Such as cloned machines: their free GPUs were listed as those of one node."""
    ports = {f"http://[::1]:{port}": cell(f"{port}") for port in (9401, 9402)}
    lab = fleet(*(node("vm", gpu, key=key) for key, gpu in ports.items()), node("gpu-3", cell("3")))
    names = ["vm ([::1]:9401)", "vm ([::1]:9402)", "gpu-3"]
    picture = parse_fleet(lab)
    assert [one.name for one in picture.nodes] == [gpu.node for gpu in picture.gpus] == names
    (line,) = (line for line in text(lab) if "vm ([::1]:9401): 9401  vm ([::1]:9402): 9402" in line)
    assert "gpu-3: 3" in line

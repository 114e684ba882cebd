"""Lists of nodes in files: lines, and the format of Prometheus."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gpuledger.fleet.lists.node_list import (
    AddressDefaults,
    FileNodes,
    GivenNodes,
    InvalidEntries,
    parse_node_lines,
    parse_target_groups,
)
from gpuledger.model.errors import UsageError

DEFAULTS = AddressDefaults()
LINES = """
# the lab
gpu-1
https://gpu-2:9443   big one
http://ann:x@gpu-3   # a login

"""
GROUPS = """
- targets: ["gpu-1:9400", "gpu-2"]
  labels: {job: gpu}
- targets: [10.0.0.3]
  labels: {node: big, page: "https://gw/big", __scheme__: https}
"""


def test_lines_are_addresses_with_names_and_comments() -> None:
    found = parse_node_lines(LINES, "nodes", DEFAULTS)
    assert [(one.url, one.name, one.login) for one in found] == [
        ("http://gpu-1:9400", "", ""),
        ("https://gpu-2:9443", "big one", ""),
        ("http://gpu-3:80", "", "ann:x"),
    ]


def test_a_wrong_line_is_named() -> None:
    with pytest.raises(UsageError, match=r"^nodes, line 2: expected a URL"):
        parse_node_lines("gpu-1\nftp://x\n", "nodes", DEFAULTS)


@pytest.mark.parametrize(
    ("parse", "text", "hosts", "named"),
    [
        (parse_node_lines, "gpu-1\nftp://x\ngpu-2\ngpu-3:x\n", ["gpu-1", "gpu-2"], ["line 2", "line 4"]),
        (parse_target_groups, '[{"targets": ["gpu-1", "a b", null, "gpu-2"]}]', ["gpu-1", "gpu-2"], ["a b"]),
        (parse_target_groups, '[{"targets": 4}, 5, {"targets": ["gpu-1"]}]', ["gpu-1"], ["list of targets"]),
        (
            parse_target_groups,
            '[{"targets": ["x"], "labels": {"__scheme__": "ftp"}}, {"targets": ["gpu-1"]}]',
            ["gpu-1"],
            ["__scheme__"],
        ),
        (parse_node_lines, "gpu-1\n" + "ftp://x\n" * 9, ["gpu-1"], ["line 2", "and 6 more"]),
    ],
)
def test_a_wrong_entry_costs_no_other_and_each_is_named(
    parse: Any, text: str, hosts: list[str], named: list[str]
) -> None:
    with pytest.raises(InvalidEntries) as refused:
        parse(text, "nodes", DEFAULTS)
    assert [one.host for one in refused.value.nodes] == hosts
    assert all(part in str(refused.value) for part in named)


def test_groups_are_those_of_file_sd() -> None:
    found = parse_target_groups(GROUPS, "nodes.yml", DEFAULTS)
    assert [(one.url, one.name, one.page) for one in found] == [
        ("http://gpu-1:9400", "", ""),
        ("http://gpu-2:9400", "", ""),
        ("https://10.0.0.3:9400", "big", "https://gw/big"),
    ]


@pytest.mark.parametrize("text", ["[]", "", "\n", "null"])
def test_an_empty_list_has_no_nodes(text: str) -> None:
    assert parse_target_groups(text, "x", DEFAULTS) == []


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[1]",
        '[{"labels": {}}]',
        '[{"targets": "gpu-1"}]',
        '[{"targets": [], "labels": []}]',
        "[",
        "- targets: [a]\n  labels: {__scheme__: ftp}",
        '[{"targets": ["a b"]}]',
        '[{"targets": [null]}]',
        "[\n" * 5000,
    ],
)
def test_other_documents_are_one_error_that_names_the_file(text: str) -> None:
    with pytest.raises(UsageError, match=r"^nodes\.json") as refused:
        parse_target_groups(text, "nodes.json", DEFAULTS)
    assert "\n" not in str(refused.value)


def test_more_nodes_than_one_process_reads_are_refused() -> None:
    with pytest.raises(UsageError, match="10,001 nodes"):
        parse_node_lines("gpu\n" * 10_001, "nodes", DEFAULTS)


def test_a_file_is_read_again_each_time(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    nodes = FileNodes(file, DEFAULTS)
    with pytest.raises(UsageError, match="cannot read the list of nodes"):
        asyncio.run(nodes.read_nodes())
    file.write_text("gpu-1\n")
    assert [one.host for one in asyncio.run(nodes.read_nodes())] == ["gpu-1"]
    file.write_text("gpu-2\n")
    assert [one.host for one in asyncio.run(nodes.read_nodes())] == ["gpu-2"]
    file.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        asyncio.run(nodes.read_nodes())


def test_the_name_of_a_file_says_its_format(tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"
    file.write_text('[{"targets": ["gpu-1"]}]')
    assert [one.host for one in asyncio.run(FileNodes(file, DEFAULTS).read_nodes())] == ["gpu-1"]


def test_nodes_of_flags_are_checked_at_the_start() -> None:
    with pytest.raises(UsageError, match=r"^--node.*gpu 1.*--node.*gpu 3"):
        GivenNodes(["gpu 1", "gpu-2", "gpu 3"], DEFAULTS)

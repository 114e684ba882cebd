"""YAML of users: what PyYAML accepts and this program refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuledger.agent.config.agent_config import read_agent_config
from gpuledger.config.commands import ALL_GROUPS
from gpuledger.config.load import load_values
from gpuledger.fleet.lists.node_list import AddressDefaults, FileNodes
from gpuledger.host.yaml_documents import DuplicateKey, parse_yaml, read_yaml
from gpuledger.http.web_config.parser import read_web_config
from gpuledger.kubernetes.cluster_access import read_kubeconfig
from gpuledger.model.errors import GpuledgerError
from gpuledger.operator.render_context import read_operator_file
from gpuledger.sources.simulator.scenario_parser import load_scenario

READERS = {
    "config": lambda file: load_values(ALL_GROUPS, {}, {}, file),
    "web config": read_web_config,
    "agent": lambda file: read_agent_config(file, {}),
    "operator": read_operator_file,
    "kubeconfig": read_kubeconfig,
    "scenario": lambda file: load_scenario(str(file)),
    "nodes": lambda file: FileNodes(file, AddressDefaults()).read_file(),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a: 1\nb: 2\na: 3\n", "a is given twice, in lines 1 and 3"),
        ("prices: {ada: x, bob: y, ada: z}", "prices.ada is given twice, in lines 1 and 1"),
        ("a:\n- b: 1\n- {c: 1,\n  'c': 2}\n", "a[1].c is given twice, in lines 3 and 4"),
        ('a: 1\n"a": 1\n', "a is given twice, in lines 1 and 2"),
        ('"x\\ny": 1\n"x\\ny": 2\n', "'x\\ny' is given twice, in lines 1 and 2"),
    ],
)
def test_every_reader_refuses_equal_keys_by_name_and_line(
    reader: str, text: str, where: str, tmp_path: Path
) -> None:
    """PyYAML would take the last value: a second user of the same name, or a second price, silently."""
    file = tmp_path / "file.yaml"
    file.write_text(text)
    with pytest.raises(GpuledgerError) as caught:
        READERS[reader](file)
    assert str(file) in str(caught.value)
    assert where in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # Keys of different types, or of different mappings.
        ("1: a\n'1': b\n", {1: "a", "1": "b"}),
        ("a: {x: 1}\nb: {x: 1}\n", {"a": {"x": 1}, "b": {"x": 1}}),
        # An own key wins over a merged one, and several mappings may be merged.
        ("a: &a {x: 1}\nb: &b {y: 1}\nc: {<<: *a, x: 2, <<: *b}\n", {"x": 2, "y": 1}),
    ],
)
def test_keys_that_are_not_equal_are_kept(text: str, value: Any) -> None:
    found = parse_yaml(text)
    assert found.get("c", found) == value


@pytest.mark.parametrize("quickly", [False, True])
def test_both_parsers_know_the_lines_of_equal_keys(quickly: bool) -> None:
    with pytest.raises(DuplicateKey, match=r"^x\.y is given twice, in lines 2 and 3$"):
        parse_yaml("x:\n  y: 1\n  y: 2\n", quickly=quickly)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("0500", "0500"),
        ("-010", "-010"),
        ("1:30", "1:30"),
        ("1:30:00.5", "1:30:00.5"),
        ("2026-11-30", "2026-11-30"),
        ("2001-99-99", "2001-99-99"),
        ("0", 0),
        ("500", 500),
        ("0.5", 0.5),
        ("0x10", 16),
        ("08", "08"),
    ],
)
def test_no_file_has_numbers_to_another_base_that_look_like_decimal_ones(written: str, value: object) -> None:
    assert parse_yaml(f"a: [{written}]") == {"a": [value]}


@pytest.mark.parametrize(
    ("written", "seconds"), [("0500", 500.0), ("010", 10.0), ("1:30", None), ("0:30", None)]
)
def test_a_duration_with_a_leading_zero_is_decimal_and_one_with_a_colon_refused(
    tmp_path: Path, written: str, seconds: float | None
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"interval: {written}\n")
    if seconds is None:
        with pytest.raises(GpuledgerError, match=r"interval: expected a duration such as .*, not '\d:30'"):
            load_values(ALL_GROUPS, {}, {}, file)
    else:
        assert load_values(ALL_GROUPS, {}, {}, file)["interval"] == seconds


def test_every_file_of_values_has_the_digits_that_were_written(tmp_path: Path) -> None:
    """Names of nodes, times of scenarios, and labels that `agent --engine prometheus` copies."""
    file = tmp_path / "file.yaml"
    file.write_text("- {targets: ['gpu-1:9400'], labels: {node: 010}}\n")
    assert [node.name for node in FileNodes(file, AddressDefaults()).read_file()] == ["010"]
    file.write_text("gpus: [{processes: [{name: python3, start: 010, stop: 0:30}]}]\n")
    with pytest.raises(GpuledgerError, match=r"stop: expected a duration"):
        load_scenario(str(file))
    file.write_text("gpus: [{processes: [{name: python3, start: 010}]}]\n")
    assert load_scenario(str(file)).processes[0].start == 10_000_000
    file.write_text("global: {external_labels: {rack: 010, at: 1:30}}\n")
    assert read_yaml(file)["global"]["external_labels"] == {"rack": "010", "at": "1:30"}

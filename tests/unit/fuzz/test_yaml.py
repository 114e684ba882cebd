"""Fuzz tests of user-written files: each is read and usable, or rejected with an error of one line."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import (
    bounded,
    check_line,
    check_snapshot,
    check_text,
    corpus_files,
    fuzzed,
    memory_below,
    mutated_files,
)
from gpuledger.agent.config.agent_config import read_agent_config
from gpuledger.config.collectors import read_collectors
from gpuledger.config.commands import ALL_GROUPS
from gpuledger.config.load import load_values
from gpuledger.dialects.dcgm.collectors import parse_collectors
from gpuledger.host.yaml_documents import InvalidYaml, parse_yaml
from gpuledger.http.web_config.parser import read_web_config
from gpuledger.kubernetes.cluster_access import read_kubeconfig
from gpuledger.model.errors import GpuledgerError, SourceUnavailable
from gpuledger.model.settings import build_settings
from gpuledger.operator.render_context import read_operator_file
from gpuledger.sources.simulator.scenario_parser import load_scenario
from unit.sources.simulator.support import ALL, Node

WORDS = (
    *(b": ", b"- ", b"  ", b"&a ", b"*a", b"<<: *a", b"!!int ", b"!!bool x", b"!!timestamp x", b"!!binary x"),
    *(
        b"2001-99-99",
        b'"\\UFFFFFFFF"',
        b'"\\ud800"',
        b'"\\0"',
        b"0b",
        b"1:99",
        b".nan",
        b".inf",
        b"? ",
        b"|\n",
    ),
    *(
        b"{a: b}",
        b"[a, b]",
        b"~",
        b"yes",
        b"-1",
        b"1e400",
        b"\n---\n",
        b"...\n",
        b"%YAML 9.9\n",
        b"!!python/x ",
    ),
)


def config(file: Path) -> None:
    values = load_values(ALL_GROUPS, {}, {}, file)
    for group in ALL_GROUPS:
        build_settings(group, values)
    for value in values.values():
        assert not isinstance(value, float) or isfinite(value)


def scenario(file: Path) -> None:
    found = load_scenario(str(file))
    if len(found.gpus) > 8:
        return
    node = Node(found)
    for second in (0.0, 1.0, 61.0):
        try:
            check_snapshot(node.at(second, ALL))
        except SourceUnavailable as error:
            check_line(error)


def agent(file: Path) -> None:
    found = read_agent_config(file, {"TOKEN": "s3cret"})
    for target in found.targets:
        check_text(target.url, *(text for pair in target.labels for text in pair))


def web_config(file: Path) -> None:
    found = read_web_config(file)
    check_text(*(text for pair in found.headers for text in pair), *found.users)


def kubeconfig(file: Path) -> None:
    found = read_kubeconfig(file)
    check_text(found.url, found.token, found.server_name)
    assert 0 < found.port < 65536


def collectors(file: Path) -> None:
    found = read_collectors(str(file))
    assert found.columns
    for column in found.columns:
        assert column.name("4.8").isascii()
        assert column.name("4.9").isascii()
        check_text(column.help)


def operator(file: Path) -> None:
    found = read_operator_file(file)
    check_text(found.namespace, found.image, found.exporter_role)


READERS: dict[str, Callable[[Path], None]] = {
    "yaml-config": config,
    "yaml-scenario": scenario,
    "yaml-agent": agent,
    "yaml-operator": operator,
    "web-config": web_config,
    "kubeconfig": kubeconfig,
    "collectors": collectors,
}
CASES = [
    pytest.param(reader, path, id=f"{reader}-{path.name}")
    for reader in READERS
    for path in corpus_files(reader)
]


def check_yaml(reader: str, file: Path) -> None:
    with bounded():
        try:
            READERS[reader](file)
        except GpuledgerError as error:
            check_line(error)


@pytest.mark.parametrize(("reader", "path"), CASES)
def test_a_corpus_file_is_read_or_rejected_in_one_line(reader: str, path: Path) -> None:
    check_yaml(reader, path)


@pytest.mark.parametrize("reader", READERS)
@fuzzed
@given(data=st.data())
def test_a_mutated_file_is_read_or_rejected_in_one_line(
    reader: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / f"{reader}.yaml"
    file.write_bytes(data.draw(mutated_files(reader, *WORDS)))
    check_yaml(reader, file)


BOMBS: dict[str, bytes] = {
    "laughs": b"a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (n, n, b", ".join([b"*%c" % (n - 1)] * 10)) for n in range(98, 110)),
    "merges": b"a: &a {x: 1}\n"
    + b"".join(b"%c: &%c {<<: [%s]}\n" % (n, n, b", ".join([b"*%c" % (n - 1)] * 10)) for n in range(98, 110)),
    "itself": b"a: &a [*a]\n",
    # In one line, they take seconds: a test of `parse_yaml` has that.
    "nested": b"[\n" * 3000,
    "nested blocks": b"".join(b" " * depth + b"a:\n" for depth in range(1200)),
    "a long number": b"a: " + b"9" * 20_000,
    "a long key": b"k" * 20_000 + b": 1\n",
    "too long": b"#" * (9 << 20),
}


@pytest.mark.parametrize("reader", [name for name in READERS if name != "collectors"])
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_yaml_bomb_is_rejected_before_it_is_built(reader: str, bomb: str, tmp_path: Path) -> None:
    file = tmp_path / "bomb.yaml"
    file.write_bytes(BOMBS[bomb])
    with bounded(60), pytest.raises(GpuledgerError) as caught:
        READERS[reader](file)
    check_line(caught.value)


@pytest.mark.parametrize("bomb", ["laughs", "merges"])
@pytest.mark.parametrize("reader", ["yaml-config", "yaml-scenario", "yaml-agent", "yaml-operator"])
def test_a_yaml_bomb_takes_little_memory(reader: str, bomb: str, tmp_path: Path) -> None:
    file = tmp_path / "bomb.yaml"
    file.write_bytes(BOMBS[bomb])
    with memory_below(20 << 20), pytest.raises(GpuledgerError):
        READERS[reader](file)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: !!int abc", "invalid value for its type"),
        ("a: !!bool x", "invalid value for its type"),
        ('a: "\\ud800"', "escape of a forbidden character"),
        ('a: "b\\0c"', "escape of a forbidden character"),
        ("a: &a {b: *a}", "alias"),
        ("a: " + "[" * 2000, "nested"),
        ('a: "\\UFFFFFFFF"', "escape of an invalid character"),
    ],
    ids=lambda text: text[:20],
)
def test_invalid_yaml_is_rejected_with_a_reason(text: str, why: str) -> None:
    with bounded(60), pytest.raises(InvalidYaml, match=why):
        parse_yaml(text)


@pytest.mark.parametrize("quickly", [False, True])
def test_aliases_are_followed(quickly: bool) -> None:
    parsed: Any = parse_yaml("a: &a {x: [1]}\nb: *a\nc: {<<: *a, y: 2}\n", quickly=quickly)
    assert parsed == {"a": {"x": [1]}, "b": {"x": [1]}, "c": {"x": [1], "y": 2}}


def test_a_collectors_file_of_zeros_is_refused() -> None:
    with pytest.raises(GpuledgerError) as caught:
        parse_collectors(bytes(1000), "a\nb.csv")
    check_line(caught.value)

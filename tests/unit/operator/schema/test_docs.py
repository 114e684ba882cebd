"""docs/operator.md: its example resources are valid, and its table lists every key."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest
import yaml

from documentation import DOCS
from gpuledger.operator.schema.nodes import ObjectNode
from gpuledger.operator.spec import AGENT, EXPORTER, SPEC
from unit.operator.support import Json, agent_errors, agent_file, parse_resource, rendered, valid_monitor

PAGE = DOCS / "operator.md"
BEGIN = "<!-- keys: begin, written by make goldens -->\n"
END = "<!-- keys: end -->\n"


def resources() -> Iterator[Json]:
    for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        yield from yaml.safe_load_all(block)


def rows() -> Iterator[str]:
    yield "| key | meaning |\n|---|---|\n"
    for name, section in (("exporter", EXPORTER), ("agent", AGENT)):
        yield f"| **`{name}`** | {section.description} |\n"
        for key, node in section.keys.items():
            below = ""
            if isinstance(node, ObjectNode) and node.keys and not key.endswith(("ffinity", "resources")):
                below = f" ({', '.join(f'`{one}`' for one in node.keys)})"
            yield f"| `{name}.{key}`{below} | {node.description.replace('|', chr(92) + '|')} |\n"
    node = SPEC.keys["networkPolicy"]
    assert isinstance(node, ObjectNode)
    below = ", ".join(f"`{one}`" for one in node.keys)
    yield f"| `networkPolicy` ({below}) | {node.description} |\n"
    yield "| `imagePullSecrets` | Secrets, in the pods' own namespace, with which images are pulled. |\n"


def test_the_table_lists_every_key_with_its_description() -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    found, _, after = rest.partition(END)
    expected = "".join(rows())
    if os.environ.get("UPDATE_GOLDENS"):
        PAGE.write_text(before + BEGIN + expected + END + after, encoding="utf-8")
        found = expected
    assert found == expected, "run `make goldens`"


@pytest.mark.parametrize(
    "resource", [*resources()], ids=lambda one: f"{one['kind']}/{one['metadata']['name']}"
)
def test_every_resource_on_the_page_can_be_applied(resource: Json) -> None:
    assert parse_resource(resource).problems == ()
    assert rendered(resource).problems == ()
    if valid_monitor(resource).agent.enabled:
        assert agent_errors(agent_file(resource)) == []


def test_the_page_has_resources_of_both_kinds() -> None:
    assert {one["kind"] for one in resources()} == {"GpuMonitor", "WhatapAgent"}

"""The operator's page: its resources can be applied, and its table has every key."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest
import yaml

from documentation import DOCS
from gpuledger.operator.schema.gpu_monitor import AGENT, EXPORTER
from gpuledger.operator.schema.nodes import Fields
from unit.operator.support import Json, agent_file, agent_says, read_of, rendered

PAGE = DOCS / "operator.md"
BEGIN = "<!-- keys: begin, written by UPDATE_GOLDENS=1 pytest tests/unit/operator/schema/test_docs.py -->\n"
END = "<!-- keys: end -->\n"


def resources() -> Iterator[Json]:
    for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        yield from yaml.safe_load_all(block)


def rows() -> Iterator[str]:
    yield "| key | meaning |\n|---|---|\n"
    for name, section in (("exporter", EXPORTER), ("agent", AGENT)):
        yield f"| **`{name}`** | {section.about} |\n"
        for key, node in section.keys.items():
            below = ""
            if isinstance(node, Fields) and node.keys and not key.endswith(("ffinity", "resources")):
                below = f" ({', '.join(f'`{one}`' for one in node.keys)})"
            yield f"| `{name}.{key}`{below} | {node.about.replace('|', chr(92) + '|')} |\n"
    yield "| `imagePullSecrets` | Secrets, in the pods' own namespace, with which images are pulled. |\n"


def test_the_table_has_every_key_in_the_schemas_words() -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    found, _, after = rest.partition(END)
    wanted = "".join(rows())
    if os.environ.get("UPDATE_GOLDENS"):
        PAGE.write_text(before + BEGIN + wanted + END + after, encoding="utf-8")
        found = wanted
    assert found == wanted


@pytest.mark.parametrize(
    "resource", [*resources()], ids=lambda one: f"{one['kind']}/{one['metadata']['name']}"
)
def test_every_resource_on_the_page_can_be_applied(resource: Json) -> None:
    assert read_of(resource).problems == ()
    assert rendered(resource).problems == ()
    assert agent_says(agent_file(resource)) == ""


def test_the_page_has_resources_of_both_kinds() -> None:
    assert {one["kind"] for one in resources()} == {"GpuMonitor", "WhatapAgent"}

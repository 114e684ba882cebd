"""docs/install: YAML blocks are valid; named values, files and pages exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from chart import CHART, ROOT, render

PAGES = [*sorted((ROOT / "docs/install").glob("*.md")), ROOT / "docs/openshift-deployment.md"]
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
KUBERNETES = "1.34"

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> str:
    """The lines of indented code, with continued lines joined."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("    ")]
    return "\n".join(lines).replace("\\\n", " ")


def known(path: str) -> bool:
    """Whether the chart has a value of this dotted name; a free-form value may have any keys."""
    at = SCHEMA
    for step in path.split("."):
        if step in at.get("properties", {}):
            at = at["properties"][step]
        else:
            return at.get("additionalProperties", True) is not False and at is not SCHEMA
    return True


def named_values(page: Path) -> Iterator[str]:
    """Dotted names in code spans that begin with the name of a chart value."""
    for word in re.findall(r"`([A-Za-z][\w.-]*)(?:[:=][^`]*)?`", page.read_text()):
        if "." in word and word.partition(".")[0] in SCHEMA["properties"]:
            yield word


@pages
def test_yaml_blocks_are_valid_objects_or_chart_values(page: Path) -> None:
    for block in blocks(page):
        content = yaml.safe_load(block)
        if "kind" in content:
            kubernetes_validate.validate(content, KUBERNETES, strict=True)
        elif "scrape_configs" not in content:
            render(content)


@pages
def test_values_in_set_flags_exist_in_the_chart(page: Path) -> None:
    import helm_python

    for assignment in re.findall(r"--set (\S+)", commands(page)):
        render(helm_python.parse_set_string(assignment))


@pages
def test_named_values_exist_in_the_chart(page: Path) -> None:
    assert [name for name in named_values(page) if not known(name)] == []


@pages
def test_files_in_commands_exist(page: Path) -> None:
    named = re.findall(r"(?<![\w/.-])((?:deploy|kubernetes)/[\w./-]+)", commands(page))
    assert [name for name in named if not (ROOT / name).exists()] == []


@pages
def test_linked_pages_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_all_installation_pages_exist() -> None:
    expected = ["gpu-operator", "index", "k3s", "kubernetes", "openshift", "single-node"]
    expected += ["troubleshooting", "uninstall", "upgrade"]
    assert [page.stem for page in PAGES[:-1]] == expected


@pytest.mark.parametrize(
    "question",
    [
        "--collector.textfile.directory",
        "nvidia.com/gpu.present",
        "describe cronjob gpu-session-metrics-collector",
        "exec POD -- nvidia-smi",
        "Pids differ from nvidia-smi's",
        "mig.mode.current",
        "nvidia-smi -L",
        "describe node",
        "grep -A 10 securityContext",
        "Taints",
        "grep DCGM",
        "Accounting Mode",
        "dcgmi discovery -l",
        "Energy is zero",
        '"Failed to get container ID"',
        '"Failed to get pod info"',
        "Processes not showing up",
        "kubelet.sock",
    ],
)
def test_questions_from_other_exporters_documents_are_answered(question: str) -> None:
    assert question in (ROOT / "docs/install/troubleshooting.md").read_text()

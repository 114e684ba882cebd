"""docs/install: its YAML is valid, the values, files and pages that it names are there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import helm_python
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
    """The lines that are indented as code, those that go on joined."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("    ")]
    return "\n".join(lines).replace("\\\n", " ")


def known(path: str) -> bool:
    """Whether the chart has a value of this dotted name; below a value of free form anything may stand."""
    at = SCHEMA
    for step in path.split("."):
        if step in at.get("properties", {}):
            at = at["properties"][step]
        else:
            return at.get("additionalProperties", True) is not False and at is not SCHEMA
    return True


def named_values(page: Path) -> Iterator[str]:
    """Dotted names in code marks that begin as one of the chart's values does."""
    for word in re.findall(r"`([A-Za-z][\w.-]*)(?:[:=][^`]*)?`", page.read_text()):
        if "." in word and word.partition(".")[0] in SCHEMA["properties"]:
            yield word


@pages
def test_every_yaml_block_is_what_it_looks_like(page: Path) -> None:
    for block in blocks(page):
        told = yaml.safe_load(block)
        if "kind" in told:
            kubernetes_validate.validate(told, KUBERNETES, strict=True)
        elif "scrape_configs" not in told:
            render(told)


@pages
def test_every_value_that_is_set_is_one_of_the_chart(page: Path) -> None:
    for told in re.findall(r"--set (\S+)", commands(page)):
        render(helm_python.parse_set_string(told))


@pages
def test_every_value_that_is_named_is_one_of_the_chart(page: Path) -> None:
    assert [name for name in named_values(page) if not known(name)] == []


@pages
def test_every_file_that_a_command_names_is_there(page: Path) -> None:
    named = re.findall(r"(?<![\w/.-])((?:deploy|kubernetes)/[\w./-]+)", commands(page))
    assert [name for name in named if not (ROOT / name).exists()] == []


@pages
def test_every_page_that_it_links_to_is_there(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_the_pages_that_are_promised_are_there() -> None:
    wanted = ["gpu-operator", "index", "k3s", "kubernetes", "openshift", "single-node"]
    wanted += ["troubleshooting", "uninstall", "upgrade"]
    assert [page.stem for page in PAGES[:-1]] == wanted


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
def test_every_question_of_the_former_documents_has_an_answer(question: str) -> None:
    assert question in (ROOT / "docs/install/troubleshooting.md").read_text()

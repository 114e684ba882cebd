"""What pages tell people to give to Prometheus, given to promtool."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from documentation import NAMES, PAGES, Markdown, markdown

PAGES_BY_NAME = dict(zip(NAMES, map(markdown, PAGES), strict=True))


def having(wanted: Callable[[Markdown], list[str]]) -> pytest.MarkDecorator:
    """The pages that have at least one such block, and their blocks."""
    found = {name: wanted(page) for name, page in PAGES_BY_NAME.items()}
    given = [pytest.param(blocks, id=name) for name, blocks in found.items() if blocks]
    return pytest.mark.parametrize("blocks", given)


def queries(page: Markdown) -> list[str]:
    return [
        block for block, language in zip(page.blocks, page.languages, strict=True) if language == "promql"
    ]


def scrapes(page: Markdown) -> list[str]:
    return [block for block in page.blocks if block.startswith("scrape_configs:")]


@having(queries)
def test_queries_are_promql(blocks: list[str], tmp_path: Path) -> None:
    # One block may hold several lines that are a query each; then every line ends in a comment.
    rules = [
        {"record": f"query:{number}", "expr": query}
        for number, query in enumerate(query for block in blocks for query in _each(block))
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "docs", "rules": rules}]}), encoding="utf-8")
    assert _promtool("check", "rules", str(file)) == ""


@having(scrapes)
def test_scrape_configurations_are_prometheuss(blocks: list[str], tmp_path: Path) -> None:
    for number, block in enumerate(blocks):
        config = yaml.safe_load(block)
        for scrape in config["scrape_configs"]:
            # Debian's Prometheus is built without the discovery of Kubernetes.
            scrape.pop("kubernetes_sd_configs", None)
        file = tmp_path / f"{number}.yml"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        assert _promtool("check", "config", "--syntax-only", str(file)) == ""


def _each(block: str) -> list[str]:
    lines = [line for line in block.splitlines() if line.strip()]
    return lines if len(lines) > 1 and all("#" in line for line in lines) else [block]


def _promtool(*arguments: str) -> str:
    """What it complains of."""
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""

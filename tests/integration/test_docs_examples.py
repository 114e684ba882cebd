"""Queries and scrape configurations in the documentation work with a real Prometheus."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from documentation import NAMES, PAGES, Markdown, markdown
from running import Prometheus, prometheus, serving

PAGES_BY_NAME = dict(zip(NAMES, map(markdown, PAGES), strict=True))


# Other tests run the queries of these pages, with the stack's rules and scrapes or a fleet's dialects.
TESTED_ELSEWHERE = {"docs/queries.md", "docs/dashboards.md", "docs/fleet.md"}


def pages_with(select: Callable[[Markdown], list[str]]) -> pytest.MarkDecorator:
    """Parametrize with the selected blocks of each page that has at least one."""
    found = {name: select(page) for name, page in PAGES_BY_NAME.items()}
    parameters = [pytest.param(blocks, id=name) for name, blocks in found.items() if blocks]
    return pytest.mark.parametrize("blocks", parameters)


def queries(page: Markdown) -> list[str]:
    return [
        block for block, language in zip(page.blocks, page.languages, strict=True) if language == "promql"
    ]


def scrapes(page: Markdown) -> list[str]:
    return [block for block in page.blocks if block.startswith("scrape_configs:")]


def _each(block: str) -> list[str]:
    lines = [line for line in block.splitlines() if line.strip()]
    return lines if len(lines) > 1 and all("#" in line for line in lines) else [block]


@pages_with(queries)
def test_queries_are_valid_promql(blocks: list[str], tmp_path: Path) -> None:
    # A block may have one query per line; then each line ends in a comment.
    rules = [
        {"record": f"query:{number}", "expr": query}
        for number, query in enumerate(query for block in blocks for query in _each(block))
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "docs", "rules": rules}]}), encoding="utf-8")
    assert _promtool("check", "rules", str(file)) == ""


@pages_with(scrapes)
def test_scrape_configurations_are_valid(blocks: list[str], tmp_path: Path) -> None:
    for number, block in enumerate(blocks):
        config = yaml.safe_load(block)
        for scrape in config["scrape_configs"]:
            # Debian's Prometheus is built without Kubernetes service discovery.
            scrape.pop("kubernetes_sd_configs", None)
        file = tmp_path / f"{number}.yml"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        assert _promtool("check", "config", "--syntax-only", str(file)) == ""


def _promtool(*arguments: str) -> str:
    """The error output of promtool; empty on success."""
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


@pytest.fixture(scope="module")
def scraping() -> Iterator[Prometheus]:
    with serving("--source", "simulator", "--energy.zero-hold", "1s") as server:
        config = f"""
            scrape_configs:
              - job_name: gpuledger
                scrape_interval: 1s
                honor_labels: true
                static_configs: [{{targets: ["127.0.0.1:{server.port}"]}}]
        """
        with prometheus(config) as server_under_test:
            yield server_under_test


@pytest.mark.xdist_group("docs_prometheus")
@pytest.mark.parametrize(
    "query",
    [
        pytest.param(query, id=f"{name}: {' '.join(query.split())[:50]}")
        for name, page in PAGES_BY_NAME.items()
        if name not in TESTED_ELSEWHERE
        for block in queries(page)
        for query in _each(block)
    ],
)
def test_queries_return_results_on_the_simulated_node(query: str, scraping: Prometheus) -> None:
    # The node has run only for seconds, so ranges of hours are shortened.
    assert scraping.wait_query(re.sub(r"\[\d+[mhd]\]", "[10s]", query))

"""What pages tell people to give to Prometheus, given to it while it scrapes the simulated node."""

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


# Asked with the stack's rules and scrapes by a test of their own, or of a fleet's dialects.
ELSEWHERE = {"docs/queries.md", "docs/dashboards.md", "docs/fleet.md"}


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


def _each(block: str) -> list[str]:
    lines = [line for line in block.splitlines() if line.strip()]
    return lines if len(lines) > 1 and all("#" in line for line in lines) else [block]


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


def _promtool(*arguments: str) -> str:
    """What it complains of."""
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
        with prometheus(config) as asked:
            yield asked


@pytest.mark.xdist_group("docs_prometheus")
@pytest.mark.parametrize(
    "query",
    [
        pytest.param(query, id=f"{name}: {' '.join(query.split())[:50]}")
        for name, page in PAGES_BY_NAME.items()
        if name not in ELSEWHERE
        for block in queries(page)
        for query in _each(block)
    ],
)
def test_a_query_has_an_answer_on_the_simulated_node(query: str, scraping: Prometheus) -> None:
    # The node has run for seconds: an hour of it is not there to be asked about.
    assert scraping.wait_query(re.sub(r"\[\d+[mhd]\]", "[10s]", query))

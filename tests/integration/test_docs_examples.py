"""Queries and scrape configurations in the documentation work with a real Prometheus."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from documentation import NAMES, PAGES, ROOT, markdown
from running import Prometheus, prometheus, serving_prepared, wait_for_each
from stack import copy_rules

# Other tests run the queries of these pages, with the stack's rules and scrapes or a fleet's dialects.
TESTED_ELSEWHERE = {"docs/queries.md", "docs/dashboards.md", "docs/fleet.md"}


def pages_with(text: str) -> list[str]:
    """Return the names of the pages that contain this text."""
    return [name for name, page in zip(NAMES, PAGES, strict=True) if text in page.read_text(encoding="utf-8")]


def queries(name: str) -> list[str]:
    page = markdown(ROOT / name)
    return [
        block for block, language in zip(page.blocks, page.languages, strict=True) if language == "promql"
    ]


def scrapes(name: str) -> list[str]:
    return [block for block in markdown(ROOT / name).blocks if block.startswith("scrape_configs:")]


def _each(block: str) -> list[str]:
    lines = [line for line in block.splitlines() if line.strip()]
    return lines if len(lines) > 1 and all("#" in line for line in lines) else [block]


@pytest.mark.parametrize("name", pages_with("```promql"))
def test_queries_are_valid_promql(name: str, tmp_path: Path) -> None:
    # A block may have one query per line; then each line ends in a comment.
    rules = [
        {"record": f"query:{number}", "expr": query}
        for number, query in enumerate(query for block in queries(name) for query in _each(block))
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "docs", "rules": rules}]}), encoding="utf-8")
    assert _promtool("check", "rules", str(file)) == ""


@pytest.mark.parametrize("name", pages_with("\nscrape_configs:"))
def test_scrape_configurations_are_valid(name: str, tmp_path: Path) -> None:
    blocks = scrapes(name)
    assert blocks
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
def scraping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    rules = copy_rules(tmp_path_factory.mktemp("rules"), "500ms")
    with serving_prepared("--source", "simulator", "--energy.zero-hold", "1s") as server:
        config = f"""
            global: {{evaluation_interval: 500ms}}
            rule_files: {rules}
            scrape_configs:
              - job_name: gpuledger
                scrape_interval: 500ms
                honor_labels: true
                static_configs: [{{targets: ["127.0.0.1:{server.port}"]}}]
        """
        with prometheus(config) as server_under_test:
            yield server_under_test


@pytest.mark.group("docs_prometheus")
@pytest.mark.parametrize("name", sorted({*pages_with("```promql")} - TESTED_ELSEWHERE))
def test_queries_return_results_on_the_simulated_node(name: str, scraping: Prometheus) -> None:
    def has_result(query: str) -> None:
        # The node has run only for seconds: ranges of hours are shortened, and shares of an hour are small.
        short = re.sub(r"\[\d+[mhd]\]", "[10s]", query).replace("ratio1h > 0.9", "ratio1h > 0")
        assert scraping.query(short), "no result"

    wait_for_each((query for block in queries(name) for query in _each(block)), has_result)

"""`docker compose up` of deploy/compose, with simulated GPUs, in a real Docker, without Grafana."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboards import AGENTS, DASHBOARDS, EVERYTHING, FIXED, PanelQuery, panel_queries, substituted
from gpuledger import __version__
from release.compose_stack import SERVICES, ComposeStack, ScrapingPrometheus, running_stack
from running import assert_each, wait_for_each, wait_until

pytestmark = pytest.mark.group("compose-stack")

# What Grafana sends for the time range of the dashboards and the interval of the data source.
WINDOWS = {"__range": "21600s", "__range_s": "21600", "__rate_interval": "40s"}
# Panels of families that a simulated node has no reason to export in its first minutes: no Xid error,
# GPUs without fans, and owner indexes that are not simulated.
NOT_YET = ("Xid errors", "Fan speed", "Owner indexes")


@pytest.fixture(scope="module")
def stack(request: pytest.FixtureRequest) -> Iterator[ComposeStack]:
    # Not tmp_path: paths of sockets are limited to 108 characters.
    folder = Path(tempfile.mkdtemp(prefix="gpuledger-compose-"))
    logs = folder / "logs"
    logs.mkdir()
    try:
        with running_stack(folder, logs) as running:
            yield running
    finally:
        if request.session.testsfailed:
            sys.stderr.write(f"\nlogs of the stack: {shutil.copytree(logs, f'{folder}-logs')}\n")
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def prometheus(stack: ComposeStack) -> ScrapingPrometheus:
    return ScrapingPrometheus(stack.url("prometheus", 9090))


def send(prometheus: ScrapingPrometheus, query: PanelQuery) -> list[object]:
    """The result of a panel's query with all its variables at All."""
    expression = substituted(query.expression, {**FIXED, **EVERYTHING, **WINDOWS})
    if query.panel["targets"][0].get("range"):
        now = time.time()
        window = {"start": now - 600, "end": now, "step": 15.0}
        return list(prometheus.data("query_range", query=expression, **window)["result"])
    return list(prometheus.data("query", query=expression)["result"])


def test_up_builds_this_version(stack: ComposeStack) -> None:
    version = stack.run("exec", "--no-TTY", "nvidiaexport", "gpuledger", "version")
    assert version.startswith(f"gpuledger {__version__} ")


def test_the_services_are_healthy(stack: ComposeStack) -> None:
    listed = stack.run("ps", "--format={{.Service}} {{.Health}}").splitlines()
    assert sorted(listed) == [f"{service} healthy" for service in SERVICES]


def test_prometheus_scrapes_the_exporter(prometheus: ScrapingPrometheus) -> None:
    def scraped() -> bool:
        rows = prometheus.data("query", query='up{job="monitoring-item"}')["result"]
        return [(row["metric"]["instance"], row["value"][1]) for row in rows] == [("nvidiaexport:9835", "1")]

    wait_until(scraped, "nvidiaexport:9835 to be up")


def test_prometheus_is_of_the_release_that_the_stack_names(prometheus: ScrapingPrometheus) -> None:
    assert prometheus.data("status/buildinfo")["version"].startswith("3.5.")


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_every_query_of_a_dashboard_returns_data(prometheus: ScrapingPrometheus, uid: str) -> None:
    def is_answered(query: PanelQuery) -> None:
        assert send(prometheus, query) or query.panel["title"] in NOT_YET, "no data"

    wait_for_each(panel_queries(uid), is_answered)


def test_every_query_of_the_agents_dashboard_is_accepted(prometheus: ScrapingPrometheus) -> None:
    """The stack has no agent."""
    panels = (panel for panel in AGENTS["panels"] if panel["type"] != "row")
    queries = [PanelQuery(panel, target["expr"]) for panel in panels for target in panel["targets"]]
    assert queries
    assert_each(queries, lambda query: send(prometheus, query))


def test_every_rule_is_evaluated_without_an_error(prometheus: ScrapingPrometheus) -> None:
    def bad_rules() -> dict[str, str]:
        groups = prometheus.data("rules")["groups"]
        assert groups
        rules = [rule for group in groups for rule in group["rules"]]
        return {rule["name"]: rule.get("lastError", "") for rule in rules if rule["health"] != "ok"}

    wait_until(lambda: bad_rules() == {}, "every rule to be evaluated")

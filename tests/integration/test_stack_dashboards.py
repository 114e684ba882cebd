"""The Prometheus of the compose stack returns data for every query of every dashboard panel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dashboards import (
    EVERYTHING,
    FIXED,
    PanelQuery,
    batch_node,
    each_dashboard,
    panel_queries,
    substituted,
)
from running import serving_prepared, wait_for_each, wait_until
from stack import EXPORTER, StackPrometheus, stack_prometheus

pytestmark = pytest.mark.group("stack-dashboards")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackPrometheus]:
    """Scrapes a Kubernetes node, a workstation and a node with a batch job, all without a label node."""
    folder = tmp_path_factory.mktemp("stack")
    batch, driver = batch_node(folder)
    fast_ticks = ("--interval", "500ms", "--energy.zero-hold", "2s")
    with (
        serving_prepared("--source", "simulator", "--speed", "20", *EXPORTER, *fast_ticks) as node,
        serving_prepared("--source", "simulator:workstation", *EXPORTER, *fast_ticks) as desk,
        serving_prepared(*batch, *EXPORTER, *fast_ticks, env=driver) as job,
        stack_prometheus(
            folder, [f"127.0.0.1:{server.port}" for server in (node, desk, job)], interval="500ms"
        ) as prometheus,
    ):
        for ready in ("count(up == 1) == 3", "gpuledger_device_xid_errors_total", "gpuledger_map_success"):
            wait_until(lambda query=ready: prometheus.query(query), ready)
        yield prometheus


@each_dashboard
def test_every_query_returns_data(stack: StackPrometheus, uid: str) -> None:
    def has_data(query: PanelQuery) -> None:
        assert stack.query(substituted(query.expression, {**FIXED, **EVERYTHING})), "no data"

    wait_for_each(panel_queries(uid), has_data)

"""The Prometheus of the compose stack returns data for every query of every dashboard panel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dashboards import EVERYTHING, FIXED, batch_node, each_panel, substituted
from running import serving, wait_until
from stack import EXPORTER, StackPrometheus, stack_prometheus

pytestmark = pytest.mark.xdist_group("stack-dashboards")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackPrometheus]:
    """Scrapes a Kubernetes node, a workstation and a node with a batch job, all without a label node."""
    folder = tmp_path_factory.mktemp("stack")
    batch, driver = batch_node(folder)
    fast_ticks = ("--interval", "500ms", "--energy.zero-hold", "2s")
    with (
        serving("--source", "simulator", "--speed", "20", *EXPORTER, *fast_ticks) as node,
        serving("--source", "simulator:workstation", *EXPORTER, *fast_ticks) as desk,
        serving(*batch, *EXPORTER, *fast_ticks, env=driver) as job,
        stack_prometheus(folder, [f"127.0.0.1:{server.port}" for server in (node, desk, job)]) as prometheus,
    ):
        for ready in ("count(up == 1) == 3", "gpuledger_device_xid_errors_total", "gpuledger_map_success"):
            wait_until(lambda query=ready: prometheus.query(query), ready, patience=60)
        yield prometheus


@each_panel
def test_every_query_returns_data(stack: StackPrometheus, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        query = substituted(target["expr"], {**FIXED, **EVERYTHING})
        wait_until(lambda query=query: stack.query(query), f"data for {target['expr']}")

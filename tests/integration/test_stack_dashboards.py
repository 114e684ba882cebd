"""The stack's own Prometheus under the stack's own dashboards: every query of every panel is answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dashboards import EVERYTHING, FIXED, batch_node, each_panel, substituted
from running import serving, wait_until
from stack import EXPORTER, StackPrometheus, watching

pytestmark = pytest.mark.xdist_group("stack-dashboards")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackPrometheus]:
    """A Kubernetes node, a workstation and a node with a batch job: none is named but by its address."""
    folder = tmp_path_factory.mktemp("stack")
    batch, driver = batch_node(folder)
    often = ("--interval", "500ms", "--energy.zero-hold", "2s")
    with (
        serving("--source", "simulator", "--speed", "20", *EXPORTER, *often) as node,
        serving("--source", "simulator:workstation", *EXPORTER, *often) as desk,
        serving(*batch, *EXPORTER, *often, env=driver) as job,
        watching(folder, [f"127.0.0.1:{server.port}" for server in (node, desk, job)]) as prometheus,
    ):
        for ready in ("count(up == 1) == 3", "gpuledger_device_xid_errors_total", "gpuledger_map_success"):
            wait_until(lambda asked=ready: prometheus.query(asked), ready, patience=60)
        yield prometheus


@each_panel
def test_every_query_is_answered(stack: StackPrometheus, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        query = substituted(target["expr"], {**FIXED, **EVERYTHING})
        wait_until(lambda asked=query: stack.query(asked), f"an answer to {target['expr']}")

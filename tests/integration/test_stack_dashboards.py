"""The stack's own Prometheus under the stack's own dashboards: every query of every panel is answered."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from integration.test_grafana_panels import EVERYTHING, FIXED, each_panel, substituted
from nvml.library import NvmlGpu, NvmlProcess, NvmlState, build
from running import serving, wait_until
from stack import EXPORTER, StackPrometheus, watching

pytestmark = pytest.mark.xdist_group("stack-dashboards")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackPrometheus]:
    """A Kubernetes node, a workstation and a node with a batch job: none is named but by its address."""
    folder = tmp_path_factory.mktemp("stack")
    (folder / "jobs").mkdir()
    (folder / "jobs" / "0").write_text("4711\n")
    state = NvmlState(folder / "state", [NvmlGpu(NvmlProcess(os.getpid(), sm=40)), NvmlGpu()]).write()
    driver = {"LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(state.path)}
    often = ("--interval", "500ms", "--energy.zero-hold", "2s")
    with (
        serving("--source", "simulator", "--speed", "20", *EXPORTER, *often) as node,
        serving("--source", "simulator:workstation", *EXPORTER, *often) as desk,
        serving(
            "--source", "nvml", "--hpc-job-mapping-dir", str(folder / "jobs"), *EXPORTER, *often, env=driver
        ) as batch,
        watching(folder, [f"127.0.0.1:{server.port}" for server in (node, desk, batch)]) as prometheus,
    ):
        for ready in ("count(up == 1) == 3", "gpuledger_device_xid_errors_total", "gpuledger_map_success"):
            wait_until(lambda asked=ready: prometheus.query(asked), ready, patience=60)
        yield prometheus


@each_panel
def test_every_query_is_answered(stack: StackPrometheus, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        query = substituted(target["expr"], {**FIXED, **EVERYTHING})
        wait_until(lambda asked=query: stack.query(asked), f"an answer to {target['expr']}")

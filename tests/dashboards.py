"""The dashboards of deploy/grafana, and their queries as Grafana sends them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nvml.library import NvmlGpu, NvmlProcess, NvmlState, build

GRAFANA = Path(__file__).parents[1] / "deploy" / "grafana"
DASHBOARDS: dict[str, dict[str, Any]] = {
    file.stem: json.loads(file.read_text(encoding="utf-8"))
    for file in sorted((GRAFANA / "dashboards").glob("*.json"))
}
# The other dashboards show nodes.
AGENTS = DASHBOARDS.pop("gpuledger-agents")
# Its rows are models, of which no node knows the tokens. Tested with the rules that it reads.
TOKENS = DASHBOARDS.pop("gpuledger-tokens")
each_dashboard = pytest.mark.parametrize("uid", DASHBOARDS)
EVERYTHING = {"cluster": ".*", "node": ".*", "gpu": ".*", "namespace": ".*"}
# Grafana's windows for two scrapes per second, and values of the text boxes for prices.
FIXED = {
    "__range": "2m",
    "__range_s": "120",
    "__rate_interval": "5s",
    "price_kwh": "0.30",
    "pue": "1.4",
    "price_gpu_hour": "1.5",
}


@dataclass(frozen=True, eq=False)
class PanelQuery:
    """A query of a panel."""

    panel: Mapping[str, Any]
    expression: str

    def __str__(self) -> str:
        return f"{self.panel['title']}: {self.expression}"


def panel_queries(uid: str) -> list[PanelQuery]:
    """Return all queries of a dashboard's panels."""
    panels = (panel for panel in DASHBOARDS[uid]["panels"] if panel["type"] != "row")
    return [PanelQuery(panel, target["expr"]) for panel in panels for target in panel["targets"]]


def escaped(text: str) -> str:
    """Escape a selected value as Grafana does, for a regular expression in a PromQL string."""
    return text if text == ".*" else re.sub(r"([.+*?()|\[\]{}^$])", r"\\\\\1", text)


def substituted(expression: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda match: values.get(match[1], match[0]), expression)


def panel(uid: str, title: str) -> dict[str, Any]:
    (found,) = (one for one in DASHBOARDS[uid]["panels"] if one["title"] == title and one["type"] != "row")
    return found


def column(uid: str, title: str, heading: str) -> str:
    """Return the query of a column of a table."""
    table = panel(uid, title)
    headings = table["transformations"][1]["options"]["renameByName"]
    (letter,) = (
        name[-1] for name, text in headings.items() if text == heading and name.startswith("Value #")
    )
    (target,) = (target for target in table["targets"] if target["refId"] == letter)
    return str(target["expr"])


def batch_node(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return flags and environment of a server with two GPUs, one of them with a process of a batch job."""
    (folder / "jobs").mkdir()
    (folder / "jobs" / "0").write_text("4711\n")
    state = NvmlState(folder / "state", [NvmlGpu(NvmlProcess(os.getpid(), sm=40)), NvmlGpu()]).write()
    driver = {"LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(state.path)}
    return ["--source", "nvml", "--hpc-job-mapping-dir", str(folder / "jobs")], driver

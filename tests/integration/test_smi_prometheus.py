"""In nvidia_gpu_exporter's place: what public dashboards ask of a real Prometheus, from either source."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from nvml.cards import ada_consumer, hopper, hopper_mig, volta
from nvml.library import NvmlState, build
from running import Prometheus, prometheus, serving, wait_until
from smi.panels import DASHBOARDS, of

# One process starts what these are about.
pytestmark = pytest.mark.xdist_group("smi-prometheus")

HERE = Path(__file__).parent.parent
(CAPTURE,) = (HERE / "fixtures" / "smi" / "panels").glob("*.txt")
JOB = "nvidia gpu (exporter)"
CONFIG = """\
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: "{job}"
    static_configs: [{{targets: ["{target}"]}}]
"""

EVENTS = "a driver from 535 on calls them clocks_event_reasons_*, nvidia-smi as well as gpuledger from NVML"
THROTTLE = dict.fromkeys(
    (
        f"clocks_throttle_reasons_{reason}"
        for reason in (
            *("gpu_idle", "sw_power_cap", "sw_thermal_slowdown", "hw_thermal_slowdown"),
            *("hw_power_brake_slowdown", "applications_clocks_setting", "sync_boost"),
        )
    ),
    EVENTS,
)
XML = "nvidia-smi prints no such thing, neither as a column nor in -q"
# Families that a source does not have, and why.
UNTOLD: Final[Mapping[str, Mapping[str, str]]] = {
    "smi": {
        **THROTTLE,
        "energy_joules_total": XML,
        "pcie_throughput_tx_bytes_per_second": "only in -q, of another period than NVML's; not read",
        "pcie_throughput_rx_bytes_per_second": "only in -q, of another period than NVML's; not read",
        "mig_sm_activity_ratio": XML,
        "mig_tensor_activity_ratio": XML,
        "xid_errors_total": XML,
        "xid_last_timestamp_seconds": XML,
    },
    "nvml": THROTTLE,
}


@dataclass(frozen=True)
class Told:
    """A source, and the Prometheus that scrapes what gpuledger tells from it."""

    source: str
    real: Prometheus
    node: str

    def ask(self, expression: str, gpus: str = ".*") -> list[dict[str, Any]]:
        """What a panel would be answered with these GPUs chosen."""
        node = f'instance="{self.node}", job="{JOB}"'
        chosen = f'uuid=~"{gpus}", {node}' if gpus == ".*" else f'uuid="{gpus}", {node}'
        return self.real.query(
            expression.replace("$node", node).replace("$of", chosen).replace("$interval", "5s")
        )

    def gpus(self) -> list[str]:
        return sorted(row["metric"]["uuid"] for row in self.ask(of("gpu_info")))

    def lacks(self, query: str) -> bool:
        """Whether the source does not tell what the query is about, and nothing stands in for it."""
        about = families_in(query)[:1]
        return " or " not in query and not UNTOLD[self.source].keys().isdisjoint(about)


def families_in(query: str) -> list[str]:
    return re.findall(r"\bnvidia_smi_(\w+)(?=[{)])", query)


QUERIES = [
    pytest.param(query, id=f"{dashboard}: {panel} {place}")
    for dashboard, panels in DASHBOARDS.items()
    for panel, queries in panels.items()
    for place, query in enumerate(queries)
]
FAMILIES = sorted({family for param in QUERIES for family in families_in(str(param.values[0]))})


@contextmanager
def from_nvidia_smi() -> Iterator[int]:
    stand_in = [sys.executable, str(HERE / "smi" / "nvidia_smi.py"), "--capture", str(CAPTURE), "--"]
    with serving(
        "--source", "smi", "--nvidia-smi-command", shlex.join(stand_in), "--dialect", "smi"
    ) as server:
        yield server.port


@contextmanager
def from_nvml(folder: Path) -> Iterator[int]:
    """A card with a fan, one with all else, one that is cut, an old one; one of them has had an Xid error."""
    cards = [ada_consumer(), hopper(), hopper_mig(), volta()]
    cards[1].numbers["fabric"] = 3
    state = NvmlState(folder / "state", cards, names={4242: b"/usr/bin/python3"}, events=[(1, 31)]).write()
    driver = {"LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(state.path)}
    with serving("--source", "nvml", "--dialect", "smi", "--interval", "500ms", env=driver) as server:
        yield server.port


@pytest.fixture(scope="module", params=["smi", "nvml"])
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    started = from_nvidia_smi() if request.param == "smi" else from_nvml(tmp_path_factory.mktemp("nvml"))
    with started as port:
        node = f"127.0.0.1:{port}"
        with prometheus(CONFIG.format(job=JOB, target=node)) as real:
            real.wait_query("count_over_time(nvidia_smi_pstate[1m]) > 2")
            yield Told(request.param, real, node)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_told_but_those_that_the_source_does_not_have(told: Told, family: str) -> None:
    if family in UNTOLD[told.source]:
        assert told.ask(f"nvidia_smi_{family}{{$node}}") == []
    else:
        wait_until(lambda: told.ask(f"nvidia_smi_{family}{{$node}}"), f"{family} from {told.source}")


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_is_answered_for_all_gpus_and_for_one(told: Told, query: str) -> None:
    """A GPU alone is answered what it is among all; one has no fan, another no ECC, a third is cut."""
    if told.lacks(query):
        assert told.ask(query) == []
        return
    together = wait_until(lambda: told.ask(query), f"an answer to {query}")
    alone = {gpu: rows for gpu in told.gpus() if (rows := told.ask(query, gpu))}
    assert alone
    if "$of" in query and all("uuid" in row["metric"] for row in together):
        assert {row["metric"]["uuid"] for row in together} == alone.keys()


def test_a_gpu_that_tells_a_value_is_not_shown_as_one_that_does_not(told: Told) -> None:
    """-1 is what the panels show where a GPU has no such thing: a cut one does not say how busy it is."""
    (query,) = (one for one in DASHBOARDS["25547"]["GPUs"] if "utilization_gpu_ratio" in one)
    shown = {row["metric"]["uuid"]: float(row["value"][1]) for row in told.ask(query)}
    cut = {row["metric"]["uuid"] for row in told.ask(of("mig_info"))}
    assert cut
    assert {gpu for gpu, value in shown.items() if value == -1} == cut

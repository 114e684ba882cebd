"""Replaces nvidia_gpu_exporter: queries of public dashboards on a real Prometheus, with either source."""

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
from running import Prometheus, prometheus, serving_prepared, wait_for_each
from smi.panels import DASHBOARDS, of

# One worker, with one Prometheus per source for all tests.
pytestmark = pytest.mark.group("smi-prometheus")

HERE = Path(__file__).parent.parent
(CAPTURE,) = (HERE / "fixtures" / "smi" / "panels").glob("*.txt")
JOB = "nvidia gpu (exporter)"
CONFIG = """\
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: "{job}"
    static_configs: [{{targets: ["{target}"]}}]
"""

EVENTS = "since driver 535 both nvidia-smi and gpuledger (from NVML) call them clocks_event_reasons_*"
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
XML = "nvidia-smi does not print it, neither as a column nor in -q"
# Families that a source does not have, and why.
MISSING: Final[Mapping[str, Mapping[str, str]]] = {
    "smi": {
        **THROTTLE,
        "energy_joules_total": XML,
        "pcie_throughput_tx_bytes_per_second": "only in -q, for another period than NVML's; not read",
        "pcie_throughput_rx_bytes_per_second": "only in -q, for another period than NVML's; not read",
        "mig_sm_activity_ratio": XML,
        "mig_tensor_activity_ratio": XML,
        "xid_errors_total": XML,
        "xid_last_timestamp_seconds": XML,
    },
    "nvml": THROTTLE,
}


@dataclass(frozen=True)
class ScrapedSource:
    """A source, and the Prometheus that scrapes a gpuledger with this source."""

    source: str
    real: Prometheus
    node: str

    def query(self, expression: str, gpus: str = ".*") -> list[dict[str, Any]]:
        """Return the result of a panel's query with these GPUs selected."""
        node = f'instance="{self.node}", job="{JOB}"'
        selected = f'uuid=~"{gpus}", {node}' if gpus == ".*" else f'uuid="{gpus}", {node}'
        return self.real.query(
            expression.replace("$node", node).replace("$of", selected).replace("$interval", "5s")
        )

    def gpus(self) -> list[str]:
        return sorted(row["metric"]["uuid"] for row in self.query(of("gpu_info")))

    def lacks(self, query: str) -> bool:
        """Return whether the source does not have the query's first family, and the query has no fallback."""
        first = families_in(query)[:1]
        return " or " not in query and not MISSING[self.source].keys().isdisjoint(first)


def families_in(query: str) -> list[str]:
    return re.findall(r"\bnvidia_smi_(\w+)(?=[{)])", query)


QUERIES = [query for panels in DASHBOARDS.values() for queries in panels.values() for query in queries]
FAMILIES = sorted({family for query in QUERIES for family in families_in(query)})


@contextmanager
def from_nvidia_smi() -> Iterator[int]:
    stand_in = [sys.executable, str(HERE / "smi" / "nvidia_smi.py"), "--capture", str(CAPTURE), "--"]
    with serving_prepared(
        "--source", "smi", "--nvidia-smi-command", shlex.join(stand_in), "--dialect", "smi"
    ) as server:
        yield server.port


@contextmanager
def from_nvml(folder: Path) -> Iterator[int]:
    """Serve a card with a fan, one with an Xid error and everything else, one with MIG, and an old one."""
    cards = [ada_consumer(), hopper(), hopper_mig(), volta()]
    cards[1].numbers["fabric"] = 3
    state = NvmlState(folder / "state", cards, names={4242: b"/usr/bin/python3"}, events=[(1, 31)]).write()
    driver = {"LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(state.path)}
    with serving_prepared(
        "--source", "nvml", "--dialect", "smi", "--interval", "500ms", env=driver
    ) as server:
        yield server.port


@pytest.fixture(scope="module", params=["smi", "nvml"])
def scraped(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ScrapedSource]:
    started = from_nvidia_smi() if request.param == "smi" else from_nvml(tmp_path_factory.mktemp("nvml"))
    with started as port:
        node = f"127.0.0.1:{port}"
        with prometheus(CONFIG.format(job=JOB, target=node)) as real:
            real.wait_query("count_over_time(nvidia_smi_pstate[1m]) > 2")
            yield ScrapedSource(request.param, real, node)


def test_each_family_is_exported_unless_the_source_does_not_have_it(scraped: ScrapedSource) -> None:
    def is_as_expected(family: str) -> None:
        is_exported = bool(scraped.query(f"nvidia_smi_{family}{{$node}}"))
        assert is_exported == (family not in MISSING[scraped.source]), scraped.source

    wait_for_each(FAMILIES, is_as_expected)


@pytest.mark.parametrize("dashboard", DASHBOARDS)
def test_each_query_returns_results_for_all_gpus_and_for_each_gpu(
    scraped: ScrapedSource, dashboard: str
) -> None:
    """The same GPUs have a result when selected alone: one GPU has no fan, another no ECC, a third MIG."""

    def is_as_expected(query: str) -> None:
        together = scraped.query(query)
        if scraped.lacks(query):
            assert together == []
            return
        assert together, "no result"
        alone = {gpu for gpu in scraped.gpus() if scraped.query(query, gpu)}
        assert alone
        if "$of" in query and all("uuid" in row["metric"] for row in together):
            assert {row["metric"]["uuid"] for row in together} == alone

    wait_for_each((query for queries in DASHBOARDS[dashboard].values() for query in queries), is_as_expected)


def test_only_a_gpu_without_the_value_shows_minus_one(scraped: ScrapedSource) -> None:
    """Panels show -1 for a GPU without the value: a GPU with MIG has no utilization."""
    (query,) = (one for one in DASHBOARDS["25547"]["GPUs"] if "utilization_gpu_ratio" in one)
    shown = {row["metric"]["uuid"]: float(row["value"][1]) for row in scraped.query(query)}
    with_mig = {row["metric"]["uuid"] for row in scraped.query(of("mig_info"))}
    assert with_mig
    assert {gpu for gpu, value in shown.items() if value == -1} == with_mig

"""Users' queries on a real Prometheus that scrapes `serve`."""

from __future__ import annotations

import pytest

from running import prometheus, serving_prepared, wait_until

CONFIG = """\
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: gpuledger
    honor_labels: {honor}
    static_configs: [{{targets: ["{target}"], labels: {{node: node-1}}}}]
"""

QUERIES = [
    "gpuledger_device_power_watts * on (uuid) group_left (name) "
    'max by (uuid, name) (gpuledger_device_info{mig_instance=""})',
    "sum by (gpu) (gpu_process_count)",
    'gpu_process_info{status="active"}',
    'gpu_process_info{status="idle"}',
    'count by (namespace) (gpu_process_info{status="active"})',
    "avg by (namespace) (gpu_process_utilization)",
    "topk(10, gpu_process_memory_utilization)",
    "gpu_process_memory_utilization > 80",
    "count(gpu_session_count == 0)",
    "sum(gpu_session_count)",
    "gpu_total_sessions == gpu_total_processes",
    "gpuledger_processes{kind='compute'}",
    "gpuledger_collector_success == 1",
    "time() - gpuledger_snapshot_timestamp_seconds < 30",
]


def test_documented_queries_return_results() -> None:
    with (
        serving_prepared("--source", "simulator") as server,
        prometheus(CONFIG.format(honor="false", target=f"127.0.0.1:{server.port}")) as real,
    ):
        real.wait_query("gpu_total_processes")
        for query in QUERIES:
            real.wait_query(query)
        (up,) = real.query("up")
        assert up["value"][1] == "1"
        targets = f"scrape_samples_scraped{{instance='127.0.0.1:{server.port}'}} > 100"
        assert real.wait_query(targets)


@pytest.mark.parametrize("honor", ["true", "false"])
def test_the_target_labels_are_kept_with_any_honor_labels(honor: str) -> None:
    """With honor_labels, an exported `instance` or `job` label, even an empty one, replaces the target's."""
    with (
        serving_prepared("--source", "simulator") as server,
        prometheus(CONFIG.format(honor=honor, target=f"127.0.0.1:{server.port}")) as real,
    ):
        real.wait_query("gpuledger_process_info")
        lost = f"{{__name__=~'gpuledger_.*', instance!='127.0.0.1:{server.port}'}}"
        assert real.query(lost) == []
        assert real.query("{__name__=~'gpuledger_.*', job!='gpuledger'}") == []


def test_series_of_a_process_end_with_the_process() -> None:
    with (
        serving_prepared("--source", "simulator", "--speed", "20") as server,
        prometheus(CONFIG.format(honor="false", target=f"127.0.0.1:{server.port}")) as real,
    ):
        real.wait_query("gpuledger_process_info")
        ended = "count_over_time(gpuledger_process_info[10m]) unless on (uuid, pid) gpuledger_process_info"
        assert wait_until(lambda: real.query(ended), "a process to come and go")

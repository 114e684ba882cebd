"""Energy queries on a real Prometheus, also for a short process with a late pod name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from running import Prometheus, Server, prometheus, serving_prepared, wait_until

# One worker, with one node and one Prometheus for all tests.
pytestmark = pytest.mark.group("energy")

# The simulator runs at four times the speed, so rate() returns four times the watts.
SPEED = 4
SCENARIO = """
gpus:
  - model: NVIDIA H100 80GB HBM3
    empty_watts: 60
    resident_watts: 60
    load_watts: 500
    limit_watts: 700
    processes:
      - {name: python3, memory: 8GB, load: 0.5,
         pod: {namespace: ml, name: training-job-123, container: main}}
  - model: NVIDIA H100 80GB HBM3
    empty_watts: 60
    resident_watts: 60
    load_watts: 500
    limit_watts: 700
    processes:
      - {name: python3, memory: 8GB, load: 0.8, start: 20, stop: 60,
         pod: {namespace: ml, name: late, container: main, known_after: 15s}}
"""
CONFIG = """\
global: {{scrape_interval: 1s}}
scrape_configs:
  - {{job_name: energy, honor_labels: true, static_configs: [{{targets: ["{target}"]}}]}}
"""
QUERIES = [
    'rate(my_gpu_process_energy_joules{namespace="ml"}[1m])',
    "sum(rate(my_gpu_process_energy_joules[1m]))",
    "sum by (namespace) (rate(my_gpu_process_energy_joules[5m]))",
    'increase(my_gpu_process_energy_joules{pod="training-job-123"}[1h])',
    'increase(my_gpu_process_energy_joules{pod="training-job-123"}[1h]) / 3600000',
    "(increase(my_gpu_process_energy_joules[1h]) / 3600000) * 0.10",
    "my_gpu_process_sm_utilization_ratio / rate(my_gpu_process_energy_joules[1m])",
    "topk(10, rate(my_gpu_process_energy_joules[5m]))",
    "sum(my_gpu_process_active)",
    "count by (namespace) (my_gpu_process_active)",
    'sum by (namespace) (increase(gpuledger_energy_joules_total{account="process"}[1h])) / 3600000',
    "sum by (account) (increase(gpuledger_energy_joules_total[1h]))",
]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Prometheus]]:
    """A node after its short process has ended and all its energy is exported, and its Prometheus."""
    file = tmp_path_factory.mktemp("energy") / "scenario.yaml"
    Path(file).write_text(SCENARIO)
    arguments = ("--source", f"simulator:{file}", "--speed", str(SPEED), "--energy.zero-hold", "12s")
    with (
        serving_prepared(*arguments, "--interval", "250ms") as server,
        prometheus(CONFIG.format(target=f"127.0.0.1:{server.port}")) as real,
    ):
        ended = "my_gpu_process_energy_joules{pod='late'} > 0 and on (pod) my_gpu_process_active == 0"
        wait_until(lambda: real.query(ended), "the energy of the ended short process")
        full = "count_over_time(my_gpu_process_energy_joules{pod='training-job-123'}[5m]) > 20"
        wait_until(lambda: real.query(full), "a window of rate() after the held zeros")
        yield server, real


def value(real: Prometheus, query: str) -> float:
    (answer,) = real.query(query)
    return float(answer["value"][1])


@pytest.mark.parametrize("query", QUERIES)
def test_documented_queries_return_results(watched: tuple[Server, Prometheus], query: str) -> None:
    assert watched[1].query(query)


def test_rate_is_watts(watched: tuple[Server, Prometheus]) -> None:
    watts = value(watched[1], 'rate(my_gpu_process_energy_joules{pod="training-job-123"}[10s])')
    assert watts / SPEED == pytest.approx(60 + 250, rel=0.1)


def test_increase_covers_all_energy_of_a_short_process_with_a_late_pod_name(
    watched: tuple[Server, Prometheus],
) -> None:
    _, real = watched
    for name in ("my_gpu_process_energy_joules", "gpuledger_energy_joules_total"):
        joules = value(real, f"sum({name}{{pod='late'}})")
        # Forty seconds at 60 + 400 W, less the intervals that are not attributed to the process.
        assert joules == pytest.approx(40 * 460, rel=0.08)
        highest = value(real, f"sum(max_over_time({name}{{pod='late'}}[5m]))")
        first = value(real, f"sum(min_over_time({name}{{pod='late'}}[5m]))")
        assert (first, highest) == (0, joules)
        assert value(real, f"sum(increase({name}{{pod='late'}}[5m]))") >= joules * 0.95


def test_exported_accounts_add_up_to_the_counters(watched: tuple[Server, Prometheus]) -> None:
    _, real = watched
    difference = (
        "sum by (uuid) (gpuledger_energy_joules_total) + sum by (uuid) (gpuledger_energy_pending_joules) + "
        "sum by (uuid) (gpuledger_energy_closed_joules) "
        "- sum by (uuid) (gpuledger_device_energy_joules_total)"
    )
    answers = real.query(f"abs({difference})")
    assert len(answers) == 2
    assert all(float(answer["value"][1]) < 0.001 for answer in answers)
    assert all(answer["value"][1] == "0" for answer in real.query("gpuledger_energy_imbalance_joules"))

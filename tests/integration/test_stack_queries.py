"""All PromQL examples of the source documents on a real Prometheus with the configuration of the stack.

A simulator with constant loads provides the expected values. docs/queries.md explains each query. To save
time, queries use a third of the documents' windows, and Prometheus scrapes twice per second.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from running import serving_prepared, wait_for_each, wait_until
from stack import EXPORTER, StackPrometheus, stack_prometheus

# One worker starts the shared processes.
pytestmark = pytest.mark.group("stack-queries")

DOC = (Path(__file__).parents[2] / "docs/queries.md").read_text()
SCENARIO = """
gpus:
  - &h100
    model: NVIDIA H100 80GB HBM3
    empty_watts: 60
    resident_watts: 60
    load_watts: 500
    limit_watts: 700
    samples_per_second: 12
    processes:
      - {name: python3, memory: 8GiB, load: 0.5, age: 3h,
         pod: {namespace: ml, name: training-job, container: main}}
  - <<: *h100
    processes:
      - {name: python3, memory: 4GiB, load: 0.3,
         pod: {namespace: ml, name: training-job-123, container: main}}
      - {name: tritonserver, memory: 2GiB, load: 0.2, pod: {namespace: web, name: api-0, container: main}}
  - <<: *h100
    processes: []
  - <<: *h100
    processes:
      - {name: python3, memory: 1GiB, load: 0.1, user: ada, uid: 1000}
      - {name: python3, memory: 1GiB, load: 0.1, start: 10s, stop: 16s,
         pod: {namespace: ci, name: short-0, container: main}}
"""
# Watts by owner: its share of the 60 W of an occupied GPU, plus its load times 500 W.
JOB, JOB_123, API, ADA, IDLE = 310, 186, 124, 110, 60
GIB = 2**30
TICK = "500ms"
Values = Mapping[tuple[str, ...], float]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StackPrometheus, StackPrometheus]]:
    """Starts a Prometheus that has scraped one node for a whole window of [1m], and one that scrapes two."""
    folders = [tmp_path_factory.mktemp(name) for name in ("scenario", "one", "two")]
    (folders[0] / "scenario.yaml").write_text(SCENARIO)
    flags = ("--source", f"simulator:{folders[0] / 'scenario.yaml'}", *EXPORTER, "--interval", TICK)
    held = ("--energy.zero-hold", "2s")
    with serving_prepared(*flags, *held) as first, serving_prepared(*flags, *held) as second:
        targets = [f"127.0.0.1:{server.port}" for server in (first, second)]
        with (
            stack_prometheus(folders[1], targets[:1], interval=TICK, evaluation="2s") as one,
            stack_prometheus(folders[2], targets, interval=TICK, evaluation="2s") as two,
        ):
            # A third of [1m] after the end of short-0, and the held zeros.
            ready = 'count_over_time(my_gpu_process_energy_joules{pod="training-job"}[5m]) > 80'
            wait_until(lambda: one.query(ready), "a window of a minute")
            for prometheus in (one, two):
                wait_until(
                    lambda real=prometheus: real.query("gpuledger:gpu_utilization:ratio"),
                    "the recording rules",
                )
            yield one, two


@pytest.fixture(scope="module")
def one(node: tuple[StackPrometheus, StackPrometheus]) -> StackPrometheus:
    return node[0]


@pytest.fixture(scope="module")
def two(node: tuple[StackPrometheus, StackPrometheus]) -> StackPrometheus:
    return node[1]


def with_short_windows(query: str) -> str:
    seconds = {"s": 1, "m": 60, "h": 3600}
    return re.sub(r"\[(\d+)([smh])\]", lambda window: f"[{int(window[1]) * seconds[window[2]] // 3}s]", query)


def query_values(real: StackPrometheus, query: str, *labels: str, at: float | None = None) -> Values:
    """Returns the values by these labels, which must identify the rows, with a third of each window."""
    rows: list[Any] = list(real.query(with_short_windows(query), at))
    values = {tuple(row["metric"].get(label, "") for label in labels): float(row["value"][1]) for row in rows}
    assert len(values) == len(rows), rows
    return values


def about(values: Values, within: float = 0.05) -> Any:
    return pytest.approx(dict(values), rel=within)


def plain(text: str) -> str:
    return re.sub(r"\s+", "", text)


# Queries of documents 000 and 001, with the labels that identify the rows and the expected values.
SESSIONS = {("0",): 1, ("1",): 2, ("2",): 0, ("3",): 1}
PROCESSES = {("ml", "training-job"): 1, ("ml", "training-job-123"): 1, ("web", "api-0"): 1, ("", ""): 1}
EXACT: dict[str, tuple[tuple[str, ...], Values]] = {
    "gpu_process_count": (("gpu",), SESSIONS),
    "gpu_process_info": (("gpu", "pod", "status"), {
        ("0", "training-job", "active"): 1,
        ("1", "training-job-123", "active"): 1,
        ("1", "api-0", "active"): 1,
        ("2", "none", "idle"): 0,
        ("3", "", "active"): 1,
    }),
    "gpu_session_count": (("gpu",), SESSIONS),
    'gpu_process_info{gpu="0", status="active"}': (("pod", "gpu_memory"), {("training-job", "8192MiB"): 1}),
    "gpu_total_sessions": ((), {(): 4}),
    "sum by (gpu) (gpu_session_count)": (("gpu",), SESSIONS),
    # Four sessions on four GPUs; one GPU is idle and none is always busy.
    "(sum(gpu_session_count) / count(gpu_session_count)) * 100": ((), {(): 100}),
    "(sum(gpu_session_count) / count(gpu_session_count)) > 0.9": ((), {(): 1}),
    # The query is meant to return memory, but counts processes.
    """sum by (pod, namespace) (
      gpu_process_info{status="active"} * on(gpu,pid) group_left(gpu_memory)
      gpu_process_info{status="active"}
    )""": (("namespace", "pod"), PROCESSES),
    "count(gpu_session_count == 0)": ((), {(): 1}),
    'gpu_process_info{status="idle"}': (("gpu", "pid"), {("2", "none"): 0}),
    # Document 003.
    "sum(my_gpu_process_active)": ((), {(): 4}),
    "sum by (namespace) (my_gpu_process_active)": (
        ("namespace",), {("ml",): 2, ("web",): 1, ("ci",): 0, ("",): 1},
    ),
    # Document 004.
    "up == 0": ((), {}),
    'api_http_request_latencies_second{quantile="0.5"} > 1': ((), {}),
}  # fmt: skip


@pytest.mark.parametrize("query", EXACT, ids=plain)
def test_a_query_of_the_documents_returns_exact_values(one: StackPrometheus, query: str) -> None:
    labels, expected = EXACT[query]
    assert query_values(one, query, *labels) == expected
    assert plain(query) in plain(DOC)


WATTS: dict[str, tuple[tuple[str, ...], Values]] = {
    "rate(my_gpu_process_energy_joules[1m])": (("pod",), {
        ("training-job",): JOB,
        ("training-job-123",): JOB_123,
        ("api-0",): API,
        ("",): ADA,
    }),
    'rate(my_gpu_process_energy_joules{namespace="ml"}[1m])': (
        ("pod",), {("training-job",): JOB, ("training-job-123",): JOB_123},
    ),
    "sum(rate(my_gpu_process_energy_joules[1m]))": ((), {(): JOB + JOB_123 + API + ADA}),
    "my_gpu_process_sm_utilization_ratio / rate(my_gpu_process_energy_joules[1m])": (("pod",), {
        ("training-job",): 0.5 / JOB,
        ("training-job-123",): 0.3 / JOB_123,
        ("api-0",): 0.2 / API,
        ("",): 0.1 / ADA,
    }),
}  # fmt: skip


@pytest.mark.parametrize("query", WATTS, ids=plain)
def test_energy_rates_of_the_documents_are_watts(one: StackPrometheus, query: str) -> None:
    labels, expected = WATTS[query]

    def check(query: str) -> None:
        values = dict(query_values(one, query, *labels))
        # It has ended and has no watts once it is out of the window.
        values.pop(("short-0",), None)
        assert values == about(expected)

    # A busy machine misses scrapes.
    wait_for_each([query], check)
    assert plain(query) in plain(DOC)


def test_rates_over_an_incomplete_window_are_proportional(one: StackPrometheus) -> None:
    """A third of five minutes has half a minute of data: all rates are reduced by the same factor."""
    by_namespace = query_values(
        one, "sum by (namespace) (rate(my_gpu_process_energy_joules[5m]))", "namespace"
    )
    part = by_namespace["ml",] / (JOB + JOB_123)
    assert 0.2 < part < 1
    assert by_namespace["web",] == pytest.approx(part * API, rel=0.05)
    assert by_namespace["",] == pytest.approx(part * ADA, rel=0.15)
    hungry = list(query_values(one, "topk(10, rate(my_gpu_process_energy_joules[5m]))", "pod"))
    assert hungry == [("training-job",), ("training-job-123",), ("api-0",), ("",), ("short-0",)]


def test_increase_returns_joules(one: StackPrometheus) -> None:
    for pod, watts in (("training-job", JOB), ("training-job-123", JOB_123)):
        energy = f'my_gpu_process_energy_joules{{pod="{pod}"}}'
        (joules,) = query_values(one, f"increase({energy}[1h])").values()
        # Constant watts for as long as Prometheus has the series.
        seconds = f"timestamp({energy}) - min_over_time(timestamp({energy})[1h:500ms])"
        (seen,) = query_values(one, seconds).values()
        assert joules == pytest.approx(seen * watts, rel=0.06)
        (kwh,) = query_values(one, f"increase({energy}[1h]) / 3600000").values()
        assert kwh * 3.6e6 == pytest.approx(joules, rel=0.05)
    costs = query_values(one, "(increase(my_gpu_process_energy_joules[1h]) / 3600000) * 0.10", "pod")
    # Not a total, as the document claims, but a row per process.
    assert set(costs) == {("training-job",), ("training-job-123",), ("api-0",), ("",), ("short-0",)}
    # short-0: six seconds, with half of the floor.
    assert costs["short-0",] == pytest.approx(6 * (30 + 50) / 3.6e6 * 0.10, rel=0.15)


def test_an_unchanged_process_can_be_new_or_ended(one: StackPrometheus) -> None:
    values = query_values(one, 'changes(gpu_process_info{status="active"}[1h]) == 0', "pod")
    assert set(values) == {("training-job",), ("training-job-123",), ("api-0",), ("",), ("short-0",)}
    right = """
        max by (instance, uuid, mig_instance, pid) (time() - gpuledger_process_start_time_seconds > 7200)
        * on (instance, uuid, mig_instance, pid) group_left (command, namespace, pod, user)
        max by (instance, uuid, mig_instance, pid, command, namespace, pod, user) (gpuledger_process_info)"""
    assert query_values(one, right, "namespace", "pod") == about({("ml", "training-job"): 3 * 3600})


# Replacements of queries that do not do what the document says.
RIGHT: dict[str, tuple[tuple[str, ...], Values]] = {
    "100 * count(gpu_session_count > 0) / count(gpu_session_count)": ((), {(): 75}),
    "100 * avg(gpuledger:gpu_utilization:ratio)": ((), {(): 100 * (0.5 + 0.5 + 0 + 0.1) / 4}),
    """sum by (namespace, pod) (
      max by (instance, uuid, mig_instance, pid) (gpuledger_process_memory_bytes)
      * on (instance, uuid, mig_instance, pid) group_left (namespace, pod)
      max by (instance, uuid, mig_instance, pid, namespace, pod) (gpuledger_process_info)
    )""": (("namespace", "pod"), {
        ("ml", "training-job"): 8 * GIB,
        ("ml", "training-job-123"): 4 * GIB,
        ("web", "api-0"): 2 * GIB,
        ("", ""): GIB,
    }),
    "sum by (namespace, pod) (my_gpu_process_memory_used_bytes)": (("namespace", "pod"), {
        ("ml", "training-job"): 8 * GIB,
        ("ml", "training-job-123"): 4 * GIB,
        ("web", "api-0"): 2 * GIB,
        ("", ""): GIB,
    }),
    "sum(DCGM_FI_DEV_POWER_USAGE)": ((), {(): JOB + JOB_123 + API + ADA + IDLE}),
    "sum(max by (instance, UUID) (DCGM_FI_DEV_POWER_USAGE))": ((), {(): JOB + JOB_123 + API + ADA + IDLE}),
}  # fmt: skip


@pytest.mark.parametrize("query", RIGHT, ids=plain)
def test_the_corrected_query_returns_the_expected_values(one: StackPrometheus, query: str) -> None:
    labels, expected = RIGHT[query]
    assert query_values(one, query, *labels) == about(expected, 0.03)
    assert plain(query) in plain(DOC)


def test_the_total_cost_includes_idle_energy(one: StackPrometheus) -> None:
    # Parts and total are of one moment; its samples were all written before.
    query = partial(query_values, one, at=time.time() - 3)
    price = "/ 3600000 * 0.10"
    (whole,) = query(f"sum(increase(gpuledger:energy_joules:max[1h])) {price}").values()
    process = 'gpuledger:energy_joules:max{account="process"}'
    parts = query(f"sum by (namespace) (increase({process}[1h])) {price}", "namespace")
    (idle,) = query(f'sum(increase(gpuledger:energy_joules:max{{account="idle"}}[1h])) {price}').values()
    assert whole == pytest.approx(sum(parts.values()) + idle, rel=0.01)
    assert idle == pytest.approx(whole * IDLE / (JOB + JOB_123 + API + ADA + IDLE), rel=0.1)
    measured = process.replace("}", ', method="measured"}')
    alone = query(f"sum by (namespace) (increase({measured}[1h])) {price}", "namespace")
    # Only training-job and ada have an exclusive GPU.
    assert alone["ml",] == pytest.approx(parts["ml",] * JOB / (JOB + JOB_123), rel=0.1)
    assert "web" not in {namespace for (namespace,), cost in alone.items() if cost}


def test_pods_are_ranked_as_pods(two: StackPrometheus) -> None:
    pods = query_values(
        two, "topk(10, sum by (namespace, pod) (rate(my_gpu_process_energy_joules[5m])))", "namespace", "pod"
    )
    assert list(pods)[:2] == [("ml", "training-job"), ("ml", "training-job-123")]


@pytest.mark.parametrize("query", [query for query in RIGHT if query.startswith("sum")], ids=plain)
def test_the_corrected_query_works_with_two_nodes(two: StackPrometheus, query: str) -> None:
    labels, expected = RIGHT[query]
    assert query_values(two, query, *labels) == about(
        {key: 2 * value for key, value in expected.items()}, 0.03
    )


def test_a_join_by_gpu_and_pid_fails_with_two_nodes(two: StackPrometheus) -> None:
    wait_until(lambda: len(two.query("gpu_total_sessions")) == 2, "both nodes")
    (joined,) = (query for query in EXACT if "group_left" in query)
    assert "many-to-many matching" in two.error(joined)

    def check(query: str) -> None:
        # A GPU index refers to one GPU on each node.
        assert query_values(two, query, "gpu") == {key: 2 * n for key, n in SESSIONS.items()}

    wait_for_each(["sum by (gpu) (gpu_session_count)"], check)
    wait_until(
        lambda: len(query_values(two, "sum by (instance, gpu) (gpu_session_count)", "instance", "gpu")) == 8,
        "the GPUs of both nodes",
    )


# Fields of document 002; those that it calls labels are labels.
FIELDS = (
    "SM_CLOCK MEM_CLOCK POWER_USAGE PSTATE GPU_TEMP GPU_UTIL FB_TOTAL FB_FREE FB_USED FB_RESERVED "
    "FB_USED_PERCENT ECC_SBE_AGG_TOTAL ECC_DBE_AGG_TOTAL"
)
PROFILING = (
    "PCIE_TX_BYTES PCIE_RX_BYTES GR_ENGINE_ACTIVE SM_ACTIVE SM_OCCUPANCY PIPE_TENSOR_ACTIVE DRAM_ACTIVE"
)
NAMES = [
    f"DCGM_FI_{kind}_{name}"
    for kind, names in (("DEV", FIELDS), ("PROF", PROFILING))
    for name in names.split()
]
LABELS = (
    "DRIVER_VERSION NVML_VERSION DEV_NAME DEV_SERIAL DEV_UUID DEV_COMPUTE_MODE DEV_PERSISTENCE_MODE "
    "DEV_VIRTUAL_MODE DEV_MIG_MODE DEV_MIG_MAX_SLICES"
)


@pytest.mark.parametrize("name", NAMES)
def test_every_field_of_document_002_is_exported_for_every_gpu(one: StackPrometheus, name: str) -> None:
    rows = wait_until(lambda: one.labels(name), name)
    assert len(rows) == 4
    assert all(f"DCGM_FI_{label}" in row for row in rows for label in LABELS.split())
    assert name in DOC


def test_fields_with_a_misleading_name_or_type(one: StackPrometheus) -> None:
    used = query_values(one, "DCGM_FI_DEV_FB_USED_PERCENT", "gpu")
    assert all(0 <= value <= 1 for value in used.values())
    computed = query_values(one, "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)", "gpu")
    assert used == about(computed, 0.01)
    # A rate: it is constant under constant load and equals the rate of the counter.
    sent = 'DCGM_FI_PROF_PCIE_TX_BYTES{gpu="0"}'
    (low,), (high,) = (query_values(one, f"{word}_over_time({sent}[1m])").values() for word in ("min", "max"))
    assert high == pytest.approx(low, rel=0.1)
    joined = "on (instance, uuid) group_left (gpu) max by (instance, uuid, gpu) (gpuledger_device_info)"
    counted = f'rate(gpuledger_device_pcie_bytes_total{{direction="transmit"}}[1m]) * {joined}'
    assert query_values(one, counted, "gpu")["0",] == pytest.approx(high, rel=0.1)


def test_every_expression_of_the_documentation_is_valid(one: StackPrometheus) -> None:
    queries, _, _ = DOC.partition("## Alerts")
    blocks = re.findall(r"```promql\n(.+?)```", queries, re.DOTALL)
    cells = re.findall(r"^\| `([^`]+)` \|", queries, re.MULTILINE)
    assert len(blocks) >= 14 and len(cells) >= 24
    for expression in (*blocks, *cells):
        assert one.error(expression) == "", expression

"""Profiling metrics of a dcgm-exporter: parsed, merged by UUID, omitted when stale."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from socket import create_server
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import GIB, FakeClock, gpu, instance, node_state, reading, snapshot
from gpuledger.config.load import load_values
from gpuledger.dialects.dcgm.collectors import BY_NAME
from gpuledger.dialects.dcgm.profiling_fields import PROFILING
from gpuledger.http.messages import response_head
from gpuledger.http.routes import Request
from gpuledger.model import quantities as q
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.node_state import IndexHealth, NodeState
from gpuledger.model.settings import build_settings
from gpuledger.model.snapshot import Snapshot
from gpuledger.outputs.metrics_pages import MetricsPages
from gpuledger.sources.dcgm_exporter.profiling import (
    QUANTITY_BY_FIELD,
    add_profiling,
    fetch_profiling_values,
    merge_profiling,
    parse_profiling_metrics,
)
from gpuledger.sources.dcgm_exporter.settings import DcgmExporterSourceSettings

SM = "DCGM_FI_PROF_SM_ACTIVE"


def line(labels: str, value: str = "0.5", name: str = SM) -> str:
    return f"{name}{{{labels}}} {value}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (line('gpu="0",UUID="GPU-0",pci_bus_id="0"'), {("GPU-0", None): {q.SM_ACTIVITY: 0.5}}),
        (line('gpu="0",uuid="GPU-0"'), {("GPU-0", None): {q.SM_ACTIVITY: 0.5}}),
        (
            line('UUID="GPU-0",GPU_I_PROFILE="3g.40gb",GPU_I_ID="2"'),
            {("GPU-0", 2): {q.SM_ACTIVITY: 0.5}},
        ),
        (line('UUID="GPU-0"', "1", "DCGM_FI_PROF_SM_UTIL_RATIO"), {("GPU-0", None): {q.SM_ACTIVITY: 1.0}}),
        (line('UUID="GPU-0"', "0.25 1700000000000"), {("GPU-0", None): {q.SM_ACTIVITY: 0.25}}),
        (line('modelName="a }\\" 1",UUID="GPU-0"') + "\r", {("GPU-0", None): {q.SM_ACTIVITY: 0.5}}),
        (line('UUID="GPU-0"') + "\n" + line('UUID="GPU-0"', "0.9"), {("GPU-0", None): {q.SM_ACTIVITY: 0.5}}),
        (line('UUID="GPU-0"', "140737488355328.000000"), {}),
        (line('UUID="GPU-0"', "NaN"), {}),
        (line('UUID="GPU-0"', "3.5"), {}),
        (line('UUID="GPU-0"', "ERROR"), {}),
        (line('gpu="0"'), {}),
        (line('UUID="GPU-0",GPU_I_ID="x"'), {}),
        (line('UUID="GPU-0"', name="DCGM_FI_DEV_GPU_UTIL"), {}),
        (line('UUID="GPU-0"', name="DCGM_FI_PROF_NVDEC0_ACTIVE"), {}),
        ("# HELP " + line('UUID="GPU-0"'), {}),
        (f'{SM}{{UUID="GPU-0', {}),
    ],
)
def test_profiling_fields_are_parsed_from_a_metrics_page(text: str, expected: object) -> None:
    assert parse_profiling_metrics(f"# TYPE {SM} gauge\n{text}\n") == expected


def test_the_field_names_match_the_dialect_in_both_schemas() -> None:
    names = {name.removeprefix("DCGM_FI_PROF_"): field for field in PROFILING for name in field.names}
    assert {name: field.quantities[0] for name, field in names.items()} == QUANTITY_BY_FIELD
    assert all(
        BY_NAME[f"DCGM_FI_PROF_{name}"].scale("4.8").convert(0.5) in (0.5, 0) for name in QUANTITY_BY_FIELD
    )


@given(st.text(alphabet='DCGM_FI_PROF{}",=\\ \n0.5aUI', max_size=120))
def test_no_page_raises_an_error_in_the_parser(text: str) -> None:
    parse_profiling_metrics(text + "\n" + SM + text)


CARD = gpu(0, architecture="Ampere")
PROFILING_VALUES = {("GPU-0", None): {q.SM_ACTIVITY: 0.5, q.ENGINE_ACTIVITY: 0.9, q.PCIE_TX_RATE: 1e9}}


def test_missing_quantities_are_added_and_become_supported() -> None:
    own = reading(CARD, values={q.POWER: 99.0}, supported={"sm_activity": False, "fan_speed": False})
    (found,) = merge_profiling(snapshot(own), PROFILING_VALUES).readings
    assert found.values == {q.POWER: 99.0, **PROFILING_VALUES["GPU-0", None]}
    assert found.supported == {
        "sm_activity": True,
        "engine_activity": True,
        "pcie_tx_rate": True,
        "fan_speed": False,
    }


def test_values_of_nvml_are_kept() -> None:
    (found,) = merge_profiling(
        snapshot(reading(CARD, values={q.SM_ACTIVITY: 0.1})), PROFILING_VALUES
    ).readings
    assert found.values[q.SM_ACTIVITY] == 0.1


def test_lost_and_unknown_gpus_are_unchanged() -> None:
    before = snapshot(reading(CARD, up=False, values={}), reading(gpu(1), values={q.POWER: 1.0}))
    assert merge_profiling(before, PROFILING_VALUES).readings == before.readings


def test_instance_values_go_to_instances_and_gpu_values_to_the_gpu() -> None:
    large, small = instance(CARD, 2), instance(CARD, 9, index=1)
    profiling = {
        ("GPU-0", 2): {q.SM_ACTIVITY: 0.75, q.DRAM_ACTIVITY: 0.5, q.PCIE_TX_RATE: 7.0},
        ("GPU-0", 9): {q.SM_ACTIVITY: 0.25, q.PCIE_TX_RATE: 7.0},
    }
    with_instances = snapshot(reading(CARD, values={}), reading(large, values={}), reading(small, values={}))
    whole, first, second = (found.values for found in merge_profiling(with_instances, profiling).readings)
    assert whole == {q.PCIE_TX_RATE: 7.0}
    assert first == {q.SM_ACTIVITY: 0.75, q.DRAM_ACTIVITY: 0.5}
    assert second == {q.SM_ACTIVITY: 0.25}


def test_compute_instances_of_one_gpu_instance_get_only_shared_values() -> None:
    halves = [reading(instance(CARD, 2, ci, ci), values={}) for ci in (0, 1)]
    profiling = {("GPU-0", 2): {q.SM_ACTIVITY: 0.75, q.DRAM_ACTIVITY: 0.5}}
    _, *found = merge_profiling(snapshot(reading(CARD, values={}), *halves), profiling).readings
    assert [half.values for half in found] == [{q.DRAM_ACTIVITY: 0.5}] * 2


def state_with_profiling(seen: Snapshot | None, age: float | None) -> NodeState:
    now = node_state(seen)
    health = IndexHealth("dcgm_exporter", age is not None, None if age is None else now.unix - age)
    return add_profiling(now, PROFILING_VALUES, health, period=10.0)


def test_values_older_than_three_periods_are_omitted() -> None:
    seen = snapshot(reading(CARD, values={}))
    for age, is_reported in ((0.0, True), (30.0, True), (30.5, False), (None, False)):
        found = state_with_profiling(seen, age).snapshot
        assert found is not None
        assert bool(found.readings[0].values) is is_reported
    assert state_with_profiling(None, 0.0).snapshot is None


@contextmanager
def served(status: int, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body if self.path == "/metrics?a=b" else b"")

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics?a=b"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_exporter_is_read_over_http() -> None:
    with served(200, line('UUID="GPU-0"').encode()) as url:
        assert fetch_profiling_values(url) == {("GPU-0", None): {q.SM_ACTIVITY: 0.5}}


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (404, b"", "responded with status 404; set --dcgm-exporter-url to dcgm-exporter's metrics page"),
        (200, b"up 1\n", "has no DCGM_FI_PROF_"),
        (200, b"x" * (16 * 1024 * 1024 + 1), "body size limit of 16777216 bytes exceeded"),
    ],
)
def test_an_invalid_response_is_an_error_of_one_line_with_a_remedy(
    status: int, body: bytes, message: str
) -> None:
    with served(status, body) as url, pytest.raises(GpuledgerError, match=message) as caught:
        fetch_profiling_values(url)
    assert "\n" not in str(caught.value)


def test_an_exporter_that_is_silent_or_down_is_an_error() -> None:
    with create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/metrics"
        with pytest.raises(GpuledgerError, match="did not respond within 0 s"):
            fetch_profiling_values(url, timeout=0.05)
    with pytest.raises(GpuledgerError, match=r"cannot be read \(.*refused\)"):
        fetch_profiling_values(url)


def test_gpuledgers_own_page_is_rejected() -> None:
    store = MetricsPages({}, FakeClock(), node_state(None))
    response = store.handler(())(Request("GET", "/metrics", "", {}))
    own = [(name.decode(), value.decode()) for name, value in response_head(response, close=False).headers]
    kept = tuple(pair for pair in own if pair[0] != "content-length")
    page_of_ours = served(200, line('UUID="GPU-0"').encode(), kept)
    with page_of_ours as url, pytest.raises(GpuledgerError, match="is gpuledger itself"):
        fetch_profiling_values(url)


@pytest.mark.parametrize(
    "url", ["localhost:9400", "https://a/metrics", "http://", "http://a:b/", "http://u:p@a/"]
)
def test_an_unusable_url_is_an_error(url: str) -> None:
    with pytest.raises(UsageError, match="expected a URL such as http://localhost:9400/metrics"):
        load_values([DcgmExporterSourceSettings], {"profiling.dcgm_exporter_url": [url]}, {}, None)


def test_url_and_period_are_set_by_flag_or_variable() -> None:
    values = load_values(
        [DcgmExporterSourceSettings],
        {"profiling.dcgm_exporter_url": ["http://[::1]:9401/metrics"]},
        {"GPULEDGER_PROFILING_DCGM_EXPORTER_PERIOD": "30s"},
        None,
    )
    found = build_settings(DcgmExporterSourceSettings, values)
    assert found == replace(found, url="http://[::1]:9401/metrics", period=30.0)
    assert build_settings(DcgmExporterSourceSettings, {}).url == ""


def test_memory_of_the_exporter_is_ignored() -> None:
    text = line('UUID="GPU-0"', str(GIB), "DCGM_FI_DEV_FB_USED_BYTES")
    assert parse_profiling_metrics(text) == {}

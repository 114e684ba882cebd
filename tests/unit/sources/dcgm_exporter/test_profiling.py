"""Profiling metrics of a dcgm-exporter beside gpuledger: read, merged by UUID, and gone when it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from socket import create_server
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import GIB, FakeClock, gpu, instance, page, reading, snapshot
from gpuledger.config.assemble import assemble
from gpuledger.dialects.dcgm.collectors import BY_NAME
from gpuledger.dialects.dcgm.profiling import PROFILING
from gpuledger.http.messages import head_of
from gpuledger.http.routes import Request
from gpuledger.model import quantities as q
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.node_state import IndexHealth, NodeState
from gpuledger.model.settings import build
from gpuledger.model.snapshot import Snapshot
from gpuledger.outputs.metrics_pages import MetricsPages
from gpuledger.sources.dcgm_exporter.profiling import FIELDS, ask, merged, parse, with_profiling
from gpuledger.sources.dcgm_exporter.settings import DcgmExporterSourceSettings

SM = "DCGM_FI_PROF_SM_ACTIVE"


def line(labels: str, value: str = "0.5", name: str = SM) -> str:
    return f"{name}{{{labels}}} {value}"


@pytest.mark.parametrize(
    ("text", "told"),
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
def test_a_page_is_read_for_its_profiling_fields(text: str, told: object) -> None:
    assert parse(f"# TYPE {SM} gauge\n{text}\n") == told


def test_every_profiling_field_is_known_in_both_schemas_by_the_dialects_own_names() -> None:
    names = {name.removeprefix("DCGM_FI_PROF_"): field for field in PROFILING for name in field.names}
    assert {name: field.quantities[0] for name, field in names.items()} == FIELDS
    assert all(BY_NAME[f"DCGM_FI_PROF_{name}"].scale("4.8").to(0.5) in (0.5, 0) for name in FIELDS)


@given(st.text(alphabet='DCGM_FI_PROF{}",=\\ \n0.5aUI', max_size=120))
@settings(max_examples=150, deadline=None)
def test_no_page_is_worse_than_one_that_tells_nothing(text: str) -> None:
    parse(text + "\n" + SM + text)


CARD = gpu(0, architecture="Ampere")
TOLD = {("GPU-0", None): {q.SM_ACTIVITY: 0.5, q.ENGINE_ACTIVITY: 0.9, q.PCIE_TX_RATE: 1e9}}


def test_what_nvml_did_not_tell_is_taken_from_the_exporter_and_is_supported_then() -> None:
    own = reading(CARD, values={q.POWER: 99.0}, supported={"sm_activity": False, "fan_speed": False})
    (found,) = merged(snapshot(own), TOLD).readings
    assert found.values == {q.POWER: 99.0, **TOLD["GPU-0", None]}
    assert found.supported == {
        "sm_activity": True,
        "engine_activity": True,
        "pcie_tx_rate": True,
        "fan_speed": False,
    }


def test_what_nvml_tells_itself_is_kept() -> None:
    (found,) = merged(snapshot(reading(CARD, values={q.SM_ACTIVITY: 0.1})), TOLD).readings
    assert found.values[q.SM_ACTIVITY] == 0.1


def test_a_lost_gpu_and_one_that_the_exporter_does_not_know_stay_as_they_are() -> None:
    before = snapshot(reading(CARD, up=False, values={}), reading(gpu(1), values={q.POWER: 1.0}))
    assert merged(before, TOLD).readings == before.readings


def test_instances_get_their_own_and_the_whole_gpu_what_is_of_it_once() -> None:
    large, small = instance(CARD, 2), instance(CARD, 9, index=1)
    told = {
        ("GPU-0", 2): {q.SM_ACTIVITY: 0.75, q.DRAM_ACTIVITY: 0.5, q.PCIE_TX_RATE: 7.0},
        ("GPU-0", 9): {q.SM_ACTIVITY: 0.25, q.PCIE_TX_RATE: 7.0},
    }
    cut = snapshot(reading(CARD, values={}), reading(large, values={}), reading(small, values={}))
    whole, first, second = (found.values for found in merged(cut, told).readings)
    assert whole == {q.PCIE_TX_RATE: 7.0}
    assert first == {q.SM_ACTIVITY: 0.75, q.DRAM_ACTIVITY: 0.5}
    assert second == {q.SM_ACTIVITY: 0.25}


def test_of_compute_instances_in_one_gpu_instance_only_what_is_shared_is_told() -> None:
    halves = [reading(instance(CARD, 2, ci, ci), values={}) for ci in (0, 1)]
    told = {("GPU-0", 2): {q.SM_ACTIVITY: 0.75, q.DRAM_ACTIVITY: 0.5}}
    _, *found = merged(snapshot(reading(CARD, values={}), *halves), told).readings
    assert [half.values for half in found] == [{q.DRAM_ACTIVITY: 0.5}] * 2


def asked(seen: Snapshot | None, age: float | None) -> NodeState:
    now = page(seen)
    health = IndexHealth("dcgm_exporter", age is not None, None if age is None else now.unix - age)
    return with_profiling(now, TOLD, health, period=10.0)


def test_what_is_older_than_three_periods_is_not_told() -> None:
    seen = snapshot(reading(CARD, values={}))
    for age, is_told in ((0.0, True), (30.0, True), (30.5, False), (None, False)):
        found = asked(seen, age).snapshot
        assert found is not None
        assert bool(found.readings[0].values) is is_told
    assert asked(None, 0.0).snapshot is None


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


def test_an_exporter_is_asked_over_http() -> None:
    with served(200, line('UUID="GPU-0"').encode()) as url:
        assert ask(url) == {("GPU-0", None): {q.SM_ACTIVITY: 0.5}}


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (404, b"", "answers with status 404; name dcgm-exporter's metrics page"),
        (200, b"up 1\n", "tells no DCGM_FI_PROF_"),
        (200, b"x" * (16 * 1024 * 1024 + 1), "more than 16 MiB"),
    ],
)
def test_an_answer_that_is_none_is_one_line_that_says_what_to_do(status: int, body: bytes, said: str) -> None:
    with served(status, body) as url, pytest.raises(GpuledgerError, match=said) as caught:
        ask(url)
    assert "\n" not in str(caught.value)


def test_who_is_not_there_or_says_nothing_or_nonsense_is_an_error() -> None:
    with create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/metrics"
        with pytest.raises(GpuledgerError, match="said nothing for 0 s"):
            ask(url, timeout=0.05)
    with pytest.raises(GpuledgerError, match=r"gave no answer \(.*refused\)"):
        ask(url)


def test_gpuledgers_own_page_is_refused_or_old_values_would_never_end() -> None:
    store = MetricsPages({}, FakeClock(), page(None))
    response = store.handler(())(Request("GET", "/metrics", "", {}))
    own = [(name.decode(), value.decode()) for name, value in head_of(response, close=False).headers]
    kept = tuple(pair for pair in own if pair[0] != "content-length")
    page_of_ours = served(200, line('UUID="GPU-0"').encode(), kept)
    with page_of_ours as url, pytest.raises(GpuledgerError, match="is gpuledger itself"):
        ask(url)


@pytest.mark.parametrize(
    "url", ["localhost:9400", "https://a/metrics", "http://", "http://a:b/", "http://u:p@a/"]
)
def test_an_address_that_cannot_be_asked_is_an_error(url: str) -> None:
    with pytest.raises(UsageError, match="a URL such as http://localhost:9400/metrics is wanted"):
        assemble([DcgmExporterSourceSettings], {"profiling.dcgm_exporter_url": [url]}, {}, None)


def test_an_address_and_its_period_are_set_by_flag_or_variable() -> None:
    values = assemble(
        [DcgmExporterSourceSettings],
        {"profiling.dcgm_exporter_url": ["http://[::1]:9401/metrics"]},
        {"GPULEDGER_PROFILING_DCGM_EXPORTER_PERIOD": "30s"},
        None,
    )
    found = build(DcgmExporterSourceSettings, values)
    assert found == replace(found, url="http://[::1]:9401/metrics", period=30.0)
    assert build(DcgmExporterSourceSettings, {}).url == ""


def test_memory_is_none_of_an_exporters_business() -> None:
    text = line('UUID="GPU-0"', str(GIB), "DCGM_FI_DEV_FB_USED_BYTES")
    assert parse(text) == {}

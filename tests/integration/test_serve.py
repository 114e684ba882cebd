"""`gpuledger serve` as a user runs it: the whole program, from flags to bytes."""

from __future__ import annotations

import os
import re
import signal
import socket
from itertools import chain
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from nvml.library import NvmlGpu, NvmlProcess, NvmlState, build
from running import (
    PATIENCE,
    Server,
    gpuledger,
    one_line,
    promtool_check,
    serving,
    serving_prepared,
    wait_until,
)

# Names required by documents 000, 001 and 003; native has no finding.
REVIEWED = [
    'gpu_process_count non-histogram and non-summary metrics should not have "_count" suffix',
    'gpu_session_count non-histogram and non-summary metrics should not have "_count" suffix',
    'my_gpu_process_energy_joules counter metrics should have "_total" suffix',
    'my_gpu_process_energy_measured_joules counter metrics should have "_total" suffix',
]

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def samples(text: str) -> Samples:
    found: Samples = {}
    for sample in chain.from_iterable(family.samples for family in read_text(text)):
        found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def assert_agreement(text: str) -> None:
    """Check that rows, counts and totals of documents 000 and 001 are consistent."""
    found = samples(text)
    counts, info = found["gpu_process_count"], found["gpu_process_info"]
    assert counts == found["gpu_session_count"]
    rows: dict[str, float] = {}
    for labels, value in info.items():
        row = dict(labels)
        assert value == (row["status"] == "active")
        rows[row["gpu"]] = rows.get(row["gpu"], 0) + value
    assert rows == {dict(labels)["gpu"]: value for labels, value in counts.items()}
    (total,), (sessions,) = found["gpu_total_processes"].values(), found["gpu_total_sessions"].values()
    assert total == sessions == sum(rows.values()) == sum(counts.values())


@pytest.fixture
def nvml(tmp_path: Path) -> NvmlState:
    state = NvmlState(
        tmp_path / "state",
        [
            NvmlGpu(NvmlProcess(os.getpid(), sm=40), NvmlProcess(os.getppid(), sm=10)),
            NvmlGpu(),
        ],
    )
    return state.write()


def environment(state: NvmlState) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(state.path)}


@pytest.mark.parametrize("scenario", ["k8s-node", "workstation"])
def test_the_simulator_serves_consistent_pages_that_parse_and_lint(scenario: str) -> None:
    with serving_prepared("--source", f"simulator:{scenario}") as server:
        server.wait_ticks(2)
        text = server.get().text
        assert_agreement(text)
        assert promtool_check(text) == (3, REVIEWED)
        native = server.get("/metrics/native").text
        assert promtool_check(native) == (0, [])
        assert 'gpuledger_source_info{source="simulator",simulated="true"' in native
        openmetrics = server.get(Accept="application/openmetrics-text; version=1.0.0")
        assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
        assert list(read_openmetrics(openmetrics.text))
        assert "Simulated data" in server.get("/plain").text
        assert any("simulated data" in line for line in server.lines)


def test_the_driver_source_serves_the_data_of_the_library(nvml: NvmlState) -> None:
    with serving_prepared("--source", "nvml", env=environment(nvml)) as server:
        server.wait_ticks(2)
        text = server.get().text
        assert_agreement(text)
        found = samples(text)
        (mine,) = (
            dict(labels) for labels in found["gpu_process_info"] if dict(labels)["pid"] == str(os.getpid())
        )
        assert mine["gpu"] == "0"
        assert mine["command"] == Path(f"/proc/{os.getpid()}/exe").readlink().name
        assert "Simulated" not in server.get("/plain").text
        assert server.get("/api/v1/snapshot").json()["source"]["simulated"] is False
        starts = found["gpuledger_process_start_time_seconds"]
        (start,) = (value for labels, value in starts.items() if ("pid", str(os.getpid())) in labels)
        assert abs(start - Path(f"/proc/{os.getpid()}").stat().st_ctime) < 3600


def test_the_web_api_has_all_its_values_with_any_dialect(nvml: NvmlState) -> None:
    with serving_prepared("--source", "nvml", "--dialect", "process", env=environment(nvml)) as server:
        # Query only the API: a scrape of the native page would make its quantities be read for ten minutes.
        wait_until(lambda: server.get("/api/v1/snapshot").json()["tick"] > 2, "a third tick")
        device = server.get("/api/v1/snapshot").json()["devices"][0]
        shown = ("utilization_ratio", "memory_total_bytes", "power_limit_watts", "temperature_celsius")
        assert all(device[name] is not None for name in shown), device


def test_a_hanging_library_makes_health_stale_within_three_intervals_and_http_still_works(
    nvml: NvmlState,
) -> None:
    with serving_prepared("--source", "nvml", "--interval", "200ms", env=environment(nvml)) as server:
        server.wait_ticks(2)
        wait_until(lambda: server.get("/health").text.startswith("OK\n"), "a tick in time")
        nvml.hang = ("nvmlDeviceGetTemperature", "nvmlDeviceGetUtilizationRates")
        nvml.write()
        wait_until(lambda: server.get("/health").text.startswith("STALE"), "health to turn")
        line = server.wait_line(r"no reading for more than (\d+\.\d) s: nvml does not answer")
        # The watchdog waits for three intervals since the last tick; on a busy machine it is late.
        assert 0.6 <= float(line[1]) < 6
        stale = samples(server.get().text)
        assert stale["gpuledger_tick_stalled"] == {(): 1.0}
        success = {
            dict(labels)["collector"]: value for labels, value in stale["gpuledger_collector_success"].items()
        }
        assert success["source"] == success["processes"] == 0
        assert not {"gpu_process_info", "gpuledger_device_up"} & set(stale)
        assert server.get("/-/healthy").status_code == server.get("/-/ready").status_code == 200
        nvml.hang = ()
        nvml.write()
        wait_until(lambda: server.get("/health").text.startswith("OK\n"), "health to come back")
        assert_agreement(server.get().text)


def test_without_a_driver_it_is_logged_once_and_health_is_served(tmp_path: Path) -> None:
    missing = {"LD_LIBRARY_PATH": str(tmp_path)}
    # A shorter interval ends in a stall on a busy machine, which is logged as well.
    with serving_prepared("--interval", "1s", env=missing) as server:
        text = server.wait_ticks(3)
        found = samples(text)
        assert found["gpuledger_collector_success"] == {(("collector", "source"),): 0.0}
        assert server.get("/-/ready").status_code == 200
        assert "libnvidia-ml.so.1" in server.get("/health").text
        errors = [line for line in server.lines if "level=error" in line]
        assert len(errors) == 1
        assert "libnvidia-ml.so.1" in errors[0]


def test_two_ports_can_serve_two_dialects() -> None:
    more = ("--listen-address", "127.0.0.1:0=process")
    with serving_prepared("--source", "simulator", "--listen-address", "127.0.0.1:0=native", *more) as server:
        wait_until(lambda: len(ports(server)) == 3, "three ports")
        server.wait_ticks(1)
        bodies = [server.get(port=port).text for port in ports(server)]
        assert ["gpu_session_count" in body for body in bodies] == [True, False, False]
        assert ["gpuledger_device_up" in body for body in bodies] == [True, True, False]
        assert ["gpu_process_count" in body for body in bodies] == [True, False, True]


def ports(server: Server) -> list[str]:
    return [found[1] for line in server.lines if (found := re.search(r"listening on \S+ port (\d+)", line))]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_serve_with_exit_code_zero(number: signal.Signals) -> None:
    with serving("--source", "simulator") as server:
        server.wait_ticks(1)
        server.process.send_signal(number)
        assert server.process.wait(PATIENCE) == 0


def test_a_port_in_use_is_one_line_and_exit_code_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = gpuledger("serve", "--source", "simulator", "--listen-address", address)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if not line.startswith("ts=")]
    assert len(errors) == 1
    assert address in errors[0]
    assert "--listen-address" in errors[0]


BAD_INPUT = [
    (["serve", "--intervall", "1s"], "unknown flag '--intervall'; did you mean '--interval'?"),
    (["--sorce=nvml"], "unknown flag '--sorce'; did you mean '--source'?"),
    (["serv"], "unknown command 'serv'; did you mean 'serve'?"),
    (["serve", "--source", "nvm"], "unknown source 'nvm'; did you mean 'nvml'?"),
    (["serve", "--dialect", "proces"], "unknown dialect 'proces'; did you mean 'process'?"),
    (["serve", "--listen-address", ":9400=nativ"], "unknown dialect 'nativ'; did you mean 'native'?"),
    (["serve", "--source", "simulator:k8snode"], "unknown scenario 'k8snode'; did you mean 'k8s-node'?"),
    (["serve", "--interval", "soon"], "--interval: expected a duration such as"),
    (["serve", "--listen-address", "9400"], "--listen-address: expected an address such as"),
    (["serve", "now"], "serve takes no argument 'now'"),
    (["serve", "--dialect", ""], "--dialect: expected at least one"),
    (["serve", "--devices", " ,"], "--devices: expected at least one"),
    (["serve", "--config", ""], "--config: expected a file"),
    (["version", "--foo"], "unknown flag '--foo'"),
    (["version", "foo"], "version takes no argument 'foo'"),
]


@pytest.mark.parametrize(("arguments", "line"), BAD_INPUT)
def test_invalid_input_is_one_line_and_exit_code_two(arguments: list[str], line: str) -> None:
    assert line in one_line(gpuledger(*arguments), 2)


def test_the_configuration_file_can_be_named_by_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("process: {max_per_devic: 5}")
    done = gpuledger("serve", env={"GPULEDGER_CONFIG": str(file)})
    assert done.returncode == 2
    assert (
        f"{file}: unknown key 'process.max_per_devic'; did you mean 'process.max_per_device'?" in done.stderr
    )


BAD_FILES = [
    ("config", "serve --config {file}", "intervall: 1s", "unknown key 'intervall'; did you mean 'interval'?"),
    ("scenario", "serve --source simulator:{file}", "gpuss: 1", "did you mean 'gpus'?"),
]


@pytest.mark.parametrize(("kind", "command", "content", "line"), BAD_FILES)
def test_an_invalid_file_is_one_line_that_names_it(
    tmp_path: Path, kind: str, command: str, content: str, line: str
) -> None:
    file = tmp_path / f"{kind}.yaml"
    file.write_text(content)
    done = gpuledger(*command.format(file=file).split())
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert line in done.stderr
    assert str(file) in done.stderr


@pytest.mark.parametrize("command", ["", "serve", "metrics"])
def test_help_has_examples(command: str) -> None:
    done = gpuledger(*command.split(), "--help")
    assert done.returncode == 0
    assert "gpuledger serve --source simulator" in done.stdout or "examples:" in done.stdout
    assert not done.stderr


def test_hostile_process_names_are_escaped_and_truncated(nvml: NvmlState) -> None:
    nvml.names[os.getpid()] = b'/bin/a"\\\xff' + b"x" * 4096
    nvml.write()
    with serving_prepared("--source", "nvml", env=environment(nvml)) as server:
        server.wait_ticks(1)
        text = server.get().text
        assert_agreement(text)
        promtool_check(text)
        commands = {dict(labels)["command"] for labels in samples(text)["gpu_process_info"]}
        (hostile,) = (command for command in commands if command.startswith('a"'))
        assert hostile.startswith('a"\\\\xff')
        assert len(hostile) <= 128


def test_a_ledger_in_memory_is_named_with_the_flag_that_keeps_it() -> None:
    with serving("--source", "simulator:workstation", "--state-dir", "none") as server:
        server.wait_line("ledger in memory only: .*--state-dir DIR keeps it")

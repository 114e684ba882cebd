"""Every command works in the executables, which have no interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from gpuledger.cli.main import COMMANDS
from nvml.library import NvmlGpu, NvmlState, build
from running import PATIENCE, Program, get, wait_until

pytestmark = pytest.mark.group("packages")

MIB = 1 << 20


@pytest.fixture(scope="module", params=["gpuledger/gpuledger", "gpuledger-onefile"])
def program(request: pytest.FixtureRequest, built: Path) -> Path:
    return built / str(request.param)


def run(program: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        timeout=PATIENCE,
        check=False,
    )


@contextmanager
def serving(*command: str | Path) -> Iterator[tuple[Program, str]]:
    """`serve` with these words before its flags, and its address."""
    program = Program([*map(str, command), "--source", "simulator", "--listen-address", "127.0.0.1:0"])
    try:
        port = program.wait_line(r"listening on \S+ port (\d+)")[1]
        yield program, f"http://127.0.0.1:{port}"
    finally:
        program.stop()


def resident(program: Program, url: str) -> int:
    """Resident bytes after a page of metrics."""
    program.wait_answer(f"{url}/metrics")
    return int(psutil.Process(program.process.pid).memory_info().rss)


def test_each_command_explains_itself(built: Path) -> None:
    for command in COMMANDS:
        done = run(built / "gpuledger/gpuledger", command, "--help")
        assert (done.returncode, done.stderr) == (0, ""), command
        assert f"gpuledger {command}" in done.stdout


def test_commands_print_what_they_print_elsewhere(program: Path) -> None:
    for command in (
        ["version"],
        ["metrics"],
        ["top", "--once", "--source", "simulator"],
        ["migrate", "--help"],
    ):
        done = run(program, *command)
        assert (done.returncode, done.stderr) == (0, ""), command
        assert done.stdout


def test_the_simulator_is_served_with_page_and_metrics(program: Path) -> None:
    with serving(program, "serve") as (_, url):
        wait_until(
            lambda: "gpuledger_device_energy_joules_total{" in get(f"{url}/metrics").text,
            "a page with readings",
        )
        assert "<title>" in get(url).text


def test_the_driver_is_probed_in_a_process_of_its_own(program: Path, tmp_path: Path) -> None:
    state = NvmlState(tmp_path / "state", [NvmlGpu("GPU-0")]).write()
    found = run(
        program,
        *("doctor", "--source", "nvml", "--format", "json"),
        LD_LIBRARY_PATH=str(build().parent),
        TEST_NVML_STATE=str(state.path),
    )
    verdicts = {each["check"]: each["verdict"] for each in json.loads(found.stdout)["findings"]}
    assert (verdicts["driver.library"], verdicts["driver.answers"]) == ("works", "works")


def test_its_memory_is_that_of_an_installation_by_pip(built: Path) -> None:
    with (
        serving(built / "gpuledger/gpuledger", "serve") as frozen,
        serving(sys.executable, "-m", "gpuledger", "serve") as installed,
    ):
        assert resident(*frozen) <= resident(*installed) + 5 * MIB

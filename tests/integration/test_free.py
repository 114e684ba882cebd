"""`gpuledger free` with a real `serve`: 20 processes at once, commands with their signals, restarts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from nvml.library import NvmlGpu, NvmlInstance, NvmlProcess, NvmlState, build
from prepared import MODULE
from running import PATIENCE, Server, gpuledger, one_line, serving_prepared, wait_until

GPUS = 24


class Lab:
    """A machine with 24 free GPUs, and its running gpuledger.

    A tick that is three intervals late withholds the GPUs, and `free` fails: the interval leaves time for a
    busy machine.
    """

    def __init__(self, folder: Path, interval: str = "1s") -> None:
        self.folder = folder
        scenario = folder / "lab.yaml"
        scenario.write_text(f"gpus: {GPUS}\n")
        self.flags = ("--source", f"simulator:{scenario}", "--interval", interval)
        self.environment = {
            "GPULEDGER_CONTROL_SOCKET": str(folder / "control.sock"),
            "GPULEDGER_STATE_DIR": str(folder / "books"),
            "CUDA_VISIBLE_DEVICES": "",
        }

    def free(self, *words: str) -> subprocess.CompletedProcess[str]:
        return gpuledger("free", "--for", "0s", *words, env=self.environment)

    def devices(self) -> list[dict[str, Any]]:
        """The devices as the running gpuledger sees them; the exit code is 1 if none is free."""
        found: list[dict[str, Any]] = json.loads(self.free("--json").stdout)["devices"]
        return found

    def reserved(self) -> list[str]:
        return [one["device_uuid"] for one in self.devices() if one["availability"] == "reserved"]

    @contextmanager
    def start(self, *command: str) -> Iterator[subprocess.Popen[str]]:
        """`free -- COMMAND` as a shell starts it, until the end of the context; it has printed one line."""
        running = subprocess.Popen(
            [*MODULE, "free", "--for", "0s", "--", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.environment},
        )
        # Closes the pipes, and waits for the process.
        with running:
            try:
                yield running
            finally:
                running.kill()


def first_line(running: subprocess.Popen[str]) -> str:
    """What a command prints first: it has started."""
    assert running.stdout is not None
    return running.stdout.readline().strip()


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture
def server(lab: Lab) -> Iterator[Server]:
    with serving_prepared(*lab.flags, env=lab.environment) as server:
        server.wait_ticks()
        yield server


def test_processes_that_take_at_once_get_different_gpus_or_a_refusal(tmp_path: Path) -> None:
    """After the first tick: the 20 processes keep the machine so busy that a second one can be late."""
    lab = Lab(tmp_path, interval="10m")
    with (
        serving_prepared(*lab.flags, env=lab.environment) as server,
        ThreadPoolExecutor(20) as threads,
    ):
        server.wait_ticks()
        first = list(threads.map(lambda _: lab.free("--env"), range(20)))
        second = list(threads.map(lambda _: lab.free("--env"), range(20)))
    assert [(one.returncode, one.stderr) for one in first] == [(0, "")] * 20
    taken = [one.stdout for one in (*first, *second) if one.returncode == 0]
    assert len(taken) == len(set(taken)) == GPUS
    assert all(one.startswith("CUDA_VISIBLE_DEVICES=GPU-") and one.count("GPU-") == 1 for one in taken)
    refused = [one for one in second if one.returncode]
    assert len(refused) == 20 + 20 - GPUS
    # Nothing that would hide every GPU, or show all.
    assert {(one.returncode, one.stdout) for one in refused} == {(1, "")}
    assert {one.stderr for one in refused} == {f"gpuledger: none of 1 GPU can be taken: {GPUS} reserved\n"}


@pytest.mark.usefixtures("server")
def test_a_command_gets_its_gpus_and_its_exit_code_is_passed_on(lab: Lab) -> None:
    with lab.start("sh", "-c", "echo $CUDA_VISIBLE_DEVICES; read line; exit 7") as running:
        uuid = first_line(running)
        assert lab.reserved() == [uuid]
        running.kill()
        assert running.wait(PATIENCE) == -signal.SIGKILL
    wait_until(lambda: lab.reserved() == [], "no reservation")
    done = lab.free("--count", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exit 7")
    assert (done.returncode, done.stderr) == (7, "")
    assert len(set(done.stdout.strip().split(","))) == 2


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE])
def test_a_command_gets_the_signals(lab: Lab, number: signal.Signals) -> None:
    """It has the process id that the shell knows, and no signal is ignored."""
    with lab.start("sh", "-c", "echo ready; read line") as running:
        assert first_line(running) == "ready"
        running.send_signal(number)
        assert running.wait(PATIENCE) == -number


@pytest.mark.usefixtures("server")
def test_a_command_that_does_not_exist_reserves_nothing(lab: Lab) -> None:
    done = lab.free("--", "no-such-program")
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr == "gpuledger: no-such-program: command not found\n"
    assert lab.reserved() == []


@pytest.mark.usefixtures("server")
def test_too_few_run_nothing(lab: Lab) -> None:
    done = lab.free("--count", "25", "--", "touch", str(lab.folder / "ran"))
    assert one_line(done, 1) == "gpuledger: 24 of 25 GPUs can be taken"
    assert not (lab.folder / "ran").exists()
    assert lab.reserved() == []


@pytest.mark.usefixtures("server")
def test_reservations_are_shown_and_released(lab: Lab) -> None:
    uuid = lab.free("--env", "--reserve", "1h").stdout.strip().partition("=")[2]
    wait_until(lambda: lab.reserved() == [uuid], "a reservation")
    table = lab.free().stdout
    assert "  reserved  by you until " in table
    assert "23 of 24 free" in table
    assert lab.free("--release", uuid).stdout == f"released {uuid}\n"
    assert lab.reserved() == []
    assert one_line(lab.free("--release", uuid), 1) == f"gpuledger: no reservation of yours: {uuid}"


def test_reservations_outlive_a_restart(lab: Lab) -> None:
    with ExitStack() as commands:
        with serving_prepared(*lab.flags, env=lab.environment) as server:
            server.wait_ticks()
            uuid = lab.free("--env").stdout.strip().partition("=")[2]
            running = commands.enter_context(lab.start("sh", "-c", "echo $CUDA_VISIBLE_DEVICES; read line"))
            held = first_line(running)
        with serving_prepared(*lab.flags, env=lab.environment) as server:
            server.wait_ticks()
            assert sorted(lab.reserved()) == sorted([uuid, held])
            running.kill()
            running.wait(PATIENCE)
            wait_until(lambda: lab.reserved() == [uuid], "the end of the command")


def test_without_serve_the_driver_is_read_once_and_that_is_said(lab: Lab) -> None:
    done = lab.free(*lab.flags[:2])
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{GPUS} of {GPUS} free" in done.stdout


def test_without_serve_nothing_is_taken_unless_the_user_insists(lab: Lab) -> None:
    environment = {**lab.environment, "GPULEDGER_SOURCE": lab.flags[1]}
    done = gpuledger("free", "--env", env=environment)
    error = one_line(done, 1)
    assert error.startswith(
        "gpuledger: nothing is reserved: no gpuledger is running here: nothing listens on"
    )
    assert error.endswith("--anyway")
    done = gpuledger("free", "--env", "--anyway", env=environment)
    assert done.stdout.startswith("CUDA_VISIBLE_DEVICES=GPU-")
    assert "nothing is reserved" in done.stderr
    done = gpuledger("free", env=environment)
    assert f"{GPUS} of {GPUS} free" in done.stdout
    assert "one reading of the driver, without reservations" in done.stderr


MIB = 1 << 20
EMPTY = {"memory_used": 4 * MIB}


def sliced() -> NvmlGpu:
    """A GPU in MIG mode with a compute instance that nobody uses, and one that uses memory."""
    card = NvmlGpu(mig=1, **EMPTY)
    card.instances = [NvmlInstance(0, 1, used=12 * MIB), NvmlInstance(1, 2, used=4096 * MIB)]
    return card


def failing(**errors: int) -> NvmlGpu:
    card = NvmlGpu(**EMPTY)
    card.errors |= errors
    return card


def test_what_a_driver_reports_and_what_it_does_not(tmp_path: Path) -> None:
    """With the test library of NVML, without a running gpuledger."""
    gpus = [
        (NvmlGpu(**EMPTY), "free"),
        (NvmlGpu(compute_mode=2, **EMPTY), "unusable"),
        (NvmlGpu(compute_mode=3, **EMPTY), "free"),
        (NvmlGpu(NvmlProcess(os.getpid()), **EMPTY), "in_use"),
        # Of a process that the driver does not list.
        (NvmlGpu(memory_used=3 << 30), "unknown"),
        (failing(nvmlDeviceGetUtilizationRates=3), "unknown"),
        (failing(nvmlDeviceGetComputeRunningProcesses_v3=999), "unknown"),
    ]
    state = NvmlState(tmp_path / "nvml", [*(card for card, _ in gpus), sliced()]).write()
    environment = {
        "LD_LIBRARY_PATH": str(build().parent),
        "TEST_NVML_STATE": str(state.path),
        "GPULEDGER_CONTROL_SOCKET": str(tmp_path / "none.sock"),
    }
    # Whatever this machine has.
    without = ("--kubernetes-enabled", "false", "--slurm", "false")
    done = gpuledger("free", "--source", "nvml", "--json", *without, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    found = {(one["gpu"], one["instance"]): one for one in json.loads(done.stdout)["devices"]}
    expected = {(str(index), ""): state for index, (_, state) in enumerate(gpus)}
    expected |= {("7", "1_0"): "free", ("7", "2_0"): "unknown"}
    assert {key: one["availability"] for key, one in found.items()} == expected
    assert found["7", "1_0"]["device_uuid"].startswith("MIG-")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--"], "there is no command after --"),
        (["--env", "--", "true"], "--env and a command exclude each other"),
        (["--reserve", "5m"], "--reserve needs --env, or a command after --"),
        (["--reserve", "5m", "--", "true"], "--reserve is for --env"),
        (["--release", "all", "--env"], "--release and --env exclude each other"),
        (["--release", "all", "--", "true"], "--release and a command exclude each other"),
        (["--release", ""], "--release: expected all or GPUs, not ''"),
        (["--fleet", ""], "--fleet: expected a URL, not ''"),
        (["--everybody"], "--everybody needs --release"),
        (["train.py"], "free takes no argument 'train.py'"),
        (["--memory", "much"], "expected a size such as"),
    ],
)
def test_wrong_usage(lab: Lab, words: list[str], message: str) -> None:
    assert message in one_line(gpuledger("free", *words, env=lab.environment), 2)


@pytest.mark.usefixtures("server")
def test_waiting_gets_what_is_released(lab: Lab) -> None:
    everything = lab.free("--env", "--count", str(GPUS))
    assert everything.returncode == 0
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lab.free, "--env", "--wait", "10m")
        assert lab.free("--release", "all").returncode == 0
        done = waiting.result(PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("CUDA_VISIBLE_DEVICES=GPU-")

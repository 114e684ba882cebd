"""`gpuledger pause` and `resume` from the command line, with a driver that opens a device file."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as read_text

from ledger_helpers import assert_books_balance, rows
from nvml.library import NvmlGpu, NvmlProcess, NvmlState, build
from prepared import MODULE
from running import PATIENCE, Program, Server, gpuledger, one_line, serving_prepared, wait_until

QUICK = ("--source", "nvml", "--interval", "100ms")


@dataclass
class Machine:
    """A driver with a device file, a folder for the ledger, and a control socket."""

    folder: Path
    state: NvmlState

    @property
    def device(self) -> Path:
        return self.folder / "nvidiactl"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_LIBRARY_PATH": str(build().parent),
            "TEST_NVML_STATE": str(self.state.path),
            "TEST_NVML_DEVICE": str(self.device),
            "GPULEDGER_CONTROL_SOCKET": str(self.folder / "control.sock"),
            "GPULEDGER_STATE_DIR": str(self.folder / "books"),
        }

    def run(self, *words: str) -> str:
        """The output of a command, which must succeed."""
        done = gpuledger(*words, env=self.environment)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def holds_driver(self, program: Program) -> bool:
        """Whether the program has the driver's device open."""
        folder = Path(f"/proc/{program.process.pid}/fd")
        return any(is_link_to(handle, self.device) for handle in folder.iterdir())


def is_link_to(handle: Path, target: Path) -> bool:
    try:
        return handle.readlink() == target
    except FileNotFoundError:
        return False


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    gpus = [NvmlGpu(NvmlProcess(os.getpid(), sm=40), activity=40.0), NvmlGpu()]
    made = Machine(tmp_path, NvmlState(tmp_path / "state", gpus).write())
    made.device.write_text("")
    return made


@pytest.fixture
def server(machine: Machine) -> Iterator[Server]:
    with serving_prepared(*QUICK, env=machine.environment) as running:
        running.wait_ticks(3)
        yield running


def samples(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in read_text(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(map(str, sample.labels.items())))] = sample.value
    return found


def test_a_pause_closes_all_driver_handles_while_metrics_are_served(machine: Machine, server: Server) -> None:
    assert machine.holds_driver(server)
    before = samples(server.get("/metrics/native").text)
    assert before["gpuledger_paused"] == {(): 0}
    answer = machine.run("pause", "--for", "5m", "--reason", "driver 580")
    # Released before the command returns, not some time later.
    assert not machine.holds_driver(server)
    assert re.match(r"paused until \S+Z \(driver 580\): ", answer)

    paused = samples(server.get("/metrics/native").text)
    assert paused["gpuledger_paused"] == {(): 1}
    assert "gpuledger_device_up" not in paused
    totals = paused["gpuledger_device_energy_joules_total"]
    assert totals.keys() == before["gpuledger_device_energy_joules_total"].keys()
    assert server.get("/metrics").status_code == server.get("/-/ready").status_code == 200
    assert server.get("/health").text.startswith("PAUSED until ")
    assert "Health: <strong>PAUSED" in server.get("/plain").text

    (ticks,) = paused["gpuledger_ticks_total"].values()
    server.wait_ticks(int(ticks) + 3)
    assert not machine.holds_driver(server)
    assert samples(server.get("/metrics/native").text)["gpuledger_device_energy_joules_total"] == totals

    assert machine.run("resume") == "resumed\n"
    assert machine.holds_driver(server)
    after = samples(server.get("/metrics/native").text)
    assert after["gpuledger_paused"] == {(): 0}
    assert "gpuledger_paused_until_timestamp_seconds" not in after
    assert len(after["gpuledger_device_up"]) == 2


def test_the_books_balance_after_a_pause_and_its_energy_is_unobserved(
    machine: Machine, server: Server
) -> None:
    books = machine.folder / "books" / "gpuledger.db"
    unobserved = "SELECT coalesce(sum(unobserved), 0) FROM spans"
    wait_until(lambda: assert_books_balance(books) > 0, "something to be booked")
    ((before,),) = rows(books, unobserved)
    machine.run("pause")
    (ticks,) = samples(server.get("/metrics/native").text)["gpuledger_ticks_total"].values()
    server.wait_ticks(int(ticks) + 5)
    machine.run("resume")
    wait_until(lambda: rows(books, unobserved) > [(before,)], "the pause to be booked")
    assert_books_balance(books)
    assert rows(books, "SELECT count(*) FROM epochs") == [(0,)]
    imbalance = samples(server.get("/metrics/native").text)["gpuledger_energy_imbalance_joules"]
    assert set(imbalance.values()) == {0}


def test_a_driver_reloaded_during_a_pause_is_read_again(machine: Machine, server: Server) -> None:
    machine.run("pause")
    machine.state.reload += 1
    machine.state.write()
    machine.run("resume")
    wait_until(lambda: server.get("/health").text.startswith("OK"), "a tick in time")
    errors = [line for line in server.lines if "level=error" in line]
    assert not [line for line in errors if not re.search("no (first )?reading", line)], (
        "a busy machine may stall a tick"
    )


def test_a_forgotten_pause_ends_automatically_and_is_logged(machine: Machine, server: Server) -> None:
    machine.run("pause", "--for", "1s")
    server.wait_line("the pause ends")
    wait_until(lambda: server.get("/health").text.startswith("OK"), "data to be back")
    assert machine.holds_driver(server)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_a_pause_exits_cleanly(
    machine: Machine, server: Server, number: signal.Signals
) -> None:
    machine.run("pause")
    server.process.send_signal(number)
    assert server.process.wait(PATIENCE) == 0
    assert not (machine.folder / "control.sock").exists()
    assert_books_balance(machine.folder / "books" / "gpuledger.db")


def test_collect_every_can_be_paused_and_its_file_shows_it(machine: Machine) -> None:
    page = machine.folder / "gpu.prom"
    words = ["collect", "--every", "100ms", "--textfile-dir", str(machine.folder), "--file", page.name]
    program = Program([*MODULE, *words, *QUICK, "--dialect", "native"], machine.environment, prepared=True)
    try:
        wait_until(lambda: page.exists() and "gpuledger_device_up" in page.read_text(), "a page")
        machine.run("pause")
        assert not machine.holds_driver(program)
        wait_until(lambda: "\ngpuledger_paused 1\n" in page.read_text(), "the page to say so")
        assert "gpuledger_device_up" not in page.read_text()
        machine.run("resume")
        wait_until(lambda: "gpuledger_device_up" in page.read_text(), "data to be back")
    finally:
        program.stop()


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_without_a_running_node_the_error_is_one_line(machine: Machine, command: str) -> None:
    done = gpuledger(command, env=machine.environment)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "no gpuledger is running here" in done.stderr
    assert str(machine.folder / "control.sock") in done.stderr


BAD_INPUT = [
    (["pause", "--for", "25h"], "--for: expected a duration of at most 1d, not '25h'"),
    (["pause", "--for", "soon"], "--for: expected a duration such as"),
    (["pause", "10m"], "pause takes no argument '10m'"),
    (["pause", "--forr", "1m"], "unknown flag '--forr'; did you mean '--for'?"),
    (["resume", "now"], "resume takes no argument 'now'"),
    (["resume", "--control.socket", "none"], "--control.socket none: gpuledger has no control socket"),
]


@pytest.mark.parametrize(("arguments", "line"), BAD_INPUT)
def test_invalid_input_is_one_line_and_exit_code_two(arguments: list[str], line: str) -> None:
    assert line in one_line(gpuledger(*arguments), 2)


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_help_has_examples(command: str) -> None:
    done = gpuledger(command, "--help")
    assert done.returncode == 0
    assert "examples:" in done.stdout
    assert "kubectl exec POD -- gpuledger" in done.stdout

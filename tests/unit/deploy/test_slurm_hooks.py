"""Scripts for Slurm: they exit with 0 at once, whatever fails. An Epilog that fails drains its node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from gpuledger.ledger.report.moments import parse_moment
from gpuledger.ledger.watched_time import QUARTER
from running import PATIENCE, wait_until

HOOKS = Path(__file__).parents[3] / "deploy/slurm"
EPILOG, TASK_EPILOG = HOOKS / "epilog.sh", HOOKS / "task_epilog.sh"


class Machine:
    """A node with a stand-in for gpuledger, and a directory for receipts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.receipts = folder / "receipts"
        self.receipts.mkdir()
        self.program = folder / "gpuledger"
        self.environment = {
            "SLURM_JOB_ID": "4711",
            "SLURMD_NODENAME": "gpu1",
            "CUDA_VISIBLE_DEVICES": "0,1",
            "GPULEDGER_RECEIPTS": str(self.receipts),
            "GPULEDGER_RECEIPT_DELAY": "0",
            "GPULEDGER_SLURM_CONF": str(folder / "conf"),
            "GPULEDGER": str(self.program),
        }
        self.install('echo "{\\"words\\": \\"$*\\"}"')

    def install(self, body: str) -> None:
        """Replace the program. It notes that it ran, when it has ended."""
        self.program.write_text(f"#!/bin/sh\ntrap 'echo >> {self.folder}/ran' EXIT\n{body}\n")
        self.program.chmod(0o755)

    def run(self, hook: Path, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a hook as slurmd does: with few variables and without PATH."""
        return subprocess.run(
            [hook],
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def has_run(self) -> bool:
        return (self.folder / "ran").exists()

    def files(self) -> set[str]:
        return {file.name for file in self.receipts.iterdir()}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def write(pipe: Path, text: str) -> None:
    """Write to a pipe that a program reads or will read."""

    def opened() -> int:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return 0

    handle = wait_until(opened, "a reader of the pipe")
    os.write(handle, text.encode())
    os.close(handle)


def test_the_epilog_saves_the_receipt_of_the_job(machine: Machine) -> None:
    done = machine.run(EPILOG)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    file = machine.receipts / "4711.gpu1.json"
    wait_until(file.exists, "the receipt")
    assert file.read_text() == '{"words": "receipt job:4711 --format json"}\n'
    assert file.stat().st_mode & 0o777 == 0o600
    wait_until(lambda: machine.files() == {"4711.gpu1.json"}, "the temporary files to be removed")


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ("1772160331", " --since 2026-02-27T02:45Z"),
        ("1772160300", " --since 2026-02-27T02:45Z"),
        ("", ""),
        ("Unknown", ""),
        ("9" * 30, ""),
        ("08", ""),
    ],
)
def test_the_epilog_saves_only_the_last_run_of_a_requeued_job(
    machine: Machine, start: str, words: str
) -> None:
    machine.run(EPILOG, SLURM_JOB_START_TIME=start)
    file = machine.receipts / "4711.gpu1.json"
    wait_until(file.exists, "the receipt")
    assert json.loads(file.read_text()) == {"words": f"receipt job:4711{words} --format json"}
    if words:
        assert parse_moment("--since", words.split()[1], 1.8e9) == int(start) // QUARTER * QUARTER


def test_the_epilog_does_not_wait_for_the_receipt(machine: Machine) -> None:
    """A pipe without a reader holds the program for ever; the Epilog has exited all the same."""
    pipe = machine.folder / "pipe"
    os.mkfifo(pipe)
    machine.install(f"echo $$ > {machine.folder}/pid; cat {pipe}")
    assert machine.run(EPILOG).returncode == 0
    pid = wait_until(lambda: (machine.folder / "pid").exists() and (machine.folder / "pid").read_text(), "it")
    assert Path("/proc", pid.strip()).exists()
    write(pipe, "{}")
    wait_until(lambda: "4711.gpu1.json" in machine.files(), "the receipt")


def test_the_receipt_survives_the_process_group_of_the_epilog(machine: Machine) -> None:
    """slurmd kills the process group of the Epilog when it has exited."""
    pipe = machine.folder / "pipe"
    os.mkfifo(pipe)
    machine.install(f"cat {pipe}")
    hook = subprocess.Popen([EPILOG], env=machine.environment, start_new_session=True)
    assert hook.wait(PATIENCE) == 0
    with suppress(ProcessLookupError):
        os.killpg(hook.pid, signal.SIGKILL)
    write(pipe, "{}")
    wait_until(lambda: "4711.gpu1.json" in machine.files(), "the receipt")


def as_file(machine: Machine) -> None:
    machine.receipts.rmdir()
    machine.receipts.write_text("")


# What breaks the receipt, by a change of the machine or of a variable.
REASONS: dict[str, tuple[Callable[[Machine], object], Mapping[str, str]]] = {
    "gpuledger is missing": (lambda machine: machine.program.unlink(), {}),
    "gpuledger is not executable": (lambda machine: machine.program.chmod(0o644), {}),
    "gpuledger is not a program": (lambda machine: machine.program.write_bytes(b"\0\1\2"), {}),
    "serve is down": (lambda machine: machine.install("echo 'no gpuledger is running here' >&2; exit 1"), {}),
    "the socket is refused": (lambda machine: machine.install("echo 'no permission' >&2; exit 1"), {}),
    "the job is unknown": (
        lambda machine: machine.install("echo 'job:4711 is not in the ledger' >&2; exit 1"),
        {},
    ),
    "wrong usage": (lambda machine: machine.install("exit 2"), {}),
    "python crashes": (lambda machine: machine.install("kill -SEGV $$"), {}),
    "python is killed for its memory": (lambda machine: machine.install("kill -KILL $$"), {}),
    "a traceback without end": (
        lambda machine: machine.install("yes Traceback >&2 & sleep 0.2; kill $!; exit 1"),
        {},
    ),
    "the disk is full": (lambda machine: machine.install("exit 1 > /dev/full; echo x > /dev/full"), {}),
    "the directory is missing": (lambda machine: machine.receipts.rmdir(), {}),
    "the directory is a file": (as_file, {}),
    "no job id": (lambda machine: None, {"SLURM_JOB_ID": ""}),
    "a job id that is no number": (lambda machine: None, {"SLURM_JOB_ID": "../../etc"}),
    "a node name with a slash": (lambda machine: None, {"SLURMD_NODENAME": "a/b"}),
    "no node name": (lambda machine: None, {"SLURMD_NODENAME": ""}),
    "a broken configuration": (lambda machine: (machine.folder / "conf").write_text("if then ("), {}),
    "a configuration that exits": (lambda machine: (machine.folder / "conf").write_text("exit 7"), {}),
    "a configuration that is a directory": (lambda machine: (machine.folder / "conf").mkdir(), {}),
    "no command is found": (lambda machine: None, {"PATH": "/nowhere"}),
    "a relative PATH": (lambda machine: None, {"PATH": "."}),
}


@pytest.mark.parametrize(("break_it", "variables"), REASONS.values(), ids=REASONS)
@pytest.mark.parametrize("hook", [EPILOG, TASK_EPILOG], ids=lambda hook: hook.stem)
def test_whatever_fails_the_hook_exits_with_0(
    machine: Machine, hook: Path, break_it: Callable[[Machine], object], variables: Mapping[str, str]
) -> None:
    break_it(machine)
    assert machine.run(hook, **variables).returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda one: one.name)
def test_a_hook_that_is_stopped_exits_with_0(machine: Machine, number: signal.Signals) -> None:
    machine.install(f"echo > {machine.folder}/began; exec sleep 1")
    hook = subprocess.Popen([TASK_EPILOG], env=machine.environment)
    wait_until((machine.folder / "began").exists, "the program")
    hook.send_signal(number)
    assert hook.wait(PATIENCE) == 0


def test_hooks_exit_with_0_without_standard_streams(machine: Machine) -> None:
    for hook in (EPILOG, TASK_EPILOG):
        done = subprocess.run(
            ["sh", "-c", f"exec {hook} <&- >&- 2>&-"], env=machine.environment, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0


NOTHING = {
    "a job without GPUs": {"CUDA_VISIBLE_DEVICES": ""},
    "no directory": {"GPULEDGER_RECEIPTS": ""},
    "a job id that is no number": {"SLURM_JOB_ID": "1;x"},
}


@pytest.mark.parametrize("variables", NOTHING.values(), ids=NOTHING)
def test_the_epilog_has_nothing_to_do(machine: Machine, variables: dict[str, str]) -> None:
    done = subprocess.run(
        [EPILOG, "detached"], env={**machine.environment, **variables}, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0
    assert not machine.has_run()
    assert machine.files() == set()


@pytest.mark.parametrize("body", ["exit 1", "echo '{'; exit 1", "kill -KILL $$"])
def test_a_failed_receipt_leaves_no_file(machine: Machine, body: str) -> None:
    machine.install(body)
    done = subprocess.run([EPILOG, "detached"], env=machine.environment, timeout=PATIENCE, check=False)
    assert done.returncode == 0
    assert machine.files() == set()


def test_the_task_epilog_appends_the_receipt_to_the_output_of_a_batch_job(machine: Machine) -> None:
    machine.install('echo "receipt: $*"; echo "a warning" >&2')
    done = machine.run(TASK_EPILOG)
    # Only stderr of a TaskEpilog reaches the output of the job.
    assert (done.stdout, done.stderr) == ("", "receipt: receipt job:4711\n")


SILENT = {
    "a step of srun": {"SLURM_STEP_ID": "0"},
    "switched off by the user": {"GPULEDGER_RECEIPT": "off"},
    "no job": {"SLURM_JOB_ID": ""},
}


@pytest.mark.parametrize("variables", SILENT.values(), ids=SILENT)
def test_the_task_epilog_is_silent(machine: Machine, variables: dict[str, str]) -> None:
    done = machine.run(TASK_EPILOG, **variables)
    assert (done.stdout, done.stderr) == ("", "")
    assert not machine.has_run()


def test_the_configuration_of_the_site_is_read(machine: Machine) -> None:
    other = machine.folder / "other"
    other.mkdir()
    (machine.folder / "conf").write_text(f"GPULEDGER_RECEIPTS={other}\n")
    machine.run(EPILOG)
    wait_until((other / "4711.gpu1.json").exists, "the receipt in the other directory")

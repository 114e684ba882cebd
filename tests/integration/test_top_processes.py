"""`gpuledger top` with real processes of this machine: command lines, tree, and signals from a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nvml.library import NvmlGpu, NvmlProcess, NvmlState, build
from running import gpuledger
from terminal import terminal

# A launcher that starts a worker, which waits for its input, and prints the worker's pid and exit code.
_LAUNCHER = """exec 3<&0; sh -c 'read line' "$@" <&3 & echo $!; wait $!; echo $?"""


class Job:
    """A launcher and its worker, the only process on GPU 0."""

    def __init__(self, *arguments, user=None):
        words = ["sh", "-c", _LAUNCHER, "launcher", *arguments]
        self.launcher = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, user=user
        )
        assert self.launcher.stdout is not None
        self.pid = int(self.launcher.stdout.readline())

    def exit_code(self):
        """Wait for the worker."""
        assert self.launcher.stdout is not None
        return int(self.launcher.stdout.readline())


@pytest.fixture
def environment(tmp_path):
    return {"LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(tmp_path / "state")}


@contextmanager
def running(environment, *arguments, user=None):
    job = Job(*arguments, user=user)
    try:
        NvmlState(Path(environment["TEST_NVML_STATE"]), [NvmlGpu(NvmlProcess(job.pid))]).write()
        yield job
    finally:
        with suppress(ProcessLookupError):
            os.kill(job.pid, signal.SIGKILL)
        job.launcher.communicate()


def test_a_process_is_found_by_its_arguments_in_the_tree_and_ended_after_a_confirmation(environment):
    with (
        running(environment, "train.py", "--api-key", "hunter2") as job,
        terminal("top", size=(220, 40), env=environment) as screen,
    ):
        assert "--api-key ***" in screen.wait("train.py")
        screen.press("t")
        lines = screen.wait("1 process uses a GPU").splitlines()
        worker = next(number for number, line in enumerate(lines) if line.split()[:1] == [str(job.pid)])
        assert lines[worker - 1].split()[0] == str(job.launcher.pid)
        screen.press("End", "k")
        question = screen.wait(f"Send SIGTERM to process {job.pid}?")
        assert "hunter2" not in question
        screen.press("Escape")
        screen.wait_without("Send SIGTERM")
        screen.press("T", "y")
        screen.wait(f"SIGTERM was sent to process {job.pid}")
        assert job.exit_code() == 128 + signal.SIGTERM


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can signal processes of other users")
def test_root_types_the_pid_to_signal_the_process_of_another_user(environment):
    with (
        running(environment, "train.py", user=65534) as job,
        terminal("top", size=(220, 40), env=environment) as screen,
    ):
        screen.wait("train.py")
        screen.press("Down", "K")
        screen.wait("You are root: this process belongs to nobody")
        screen.press("y", "1", "Enter")
        screen.wait("to send: _")
        screen.press(*str(job.pid), "Enter")
        screen.wait(f"SIGKILL was sent to process {job.pid}")
        assert job.exit_code() == 128 + signal.SIGKILL


def test_printed_snapshots_have_no_arguments(environment):
    with running(environment, "train.py") as job:
        printed = gpuledger("top", "--once", env=environment).stdout
    assert str(job.pid) in printed
    assert "train.py" not in printed

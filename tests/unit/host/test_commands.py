"""Running external commands: without a shell, with limits of time and output for the process group."""

from __future__ import annotations

import os
import select
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gpuledger.host import commands
from gpuledger.host.commands import CommandResult, CommandRunner


def run_command(words: tuple[str, ...], timeout: float) -> CommandResult:
    return CommandRunner()(words, timeout)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_a_command_returns_stdout_stderr_and_exit_code() -> None:
    result = run_command(python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(6)"), 30)
    assert result == CommandResult(b"out\n", b"err\n", 6)


def test_a_command_runs_in_the_c_locale_with_empty_stdin() -> None:
    result = run_command(python("import os, sys; print(os.environ['LC_ALL'], repr(sys.stdin.read()))"), 30)
    assert isinstance(result, CommandResult) and result.stdout == b"C ''\n"


@pytest.mark.parametrize(
    "word", ["; touch pwned", "$(touch pwned)", "`touch pwned`", "a b", "*", "&& false", ""]
)
def test_the_program_receives_each_word_unchanged(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run_command((*python("import sys; print(sys.argv[1])"), word), 30)
    assert isinstance(result, CommandResult) and result.stdout.decode() == word + "\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("/no/such/program",), ("a\0b",), ("/",)])
def test_a_command_that_cannot_be_started_returns_the_cause_and_never_raises(words: tuple[str, ...]) -> None:
    result = run_command(words, 30)
    assert result.not_started and result.detail and result.exit_code == -1


def test_the_timeout_kills_the_process_group_and_keeps_the_output(tmp_path: Path) -> None:
    # The child keeps the other end of a pipe open: end of file means that the child has ended.
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    watch = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    script = f"echo parent; (exec 3>{shlex.quote(str(fifo))}; echo child; sleep 3600) & wait"
    try:
        result = run_command(("sh", "-c", script), 1.0)
        assert isinstance(result, CommandResult)
        assert (result.timed_out, result.exit_code) == (True, -9)
        assert result.stdout == b"parent\nchild\n"
        assert select.select([watch], [], [], 30)[0] and os.read(watch, 1) == b""
    finally:
        os.close(watch)


def test_the_runner_does_not_wait_for_a_child_that_outlives_the_command() -> None:
    code = "import subprocess, sys; subprocess.Popen(['sleep', '5'], start_new_session=True); print('done')"
    result = run_command(python(code), 60)
    assert result == CommandResult(b"done\n")


def test_no_command_is_started_while_another_one_cannot_be_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(commands, "_KILL_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(commands, "kill_group", started.append)
    runner = CommandRunner()
    result = runner(("sleep", "3600"), 0.05)
    assert isinstance(result, CommandResult) and result.timed_out
    rejected = runner(("true",), 30)
    assert rejected.not_started == commands.STUCK
    started[0].kill()
    started[0].wait()
    assert runner(("true",), 30) == CommandResult(b"")


@pytest.mark.parametrize("command", [("yes",), ("cat", "/dev/zero")], ids=["lines", "bytes"])
def test_endless_output_is_dropped_and_the_command_killed(command: tuple[str, ...]) -> None:
    result = CommandRunner(100_000)(command, 60)
    assert (result.overran, result.timed_out, result.stdout) == (True, False, b"")


def test_output_of_very_many_short_lines_is_dropped() -> None:
    words = python("print('y\\n' * 10_000, end='')")
    assert CommandRunner(1_000_000)(words, 60).stdout == b"y\n" * 10_000
    assert CommandRunner(100_000)(words, 60).overran


def test_the_tail_of_stderr_is_kept() -> None:
    result = run_command(python("import sys; sys.stderr.write('x' * 9000 + 'last')"), 30)
    assert isinstance(result, CommandResult)
    assert result.stderr.endswith(b"last") and len(result.stderr) <= 2048

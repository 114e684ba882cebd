"""Running the command: no shell, a time limit on the whole group, and words that survive ssh."""

from __future__ import annotations

import os
import select
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from builders import FakeClock
from gpuledger.model.errors import SourceUnavailable
from gpuledger.sources.smi import command as running
from gpuledger.sources.smi.command import Command, CommandRunner, NotStarted, Outcome, Ran, command_line
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.smi.source import SmiSource
from smi.recorded import ALL, FIXTURES, FirstSight, processes, read

STAND_IN = Path(__file__).parents[3] / "smi" / "nvidia_smi.py"


def run_command(words: tuple[str, ...], timeout: float) -> Outcome:
    return CommandRunner()(words, timeout)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def stand_in(*options: str) -> SmiSource:
    command = shlex.join(
        [sys.executable, str(STAND_IN), "--answers", str(FIXTURES / "cards"), *options, "--"]
    )
    return SmiSource(SmiSettings(command), (), FirstSight(), FakeClock())


def test_a_command_gives_its_output_its_errors_and_its_code() -> None:
    got = run_command(python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(6)"), 30)
    assert got == Ran(b"out\n", b"err\n", 6)


def test_a_command_runs_in_the_c_locale_and_reads_nothing() -> None:
    got = run_command(python("import os, sys; print(os.environ['LC_ALL'], repr(sys.stdin.read()))"), 30)
    assert isinstance(got, Ran) and got.stdout == b"C ''\n"


@pytest.mark.parametrize(
    "word", ["; touch pwned", "$(touch pwned)", "`touch pwned`", "a b", "*", "&& false", ""]
)
def test_a_word_reaches_the_program_literally(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    got = run_command((*python("import sys; print(sys.argv[1])"), word), 30)
    assert isinstance(got, Ran) and got.stdout.decode() == word + "\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("/no/such/program",), ("a\0b",), ("/",)])
def test_what_cannot_be_started_says_why_and_raises_nothing(words: tuple[str, ...]) -> None:
    got = run_command(words, 30)
    assert isinstance(got, NotStarted) and got.detail


def test_the_time_limit_kills_the_whole_group_and_keeps_what_came(tmp_path: Path) -> None:
    # The child holds the other end of a pipe: end of file on it is the child's death.
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    watch = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    script = f"echo parent; (exec 3>{shlex.quote(str(fifo))}; echo child; sleep 3600) & wait"
    try:
        got = run_command(("sh", "-c", script), 1.0)
        assert isinstance(got, Ran)
        assert (got.timed_out, got.code) == (True, -9)
        assert got.stdout == b"parent\nchild\n"
        assert select.select([watch], [], [], 30)[0] and os.read(watch, 1) == b""
    finally:
        os.close(watch)


def test_a_child_that_outlives_the_command_is_not_waited_for() -> None:
    code = "import subprocess, sys; subprocess.Popen(['sleep', '5'], start_new_session=True); print('done')"
    got = run_command(python(code), 60)
    assert got == Ran(b"done\n")


def test_a_command_that_cannot_be_killed_is_left_alone_and_no_other_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(running, "_GRACE", 0.05)
    monkeypatch.setattr(running, "_kill_group", started.append)
    runner = CommandRunner()
    got = runner(("sleep", "3600"), 0.05)
    assert isinstance(got, Ran) and got.timed_out
    refused = runner(("true",), 30)
    assert isinstance(refused, NotStarted) and refused.reason == running.STUCK
    started[0].kill()
    started[0].wait()
    assert runner(("true",), 30) == Ran(b"")


def test_output_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LONGEST_OUTPUT", 100_000)
    got = run_command(("yes",), 60)
    assert isinstance(got, Ran)
    assert (got.overran, got.timed_out, len(got.stdout)) == (True, False, 100_000)


def test_the_tail_of_the_errors_is_kept() -> None:
    got = run_command(python("import sys; sys.stderr.write('x' * 9000 + 'last')"), 30)
    assert isinstance(got, Ran)
    assert got.stderr.endswith(b"last") and len(got.stderr) <= 2048


def test_a_local_command_gets_its_words_as_they_are() -> None:
    command = Command("sudo -n '/opt/my tools/nvidia-smi'")
    assert command.words("-q", "a b;$(c)") == ("sudo", "-n", "/opt/my tools/nvidia-smi", "-q", "a b;$(c)")
    assert not command.remote


def test_words_for_ssh_are_quoted_for_the_remote_shell() -> None:
    command = Command("/usr/bin/ssh -o BatchMode=yes user@host nvidia-smi")
    words = command.words("-q", "a b;$(c)'d")
    assert words[:5] == ("/usr/bin/ssh", "-o", "BatchMode=yes", "user@host", "nvidia-smi")
    # What the remote shell makes of the line that ssh joins.
    assert shlex.split(" ".join(words[4:])) == ["nvidia-smi", "-q", "a b;$(c)'d"]
    assert command.remote
    assert command.words("--query-gpu=index,uuid", "--format=csv")[-2:] == (
        "--query-gpu=index,uuid",
        "--format=csv",
    )


def test_words_survive_a_real_remote_shell(tmp_path: Path) -> None:
    # What ssh does with its words: joins them and gives them to the remote user's shell.
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    printing = tmp_path / "nvidia-smi"
    printing.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s|" "$word"; done\n')
    printing.chmod(0o755)
    command = Command(f"{ssh} user@host {printing}")
    got = run_command(command.words("-q", "a b", "$(touch pwned);", "it's", "*"), 30)
    assert got == Ran(b"-q|a b|$(touch pwned);|it's|*|")


def test_ssh_that_cannot_connect_is_one_line_and_one_call() -> None:
    calls: list[tuple[str, ...]] = []

    def refuse(words: tuple[str, ...], timeout: float) -> Ran:
        calls.append(words)
        return Ran(b"", b"ssh: connect to host gone port 22: Connection refused\n", 255)

    smi = SmiSource(SmiSettings("ssh gone nvidia-smi"), (), FirstSight(), FakeClock(), refuse)
    with pytest.raises(SourceUnavailable, match="Connection refused"):
        smi.read(ALL)
    assert len(calls) == 1


@pytest.mark.parametrize("written", ["", "  ", "nvidia-smi 'x", "''"])
def test_a_command_that_is_none_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="a command"):
        command_line(written)


def test_a_command_is_taken_as_written() -> None:
    assert command_line(" ssh host nvidia-smi ") == "ssh host nvidia-smi"


def test_a_tick_over_a_real_process() -> None:
    assert processes(stand_in().read(ALL)) == processes(read("cards"))


def test_a_command_that_ends_badly_after_its_output_loses_nothing() -> None:
    seen = stand_in("--exit", "14").read(ALL)
    assert processes(seen) == processes(read("cards"))
    assert "exit_14" in [failure.reason for failure in seen.failures]


def test_a_hanging_command_is_killed_and_said_so() -> None:
    command = shlex.join([sys.executable, "-c", "import time; time.sleep(3600)"])
    smi = SmiSource(SmiSettings(command, timeout=0.3), (), FirstSight(), FakeClock())
    with pytest.raises(SourceUnavailable) as caught:
        smi.read(ALL)
    assert caught.value.reason == "timeout"

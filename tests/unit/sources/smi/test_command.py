"""Running the command: without a shell, with a timeout for the process group, and quoted for ssh."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from builders import FakeClock
from fuzzing import memory_below
from gpuledger.host import commands as running
from gpuledger.host.commands import CommandResult, CommandRunner
from gpuledger.model.errors import SourceUnavailable
from gpuledger.sources.smi.command import Command, command_line
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.smi.source import SmiSource
from smi.recorded import ALL, FIXTURES, FirstSeenHost, processes, read

# Complete GPUs without end: each alone could be parsed.
ENDLESS = """
import os
gpu = b'<gpu id="00000000:%02X:00.0">\\n<uuid>GPU-%d</uuid><processes></processes></gpu>\\n'
while True:
    os.write(1, b"".join(gpu % (at % 256, at) for at in range(2000)))
"""
STAND_IN = Path(__file__).parents[3] / "smi" / "nvidia_smi.py"


def stand_in(*options: str) -> SmiSource:
    command = shlex.join(
        [sys.executable, str(STAND_IN), "--answers", str(FIXTURES / "cards"), *options, "--"]
    )
    return SmiSource(SmiSettings(command), (), FirstSeenHost(), FakeClock())


def test_endless_output_takes_memory_of_the_limit_and_one_line_says_what_to_do() -> None:
    """Every call of one reading: none of them parses what it dropped."""
    endless = f"{sys.executable} -c {shlex.quote(ENDLESS)}"
    source = SmiSource(SmiSettings(endless), (), FirstSeenHost(), FakeClock())
    with memory_below(running.MAX_OUTPUT_BYTES * 3 // 2), pytest.raises(SourceUnavailable) as caught:
        source.read(ALL)
    assert str(caught.value) == (
        f"{sys.executable}: killed: it wrote more than 32 MiB, or very many short lines; check "
        "--nvidia-smi-command: it does not end, or it is not nvidia-smi"
    )
    assert caught.value.reason == "overran"


def test_arguments_of_a_local_command_are_not_quoted() -> None:
    command = Command("sudo -n '/opt/my tools/nvidia-smi'")
    assert command.argv("-q", "a b;$(c)") == ("sudo", "-n", "/opt/my tools/nvidia-smi", "-q", "a b;$(c)")
    assert not command.is_remote


def test_arguments_for_ssh_are_quoted_for_the_remote_shell() -> None:
    command = Command("/usr/bin/ssh -o BatchMode=yes user@host nvidia-smi")
    words = command.argv("-q", "a b;$(c)'d")
    assert words[:5] == ("/usr/bin/ssh", "-o", "BatchMode=yes", "user@host", "nvidia-smi")
    # ssh joins the words to one line, which the remote shell splits again.
    assert shlex.split(" ".join(words[4:])) == ["nvidia-smi", "-q", "a b;$(c)'d"]
    assert command.is_remote
    assert command.argv("--query-gpu=index,uuid", "--format=csv")[-2:] == (
        "--query-gpu=index,uuid",
        "--format=csv",
    )


def test_arguments_pass_through_a_real_remote_shell_unchanged(tmp_path: Path) -> None:
    # Like ssh: join the words and pass them to the remote user's shell.
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    printing = tmp_path / "nvidia-smi"
    printing.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s|" "$word"; done\n')
    printing.chmod(0o755)
    command = Command(f"{ssh} user@host {printing}")
    result = CommandRunner()(command.argv("-q", "a b", "$(touch pwned);", "it's", "*"), 30)
    assert result == CommandResult(b"-q|a b|$(touch pwned);|it's|*|")


def test_an_ssh_connection_error_is_one_line_after_one_call() -> None:
    calls: list[tuple[str, ...]] = []

    def refuse(words: tuple[str, ...], timeout: float) -> CommandResult:
        calls.append(words)
        return CommandResult(b"", b"ssh: connect to host gone port 22: Connection rejected\n", 255)

    smi = SmiSource(SmiSettings("ssh gone nvidia-smi"), (), FirstSeenHost(), FakeClock(), refuse)
    with pytest.raises(SourceUnavailable, match="Connection rejected"):
        smi.read(ALL)
    assert len(calls) == 1


@pytest.mark.parametrize("written", ["", "  ", "nvidia-smi 'x", "''"])
def test_an_invalid_command_line_is_rejected(written: str) -> None:
    with pytest.raises(ValueError, match="a command"):
        command_line(written)


def test_a_command_line_keeps_its_text_without_outer_blanks() -> None:
    assert command_line(" ssh host nvidia-smi ") == "ssh host nvidia-smi"


def test_one_tick_with_a_real_process() -> None:
    assert processes(stand_in().read(ALL)) == processes(read("cards"))


def test_an_error_exit_after_complete_output_loses_no_data() -> None:
    snapshot = stand_in("--exit", "14").read(ALL)
    assert processes(snapshot) == processes(read("cards"))
    assert "exit_14" in [failure.reason for failure in snapshot.failures]


def test_a_hanging_command_is_killed_and_reported_as_timeout() -> None:
    command = shlex.join([sys.executable, "-c", "import time; time.sleep(3600)"])
    smi = SmiSource(SmiSettings(command, timeout=0.3), (), FirstSeenHost(), FakeClock())
    with pytest.raises(SourceUnavailable) as caught:
        smi.read(ALL)
    assert caught.value.reason == "timeout"

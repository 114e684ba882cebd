"""Completion in real shells with the scripts of `gpuledger completion`, and man pages read by mandoc."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuledger.cli.main import COMMANDS, main
from running import wait_until

SCENARIOS = {
    "simulator:k8s-node",
    "simulator:workstation",
    "simulator:faulty-node",
    "simulator:mixed-lab",
    "simulator:demo",
}
# A typed line, and all words that complete its last one.
LINES: dict[str, set[str]] = {
    "gpuledger ": {*COMMANDS, "help"},
    "gpuledger rep": {"report"},
    "gpuledger help exp": {"explain"},
    "gpuledger serve --sou": {"--source"},
    "gpuledger serve --source sim": {"simulator", *SCENARIOS},
    "gpuledger serve --log-level ": {"debug", "info", "warn", "error"},
    "gpuledger serve --name-service ": {"auto", "true", "false"},
    "gpuledger serve --dialect native,d": {"native,dcgm"},
    "gpuledger report --top 5 --format js": {"json"},
    "gpuledger report --by names": {"namespace"},
    "gpuledger report --every ": {"hour", "day", "week", "month"},
    "gpuledger top --sort mem": {"memory"},
    "gpuledger books back": {"backup"},
    "gpuledger books merge one": {"one.yaml"},
    "gpuledger migrate ": {"check"},
    "gpuledger completion z": {"zsh"},
    "gpuledger record one": {"one.yaml"},
    "gpuledger report --config one": {"one.yaml"},
    "gpuledger report --since ": set(),
    "gpuledger pause ": set(),
    "gpuledger report --listen": set(),
}
# Shells differ in what they replace.
OF_BASH = {
    "gpuledger serve --log-level=w": {"warn"},
    "gpuledger --log-level=w": {"warn"},
    "gpuledger serve --source simulator:w": {"workstation"},
    "gpuledger report --state-dir su": {"sub"},
}
OF_FISH = {
    "gpuledger serve --log-level=w": {"--log-level=warn"},
    "gpuledger serve --source simulator:w": {"simulator:workstation"},
    "gpuledger report --state-dir su": {"sub/"},
}
# zsh inserts a single match into the line.
OF_ZSH = {
    line: f"{line.rpartition(' ')[0]} {word}"
    for line, words in LINES.items()
    if len(words) == 1
    for word in words
}
OF_ZSH |= {
    "gpuledger --log-level=w": "gpuledger --log-level=warn",
    "gpuledger serve --source simulator:w": "gpuledger serve --source simulator:workstation",
    "gpuledger report --state-dir su": "gpuledger report --state-dir sub/",
    "gpuledger report --since ": "gpuledger report --since",
}
BASH = """
source completion
while IFS= read -r line; do
  COMP_LINE=$line COMP_POINT=${#line} COMPREPLY=()
  _gpuledger
  echo "${COMPREPLY[*]}"
done < lines
"""
# Ctrl-X completes the line, and writes it to a file.
ZSH = r"""autoload -U compinit; compinit -D; source completion
finish() { zle complete-word; print -r -- "$BUFFER" >> results; BUFFER=; zle -I }
zle -N finish; bindkey '^X' finish; setopt no_auto_menu no_always_last_prompt; print ready > results
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "one.yaml").touch()
    (tmp_path / "sub").mkdir()
    return tmp_path


def write_script(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    (folder / "completion").write_text(capsys.readouterr().out)


def environment(folder: Path) -> dict[str, str]:
    return {"HOME": str(folder), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TERM": "dumb"}


def run_shell(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout


def test_bash_completes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_script("bash", folder, capsys)
    lines = LINES | OF_BASH
    (folder / "lines").write_text("".join(f"{line}\n" for line in lines))
    found = run_shell(["bash", "-c", BASH], folder).splitlines()
    assert dict(zip(lines, (set(words.split()) for words in found), strict=True)) == lines


def test_bash_completes_names_with_spaces(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_script("bash", folder, capsys)
    (folder / "my  prices.yaml").touch()
    (folder / "my books").mkdir()
    expected = {
        "gpuledger report --config=my\\ \\ p": "my  prices.yaml",
        "gpuledger report --config my\\ \\ ": "my  prices.yaml",
        "gpuledger report --state-dir m": "my books",
        "gpuledger record my\\ b": "my books",
    }
    (folder / "lines").write_text("".join(f"{line}\n" for line in expected))
    assert run_shell(["bash", "-c", BASH], folder).splitlines() == list(expected.values())


def test_fish_completes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_script("fish", folder, capsys)
    lines = LINES | OF_FISH
    queries = "".join(
        f"printf '%s ' (complete -C '{line}' | string split -f 1 \\t); echo\n" for line in lines
    )
    found = run_shell(["fish", "-c", f"source completion\n{queries}"], folder).splitlines()
    assert dict(zip(lines, (set(words.split()) for words in found), strict=True)) == lines


def test_zsh_completes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_script("zsh", folder, capsys)
    results = folder / "results"

    def written(number: int) -> list[str]:
        """The first lines of the results, when there are so many."""

        def complete() -> list[str]:
            found = results.read_text().splitlines() if results.exists() else []
            return found if len(found) >= number else []

        return wait_until(complete, f"{number} lines of zsh")

    with terminal(["zsh", "-f", "-i"], folder) as keyboard:
        os.write(keyboard, ZSH.encode())
        written(1)
        for number, line in enumerate(OF_ZSH, 2):
            os.write(keyboard, f"{line}\x18".encode())
            written(number)
    # zsh removes these when the next character does not fit.
    found = (line.rstrip(" ,=") for line in results.read_text().splitlines()[1:])
    assert dict(zip(OF_ZSH, found, strict=True)) == OF_ZSH


@contextmanager
def terminal(command: list[str], folder: Path) -> Iterator[int]:
    """A program in a terminal; yields the file descriptor of its keyboard. Its screen is not read."""
    pid, keyboard = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe(command[0], command, environment(folder))
    try:
        yield keyboard
    finally:
        os.close(keyboard)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("shell", ["bsh", "tcsh", ""])
def test_another_shell_is_named(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 2
    assert f"unknown shell '{shell}'" in capsys.readouterr().err


def test_man_pages_are_valid_and_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["man", "--output", str(tmp_path / "man")]) == 0
    pages = {file.stem: file for file in (tmp_path / "man").iterdir()}
    assert pages.keys() == {"gpuledger", *(f"gpuledger-{name}" for name in COMMANDS)}
    checked = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", *map(str, pages.values())],
        capture_output=True,
        text=True,
        check=False,
    )
    wrong = [line for line in checked.stdout.splitlines() if "missing date" not in line]
    assert not wrong
    shown = run_shell(["mandoc", "-T", "utf8", "-O", "width=100", str(pages["gpuledger-report"])], tmp_path)
    text = " ".join(remove_overstrikes(shown).split())
    assert "--by KEYS" in text
    assert "[report.by, GPULEDGER_REPORT_BY]" in text
    assert "gpuledger report --in 'last month' --format csv > november.csv" in text
    assert "gpuledger-explain(1)" in text


def remove_overstrikes(text: str) -> str:
    """The text without bold and underlined letters: each is written twice, with a backspace between."""
    parts = text.split("\b")
    return "".join(part[:-1] for part in parts[:-1]) + parts[-1]


def test_man_needs_a_directory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["man"]) == 2
    assert "--output" in capsys.readouterr().err

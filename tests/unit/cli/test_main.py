"""The words before the flags: no command, help, version."""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuledger.cli import main as entry
from gpuledger.cli import serve
from gpuledger.cli.main import COMMANDS, main
from gpuledger.model.errors import UsageError


class Terminal(io.StringIO):
    """A stream of a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The arguments of each start of `serve`, which does not run."""
    calls: list[list[str]] = []
    monkeypatch.setattr(serve, "run", lambda words: calls.append(list(words)) or 0)
    monkeypatch.setattr(entry, "configure_malloc", lambda: None)
    return calls


def in_terminal(monkeypatch: pytest.MonkeyPatch, stdin: io.StringIO, stdout: io.StringIO, pid: int) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr("os.getpid", lambda: pid)


def test_without_a_command_a_person_gets_one_screen(
    monkeypatch: pytest.MonkeyPatch, served: list[list[str]]
) -> None:
    shown = Terminal()
    in_terminal(monkeypatch, Terminal(), shown, 4711)
    assert main([]) == 0
    lines = shown.getvalue().splitlines()
    # The prompt follows.
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    # Some commands share a line.
    named = {name for line in lines if line[:2] == "  " for name in line[2:].split("  ")[0].split(", ")}
    assert set(COMMANDS) <= named
    assert not served


@pytest.mark.parametrize(
    ("stdin", "stdout", "pid"),
    [
        pytest.param(io.StringIO(), Terminal(), 4711, id="a script"),
        pytest.param(Terminal(), io.StringIO(), 4711, id="a pipe"),
        pytest.param(None, Terminal(), 4711, id="a closed stdin"),
        pytest.param(Terminal(), Terminal(), 1, id="a container with a terminal"),
    ],
)
def test_without_a_command_a_program_serves(
    stdin: io.StringIO,
    stdout: io.StringIO,
    pid: int,
    monkeypatch: pytest.MonkeyPatch,
    served: list[list[str]],
) -> None:
    in_terminal(monkeypatch, stdin, stdout, pid)
    assert main([]) == 0
    assert served == [[]]


def test_flags_without_a_command_are_those_of_serve(
    monkeypatch: pytest.MonkeyPatch, served: list[list[str]]
) -> None:
    in_terminal(monkeypatch, Terminal(), Terminal(), 4711)
    assert main(["--interval", "5s"]) == 0
    assert served == [["--interval", "5s"]]


@pytest.mark.parametrize("words", [["help", "report"], ["--help", "report"], ["-h", "report"]])
def test_help_of_a_command_is_its_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--help"]) == 0
    expected = capsys.readouterr().out
    assert main(words) == 0
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize(
    "words", [["help", "report"], ["report", "--help"], ["version"], ["completion", "bash"]]
)
def test_text_that_cannot_be_written_is_a_failure(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w", encoding="utf-8", buffering=1) as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(words) == 1
        with contextlib.suppress(OSError):
            full.close()
    assert capsys.readouterr().err == "gpuledger: cannot write: No space left on device\n"


def test_a_file_that_cannot_be_reached_is_named_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(words: Sequence[str]) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", words[-1])

    monkeypatch.setattr(serve, "run", refuse)
    assert main(["serve", "/closed/x"]) == 1
    remedy = "check the name, and the permissions of the file and its directories"
    assert capsys.readouterr().err == f"gpuledger: cannot use /closed/x: Permission denied; {remedy}\n"


def test_help_of_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "repotr"]) == 2
    assert capsys.readouterr().err == "gpuledger: unknown command 'repotr'; did you mean 'report'?\n"


@pytest.mark.parametrize("words", [["-V"], ["--version"], ["-version"], ["version"]])
def test_the_version_has_the_usual_flags(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("gpuledger ")


def test_every_command_has_a_parser() -> None:
    for name in COMMANDS:
        assert entry.command_parser(name).prog == f"gpuledger {name}"


def test_a_command_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> None:
        raise ModuleNotFoundError(name="re2")

    monkeypatch.setattr(entry, "import_module", import_module)
    with pytest.raises(UsageError, match=r"pip install 'gpuledger\[cluster\]'"):
        entry.command_parser("agent")


@pytest.mark.parametrize("closed", [("stderr",), ("stdout", "stderr")])
def test_a_closed_stream_is_no_failure(closed: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in closed:
        monkeypatch.setattr(sys, name, None)
    assert main(["version"]) == 0
    # The error has no place to go, and the exit code is that of the error.
    assert main(["versoin"]) == 2
    for name in closed:
        getattr(sys, name).close()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["explain", ""], "WHO is empty"),
        (["receipt", " "], "WHO is empty"),
        (["record", ""], "FILE is empty"),
        (["books", "check", ""], "an argument of books check is empty"),
        (["books", "export", "", "--format", "csv"], "an argument of books export is empty"),
        (["books", "merge", "a", "", "--into", "b"], "an argument of books merge is empty"),
        (["slurm", "receipt", ""], "an argument of slurm receipt is empty"),
        (["collect", "--textfile-dir", ""], "--textfile-dir: expected a directory, not ''"),
        *(
            ([*words, "--state-dir", ""], "--state-dir: expected a directory, not ''")
            for words in (["report"], ["explain", "idle"], ["receipt", "1"], ["idle"], ["books", "check"])
        ),
    ],
)
def test_an_empty_argument_is_not_the_working_directory_or_another_ledger(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", [["explain", "idle"], ["receipt", "1"], ["idle"], ["report"]])
def test_a_ledger_that_is_named_is_not_replaced_by_another_one(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--url", "http://127.0.0.1:1", "--state-dir", "/books"]) == 2
    assert "--url and --state-dir exclude each other" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        *(
            ([*command, "--url", "gpu-1", "--url", "gpu-2"], "--url has several values: name one node")
            for command in (["report"], ["explain", "idle"], ["receipt", "1"], ["idle"])
        ),
        (["report", "--by", "team", "--by", "user"], "--by has several values: write the keys as in --by"),
        (["report", "--books", "a", "--books", "b"], "--books has several values: collect the exports"),
        (["report", "--fleet", "a", "--fleet", "b"], "--fleet has several values: name one fleet"),
        (["report", "--prometheus", "a", "--prometheus", "b"], "--prometheus has several values"),
        (["report", "--prometheus.match", "a", "--prometheus.match", "b"], "--prometheus.match has several"),
        (["report", "--tokens.match", "a", "--tokens.match", "b"], "--tokens.match has several values"),
    ],
)
def test_no_value_of_a_repeated_flag_is_left_out(
    words: list[str], remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert remedy in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--prometheus.match", "--tokens.match"])
def test_an_empty_match_does_not_select_all_series(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--prometheus", "http://127.0.0.1:1", flag, ""]) == 2
    assert f"{flag}: expected labels, not ''; is a shell variable not set?" in capsys.readouterr().err


def test_equal_values_of_a_repeated_flag_are_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--by", "team", "--by", "team", "--state-dir", "/none"]) == 1
    assert "there is no ledger" in capsys.readouterr().err


class _Interrupt:
    """Ctrl+C while a module is imported."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "gpuledger.cli.main":
            raise KeyboardInterrupt


def test_ctrl_c_while_the_program_loads_has_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    script = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["scripts"][
        "gpuledger"
    ]
    module, function = script.split(":")
    start = getattr(importlib.import_module(module), function)
    monkeypatch.delitem(sys.modules, "gpuledger.cli.main")
    monkeypatch.setattr(sys, "meta_path", [_Interrupt(), *sys.meta_path])
    assert start() == 130

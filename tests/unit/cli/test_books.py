"""`gpuledger books`: the subcommands, their messages and exit codes."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from exported_ledgers import write_node
from gpuledger.cli.main import main

MONTH = ("--in", "2023-11")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_node(tmp_path_factory.mktemp("state"), ticks=40)


@pytest.fixture
def ledger(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NODE_NAME", "node-1")
    return shutil.copytree(written.parent, tmp_path / "state") / written.name


def run(*words: object) -> int:
    return main([str(word) for word in words])


def test_check_reports_a_healthy_and_a_damaged_ledger(
    ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("books", "check", "--state-dir", ledger.parent) == 0
    assert "all accounts balance" in capsys.readouterr().out
    with closing(sqlite3.connect(ledger)) as books, books:
        books.execute("UPDATE gpu_times SET posted = posted + 1")
    assert run("books", "check", ledger) == 1
    assert "problem: the time accounts of GPU-0 have -1 us" in capsys.readouterr().out


def test_an_export_is_merged_and_reported_as_the_ledger(
    tmp_path: Path, ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = ("--state-dir", ledger.parent)
    assert run("books", "export", *MONTH, "--format", "csv", tmp_path / "out", *state) == 0
    assert run("books", "export", *MONTH, "--format", "csv", tmp_path / "out", *state) == 0
    out = capsys.readouterr().out
    assert "written" in out
    assert "was there already" in out
    assert run("books", "merge", tmp_path / "out", "--into", tmp_path / "all") == 0
    assert run("books", "check", tmp_path / "all") == 0
    assert "1 exports of 1 ledgers, 1 of them new" in capsys.readouterr().out
    prices = ("--price.gpu-hour", "2.5", "--price.currency", "EUR", "--report.timezone", "UTC")
    for form in ("csv", "json", "focus"):
        found = []
        for source in (state, ("--books", tmp_path / "all")):
            assert run("report", *MONTH, "--by", "node,pod", "--format", form, *prices, *source) == 0
            found.append(capsys.readouterr().out)
        assert found[0] == found[1], form
    rows = list(csv.DictReader(io.StringIO(found[0])))
    assert rows


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "books needs one of check, backup, export, merge, forget"),
        (("chek",), "did you mean 'check'"),
        (("backup",), "books backup needs the file to write"),
        (("backup", "a", "b"), "books backup needs the file to write"),
        (("check", "--user", "ann"), "books check has no --user"),
        (("merge", "x"), "--into"),
        (("merge", "x", "--into", "y"), "x does not exist"),
        (("forget",), "--user ann"),
        (("export", "x", "--format", "xml"), "--format"),
        (("export", "x", "--in", "2023-11", "--since", "1d"), "exclude each other"),
    ],
)
def test_wrong_usage_is_one_line(
    tmp_path: Path,
    ledger: Path,
    words: tuple[str, ...],
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("books", *words, "--state-dir", ledger.parent) in (1, 2)
    errors = capsys.readouterr().err
    assert text in errors
    assert errors.count("\n") == 1


def test_parquet_without_its_package_is_explained(
    tmp_path: Path, ledger: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    assert run("books", "export", *MONTH, tmp_path / "out", "--state-dir", ledger.parent) == 2
    assert "pip install 'gpuledger[parquet]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_forget_says_what_it_cannot_reach(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("books", "forget", "--user", "train-0", "--as", "x-1", "--state-dir", ledger.parent) == 0
    out = capsys.readouterr().out
    assert "train-0 is now x-1" in out
    assert "Not reached: backups" in out
    assert run("report", *MONTH, "--by", "pod", "--format", "json", "--state-dir", ledger.parent) == 0
    keys = [row["pod"] for row in json.loads(capsys.readouterr().out)["rows"]]
    assert "x-1" in keys
    assert "train-0" not in keys


@pytest.mark.parametrize(
    ("variable", "name"), [("", "stored"), ("NODE_NAME", "pod"), ("GPULEDGER_NODE_NAME", "set")]
)
def test_reports_statements_and_exports_use_one_name_of_the_node(
    tmp_path: Path,
    ledger: Path,
    variable: str,
    name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NODE_NAME")
    if variable:
        monkeypatch.setenv(variable, name)
    with closing(sqlite3.connect(ledger)) as books, books:
        books.execute("REPLACE INTO meta VALUES ('node', 'stored')")
    state, file = ("--state-dir", ledger.parent), tmp_path / "statement.json"
    assert run("report", *MONTH, "--by", "node", "--report.timezone", "UTC", "--statement", file, *state) == 0
    assert f"\n{name} " in capsys.readouterr().out
    assert {gpu["node"] for gpu in json.loads(file.read_text())["gpus"]} == {name}
    assert run("books", "export", *MONTH, "--format", "csv", tmp_path / "out", *state) == 0
    assert f"{name}." in capsys.readouterr().out
    assert run("report", "--books", tmp_path / "out", "--verify", file) == 0


def test_a_state_directory_in_place_of_exports_is_explained(
    tmp_path: Path, ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (
        ("books", "check", ledger.parent),
        ("books", "merge", ledger.parent, "--into", tmp_path / "all"),
        ("report", "--books", ledger.parent),
    ):
        assert run(*words) == 1
        assert f"name it as --state-dir {ledger.parent}" in "".join(capsys.readouterr())


def test_a_leftover_is_named_and_is_no_failure(
    tmp_path: Path, ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into = tmp_path / "out"
    assert run("books", "export", *MONTH, "--format", "csv", into, "--state-dir", ledger.parent) == 0
    (into / ".gpuledger-dead").mkdir()
    assert run("books", "check", into) == 0
    assert f"note: {into / '.gpuledger-dead'} is of a command that was killed" in capsys.readouterr().out


def test_an_interrupted_write_of_the_ledger_is_named_with_what_recovers_it(
    tmp_path: Path, ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hot = tmp_path / "hot"
    hot.mkdir()
    with closing(sqlite3.connect(ledger, isolation_level=None)) as books:
        books.execute("PRAGMA journal_mode = DELETE")
        # So that changed pages are written before the commit.
        books.execute("PRAGMA cache_size = 2")
        books.execute("BEGIN EXCLUSIVE")
        books.execute("CREATE TABLE more (x)")
        books.executemany("INSERT INTO more VALUES (?)", [("y" * 900,)] * 300)
        for suffix in ("", "-journal"):
            shutil.copy(f"{ledger}{suffix}", hot / f"gpuledger.db{suffix}")
        books.execute("ROLLBACK")
    for words in (("books", "check"), ("report", *MONTH)):
        assert run(*words, "--state-dir", hot) == 1
        assert "was killed: repeat that command" in capsys.readouterr().err
    assert run("books", "forget", "--user", "train-0", "--state-dir", hot) == 0
    assert run("books", "check", "--state-dir", hot) == 0


def test_one_source_of_a_report_is_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("report", "--books", tmp_path, "--state-dir", tmp_path) == 2
    assert "--books and --state-dir exclude each other" in capsys.readouterr().err

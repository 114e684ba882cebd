"""`gpuledger fleet`, and the commands that read one: what they refuse, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.cli.main import main


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["fleet"], "no list of nodes: give --node gpu-1"),
        (["fleet", "--node", "ftp://x"], "--node: expected a URL"),
        (["fleet", "--nodes-file", "/no/nodes"], "cannot read the list of nodes /no/nodes"),
        (["fleet", "--node", "x", "--nodes-file", ""], "--nodes-file: expected a file, not ''"),
        (["fleet", "--nodes-file", "a", "--nodes-file", "b"], "--nodes-file has several values: name one"),
        (["fleet", "--dns-srv", "a", "--dns-srv", "b"], "--dns-srv has several values"),
        (["fleet", "--node", "x", "--kubernetes-pods", ""], "--kubernetes-pods: expected labels, not ''"),
        (["fleet", "--node", "x", "--user", "ann"], "--user needs --password-file"),
        (["fleet", "--node", "x", "--ca-file", "/no/ca"], "--ca-file: cannot use /no/ca"),
        (["fleet", "--node", "x", "--dns-srv", "a..b"], "--dns-srv: expected a name"),
        (["fleet", "--node", "x", "--scheme", "ftp"], "expected one of http, https"),
        (["report", "--fleet", "lab", "--books", "/x"], "--fleet and --books exclude each other"),
        (["report", "--fleet", "lab", "--prometheus", "p"], "--fleet and --prometheus exclude each other"),
        (["report", "--fleet", "lab", "--state-dir", "/x"], "--fleet and --state-dir exclude each other"),
        (["report", "--fleet", ""], "--fleet: expected a URL"),
        (["report", "--fleet", "ftp://lab"], "--fleet: expected a URL"),
        (["top", "--fleet", "lab", "--gpu", "1"], "--gpu is for one node"),
        (["top", "--fleet", "lab", "--sort", "watts"], "--sort is for one node"),
        (["top", "--fleet", "lab", "--url", "gpu-1"], "--fleet and --url exclude each other"),
        (["free", "--fleet", "lab", "--devices", "0"], "--devices has no effect on what --fleet shows"),
        (["free", "--fleet", "lab", "--for", "5m"], "--for has no effect on what --fleet shows"),
        (["top", "--fleet", "lab", "--devices", "0"], "--devices is for reading this machine"),
        (["top", "--url", "gpu-1", "--source", "simulator"], "--source is for reading this machine"),
        (["top", "--url", "gpu-1", "--command-lines", "all"], "--command-lines is for reading this machine"),
        (["top", "--fleet", ""], "--fleet: expected a URL, not ''; is a shell variable not set?"),
        (["top", "--url", "unix:", "--url", "gpu-1"], "--url unix: is the gpuledger of this machine"),
    ],
)
def test_wrong_usage_is_one_line_with_exit_code_2(
    capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    assert main(words) == 2
    found = capsys.readouterr().err
    assert text in found
    assert found.count("\n") == 1


@pytest.mark.parametrize("key", ["top.url", "top.fleet"])
def test_a_flag_of_this_machine_beside_a_setting_of_the_file_names_the_setting(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, key: str
) -> None:
    file = tmp_path / "gpuledger.yaml"
    file.write_text(f"{key}: http://gpu-1\n", encoding="utf-8")
    assert main(["top", "--config", str(file), "--source", "simulator"]) == 2
    assert f"--source is for reading this machine, and {key} shows others" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["top", "--once"], ["top", "--json"], ["report"], ["report", "--format", "csv"]]
)
def test_a_fleet_that_is_gone_is_one_line_with_exit_code_1(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main([words[0], "--fleet", "http://127.0.0.1:1", *words[1:]]) == 1
    found = capsys.readouterr().err
    assert "http://127.0.0.1:1 cannot be reached" in found
    assert "is gpuledger fleet running there" in found


def test_the_settings_of_the_fleet_are_in_the_file_of_all_commands(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "gpuledger.yaml"
    file.write_text("fleet: {node: [a, 'ftp://b'], port: 9500}\nprice: {gpu_hour: 2}\ntop: {fleet: lab}\n")
    assert main(["fleet", "--config", str(file)]) == 2
    assert "not 'ftp://b'" in capsys.readouterr().err

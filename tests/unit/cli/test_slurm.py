"""`gpuledger slurm` with stand-ins for Slurm's commands, and receipts in files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuledger.app.slurm_receipts.job_summary import is_final_summary
from gpuledger.cli.main import main
from receipt_helpers import BEGIN, HOUR, gpu_row, receipt

# A job of an hour on two nodes, as `sacct --parsable` prints it.
ROW = (
    "12^|^{name}^|^COMPLETED^|^{start:.0f}^|^{end:.0f}^|^n[1-2]^|^16^|^"
    "cpu=16,gres/gpu=2,mem=8G^|^{comment}^|^\n"
)
SACCT = """#!/bin/sh
[ "$1" = -V ] && echo "slurm {version}" && exit
cat {folder}/row
"""
SACCTMGR = """#!/bin/sh
for word; do case $word in AdminComment=*) comment=${{word#AdminComment=}} ;; esac; done
echo "$*" >> {folder}/written
sed -i "s#\\^|\\^\\$#$comment^|^#" {folder}/row
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with sacct, sacctmgr and the receipts of two nodes."""
    for name, text in (("sacct", SACCT), ("sacctmgr", SACCTMGR)):
        file = tmp_path / name
        file.write_text(text.format(folder=tmp_path, version="24.05.1"))
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    write_row(tmp_path)
    for node in ("n1", "n2"):
        (tmp_path / f"12.{node}.json").write_text(json.dumps(receipt(node, gpu_row(node))))
    return tmp_path


def write_row(folder: Path, name: str = "12", comment: str = "") -> None:
    row = ROW.format(name=name, start=BEGIN, end=BEGIN + HOUR, comment=comment)
    (folder / "row").write_text(row)


def run(slurm: Path, *words: str) -> int:
    return main(["slurm", *words, "--from", str(slurm), "--state", str(slurm / "state.json")])


def test_update_writes_one_summary_and_then_nothing(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(slurm, "update") == 0
    assert capsys.readouterr().out == "job 12: written\n"
    (written,) = (slurm / "written").read_text().splitlines()
    assert written.startswith("-i update job where jobid=12 set AdminComment=JS1:H4s")
    assert is_final_summary(written.partition("AdminComment=")[2])
    assert run(slurm, "update") == 0
    assert capsys.readouterr().out == ""
    assert len((slurm / "written").read_text().splitlines()) == 1


def test_a_dry_run_shows_the_summary(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(slurm, "update", "--dry-run") == 0
    assert "job 12: would write" in capsys.readouterr().out
    assert not (slurm / "written").exists()
    assert not (slurm / "state.json").exists()


def test_a_missing_receipt_is_named_and_tried_again(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (slurm / "12.n2.json").unlink()
    assert run(slurm, "update") == 0
    assert "job 12: waiting: " in (out := capsys.readouterr().out)
    assert "12.n2.json is missing" in out
    assert list(json.loads((slurm / "state.json").read_text())["waiting"]) == ["12"]


def test_the_receipt_of_a_job_on_two_nodes(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(slurm, "receipt", "12", "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nodes"] == ["n1", "n2"]
    assert found["total"]["cost"] == "4.4200000000"
    for form, sign in (("text", "n2"), ("markdown", "n2"), ("html", "<html")):
        assert run(slurm, "receipt", "12", "--format", form) == 0
        assert sign in capsys.readouterr().out


REFUSED = {
    "no subcommand": ([], "needs one of update, receipt"),
    "another subcommand": (["updat"], "did you mean 'update'?"),
    "a receipt of nothing": (["receipt"], "needs one job id"),
    "a name": (["receipt", "train"], "'train' is no job id"),
    "a step": (["receipt", "12.0"], "'12.0' is no job id"),
}


@pytest.mark.parametrize(("words", "message"), REFUSED.values(), ids=REFUSED)
def test_wrong_usage(slurm: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert run(slurm, *words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("part", "message"), [("11_3", "name one of its tasks (11_3)"), ("11+1", "name a component (11+1)")]
)
def test_a_job_with_parts_needs_one_of_them(
    slurm: Path, capsys: pytest.CaptureFixture[str], part: str, message: str
) -> None:
    write_row(slurm, name=part)
    assert run(slurm, "receipt", "11") == 1
    assert message in capsys.readouterr().err
    assert run(slurm, "receipt", part) == 0


def test_a_job_that_slurm_does_not_know(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (slurm / "row").write_text("")
    assert run(slurm, "receipt", "13") == 1
    assert "has no job 13" in capsys.readouterr().err

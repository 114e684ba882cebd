"""`gpuledger receipt`: the amounts of the report's row, in each format, and errors that say what to write."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from builders import gpu, process
from gpuledger.cli.main import main
from gpuledger.model.workload import Allocation, Workload
from ledger_helpers import Run
from unit.cli.support import document, output

A, B = gpu(0, name="NVIDIA H100 80GB HBM3"), gpu(1, name="NVIDIA H100 80GB HBM3")
ME = pwd.getpwuid(os.getuid()).pw_name
JOB = Workload("slurm", job="4711", user=ME, slurm_account="nlp", partition="gpu", job_name="train")
OTHER = Workload("user", user="somebody")
ALL = ("--since", "2023-01-01")
PRICES = ("--price.kwh", "0.32", "--price.gpu-hour", "2", "--price.currency", "EUR", "--co2.g-per-kwh", "400")


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half an hour: a job has two GPUs and uses one of them; then a user has the other."""
    folder = tmp_path_factory.mktemp("books")
    run = Run(folder)
    both = (Allocation(A, JOB, "slurm"), Allocation(B, JOB, "slurm"))
    for minute in range(40):
        here = [process(A, 99, workload=JOB)] if minute < 30 else [process(B, 7, workload=OTHER)]
        energy = minute * 15_000_000
        run.tick({A: energy, B: energy // 4}, here, seconds=60.0, allocations=both if minute < 30 else ())
    run.store.close()
    return folder


def failure(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(list(words))
    return code, capsys.readouterr().err


@pytest.mark.parametrize("by", ["job", "user", "owner", "gpu", "slurm_account"])
def test_its_amounts_are_those_of_the_report(
    books: Path, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    here = ("--state-dir", str(books), *ALL, *PRICES)
    for row in document(capsys, "report", *here, "--by", by)["rows"]:
        name = row.get("uuid") or "/".join(
            str(row[key])
            for key in ("kind", "namespace", "owner", "job", "user", "slurm_account")
            if row.get(key)
        )
        total = document(capsys, "receipt", f"{by}:{name or '-'}", *here)["total"]
        assert total["gpu_microseconds"] == row["gpu_microseconds"]
        assert total["millijoules"] == row["millijoules"]
        assert {one: total[one] for one in ("time_cost", "energy_cost", "cost")} == row["decimals"]
        assert total["co2_grams"] == pytest.approx(row["co2_kg"] * 1000, abs=1e-3)


def test_a_number_is_the_job(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "receipt", "4711", "--state-dir", str(books), *ALL, *PRICES)
    assert text.startswith(f"job 4711 train of {ME} (account nlp, partition gpu) on ")
    assert "GPU 1 was not used in this range (1 of 2): request 1" in text
    assert "EUR of GPU time" in text


def test_it_fits_the_terminal_and_is_whole_in_a_pipe(
    books: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("receipt", "4711", "--state-dir", str(books), *ALL, *PRICES)
    monkeypatch.delenv("COLUMNS", raising=False)
    in_a_pipe = output(capsys, *words)
    monkeypatch.setenv("COLUMNS", "80")
    in_a_terminal = output(capsys, *words)
    assert max(map(len, in_a_terminal.splitlines())) <= 80 < max(map(len, in_a_pipe.splitlines()))


def test_rows_without_a_name_are_no_suggestion(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, message = failure(capsys, "receipt", "job:9", "--state-dir", str(books), *ALL)
    assert (code, "job:-" in message) == (1, False)


def test_mine_is_all_that_this_user_used(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "receipt", "--mine", "--state-dir", str(books), *ALL)
    assert found["who"]["explain"] == f"user:{ME}"
    assert found["total"] == document(capsys, "receipt", "4711", "--state-dir", str(books), *ALL)["total"]


@pytest.mark.parametrize(
    ("form", "begins"),
    [
        ("text", "job 4711"),
        ("markdown", "## GPU receipt: job 4711"),
        ("html", "<!DOCTYPE html>"),
        ("json", "{"),
    ],
)
def test_formats(books: Path, capsys: pytest.CaptureFixture[str], form: str, begins: str) -> None:
    assert output(capsys, "receipt", "4711", "--state-dir", str(books), *ALL, "--format", form).startswith(
        begins
    )


def test_a_rule_can_be_turned_off_and_a_threshold_set(
    books: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = ("receipt", "4711", "--state-dir", str(books), *ALL)
    assert [one["rule"] for one in document(capsys, *here)["advice"]] == ["unused_gpu"]
    assert document(capsys, *here, "--advice.without", "unused_gpu")["advice"] == []
    assert document(capsys, *here, "--advice.unused", "1h")["advice"] == []


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 2, "receipt needs one WHO"),
        (("4711", "--mine"), 2, "receipt needs one WHO"),
        (("job:471",), 1, "did you mean 'job:4711'?"),
        (("idle",), 2, "use `gpuledger explain idle`"),
        (("",), 2, "WHO is empty; is a shell variable not set?"),
        (("4711", "--in", ""), 2, "--in: expected a period, not ''"),
        (("4711", "--url", ""), 2, "--url: expected a URL, not ''"),
        (("4711", "--format", "pdf"), 2, "text, json, markdown, html"),
        (("4711", "--in", "2026-11", "--since", "7d"), 2, "exclude each other"),
        (("4711", "--advice.without", "everything"), 2, "expected one of unused_gpu"),
    ],
)
def test_errors_are_one_line_with_the_remedy(
    books: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, message: str
) -> None:
    since = () if {"--since", "--in"} & set(words) else ALL
    found, text = failure(capsys, "receipt", *words, "--state-dir", str(books), *since)
    assert (found, message in text) == (code, True), text
    assert text.count("\n") == 1


def test_thresholds_can_stand_in_the_configuration_file(
    books: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("advice:\n  unused: 30m\n  smaller_gpu: 0.25\n  without: [throttled, unused_gpu]\n")
    here = ("receipt", "4711", "--state-dir", str(books), *ALL, "--config", str(config))
    assert document(capsys, *here)["advice"] == []

"""`gpuledger explain`: the report's row first, and limited lists below it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from builders import gpu, process
from gpuledger.cli.main import main
from gpuledger.model.workload import Workload
from ledger_helpers import Run

A = gpu(0, name="NVIDIA H100", sm_count=132)
J = 1000
PODS = [Workload("pod", "ml", f"train-{number}", "main") for number in range(5)]
ALL = ("--since", "2023-01-01")
PRICES = ("--price.kwh", "0.32", "--price.gpu-hour", "2", "--price.currency", "EUR")


@pytest.fixture
def books(tmp_path: Path) -> Path:
    """Five pods one after the other, each with more energy than the one before, with idle time between."""
    run = Run(tmp_path)
    energy = 0
    for minute in range(60):
        number, place = divmod(minute, 12)
        here = [process(A, 10 + number, workload=PODS[number])] if place < 8 else []
        energy += (number + 1) * 1000 * J
        run.tick({A: energy}, here, seconds=60.0, busy=bool(here))
    run.store.close()
    return tmp_path


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    return dict(json.loads(output(capsys, *words, "--format", "json")))


def test_the_row_is_that_of_the_report_in_every_column(
    books: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = ("--state-dir", str(books), *ALL, *PRICES)
    (row,) = document(capsys, "report", *here, "--by", "namespace")["rows"]
    found = document(capsys, "explain", "namespace:ml", *here)
    assert (found["by"], found["row"]) == ("namespace", row)
    # Five pods for seven minutes each: a process is resident from its first to its last reading.
    assert found["row"]["gpu_microseconds"] == 5 * 7 * 60_000_000
    assert found["millijoules"] == row["millijoules"] == sum(one["millijoules"] for one in found["intervals"])


def test_the_text_begins_with_the_digits_of_the_csv(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = ("--state-dir", str(books), *ALL, *PRICES)
    rows = list(
        csv.DictReader(io.StringIO(output(capsys, "report", *here, "--by", "pod", "--format", "csv")))
    )
    (row,) = (one for one in rows if one["pod"] == "train-4")
    first, second, third, *_ = output(capsys, "explain", "train-4", *here).splitlines()
    assert first.startswith("pod ml/train-4: ")
    assert second.startswith("  its row in `gpuledger report --by pod`: sessions 1, GPU-hours ")
    assert f"cost EUR {float(row['cost']):g}" in second
    assert third.startswith(f"  exactly: {row['millijoules']} mJ, ")
    assert third.endswith(" microseconds of GPU time")


def test_a_process_has_no_row_in_a_report(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "explain", "pid:10", "--state-dir", str(books))
    assert (found["by"], found["row"]) == (None, None)
    assert "its row" not in output(capsys, "explain", "pid:10", "--state-dir", str(books))


def test_own_accounts_have_no_bounds(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "explain", "idle", "--state-dir", str(books))
    assert (found["low_millijoules"], found["high_millijoules"]) == (None, None)
    assert {one["high_millijoules"] for one in found["intervals"]} == {None}
    assert found["row"]["account"] == "idle"
    text = output(capsys, "explain", "idle", "--state-dir", str(books))
    assert "at most" not in text.splitlines()[0]
    assert "no process was on the GPU" in text


@pytest.mark.parametrize(("limit", "shown"), [(2, 2), (0, 5), (100, 5)])
def test_the_lists_have_those_with_the_most_energy_in_order_of_time(
    books: Path, capsys: pytest.CaptureFixture[str], limit: int, shown: int
) -> None:
    here = ("--state-dir", str(books), "--limit", str(limit))
    text = output(capsys, "explain", "namespace:ml", *here)
    pids = [line.split()[1] for line in text.splitlines() if line.startswith("  pid ")]
    assert pids == [str(number) for number in range(15 - shown, 15)]
    assert ("and 3 more sessions: --limit 0 shows all" in text) == (shown == 2)
    assert ("more intervals with" in text) == (shown == 2)


def test_omitted_intervals_count_in_the_sum(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few, every = (
        output(capsys, "explain", "idle", "--state-dir", str(books), "--limit", limit).splitlines()
        for limit in ("1", "0")
    )
    assert few[-1] == every[-1]
    assert few[0] == every[0]
    assert len(few) < len(every)


def test_json_has_every_interval_whatever_the_limit(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = ("--state-dir", str(books))
    assert document(capsys, "explain", "idle", *here, "--limit", "1") == document(
        capsys, "explain", "idle", *here
    )


@pytest.mark.parametrize("form", ["table", "csv", "json", "focus"])
@pytest.mark.parametrize(
    "period", [("--since", "2020-01-01", "--until", "2020-02-01"), ("--since", "2025-01-01")]
)
def test_a_range_without_data_is_one_line_in_every_format(
    books: Path, capsys: pytest.CaptureFixture[str], form: str, period: tuple[str, ...]
) -> None:
    here = ("--state-dir", str(books), *period)
    commands = [("report", *here, *PRICES, "--format", form), ("explain", "idle", *here)]
    for words in commands:
        assert main(list(words)) == 1
        out, error = capsys.readouterr()
        assert out == ""
        assert error.count("\n") == 1
        assert "nothing was watched from" in error
        assert ("begins at 2023-11-14 22:00" in error) == ("2020-01-01" in period)
        assert "1970" not in error


@pytest.mark.parametrize("name", ["gpuledger", "simulator-k8s-node"])
def test_a_ledger_without_readings_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    run = Run(tmp_path)
    run.store.close()
    run.store.file.rename(tmp_path / f"{name}.db")
    for words in (("report",), ("report", "--format", "json"), ("explain", "idle")):
        assert main([*words, "--state-dir", str(tmp_path)]) == 1
        out, error = capsys.readouterr()
        assert out == ""
        assert "is empty: no GPU has been read yet; `gpuledger doctor` shows why" in error

"""`gpuledger explain`: the report's row first, and limited lists below it."""

from __future__ import annotations

import csv
import io
import json
import shutil
from decimal import Decimal
from pathlib import Path

import pytest

from builders import gpu, process
from gpuledger.cli.main import main
from gpuledger.model.workload import Workload
from ledger_helpers import Run
from unit.cli.support import document, output

A = gpu(0, name="NVIDIA H100", sm_count=132)
J = 1000
PODS = [Workload("pod", "ml", f"train-{number}", "main") for number in range(5)]
ALL = ("--since", "2023-01-01")
PRICES = ("--price.kwh", "0.32", "--price.gpu-hour", "2", "--price.currency", "EUR")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five pods one after the other, each with more energy than the one before, with idle time between."""
    folder = tmp_path_factory.mktemp("books")
    run = Run(folder)
    energy = 0
    for minute in range(60):
        number, place = divmod(minute, 12)
        here = [process(A, 10 + number, workload=PODS[number])] if place < 8 else []
        energy += (number + 1) * 1000 * J
        run.tick({A: energy}, here, seconds=60.0, busy=bool(here))
    run.store.close()
    return folder


@pytest.fixture
def books(recorded: Path, tmp_path: Path) -> Path:
    return shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)


def test_the_row_is_that_of_the_report_in_every_column(
    books: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = ("--state-dir", str(books), *ALL, *PRICES)
    (row,) = document(capsys, "report", *here, "--by", "namespace")["rows"]
    found = document(capsys, "explain", "namespace:ml", *here)
    assert (found["by"], found["row"]) == ("namespace", row)
    # Five pods for seven minutes each, and half of each minute in which one began or ended; the first began
    # with the ledger.
    assert found["row"]["gpu_microseconds"] == (5 * 7 * 60 + 9 * 30) * 1_000_000
    for amount in ("millijoules", "gpu_microseconds"):
        every = found["intervals"] if amount == "millijoules" else found["time_intervals"]
        assert found[amount] == row[amount] == sum(one[amount] for one in every)
    for cost, intervals in (("time_cost", "time_intervals"), ("energy_cost", "intervals")):
        assert sum(Decimal(one[cost]) for one in found[intervals]) == Decimal(row["decimals"][cost])


def test_the_text_begins_with_the_digits_of_the_csv(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = ("--state-dir", str(books), *ALL, *PRICES)
    rows = list(
        csv.DictReader(io.StringIO(output(capsys, "report", *here, "--by", "pod", "--format", "csv")))
    )
    (row,) = (one for one in rows if one["pod"] == "train-4")
    first, second, third, fourth, *_ = output(capsys, "explain", "train-4", *here).splitlines()
    assert first.startswith("pod ml/train-4: 480.000000 s of GPU time; ")
    assert second.startswith("  its row in `gpuledger report --by pod`: sessions 1, GPU-hours 0.1333333334, ")
    assert f"time cost EUR {row['time_cost']}, energy cost EUR {row['energy_cost']}" in second
    assert third == f"  exactly: {row['millijoules']} mJ, {row['gpu_microseconds']} microseconds of GPU time"
    assert fourth.startswith(
        "  from 2023-11-14 22:00 +0000 to 2023-11-14 23:13 +0000, GPU time by allocation, "
    )


def test_a_process_has_the_amounts_of_a_row(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = ("--state-dir", str(books), *PRICES)
    pod, found = (document(capsys, "explain", who, *here) for who in ("pod:train-0", "pid:10"))
    assert found["by"] is None
    assert found["row"].pop("pid") == "10"
    assert found["row"] == {
        name: value for name, value in pod["row"].items() if name not in ("namespace", "pod")
    }
    text = output(capsys, "explain", "pid:10", *here)
    assert "its row" not in text
    assert "  as a row of a report: sessions 1, GPU-hours 0.125, " in text


def test_own_accounts_have_no_bounds(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "explain", "idle", "--state-dir", str(books))
    assert (found["low_millijoules"], found["high_millijoules"]) == (None, None)
    assert {one["high_millijoules"] for one in found["intervals"]} == {None}
    assert found["row"]["account"] == "idle"
    text = output(capsys, "explain", "idle", "--state-dir", str(books))
    assert "at most" not in text.splitlines()[0]
    assert "no process was on the GPU" in text


@pytest.mark.parametrize(
    ("limit", "shown"),
    [
        (("--limit", "2"), 2),
        (("--limit", "0"), 5),
        (("--limit", "100"), 5),
        (("--all",), 5),
        (("--limit", "2", "--all"), 5),
        ((), 5),
    ],
)
def test_the_lists_have_those_with_the_most_energy_in_order_of_time(
    books: Path, capsys: pytest.CaptureFixture[str], limit: tuple[str, ...], shown: int
) -> None:
    text = output(capsys, "explain", "namespace:ml", "--state-dir", str(books), *limit)
    pids = [line.split()[1] for line in text.splitlines() if line.startswith("  pid ")]
    assert pids == [str(number) for number in range(15 - shown, 15)]
    assert ("and 3 more sessions: --all shows all" in text) == (shown == 2)
    assert (" s: --all shows all" in text) == (shown == 2)
    assert (" J: --all shows all" in text) == (shown == 2)


def test_omitted_intervals_count_in_the_sum(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few, every = (
        output(capsys, "explain", "idle", "--state-dir", str(books), "--limit", limit).splitlines()
        for limit in ("1", "0")
    )
    assert few[-1] == every[-1]
    assert few[0] == every[0]
    assert len(few) < len(every)


@pytest.mark.parametrize("limit", [(), ("--all",), ("--limit", "0"), ("--limit", "3"), ("--limit", "1")])
def test_json_sums_what_the_limit_omits(
    books: Path, capsys: pytest.CaptureFixture[str], limit: tuple[str, ...]
) -> None:
    found = document(capsys, "explain", "namespace:ml", "--state-dir", str(books), *PRICES, *limit)
    shown = int(limit[1]) if limit[1:] not in ((), ("0",)) else None
    for name, amount in (("intervals", "millijoules"), ("time_intervals", "gpu_microseconds")):
        assert (len(found[name]) == shown) or shown is None
        omitted = found["omitted"]
        assert bool(omitted[name]) == (shown is not None)
        assert sum(one[amount] for one in found[name]) + omitted[amount] == found["row"][amount]


def test_an_unknown_kind_is_named_with_the_valid_ones(
    books: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "foo:bar", "--state-dir", str(books)]) != 0
    error = capsys.readouterr().err
    assert "'foo:bar' is not in " in error
    assert "foo is no kind; the kinds are owner, namespace, pod, " in error
    assert error.endswith(", team, node, label:NAME=, pid and account\n")


@pytest.mark.parametrize("limit", [(), ("--all",), ("--limit", "2")])
@pytest.mark.parametrize("who", ["namespace:ml", "idle", "pid:12", "unobserved"])
@pytest.mark.parametrize("idle", ["row", "spread"])
def test_every_column_of_the_csv_sums_to_its_first_row(
    books: Path, capsys: pytest.CaptureFixture[str], who: str, idle: str, limit: tuple[str, ...]
) -> None:
    words = ("--state-dir", str(books), *PRICES, "--price.idle", idle, "--format", "csv")
    row, *rest = csv.DictReader(io.StringIO(output(capsys, "explain", who, *words, *limit)))
    assert row["record"] == "row"
    for column in (
        *("gpu_microseconds", "millijoules", "gpu_hours", "estimated_gpu_hours", "kwh", "measured_kwh"),
        *("apportioned_kwh", "low_kwh", "time_cost", "energy_cost", "cost", "unpriced_gpu_hours"),
        *("unpriced_kwh", "high_millijoules"),
    ):
        assert sum(Decimal(one[column] or 0) for one in rest) == Decimal(row[column] or 0), column
    records = {"time", "energy"} if who != "unobserved" else set()
    records |= {"omitted"} if limit[1:] == ("2",) and who != "pid:12" and records else set()
    records |= {"idle_spread"} if idle == "spread" and records else set()
    assert {one["record"] for one in rest} >= records


@pytest.mark.parametrize("idle", ["row", "spread"])
def test_what_has_no_price_sums_to_the_first_row_of_the_csv(
    books: Path, capsys: pytest.CaptureFixture[str], idle: str
) -> None:
    priced = [{"until": "2023-11-14T23:00Z", "price": 2}]
    prices = ("--price.gpu-hour", json.dumps(priced), "--price.kwh", json.dumps(priced), "--price.idle", idle)
    words = ("--state-dir", str(books), *prices, "--format", "csv", "--limit", "2")
    row, *rest = csv.DictReader(io.StringIO(output(capsys, "explain", "namespace:ml", *words)))
    for column in ("cost", "unpriced_gpu_hours", "unpriced_kwh"):
        assert sum(Decimal(one[column] or 0) for one in rest) == Decimal(row[column]) > 0, column


def test_the_csv_has_the_columns_of_the_report(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = ("--state-dir", str(books), *ALL, *PRICES, "--format", "csv")
    reported, explained = (
        next(csv.DictReader(io.StringIO(output(capsys, *words, *here))))
        for words in (("report", "--by", "namespace"), ("explain", "namespace:ml"))
    )
    assert {name: explained[name] for name in reported if name in explained} == {
        name: value for name, value in reported.items() if name in explained
    }
    assert {"held_gpu_hours", "resident_gpu_hours", "cost", "gpu_hours"} <= explained.keys()


def test_a_lost_gpu_is_explained_as_time_that_is_not_billed(
    books: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, "explain", "down", "--state-dir", str(books), *PRICES)
    assert (found["row"], found["gpu_microseconds"]) == (None, 0)
    assert found["not_billed"] == {
        "account": "down",
        "gpu_microseconds": 0,
        "cost": "0.0000000000",
        "unpriced_microseconds": 0,
    }


@pytest.mark.parametrize(
    "period", [("--in", "2023-11-14"), ("--since", "2023-11-14T22:30", "--until", "2023-11-14T23:00")]
)
def test_a_range_is_that_of_the_report(
    books: Path, capsys: pytest.CaptureFixture[str], period: tuple[str, ...]
) -> None:
    here = ("--state-dir", str(books), *PRICES, *period)
    (row,) = document(capsys, "report", *here, "--by", "namespace")["rows"]
    found = document(capsys, "explain", "namespace:ml", *here)
    assert found["row"] == row
    assert sum(one["gpu_microseconds"] for one in found["time_intervals"]) == row["gpu_microseconds"]
    assert main(["explain", "ml", *here, "--in", "2023-11", "--until", "now"]) == 2
    assert "exclude each other" in capsys.readouterr().err


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
        assert ("begins at 2023-11-14 22:14" in error) == ("2020-01-01" in period)
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

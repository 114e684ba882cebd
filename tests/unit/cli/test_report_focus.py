"""`gpuledger report --format focus` and `focus-1.2` of a ledger file that crosses a UTC midnight."""

from __future__ import annotations

import csv
import io
import shutil
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from builders import gpu, process
from focus_rules import broken_rules
from gpuledger.cli.main import main
from gpuledger.ledger.store.schema import ZONE
from gpuledger.model.workload import Workload
from ledger_helpers import UNIX, Run
from report_helpers import folded

A, B = gpu(0, name="NVIDIA H100", sm_count=132), gpu(1, name="NVIDIA H100", sm_count=132)
TRAIN = Workload("pod", "ml", "train-0", "main", labels=(("team", "blue"),))
CHAT = Workload("pod", "web", "chat-0", "main")
PRICED = ("--price.gpu-hour", "2.40", "--price.kwh", "0.3", "--price.currency", "EUR")
ALL = ("--since", "2023-01-01")


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From 22:13 to 01:13: one pod alone on a GPU, then sharing it; the second GPU is idle."""
    folder = tmp_path_factory.mktemp("books")
    run = Run(folder)
    train, chat = process(A, 11, workload=TRAIN), process(A, 12, workload=CHAT, name="vllm")
    for minute in range(180):
        mine = [train] if minute < 60 else [train, chat]
        run.tick({A: minute * 1_000_000, B: minute * 100_000}, mine, seconds=60.0)
    run.store.close()
    return folder


def output(capsys: pytest.CaptureFixture[str], books: Path, *words: str) -> str:
    assert main(["report", "--state-dir", str(books), *ALL, *PRICED, *words]) == 0
    return capsys.readouterr().out


def charges(capsys: pytest.CaptureFixture[str], books: Path, *words: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(output(capsys, books, "--format", "focus", *words))))


@pytest.mark.parametrize("by", ["owner", "namespace", "gpu", "node,model", "command", "label:team"])
@pytest.mark.parametrize("version", ["focus", "focus-1.2"])
def test_every_key_has_the_exact_amounts_of_the_csv(
    books: Path, capsys: pytest.CaptureFixture[str], by: str, version: str
) -> None:
    rows = list(csv.DictReader(io.StringIO(output(capsys, books, "--format", version, "--by", by))))
    expected = list(csv.DictReader(io.StringIO(output(capsys, books, "--format", "csv"))))
    for name, column in (("x_GpuMicroseconds", "gpu_microseconds"), ("x_Millijoules", "millijoules")):
        assert sum(int(row[name] or 0) for row in rows) == sum(int(row[column]) for row in expected)
    cost = sum((Decimal(row["cost"]) for row in expected), Decimal(0))
    assert sum((Decimal(row["BilledCost"]) for row in rows), Decimal(0)) == cost
    assert {row["ChargePeriodStart"] for row in rows} == {"2023-11-14T22:00:00Z", "2023-11-15T00:00:00Z"}


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kolkata"])
def test_folding_changes_no_row(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], zone: str
) -> None:
    ledgers = [tmp_path / name for name in ("detailed", "summed")]
    for folder in ledgers:
        folder.mkdir()
    in_detail, in_hours = (folder / "gpuledger.db" for folder in ledgers)
    shutil.copy(books / "gpuledger.db", in_detail)
    with closing(sqlite3.connect(in_detail)) as ledger, ledger:
        ledger.execute("REPLACE INTO meta VALUES (?, ?)", (ZONE, zone))
    folded(in_detail, UNIX + 86_400, in_hours, ZoneInfo(zone))
    detailed, summed = (
        charges(capsys, folder, "--report.timezone", zone, "--until", "2023-11-15T00:45Z")
        for folder in ledgers
    )
    assert broken_rules(detailed) == broken_rules(summed) == []
    if zone == "Asia/Kolkata":
        # The end is moved to a full hour.
        assert {row["ChargePeriodStart"][8:16] for row in detailed} == {"14T22:00", "15T00:30"}
    whole_days = [
        [row for row in rows if row["ChargePeriodStart"] == "2023-11-14T22:00:00Z"]
        for rows in (detailed, summed)
    ]
    assert whole_days[0]
    assert _unrounded(whole_days[0]) == _unrounded(whole_days[1])


def test_days_of_a_ledger_in_utc_begin_at_midnight_in_any_time_zone_of_the_report(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folded(books / "gpuledger.db", UNIX + 86_400, tmp_path / "gpuledger.db")
    for folder in (books, tmp_path):
        rows = charges(capsys, folder, "--report.timezone", "Asia/Kolkata")
        assert {row["ChargePeriodStart"][8:16] for row in rows} == {"14T22:00", "15T00:00"}


def _unrounded(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Without what is rounded so that the file sums to its total, which has another last hour."""
    rounded = {name for name in rows[0] if name.endswith(("Cost", "Quantity", "MethodDetails"))}
    return [{name: row[name] for name in row if name not in rounded} for row in rows]


def test_days_are_given_and_the_account_can_be_named(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {row["BillingAccountId"] for row in charges(capsys, books, "--account", "lab")} == {"lab"}
    assert main(["report", "--state-dir", str(books), *PRICED, "--format", "focus", "--every", "day"]) == 2
    assert "--format focus has rows for each UTC day: omit --every" in capsys.readouterr().err


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
@pytest.mark.parametrize("since", ["22:14", "22:35", "23:05"])
def test_the_charges_are_those_of_the_csv_with_idle_time_as_rows_and_spread(
    books: Path, capsys: pytest.CaptureFixture[str], zone: str, since: str
) -> None:
    """`price.idle: spread` moves both ends to full hours, in FOCUS too."""
    range_ = ("--since", f"2023-11-14T{since}Z", "--until", "2023-11-15T00:52Z", "--report.timezone", zone)
    for idle in ("row", "spread"):
        words = (*range_, "--price.idle", idle)
        rows = charges(capsys, books, *words)
        expected = list(csv.DictReader(io.StringIO(output(capsys, books, "--format", "csv", *words))))
        for name, column in (
            ("x_GpuMicroseconds", "gpu_microseconds"),
            ("x_Millijoules", "millijoules"),
            ("BilledCost", "cost"),
        ):
            amounts = [Decimal(row[name] or 0) for row in rows]
            assert sum(amounts) == sum(Decimal(row[column] or 0) for row in expected), (idle, name)

"""Ranges, time zones and teams of `gpuledger report` and `gpuledger explain` on the command line."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from builders import gpu, process
from gpuledger.cli.main import main
from gpuledger.model.workload import Workload
from ledger_helpers import UNIX, Run

A = gpu(0, name="NVIDIA H100", sm_count=132)
TRAIN = Workload("pod", "ml", "train-0", "main")
JOB = Workload("slurm", job="7", user="mira", slurm_account="nlp", partition="gpu")
# The first posting, a tick after UNIX, is at 2023-11-14 22:14:20 UTC: 03:59:20 of the next day in Kathmandu.
FIRST = int(UNIX) + 60
ZONE = ("--report.timezone", "Asia/Kathmandu")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hours of a pod and a Slurm job on one GPU."""
    folder = tmp_path_factory.mktemp("books")
    run = Run(folder)
    users = [process(A, 11, workload=TRAIN), process(A, 12, workload=JOB)]
    for minute in range(181):
        run.tick({A: minute * 1_000_000}, users, seconds=60.0)
    run.store.close()
    return folder


@pytest.fixture
def books(recorded: Path, tmp_path: Path) -> Path:
    return shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)


def total(capsys: pytest.CaptureFixture[str], books: Path, *words: str) -> dict[str, Any]:
    assert main(["report", "--state-dir", str(books), "--format", "json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["total"]
    return found


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) in (1, 2)
    return capsys.readouterr().err.removeprefix("gpuledger: ").strip()


def test_days_of_a_zone_add_up_to_the_whole(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = total(capsys, books, "--since", "2023-01-01")
    assert whole["gpu_microseconds"] == 180 * 60_000_000
    for zone in ("UTC", "Asia/Kathmandu", "America/St_Johns", "Australia/Lord_Howe"):
        days = []
        for day in ("2023-11-14", "2023-11-15"):
            words = ("report", "--state-dir", str(books), "--format", "json", "--in", day)
            if main([*words, "--report.timezone", zone]) == 0:
                days.append(json.loads(capsys.readouterr().out)["total"])
        for name in ("gpu_microseconds", "millijoules"):
            assert sum(day[name] for day in days) == whole[name], zone


def test_a_day_begins_at_midnight_of_the_zone(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    utc = total(capsys, books, "--in", "2023-11-14", "--report.timezone", "UTC")
    assert utc["gpu_microseconds"] == (86_400 - FIRST % 86_400) * 1_000_000
    assert total(capsys, books, "--in", "2023-11-15", *ZONE)["gpu_microseconds"] == 180 * 60_000_000


@pytest.mark.parametrize("command", [("report",), ("explain", "namespace:ml")])
def test_a_period_and_an_end_exclude_each_other(
    books: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    words = (*command, "--state-dir", str(books), "--in", "2023-11", "--until", "now")
    assert error_of(capsys, *words) == (
        "--in and --until exclude each other: give a whole period or its ends"
    )


def test_a_flag_wins_over_a_period_in_the_file(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("report: {in: 2022-01, timezone: UTC}\n")
    assert total(capsys, books, "--config", str(file), "--since", "2023-01-01")["gpu_microseconds"]
    message = error_of(capsys, "report", "--config", str(file), "--state-dir", str(books))
    assert message.startswith("nothing was watched from 2022-01-01 00:00 +0000 to 2022-02-01 00:00 +0000")


@pytest.mark.parametrize("command", [("report",), ("explain", "namespace:ml")])
def test_a_wrong_time_zone_is_named_with_a_similar_one(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    assert error_of(capsys, *command, "--report.timezone", "Europe/Berln") == (
        "--report.timezone: expected the IANA name of a time zone, such as Europe/Berlin or UTC (did you "
        "mean 'Europe/Berlin'?), not 'Europe/Berln'"
    )


def test_a_range_inside_a_quarter_names_the_cuts(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--since", "2023-11-14T23:02", "--until", "2023-11-14T23:05", "--report.timezone", "UTC")
    message = error_of(capsys, "report", "--state-dir", str(books), *words)
    assert message.endswith(
        "has no cut of the ledger inside: the nearest are 2023-11-14 23:00 +0000 and 2023-11-14 23:15 +0000; "
        "use them as --since and --until"
    )


def test_a_range_inside_a_summed_hour_is_that_hour(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hour = (int(UNIX) // 3600 - 3) * 4
    with closing(sqlite3.connect(books / "gpuledger.db")) as ledger:
        row = (1, hour, A.uuid, 0, "measured", "", 3_600_000_000, 7_000, 0, 0)
        ledger.execute(f"INSERT INTO hours VALUES ({', '.join('?' * len(row))})", row)
        ledger.commit()
    ends = ("--since", "2023-11-14T19:20", "--until", "2023-11-14T19:40", "--report.timezone", "UTC")
    assert total(capsys, books, *ends)["millijoules"] == 7_000


def test_explain_has_the_same_range_as_the_report(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ends = ("--since", "2023-11-14T23:08", "--until", "2023-11-15T00:31", "--report.timezone", "UTC")
    words = ("explain", "namespace:ml", "--state-dir", str(books), *ends, "--format", "json")
    assert main(list(words)) == 0
    output = capsys.readouterr()
    row = json.loads(output.out)["row"]
    report = ("report", "--by", "namespace", "--state-dir", str(books), *ends, "--format", "json")
    assert main(list(report)) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    (same,) = (one for one in rows if one.get("namespace") == "ml")
    assert row["millijoules"] == same["millijoules"]
    assert output.err.splitlines() == [
        "The range begins at 2023-11-14 23:15 +0000, the nearest cut of the ledger, in place of 2023-11-14 "
        "23:08 +0000.",
    ]


def test_a_report_by_team_account_and_partition(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "teams:\n- {team: vision, namespace: 'm?'}\n- {team: nlp, slurm_account: nlp, user: [jo, mira]}\n"
    )
    words = ("report", "--by", "team,slurm_account,partition", "--since", "2023-01-01", "--format", "json")
    assert main([*words, "--state-dir", str(books), "--config", str(file)]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    keys = {(row["team"], row["slurm_account"], row["partition"]) for row in rows}
    assert {("vision", "", ""), ("nlp", "nlp", "gpu")} <= keys


def test_a_team_that_matches_nothing_is_noted_in_a_report_by_team(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "teams: [{team: a, namespace: 'visoin-*'}, {team: b, namespace: '[ml'}, "
        "{team: c, 'label:group': x}, {team: d, user: mira, namespace: ml}, {team: e, namespace: ml}, "
        "{team: f, unit: x}]\n"
    )
    here = ("--state-dir", str(books), "--config", str(file), "--since", "2023-01-01", "--format", "csv")
    no_effect = "matches no owner of this report and has no effect"
    for by in ("team", "gpu,team"):
        assert main(["report", "--by", by, *here]) == 0
        assert capsys.readouterr().err.splitlines() == [
            f"teams: entry 1 (team a, namespace visoin-*) {no_effect}; it has namespace ml.",
            f"teams: entry 2 (team b, namespace [ml) {no_effect}; it has namespace ml.",
            f"teams: entry 3 (team c, label:group x) {no_effect}; no owner has the label group, "
            "which must be listed in kubernetes.labels.",
            f"teams: entry 4 (team d, user mira, namespace ml) {no_effect}; "
            "no owner matches all of its keys.",
            f"teams: entry 6 (team f, unit x) {no_effect}; no owner has a name for unit.",
        ]
    assert main(["report", "--by", "namespace", *here]) == 0
    assert capsys.readouterr().err == ""


def test_a_spread_report_says_that_it_ends_at_the_last_posting(
    books: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begins = ("--since", "2023-11-14T22:45", "--report.timezone", "UTC", "--price.idle", "spread")
    words = ("report", "--state-dir", str(books), "--price.gpu-hour", "1", "--format", "csv", *begins)
    assert main(list(words)) == 0
    assert capsys.readouterr().err.splitlines() == [
        "price.idle: spread begins and ends at full hours, or at the last posting: the range is from "
        "2023-11-14 23:00 +0000 to 2023-11-15 01:14 +0000, the last posting."
    ]
    assert main([*words, "--until", "2023-11-15T00:15"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "price.idle: spread begins and ends at full hours: the range is from 2023-11-14 23:00 +0000 to "
        "2023-11-15 00:00 +0000."
    ]


def test_a_wrong_team_names_file_and_entry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("teams: [{team: a, user: x}, {team: b, user: [y, x]}]\n")
    message = error_of(capsys, "report", "--config", str(file))
    assert message.startswith(
        f"{file}: teams: entry 2 (team b, user y or x): user x never counts, because entry 1"
    )

"""`gpuledger idle`: its output equals the report's rows, its formats, and wrong usage."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from builders import gpu, process
from gpuledger.cli.main import main
from gpuledger.model.workload import Workload
from ledger_helpers import Run
from unit.cli.support import document, output

A, B = gpu(0, name="NVIDIA H100"), gpu(1, name="NVIDIA H100")
ANN, BOB = (Workload("user", user=name) for name in ("ann", "bob"))
PRICES = ("--price.kwh", "0.32", "--price.gpu-hour", "2", "--price.currency", "EUR")
WEEK = ("--in", "2023-W46")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ann and Bob work for an hour; then Ann's process does nothing for two, while Bob's goes on."""
    folder = tmp_path_factory.mktemp("books")
    run = Run(folder)
    anns, bobs = process(A, 7, workload=ANN), process(B, 8, workload=BOB)
    resting = replace(anns, usage=replace(anns.usage, sm=0.0))
    energy = 0
    for minute in range(180):
        energy += 60_000
        if minute < 60:
            run.tick({A: energy, B: energy}, [anns, bobs], 60.0)
        else:
            run.tick({A: energy, B: energy}, [resting, replace(bobs)], 60.0, busy=None)
    run.store.close()
    return folder


@pytest.fixture
def books(recorded: Path, tmp_path: Path) -> Path:
    return shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)


def test_the_cost_is_the_digits_of_the_report(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = ("--state-dir", str(books), "--report.timezone", "UTC", *PRICES)
    (hold,) = document(capsys, "idle", *here)["holds"]
    assert (hold["owner"], hold["gpu"], hold["release"]) == ("ann", "0", "kill 7")
    begin = _iso(hold["priced_from"])
    rows = document(capsys, "report", *here, "--by", "owner,gpu", "--since", begin)["rows"]
    (row,) = [one for one in rows if (one["owner"], one["uuid"]) == ("ann", A.uuid)]
    for name in ("gpu_microseconds", "millijoules"):
        assert hold[name] == row[name]
    assert abs(Decimal(hold["cost"]) - Decimal(row["decimals"]["cost"])) <= Decimal("1e-10")


def _iso(unix: int) -> str:
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%S+00:00")


def test_the_table_names_the_owner_the_time_and_the_command(
    books: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = output(capsys, "idle", "--state-dir", str(books), *PRICES)
    head, row, *_ = table.splitlines()
    assert head.split()[:2] == ["owner", "GPU"]
    assert row.split()[:3] == ["ann", "0", "2h"]
    assert row.endswith("EUR  kill 7")
    assert "It takes no action" not in table
    assert "gpuledger takes no action" in table


def test_a_longer_time_lists_nobody(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = output(capsys, "idle", "--state-dir", str(books), "--for", "3h")
    assert table.startswith("Nobody has held a GPU without use for 3h or longer.")


def test_a_digest_has_the_numbers_of_the_report(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = ("--state-dir", str(books), *WEEK, *PRICES)
    (entry,) = document(capsys, "idle", *here, "--digest", "user")["entries"]
    (row,) = [
        one for one in document(capsys, "report", *here, "--by", "user")["rows"] if one["user"] == "ann"
    ]
    assert entry["name"] == "ann"
    assert entry["cost"] == row["decimals"]["cost"]
    assert entry["gpu_microseconds"] == row["gpu_microseconds"]
    assert entry["held_seconds"] == pytest.approx(3600 * float(row["held_gpu_hours"]), abs=1)
    assert [one["gpu"] for one in entry["holds"]] == ["0"]


@pytest.mark.parametrize(
    ("form", "begin"), [("text", "ann on "), ("mail", "From gpuledger "), ("slack-json", '{"text": "ann: ')]
)
def test_the_formats_of_a_digest(
    books: Path, capsys: pytest.CaptureFixture[str], form: str, begin: str
) -> None:
    words = ("idle", "--state-dir", str(books), *WEEK, "--digest", "user", "--format", form)
    assert output(capsys, *words).startswith(begin)


def test_one_entry_of_a_digest(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["idle", "--state-dir", str(books), *WEEK, "--digest", "user", "--only"]
    assert output(capsys, *words, "ann").startswith("ann on ")
    assert main([*words, "bob"]) == 1
    assert "the digest has no entry 'bob'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "mail"], "--format mail needs --digest"),
        (["--in", "2023-11"], "--in needs --digest"),
        (["--digest", "user", "--in", ""], "--in: expected a period, not ''"),
        (["--digest", "user", "--only", " "], "--only: expected a name, not ' '"),
        (["--digest", ""], "--digest: expected a key, not ''"),
        (["--url", ""], "--url: expected a URL, not ''"),
        (["--digest", "usr"], "unknown --digest 'usr'; did you mean 'user'?"),
        (["--digest", "gpu"], "unknown --digest 'gpu'"),
        (["--digest", "user", "--format", "table"], "--format table is not for --digest"),
        (["ann"], "idle takes no argument 'ann'"),
    ],
)
def test_wrong_usage(books: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert main(["idle", "--state-dir", str(books), *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("prices", "expected"), [(PRICES, ["Prices of 2023."]), ((), [])], ids=["prices", "no prices"]
)
def test_a_list_with_costs_has_the_sentence_about_the_prices(
    books: Path, capsys: pytest.CaptureFixture[str], prices: tuple[str, ...], expected: list[str]
) -> None:
    here = ("--state-dir", str(books), "--price.note", "Prices of 2023.", *prices)
    assert document(capsys, "idle", *here)["notes"] == expected
    assert ("Prices of 2023." in output(capsys, "idle", *here)) is bool(expected)

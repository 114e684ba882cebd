"""`report --verify` on a ledger that changed since the statement was made."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from builders import gpu, process
from gpuledger.cli.main import main
from gpuledger.ledger.store.retention import RetentionLimits, prune_history
from gpuledger.model.workload import Workload
from ledger_helpers import UNIX, Run
from report_helpers import folded

A, B, C = (gpu(number, name="NVIDIA H100", sm_count=132) for number in range(3))
J = 1000
UNNAMED = Workload("pod", pod_uid="uid-0", container_id="c0", missing="pod name")
TRAIN = Workload("pod", "ml", "train-0", "main", pod_uid="uid-0", container_id="c0")
PRICES = ("--price.kwh", "0.32", "--price.gpu-hour", "2.4", "--price.currency", "EUR")
# The ledger begins at 2023-11-14 22:13:20 UTC.
HOURS = ("--since", "2023-11-14T22:00Z", "--until", "2023-11-15T00:00Z")
Verify = Callable[..., tuple[int, str]]


def fill(folder: Path, minutes: range, owner: Workload) -> None:
    """A pod on a GPU, and an idle one, minute by minute."""
    folder.mkdir(exist_ok=True)
    run = Run(folder)
    run.clock.advance(minutes.start * 60.0)
    for minute in minutes:
        run.tick(
            {A: minute * 1000 * J, B: minute * 100 * J},
            [process(A, 11, workload=owner)],
            seconds=60.0,
        )
    run.store.close()


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of 110 minutes; the name of the pod is known."""
    folder = tmp_path_factory.mktemp("ledger")
    fill(folder, range(110), TRAIN)
    return folder


@pytest.fixture
def books(ledger: Path, tmp_path: Path) -> Path:
    """A copy of the ledger."""
    return Path(shutil.copytree(ledger, tmp_path / "books"))


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Verify:
    def run(books: Path, file: Path, *words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["report", "--state-dir", str(books), "--verify", str(file), *words])
        found = capsys.readouterr()
        return code, found.out + found.err

    return run


def statement(books: Path, *words: str) -> Path:
    """A statement of the ledger, by default of the hours until midnight."""
    file = books.parent / f"{books.name}.json"
    within = () if "--since" in words else HOURS
    assert (
        main(["report", "--state-dir", str(books), *within, *PRICES, *words, "--statement", str(file)]) == 0
    )
    return file


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--by", "gpu,namespace", "--every", "hour"),
        ("--price.idle", "spread"),
        ("--basis", "residence"),
        ("--since", "2023-01-01"),
        ("--report.timezone", "Asia/Kolkata", "--by", "node"),
    ],
)
def test_an_unchanged_ledger_gives_the_same_amounts(
    words: tuple[str, ...], books: Path, verify: Verify
) -> None:
    code, text = verify(books, statement(books, *words))
    assert code == 0, text
    assert f"equal: the same amounts follow from the ledger {books}/gpuledger.db" in text
    assert "intact: SHA-256 " in text


def test_an_altered_digit_names_the_row_and_its_field(books: Path, verify: Verify) -> None:
    file = statement(books)
    content = file.read_text()
    file.write_text(content.replace('"gpu_microseconds": 6', '"gpu_microseconds": 7', 1))
    assert file.read_text() != content
    code, text = verify(books, file)
    assert code == 1
    assert "ALTERED: rows[0].gpu_microseconds (pod/ml/train-0) is not as it was written" in text


def test_a_name_in_an_altered_file_cannot_control_the_terminal(books: Path, verify: Verify) -> None:
    file = statement(books)
    file.write_text(file.read_text().replace("train-0", "\\u001b[2J\\nintact"))
    code, text = verify(books, file)
    assert code == 1
    assert "\x1b" not in text
    assert "ALTERED: rows[0].name (pod/ml/\\x1b[2J\\nintact) is not as it was written" in text


def test_names_that_arrive_late_move_the_amounts_to_another_row(tmp_path: Path, verify: Verify) -> None:
    books = tmp_path / "books"
    fill(books, range(50), UNNAMED)
    file = statement(books, "--since", "2023-11-14T22:00Z", "--until", "2023-11-14T23:00Z", "--by", "pod")
    fill(books, range(50, 60), TRAIN)
    code, text = verify(books, file)
    assert code == 1
    assert "late names: 0.7611111111 GPU-hours and" in text
    assert "of (no name) now belong to ml/train-0" in text
    assert "the amounts are the same" in text


def test_a_name_that_was_changed_is_no_late_name(books: Path, verify: Verify) -> None:
    file = statement(books)
    with closing(sqlite3.connect(books / "gpuledger.db")) as connection, connection:
        connection.execute("UPDATE sessions SET pod = 'forgotten-1' WHERE pod = 'train-0'")
    code, text = verify(books, file)
    assert code == 1
    assert "changed names: 1.7611111111 GPU-hours" in text
    assert "of pod/ml/train-0 now belong to pod/ml/forgotten-1" in text


def test_a_gpu_with_another_number_has_the_same_amounts(books: Path, verify: Verify) -> None:
    file = statement(books, "--by", "gpu")
    with closing(sqlite3.connect(books / "gpuledger.db")) as connection, connection:
        connection.execute("UPDATE devices SET gpu_index = 7 WHERE uuid = ?", (B.uuid,))
    code, text = verify(books, file)
    assert code == 1
    assert f"of {B.uuid}/1/NVIDIA H100: idle now belong to {B.uuid}/7/NVIDIA H100: idle" in text


def test_folded_hours_change_nothing_for_a_range_of_full_hours(books: Path, verify: Verify) -> None:
    file = statement(books)
    small = books / "folded"
    small.mkdir()
    folded(books / "gpuledger.db", UNIX + 86_400, small / "gpuledger.db")
    assert verify(small, file)[0] == 0


@pytest.mark.parametrize("every", [(), ("--every", "hour")])
def test_a_range_that_cannot_be_cut_any_more_lies_between_two(
    every: tuple[str, ...], books: Path, verify: Verify
) -> None:
    # The full hour within has the same amounts.
    file = statement(books, "--since", "2023-11-14T22:30Z", "--until", "2023-11-14T23:30Z", *every)
    small = books / "folded"
    small.mkdir()
    folded(books / "gpuledger.db", UNIX + 86_400, small / "gpuledger.db")
    code, text = verify(small, file)
    assert code == 1
    assert "folded detail: the ledger can no longer be cut at 2023-11-14 22:30 +0000" in text
    assert "all rows of the statement lie between" in text


@pytest.mark.parametrize("since", ["2023-11-14", "2023-11-15T00:00Z"])
@pytest.mark.parametrize("minutes", [1, 20, 90])
@pytest.mark.parametrize("idle", ["row", "spread"])
def test_a_statement_of_an_unfinished_period_lies_between_two(
    since: str, minutes: int, idle: str, books: Path, verify: Verify
) -> None:
    file = statement(books, "--since", since, "--until", "now", "--price.idle", idle)
    fill(books, range(110, 110 + minutes), TRAIN)
    code, text = verify(books, file)
    assert code == 1
    assert "unfinished period: the statement ends at 2023-11-15 00:03 +0000, the last posting" in text
    assert "all rows of the statement lie between" in text


def test_idle_time_is_spread_over_the_range_of_a_statement_without_full_hours(
    books: Path, verify: Verify
) -> None:
    file = statement(books, "--since", "2023-11-14T23:15Z", "--until", "2023-11-14T23:45Z")
    code, text = verify(books, file, "--price.idle", "spread")
    assert code == 1
    assert "equal: the same amounts follow from the ledger" in text
    assert "other settings: price.idle is spread, and row in the statement" in text


@pytest.mark.parametrize("every", [(), ("--every", "hour")])
def test_deleted_history_is_named(every: tuple[str, ...], books: Path, verify: Verify) -> None:
    file = statement(books, *every)
    with closing(sqlite3.connect(books / "gpuledger.db", isolation_level=None)) as connection:
        limits = RetentionLimits(detail=3600.0, hours=40 * 86_400.0)
        while prune_history(connection, 1_700_002_800 + 3600 + limits.hours, limits).more:
            pass
    code, text = verify(books, file)
    assert code == 1
    assert "deleted history: the ledger now begins at 2023-11-15 00:00 +0000" in text
    assert "GPU that is missing" not in text
    assert "folded detail" not in text


@pytest.mark.parametrize(("minutes", "last"), [(70, "23:23"), (40, "22:53")])
def test_a_ledger_from_an_older_backup_is_named(minutes: int, last: str, books: Path, verify: Verify) -> None:
    file = statement(books, "--every", "hour")
    older = books.parent / "older"
    fill(older, range(minutes), TRAIN)
    code, text = verify(older, file)
    assert code == 1
    assert f"older or damaged ledger: the last posting of the ledger is at 2023-11-14 {last} +0000" in text
    assert "folded detail" not in text


def test_a_gpu_that_appeared_is_named(books: Path, verify: Verify) -> None:
    file = statement(books)
    with closing(sqlite3.connect(books / "gpuledger.db")) as connection, connection:
        for table, column in (("time_spans", "gpu"), ("spans", "uuid")):
            connection.execute(f"UPDATE {table} SET {column} = 'GPU-9' WHERE {column} = ?", (B.uuid,))
        connection.execute("UPDATE gpu_parts SET part = replace(part, ?, 'GPU-9')", (B.uuid,))
    code, text = verify(books, file)
    assert code == 1
    assert "GPU that appeared: GPU   (GPU-9) is not in the statement" in text
    assert f"GPU that is missing: the ledger no longer has GPU 1 NVIDIA H100 ({B.uuid})" in text


def test_other_prices_are_named_with_both_lists_and_totals(books: Path, verify: Verify) -> None:
    file = statement(books)
    code, text = verify(books, file, "--price.gpu-hour", "3")
    assert code == 1
    assert "equal: the same amounts follow" in text
    assert "other prices: the price list " in text
    assert "without price.gpu_hour: 2.4 EUR per GPU-hour, with price.gpu_hour: 3 EUR per GPU-hour" in text
    total, before = text.partition("by it the total is ")[2].splitlines()[0].split(" in place of ")
    assert float(total.removesuffix(" EUR")) > float(before.removesuffix(" EUR"))


def test_totals_of_two_currencies_have_both(books: Path, verify: Verify) -> None:
    code, text = verify(books, statement(books), "--price.currency", "USD")
    assert code == 1
    total = text.partition("by it the total is ")[2].splitlines()[0]
    assert re.fullmatch(r"(8\.\d+) USD in place of \1 EUR", total)


def test_prices_that_changed_for_later_times_are_no_difference(books: Path, verify: Verify) -> None:
    file = statement(books)
    later = '[{"until": "2026-01-01", "price": 2.4}, {"price": 9}]'
    code, text = verify(books, file, "--price.gpu-hour", later)
    assert code == 0
    assert "equal: the present settings are not those of the statement, and give the same amounts" in text


def test_other_teams_are_named(books: Path, verify: Verify) -> None:
    teams = '[{{"team": "{}", "namespace": "ml"}}]'
    file = statement(books, "--by", "team", "--teams", teams.format("vision"))
    code, text = verify(books, file, "--teams", teams.format("nlp"))
    assert code == 1
    assert "other teams: the setting teams is not that of the statement" in text


def test_exports_of_the_ledger_give_the_same_amounts(books: Path, tmp_path: Path, verify: Verify) -> None:
    file, exports = statement(books), str(tmp_path / "exports")
    words = ["--state-dir", str(books), "--in", "2023-11", "--format", "csv", "--report.timezone", "UTC"]
    assert main(["books", "export", exports, *words]) == 0
    shutil.rmtree(books)
    assert main(["report", "--verify", str(file), "--books", exports]) == 0


def test_exports_without_the_node_of_the_statement_are_a_difference(
    books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exports = str(tmp_path / "exports")
    words = ["--state-dir", str(books), "--in", "2023-11", "--format", "csv", "--report.timezone", "UTC"]
    assert main(["books", "export", exports, *words]) == 0
    monkeypatch.setenv("NODE_NAME", "node-9")
    file = statement(books)
    assert main(["report", "--verify", str(file), "--books", exports]) == 1
    assert f"DIFFERS: {exports} has no exported ledger of node-9" in capsys.readouterr().out


def test_without_books_only_the_file_is_verified(books: Path, tmp_path: Path, verify: Verify) -> None:
    file = statement(books)
    code, text = verify(tmp_path / "elsewhere", file)
    assert code == 0
    assert "not compared, only the file was verified: there is no ledger at" in text


def test_the_ledger_of_another_machine_is_not_compared(books: Path, tmp_path: Path, verify: Verify) -> None:
    other = tmp_path / "other"
    other.mkdir()
    run = Run(other)
    for minute in range(20):
        run.tick({C: minute * J}, seconds=60.0)
    run.store.close()
    code, text = verify(other, statement(books))
    assert code == 0
    assert "which is of another machine" in text


def test_a_ledger_that_cannot_be_read_is_no_verdict(books: Path, verify: Verify) -> None:
    file = statement(books)
    with closing(sqlite3.connect(books / "gpuledger.db")) as connection:
        connection.execute("PRAGMA user_version = 99")
    code, text = verify(books, file)
    assert code == 2
    assert "gpuledger: the statement cannot be compared: " in text


def test_a_page_is_printed_from_the_file_alone(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = statement(books)
    capsys.readouterr()
    words = ["--verify", str(file), "--format", "html", "--state-dir", str(tmp_path / "elsewhere")]
    assert main(["report", *words]) == 0
    found = capsys.readouterr()
    assert found.out.startswith("<!DOCTYPE html>")
    assert "pod/ml/train-0" in found.out
    assert "intact: SHA-256 " in found.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--after", "a.json"), "--after needs --statement or --verify"),
        (("--statement", "a.json", "--verify", "b.json"), "exclude each other"),
        (("--statement", "a.json", "--format", "focus"), "--statement has no --format focus"),
        (("--verify", "nowhere.json"), "cannot read the statement nowhere.json: No such file"),
        (
            ("--verify", "nowhere.json", "--in", "2026-10"),
            "the keys and all rows of the statement: omit --in",
        ),
        (("--verify", "a.json", "--by", "pod", "--top", "0"), "omit --by and --top"),
        (("--verify", "a.json", "--format", "csv"), "--verify has no --format csv"),
        (("--verify", "a.json", "--format", "focus-1.2"), "--verify has no --format focus-1.2"),
        (("--statement", "-"), "--statement -: a statement is neither read from stdin nor written to stdout"),
        (("--verify", "-"), "--verify -: a statement is neither"),
        (("--verify", "a.json", "--after", "-"), "--after -: a statement is neither"),
        (("--statement", "."), "--statement . is a directory: add the name of a file"),
        (("--statement", ""), "--statement: expected a file, not ''; is a shell variable not set?"),
        (("--verify", " "), "--verify: expected a file, not ' '"),
        (("--verify", "a.json", "--after", ""), "--after: expected a file"),
        (("--books", ""), "--books: expected a directory"),
        (("--prometheus", ""), "--prometheus: expected a URL"),
        (("--in", ""), "--in: expected a period"),
        (("--since", ""), "--since: expected a time"),
    ],
)
def test_flags_that_exclude_each_other_are_one_line(
    words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *words]) == 2
    assert text in capsys.readouterr().err

"""`gpuledger report` on the database of a ledger."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from builders import FakeClock, instance, process
from gpuledger.cli.main import main
from gpuledger.ledger.report.formats import format_time
from gpuledger.ledger.store.schema import MIGRATIONS
from gpuledger.model.workload import Allocation, Workload
from ledger_helpers import UNIX, Run, as_simulated, rows
from report_helpers import folded
from unit.cli.support import ALL, CHAT, TRAIN, A, J, error_of, figures, output, write_two_pods


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("books")
    write_two_pods(folder)
    return folder


@pytest.fixture
def books(recorded: Path, tmp_path: Path) -> Path:
    return shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)


def test_rows_sum_to_the_counters(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_pod = figures(capsys, books, "--by", "pod")
    assert sum(int(row["millijoules"]) for row in by_pod) == 118 * 1000 * J + 118 * 100 * J
    assert {row["pod"] for row in by_pod} == {"train-0", "chat-0", ""}


def test_a_report_groups_by_a_pod_label(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {row["team"] for row in figures(capsys, books, "--by", "label:team")} == {"blue", "red", ""}


def test_prices_come_from_the_configuration_too(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("price: {kwh: 0.3, gpu_hour: 2, currency: eur}\nco2: {g_per_kwh: 380}\n")
    text = output(capsys, "report", "--state-dir", str(books), *ALL, "--config", str(config))
    assert "cost EUR" in text
    assert "kg CO2" in text


def test_reports_of_single_hours_sum_to_the_whole(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = int(UNIX) // 3600
    parts: Counter[str] = Counter()
    for hour in range(first, first + 3):
        between = ("--since", format_time(hour * 3600), "--until", format_time(hour * 3600 + 3600))
        for row in figures(capsys, books, "--by", "pod", *between):
            parts[row["pod"] + row["account"]] += int(row["millijoules"])
    whole = {
        row["pod"] + row["account"]: int(row["millijoules"]) for row in figures(capsys, books, "--by", "pod")
    }
    assert dict(parts) == whole


def test_a_report_does_not_disturb_a_running_ledger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path)
    for minute in range(10):
        run.tick({A: minute * 1000 * J}, [process(A, 1, workload=TRAIN)], seconds=60.0)
    assert "ml/train-0" in output(capsys, "report", "--state-dir", str(tmp_path), *ALL)
    state = run.tick({A: 11_000 * J}, [process(A, 1, workload=TRAIN)], seconds=60.0)
    assert state.parts[0].success
    run.store.close()


def test_errors_are_one_line_that_names_the_remedy(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, foreign, old = tmp_path / "empty", tmp_path / "foreign", tmp_path / "old"
    for folder in (empty, foreign, old):
        folder.mkdir()
    (foreign / "gpuledger.db").write_text("not a database")
    with closing(sqlite3.connect(old / "gpuledger.db")) as file:
        for script in MIGRATIONS[:2]:
            file.executescript(script)
        file.execute("PRAGMA application_id=0x6770756C")
        file.execute("PRAGMA user_version=2")
    here = str(books)
    cases = {
        ("report", "--state-dir", str(empty)): "there is no ledger at",
        ("report", "--state-dir", str(foreign)): "gpuledger.db: file is not a database",
        ("report", "--state-dir", str(old)): "start `gpuledger serve` of this version once",
        ("report", "--state-dir", "none"): "the ledger is in the memory of",
        ("report", "--state-dir", here, "--by", "nampespace"): "did you mean 'namespace'?",
        ("report", "--state-dir", here, "--since", "soon"): "--since: expected an age",
        (
            "report",
            "--state-dir",
            here,
            "--price.kwh",
            "cheap",
        ): "--price.kwh: expected a price of one kilowatt-hour",
        (
            "report",
            "--state-dir",
            here,
            "--pue",
            "0.9",
        ): "--pue: expected a power usage effectiveness of at least 1",
        (
            "report",
            "--state-dir",
            here,
            "--price.currency",
            "euro",
        ): "expected a currency code of three letters",
        ("report", "--state-dir", here, "extra"): "report takes no argument 'extra'",
        ("explain", "--state-dir", here): "explain needs one WHO",
        ("explain", "nobody", "--state-dir", here): "'nobody' is not in",
    }
    for words, line in cases.items():
        assert line in error_of(capsys, *words), words


def test_a_simulated_ledger_is_marked(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sim").mkdir()
    as_simulated(books / "gpuledger.db", tmp_path / "sim" / "simulator-k8s-node.db")
    # The current time of a simulated ledger is its end.
    assert main(["report", "--state-dir", str(tmp_path / "sim"), "--since", "2h"]) == 0
    out, error = capsys.readouterr()
    assert "data of a simulator or a recording, not of hardware" in error
    assert "ml/train-0" in out


def test_hours_of_a_mig_instance_count_by_its_share_of_the_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = instance(A, 2, 0, profile="3g.40gb", sm_count=66)
    run = Run(tmp_path)
    for minute in range(61):
        run.tick({A: minute * 1000 * J, part: 0}, [process(part, 1, workload=TRAIN, sm=None)], seconds=60.0)
    run.store.close()
    (row,) = (row for row in figures(capsys, tmp_path, "--by", "pod") if row["pod"])
    assert float(row["gpu_hours"]) == 0.5


def hours_of(books: Path, pod: str, capsys: pytest.CaptureFixture[str], *words: str) -> float:
    (row,) = (row for row in figures(capsys, books, "--by", "pod", *words) if row["pod"] == pod)
    return float(row["gpu_hours"])


@pytest.mark.parametrize("step", [3600.0, -3600.0, 8 * 86_400.0])
def test_a_clock_step_adds_no_hours_and_hides_no_energy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], step: float
) -> None:
    run = Run(tmp_path)
    for minute in range(60):
        run.tick({A: minute * 1000 * J}, [process(A, 1, workload=TRAIN)], seconds=60.0)
        if minute == 29:
            run.clock.now_unix += step
    run.store.close()
    assert hours_of(tmp_path, "train-0", capsys) == pytest.approx(59 / 60, abs=0.001)
    rows_now = figures(capsys, tmp_path, "--by", "pod")
    assert sum(int(row["millijoules"]) for row in rows_now) == 58 * 1000 * J
    wholly = tmp_path / "folded"
    wholly.mkdir()
    folded(tmp_path / "gpuledger.db", UNIX + 60 * 86_400, wholly / "gpuledger.db")
    assert hours_of(wholly, "train-0", capsys) == hours_of(tmp_path, "train-0", capsys)


def test_a_machine_that_booted_in_1970_folds_quickly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = FakeClock(100.0)
    run = Run(tmp_path, clock=clock)
    for minute in range(20):
        run.tick({A: minute * 1000 * J}, [process(A, 1, workload=TRAIN)], seconds=60.0)
        if minute == 9:
            clock.now_unix += UNIX
    run.store.close()
    assert hours_of(tmp_path, "train-0", capsys, "--since", "1970-01-02") < 0.34
    wholly = tmp_path / "folded"
    wholly.mkdir()
    folded(tmp_path / "gpuledger.db", UNIX + 86_400, wholly / "gpuledger.db")
    assert rows(wholly / "gpuledger.db", "SELECT count(*) FROM hour_times")[0][0] <= 3  # type: ignore[operator]


def test_unobserved_time_belongs_to_no_owner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tmp_path)
    for minute in range(20):
        run.tick({A: minute * 1000 * J}, [process(A, 1, workload=TRAIN)], seconds=60.0)
    run.ledger.interrupt()
    for minute in range(20):
        seconds = 600.0 if minute == 0 else 60.0
        run.tick({A: (20 + minute) * 1000 * J}, [process(A, 1, workload=TRAIN)], seconds=seconds)
    run.kill()
    again = Run(tmp_path, clock=run.clock)
    for minute in range(20):
        seconds = 3000.0 if minute == 0 else 60.0
        again.tick({A: (40 + minute) * 1000 * J}, [process(A, 1, workload=TRAIN)], seconds=seconds)
    again.store.close()
    assert hours_of(tmp_path, "train-0", capsys) == pytest.approx(3 * 19 / 60, abs=0.001)


@pytest.mark.parametrize(
    "forgotten",
    [
        Workload("pod", pod_uid="u", container_id="c", missing="pod_name"),
        Workload("pod", "ml", "train-0", pod_uid="u", container_id="c"),
        Workload(missing="no_cgroup"),
        Workload("user", user="1000"),
    ],
    ids=["the pod is deleted", "labels are unknown", "the owner is unknown", "only the user is known"],
)
def test_the_known_owner_of_a_process_is_kept_at_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], forgotten: Workload
) -> None:
    known = Workload("pod", "ml", "train-0", "main", "u", "c", labels=(("team", "blue"),))
    run = Run(tmp_path)
    for minute in range(20):
        owner = known if minute < 19 else forgotten
        run.tick({A: minute * 1000 * J}, [process(A, 1, workload=owner)], seconds=60.0)
    run.store.close()
    for by, key in (("pod", "pod"), ("label:team", "team")):
        used = {row[key] for row in figures(capsys, tmp_path, "--by", by) if int(row["millijoules"])}
        assert used == {{"pod": "train-0", "team": "blue"}[key]}


def test_a_damaged_ledger_is_a_one_line_error(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = books / "gpuledger.db"
    content = bytearray(file.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    file.write_bytes(content)
    assert "is damaged" in error_of(capsys, "report", "--state-dir", str(books), *ALL)


def test_books_that_do_not_balance_are_reported(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = ("report", "--state-dir", str(books), *ALL)
    assert "DO NOT BALANCE" not in output(capsys, *whole)
    with closing(sqlite3.connect(books / "gpuledger.db")) as file:
        file.execute("UPDATE shares SET millijoules = millijoules + 1000")
        file.commit()
    assert "THE BOOKS DO NOT BALANCE: the total of GPU-0 has -" in output(capsys, *whole)
    assert main([*whole, "--format", "csv"]) == 0
    assert "DO NOT BALANCE" in capsys.readouterr().err


def test_a_name_adds_no_lines_to_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = Workload("pod", "ml", "evil\n total  999\x1b[2J", "main")
    run = Run(tmp_path)
    for minute in range(5):
        run.tick({A: minute * 1000 * J}, [process(A, 1, workload=evil)], seconds=60.0)
    run.store.close()
    text = output(capsys, "report", "--state-dir", str(tmp_path), *ALL, "--by", "pod")
    assert "evil\\n total  999\\x1b[2J" in text
    assert "\x1b" not in text


def test_defaults_in_the_help_are_valid_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--help-all"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for default in (
        "(default: 7d) [store.detail",
        "(default: 400d) [store.hours",
        "(default: 1GiB) [store.max_size",
    ):
        assert default in text


PRICED = ("--price.gpu-hour", "2.40", "--price.kwh", "0.3", "--price.currency", "EUR")


def exact(rows: list[dict[str, str]]) -> tuple[int, int, Decimal]:
    """Microseconds, millijoules and cost of all rows."""
    cost = sum((Decimal(row["cost"] or 0) for row in rows), Decimal(0))
    return (
        sum(int(row["gpu_microseconds"]) for row in rows),
        sum(int(row["millijoules"]) for row in rows),
        cost,
    )


@pytest.mark.parametrize(
    "by", ["owner", "namespace", "pod", "gpu", "model", "command", "node", "namespace,gpu"]
)
def test_the_total_is_the_same_for_every_key(
    books: Path, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    rows_now = figures(capsys, books, "--by", by, *PRICED)
    # 119 minutes on two GPUs; the first interval of an energy counter is not booked.
    millijoules = 118 * 1000 * J + 118 * 100 * J
    hours, kwh = Decimal(2 * 119) / 60, Decimal(millijoules) / 3_600_000_000
    cost = (hours * Decimal("2.40") + kwh * Decimal("0.3")).quantize(Decimal("1e-10"))
    assert exact(rows_now) == (2 * 119 * 60_000_000, millijoules, cost)


def test_ranges_that_meet_at_half_past_add_up(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    middle = format_time(UNIX // 3600 * 3600 + 1800)
    ends = (("--until", middle), ("--since", middle))
    halves = [exact(figures(capsys, books, *end, *PRICED)) for end in ends]
    whole = exact(figures(capsys, books, *PRICED))
    assert min(halves) > (0, 0, 0)
    assert tuple(map(sum, zip(*halves, strict=True)))[:2] == whole[:2]


def test_every_hour_has_rows_of_its_own(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows_now = figures(capsys, books, "--every", "hour", "--by", "pod", *PRICED)
    assert len({row["period"] for row in rows_now}) == 3
    assert exact(rows_now)[:2] == exact(figures(capsys, books, *PRICED))[:2]
    text = output(capsys, "report", "--state-dir", str(books), *ALL, "--every", "hour")
    assert text.splitlines()[2].startswith("period")


def test_several_keys_have_a_column_each(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows_now = figures(capsys, books, "--by", "namespace,model")
    assert {(row["namespace"], row["model"]) for row in rows_now if row["namespace"]} == {
        ("ml", "NVIDIA H100"),
        ("web", "NVIDIA H100"),
    }
    text = output(capsys, "report", "--state-dir", str(books), *ALL, "--by", "namespace,model")
    assert text.splitlines()[2].split()[:2] == ["namespace", "model"]


def test_the_basis_is_chosen_when_the_report_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path)
    holder = Allocation(A, TRAIN, Fraction(1))
    for minute in range(61):
        run.tick({A: minute * 1000 * J}, [process(A, 2, workload=CHAT)], seconds=60.0, allocations=(holder,))
    run.store.close()
    for basis, paying in (("allocation", "train-0"), ("residence", "chat-0")):
        words = ("--by", "pod", "--basis", basis)
        assert hours_of(tmp_path, paying, capsys, *words) == 1.0
        text = output(capsys, "report", "--state-dir", str(tmp_path), *ALL, *words)
        assert f"GPU time by {basis}" in text.splitlines()[0]


def test_a_price_list_without_a_match_names_the_gpu(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = '[{"gpu": "*A100*", "price": 1}]'
    text = output(capsys, "report", "--state-dir", str(books), *ALL, "--price.gpu-hour", listed)
    total = next(line for line in text.splitlines() if line.startswith("total"))
    assert " 0+ " in total
    assert "price.gpu_hour: no entry matches NVIDIA H100" in text
    rows_now = figures(capsys, books, "--price.gpu-hour", listed)
    assert sum(int(row["unpriced_microseconds"]) for row in rows_now) == 2 * 119 * 60_000_000


def test_a_report_of_a_month_names_it_in_its_range(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "report", "--state-dir", str(books), "--in", "2023-11")
    assert text.startswith("2023-11-01 00:00 +0000 to 2023-11-15 ")

"""`gpuledger explain WHO`: every form of a name, and the energy and time of that owner."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from builders import process
from gpuledger.model.workload import Allocation, Workload
from ledger_helpers import UNIX, Run, rows
from report_helpers import folded
from unit.cli.support import TRAIN, A, B, J, document, error_of, figures, output, write_two_pods


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("books")
    write_two_pods(folder)
    return folder


@pytest.fixture
def books(recorded: Path, tmp_path: Path) -> Path:
    return shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)


def test_explain_sums_to_the_reported_energy(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bills = {row["pod"]: row for row in figures(capsys, books, "--by", "pod")}
    for pod in ("train-0", "chat-0"):
        found = document(capsys, "explain", pod, "--state-dir", str(books))
        assert found["millijoules"] == int(bills[pod]["millijoules"])
        assert found["millijoules"] == sum(one["millijoules"] for one in found["intervals"])


def test_explain_names_the_sharing_owners_and_the_reason(
    books: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = output(capsys, "explain", "ml/train-0", "--state-dir", str(books))
    assert "pid 11 python3 on GPU 0 GPU-0" in text
    assert "measured" in text
    assert "with web/chat-0" in text
    assert "alone on the whole GPU, so it gets all of the counter's energy" in text
    assert "shared: split by engine time; idle power, if known, split equally" in text


@pytest.mark.parametrize("word", ["11", "pid:11", "pod:train-0", "pod:ml/train-0"])
def test_explain_accepts_every_form_of_a_name(
    books: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    found = document(capsys, "explain", word, "--state-dir", str(books))
    assert [one["pid"] for one in found["sessions"]] == [11]
    assert found["low_millijoules"] <= found["millijoules"] <= found["high_millijoules"]


def test_explain_reports_energy_without_detail_after_folding(
    books: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "old").mkdir()
    folded(books / "gpuledger.db", UNIX + 86_400, tmp_path / "old" / "gpuledger.db")
    found = document(capsys, "explain", "pid:11", "--state-dir", str(tmp_path / "old"))
    booked = rows(books / "gpuledger.db", "SELECT measured + apportioned FROM usage WHERE number = 1")[0][0]
    assert found["millijoules"] == found["millijoules_without_detail"] == booked
    assert "without detail" in output(capsys, "explain", "pid:11", "--state-dir", str(tmp_path / "old"))


def test_an_ambiguous_number_needs_a_prefix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tmp_path)
    processes = [process(A, 4711, workload=TRAIN), process(B, 12, workload=Workload("slurm", job="4711"))]
    for minute in range(5):
        run.tick({A: minute * 1000 * J, B: minute * 1000 * J}, processes, seconds=60.0)
    run.store.close()
    assert "use pid:4711 or job:4711" in error_of(capsys, "explain", "4711", "--state-dir", str(tmp_path))
    assert output(capsys, "explain", "job:4711", "--state-dir", str(tmp_path)).startswith("job 4711:")


def test_the_bounds_of_a_process_do_not_change_after_folding(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old").mkdir()
    folded(books / "gpuledger.db", UNIX + 86_400, tmp_path / "old" / "gpuledger.db")
    found = [
        document(capsys, "explain", "pid:12", "--state-dir", str(folder))
        for folder in (books, tmp_path / "old")
    ]
    for key in ("millijoules", "low_millijoules", "high_millijoules"):
        assert found[0][key] == found[1][key], key


def test_a_job_with_a_thousand_pods_and_non_ascii_names_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path)
    for first in range(0, 1100, 50):
        pods = [
            Workload("pod", "ml", f"tâche-{number}", "main", controller_kind="Job", controller="tâche")
            for number in range(first, first + 50)
        ]
        processes = [process(A, first + number, workload=pod) for number, pod in enumerate(pods, 1)]
        run.tick({A: first * 1000 * J}, processes, seconds=10.0)
    run.store.close()
    (tmp_path / "old").mkdir()
    folded(tmp_path / "gpuledger.db", UNIX + 86_400, tmp_path / "old" / "gpuledger.db")
    for folder in (tmp_path, tmp_path / "old"):
        found = document(capsys, "explain", "job:tâche", "--state-dir", str(folder))
        (row,) = (row for row in figures(capsys, folder, "--by", "job") if row["job"])
        assert found["millijoules"] == int(row["millijoules"]) > 1_000_000


@pytest.mark.parametrize("word", ["99999999999999999999", "pid:²", "²", "pid:", "pod:", "job:", "/", "''"])
def test_malformed_names_are_not_found(books: Path, capsys: pytest.CaptureFixture[str], word: str) -> None:
    assert f"'{word}' is not in" in error_of(capsys, "explain", word, "--state-dir", str(books))


def test_a_pod_with_an_allocation_but_no_process_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path)
    holder = Allocation(A, Workload("pod", "notebooks", "jupyter", "main"))
    for minute in range(61):
        run.tick({A: minute * 1000 * J}, [], seconds=60.0, allocations=(holder,))
    run.store.close()
    text = output(capsys, "explain", "notebooks/jupyter", "--state-dir", str(tmp_path))
    assert "allocated: GPU 0 GPU-0" in text
    assert "without a process there for 1.00 h" in text
    (row,) = (row for row in figures(capsys, tmp_path, "--by", "pod") if row["pod"])
    # It keeps the GPU from others, so it has its time.
    assert (float(row["held_gpu_hours"]), float(row["gpu_hours"]), row["millijoules"]) == (1.0, 1.0, "0")
    (row,) = (row for row in figures(capsys, tmp_path, "--by", "pod", "--basis", "residence") if row["pod"])
    assert float(row["gpu_hours"]) == 0.0


def test_an_ambiguous_pod_name_needs_its_namespace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path)
    processes = [
        process(card, 1, workload=Workload("pod", space, "same", "main"))
        for card, space in ((A, "blue"), (B, "red"))
    ]
    for minute in range(5):
        run.tick({A: minute * 1000 * J, B: minute * 1000 * J}, processes, seconds=60.0)
    run.store.close()
    here = ("--state-dir", str(tmp_path))
    assert "use pod:blue/same or pod:red/same" in error_of(capsys, "explain", "same", *here)
    assert output(capsys, "explain", "pod:red/same", *here).startswith("pod red/same:")

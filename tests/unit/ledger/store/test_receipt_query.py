"""Receipts from a ledger: thirteen simulated jobs with the advice that they deserve, and what each shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builders import FakeClock, gpu, process
from gpuledger.ledger.report.gpu_time import GpuTime
from gpuledger.ledger.report.receipt.content import ReceiptGpu, ReceiptJson
from gpuledger.ledger.report.receipt.presentation import show_receipt
from gpuledger.ledger.report.receipt.settings import AdviceSettings
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.store import report_query
from gpuledger.ledger.store.explain_target import OwnerNotFound
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.receipt_query import with_kind
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.workload import Allocation, Workload
from ledger_helpers import Run
from receipt_books import BEGUN, GIB, HOUR, STARTED, receipt_of, write_books
from report_helpers import folded

MICRO = 1_000_000


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_books(tmp_path_factory.mktemp("receipts"))


@pytest.fixture(scope="module")
def old_books(books: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with all hours folded."""
    return folded(books, STARTED + 10 * HOUR, tmp_path_factory.mktemp("folded") / "simulator.db")


# Each job, its advice, and the GPU time (hours) and money that it would save.
ADVICE = {
    "one-of-four": [("unused_gpu", 4.0, "12.0000000000")],
    "nothing": [("unused_gpu", 4.0, "12.0000000000")],
    "small": [("smaller_gpu", 24 / 7, "10.2857142857")],
    "small-card": [("smaller_gpu", None, None)],
    "late": [("late_start", 1.0, "3.0000000000")],
    "notebook": [("held_memory", 2.4, "7.2000000000")],
    "host-memory": [("host_memory", None, None)],
    "power": [("throttled", None, None)],
    "hot": [("throttled", None, None)],
    "input": [("waiting_for_input", 3.2, "9.6000000000")],
    "finished": [("idle_since", 3.0, "9.0000000000")],
    "busy": [],
    "short": [],
}


@pytest.mark.parametrize("job", ADVICE)
def test_a_job_gets_the_advice_that_it_deserves(books: Path, job: str) -> None:
    found = receipt_of(books, f"pod:jobs/{job}")["advice"]
    assert [one["rule"] for one in found] == [rule for rule, _, _ in ADVICE[job]]
    for one, (_, hours, cost) in zip(found, ADVICE[job], strict=True):
        saving = one["saving"]
        if hours is None:
            assert saving is None
            continue
        assert saving is not None
        # A reading every 30 s: the seconds at the ends of a load belong to one of two of them.
        assert saving["gpu_microseconds"] == pytest.approx(hours * HOUR * MICRO, abs=125 * MICRO)
        assert float(saving["cost"] or 0) == pytest.approx(float(cost), abs=0.11)


def only_gpu(receipt: ReceiptJson) -> ReceiptGpu:
    (found,) = receipt["gpus"]
    return found


def test_the_numbers_of_a_gpu(books: Path) -> None:
    found = only_gpu(receipt_of(books, "pod:jobs/busy"))
    assert found["model"] == "NVIDIA H100 80GB HBM3"
    assert found["memory_bytes"] == 81_559 * 2**20
    assert found["memory_peak_bytes"] == 70 * GIB
    assert found["memory_mean_bytes"] == pytest.approx(70 * GIB)
    assert found["sm_mean"] == pytest.approx(0.95, abs=0.01)
    assert found["sm_peak"] == pytest.approx(0.95, abs=0.01)
    assert found["sm_known_seconds"] == pytest.approx(4 * HOUR, abs=60)
    assert found["active_seconds"] == pytest.approx(4 * HOUR, abs=60)
    assert found["throttle_known_seconds"] == pytest.approx(4 * HOUR, abs=120)
    assert (found["begins"], found["ends"]) == (BEGUN, BEGUN + 4 * HOUR)


def test_the_cgroup_of_a_job(books: Path) -> None:
    (host,) = receipt_of(books, "pod:jobs/input")["hosts"]
    assert host["node"] == "n1"
    assert host["cores"] == 16
    assert host["cpu_seconds"] == pytest.approx(0.95 * 16 * 4 * HOUR, rel=0.01)
    assert (host["memory_peak_bytes"], host["memory_limit_bytes"]) == (100 * GIB, 128 * GIB)


def test_bars_have_the_shape_of_the_load(books: Path) -> None:
    receipt = receipt_of(books, "pod:jobs/late")
    scale = receipt["bars"]
    assert scale == {"begins": int(STARTED), "step_seconds": 600, "count": 25}
    bars = only_gpu(receipt)["bars"]
    assert bars["present"] == [300, *[600] * 23, 300]
    assert bars["active"][:6] == [0] * 6
    assert bars["active"][7:24] == [600] * 17
    assert [one for one in bars["utilization"][7:24] if one] == pytest.approx([0.9] * 17, abs=0.01)
    assert not any(bars["utilization"][:6])


def test_folded_hours_give_the_same_receipt_and_advice(books: Path, old_books: Path) -> None:
    for job in ADVICE:
        before, after = (receipt_of(file, f"pod:jobs/{job}") for file in (books, old_books))
        assert after["total"] == before["total"]
        assert [one["rule"] for one in after["advice"]] == [one["rule"] for one in before["advice"]]
        for one, other in zip(before["gpus"], after["gpus"], strict=True):
            for name in ("wait_seconds", "gap_seconds", "tail_seconds", "first_active", "present_seconds"):
                assert other[name] == one[name], (job, name)  # type: ignore[literal-required]


def test_bars_of_folded_hours_cover_these_hours(old_books: Path) -> None:
    receipt = receipt_of(old_books, "pod:jobs/short", since="30d")
    scale = receipt["bars"]
    assert scale is not None
    assert scale["begins"] >= STARTED
    assert scale["step_seconds"] * scale["count"] <= 6 * HOUR


def test_a_namespace_lists_its_owners_and_they_add_up(books: Path) -> None:
    receipt = receipt_of(books, "namespace:jobs")
    assert receipt["owner"] is None
    assert len(receipt["owners"]) + receipt["owners_omitted"] == len(ADVICE)
    names = {one["explain"]: one["gpus"] for one in receipt["owners"]}
    assert names["owner:pod/jobs/one-of-four"] == 4
    for explain in names:
        assert receipt_of(books, explain)["who"]["kind"] == "owner"
    assert {rule for one in receipt["advice"] for rule in [one["rule"]]} == {
        *("unused_gpu", "late_start", "idle_since", "held_memory", "throttled"),
    }


@pytest.mark.parametrize("who", ["pod:jobs/busy", "namespace:jobs"])
def test_a_receipt_reads_the_report_once(books: Path, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, int]] = []
    sums = report_query.gpu_time_sums

    def counted(history: History, since: int, until: int) -> Iterator[GpuTime]:
        read.append((since, until))
        return sums(history, since, until)

    monkeypatch.setattr(report_query, "gpu_time_sums", counted)
    receipt_of(books, who)
    assert len(read) == 1


def test_a_process_has_its_own_receipt(books: Path) -> None:
    pid = receipt_of(books, "pod:jobs/busy")["processes"][0]["pid"]
    receipt = receipt_of(books, f"pid:{pid}")
    assert receipt["who"] == {"kind": "pid", "key": [str(pid)], "name": f"pid {pid}", "explain": f"pid:{pid}"}
    # GPUs are allocated to pods, not to processes.
    whole = {**receipt_of(books, "pod:jobs/busy")["total"], "allocated_seconds": 0.0}
    assert receipt["total"] == whole
    found = only_gpu(receipt)
    assert found["memory_peak_bytes"] == 70 * GIB
    assert found["sm_mean"] == pytest.approx(0.95, abs=0.01)
    assert receipt["hosts"] == []


def test_a_range_has_the_part_of_it(books: Path) -> None:
    whole, part = (only_gpu(receipt_of(books, "pod:jobs/late", since=since)) for since in ("7d", "2h"))
    # 14:05 - 2 h, moved to the cut at 12:00.
    assert part["present_seconds"] == 2 * HOUR + 300
    assert whole["wait_seconds"] == pytest.approx(HOUR, abs=30)
    # It was there before: how long it waited is not known.
    assert (part["begun_before"], part["wait_seconds"]) == (True, None)


def test_what_is_not_there_is_named(books: Path) -> None:
    with pytest.raises(OwnerNotFound, match="did you mean 'pod:jobs/late'"):
        receipt_of(books, "pod:jobs/lat")
    with pytest.raises(OwnerNotFound, match="has no GPU time and no energy from"):
        # It ended before: nothing of it is in the last quarter of an hour.
        receipt_of(ended_books(books), "user:dan", since="15m")
    with pytest.raises(GpuledgerError, match="matches several rows"):
        receipt_of(books, "*")


def ended_books(books: Path) -> Path:
    """A ledger beside these in which a user's process ended half an hour before the end."""
    folder = books.parent / "ended"
    if not folder.exists():
        folder.mkdir()
        run = Run(folder, clock=FakeClock(STARTED))
        card, energy = gpu(0), 0
        for minute in range(60):
            energy += 60_000
            here = [process(card, 7, workload=Workload("user", user="dan"))] if minute < 25 else []
            run.tick({card: energy}, here, seconds=60.0, busy=bool(here))
        run.store.close()
    return folder / "gpuledger.db"


def test_an_account_of_the_gpus_has_no_receipt(books: Path) -> None:
    with pytest.raises(UsageError, match="use `gpuledger explain idle`"):
        receipt_of(books, "idle")


def write_jobs(folder: Path, *owners: Workload) -> Path:
    run = Run(folder, clock=FakeClock(STARTED))
    card = gpu(0)
    for minute in range(3):
        run.tick(
            {card: minute * 1000},
            [process(card, 4711 + place, workload=owner) for place, owner in enumerate(owners)],
            seconds=60.0,
        )
    run.store.close()
    return run.store.file


def test_a_number_is_a_job_where_there_are_jobs_and_else_a_process(tmp_path: Path) -> None:
    dan = Workload("user", user="dan")
    job = Workload("slurm", user="dan", job="17")
    for name, owners, expected in (("jobs", (dan, job), "job:4711"), ("none", (dan,), "pid:4711")):
        (tmp_path / name).mkdir()
        with closing(History(write_jobs(tmp_path / name, *owners))) as history:
            assert with_kind(history, "4711") == expected
            assert with_kind(history, "user:dan") == "user:dan"
    assert receipt_of(tmp_path / "jobs/gpuledger.db", "17")["owner"] == {
        **dict.fromkeys(("namespace", "pod", "container", "unit", "controller_kind", "controller"), ""),
        **dict.fromkeys(("slurm_account", "partition", "job_name", "array_job", "array_task", "queue"), ""),
        "kind": "slurm",
        "user": "dan",
        "job": "17",
    }


def test_a_ledger_without_prices_has_no_money(books: Path) -> None:
    receipt = receipt_of(books, "pod:jobs/one-of-four", Prices())
    assert (receipt["total"]["cost"], receipt["price_list"], receipt["currency"]) == (None, None, "")
    (found,) = receipt["advice"]
    assert found["saving"] is not None
    assert found["saving"]["cost"] is None


def test_thresholds_are_those_of_the_settings(books: Path) -> None:
    settings: Any = AdviceSettings()
    receipt = receipt_of(books, "pod:jobs/late", advice=replace(settings, late_start=2.0 * HOUR))
    assert receipt["advice"] == []


HELD = Workload("pod", "jobs", "held", "main")


def write_held(folder: Path, begins: int, *, stop: int | None = None, used: range = range(0)) -> Path:
    """Forty minutes; from minute `begins` on a pod has a GPU, and uses it in the minutes `used`.

    Before minute `stop` the program is killed, and starts again twenty minutes later.
    """
    run = Run(folder, clock=FakeClock(STARTED))
    card, energy = gpu(0, name="NVIDIA H100 80GB HBM3"), 0
    for minute in range(41):
        if minute == stop:
            run.kill()
            run.clock.advance(1200.0)
            run = Run(folder, clock=run.clock)
        there = (Allocation(card, HELD, "pod_resources"),) if minute >= begins else ()
        here = [process(card, 7, workload=HELD)] if minute in used else []
        energy += 6_000_000
        run.tick({card: energy}, here, seconds=60.0, busy=bool(here), allocations=there)
    run.store.close()
    return run.store.file


def test_a_gpu_that_was_there_from_the_begin_of_the_range_may_have_been_used_before(tmp_path: Path) -> None:
    receipt = receipt_of(write_held(tmp_path, 0), "held")
    assert only_gpu(receipt)["begun_before"]
    (found,) = receipt["advice"]
    assert "GPU 0 was not used in this range (1 of 1)" in found["text"]


def test_a_gpu_that_came_later_was_never_used(tmp_path: Path) -> None:
    (found,) = receipt_of(write_held(tmp_path, 5), "held")["advice"]
    assert "GPU 0 was never used (1 of 1)" in found["text"]


def test_a_range_that_ends_before_the_job_does_not_say_never_nor_ended(tmp_path: Path) -> None:
    file = write_held(tmp_path, 5, used=range(35, 41))
    receipt = receipt_of(file, "held", until="2026-11-28 10:30")
    (found,) = receipt["advice"]
    assert "GPU 0 was not used in this range (1 of 1)" in found["text"]
    period = show_receipt(receipt).period
    assert period.endswith(", up to the end of the range"), period


def test_while_nobody_looked_it_may_have_been_used(tmp_path: Path) -> None:
    receipt = receipt_of(write_held(tmp_path, 5, stop=20), "held")
    assert only_gpu(receipt)["unwatched_seconds"] == pytest.approx(1200, abs=120)
    assert receipt["advice"] == []


def test_a_late_start_is_known_only_if_its_begin_was_seen(tmp_path: Path) -> None:
    for begins, expected in ((0, []), (5, ["late_start"])):
        folder = tmp_path / str(begins)
        folder.mkdir()
        receipt = receipt_of(write_held(folder, begins, used=range(25, 41)), "held")
        assert [one["rule"] for one in receipt["advice"]] == expected


def test_an_idle_end_is_none_if_the_range_ends_before_the_job(tmp_path: Path) -> None:
    file = write_held(tmp_path, 2, used=range(2, 8))
    settings = replace(AdviceSettings(), idle_since=600.0)
    for until, expected in (("now", ["idle_since"]), ("2026-11-28 10:30", [])):
        receipt = receipt_of(file, "held", advice=settings, until=until)
        assert [one["rule"] for one in receipt["advice"]] == expected
        assert receipt["running"] == (until == "now")

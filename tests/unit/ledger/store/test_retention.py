"""Folding in the file: small steps, nothing lost or counted twice, older files migrated."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from builders import FakeClock, gpu, process
from fuzzing import costly
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.store.retention import RetentionLimits, prune_history
from gpuledger.ledger.store.schema import MIGRATIONS
from gpuledger.ledger.store.store import Store
from gpuledger.model.process import GpuProcess
from gpuledger.model.workload import Allocation, Workload
from ledger_helpers import UNIX, Run, assert_books_balance, rows
from report_helpers import EVER, folded, report_of, reports_of, same

A, B = gpu(0, name="NVIDIA H100"), gpu(1, name="NVIDIA H100")
J = 1000
DAY = 86_400.0
PODS = [
    Workload("pod", "ml", "train-0", "main", labels=(("team", "blue"),)),
    Workload("pod", "ml", "train-1", "main"),
    Workload("slurm", job="17", user="ada"),
    Workload("user", user="ben"),
]
# The processes on the first and on the second GPU, their activity (None: not known), and the seconds until
# the next tick.
tick = st.tuples(
    st.sets(st.integers(0, 3)),
    st.sets(st.integers(0, 3)),
    st.sampled_from([True, False, None]),
    st.sampled_from([1.0, 7.5, 30.0, 60.0, 600.0, 5000.0, 90_000.0]),
)


def people(card: int, numbers: set[int], *, works: bool | None) -> Sequence[GpuProcess]:
    gpu_of = (A, B)[card]
    share = None if works is None else 0.5 if works else 0.0
    return [
        process(gpu_of, 10 * card + number, workload=PODS[number], sm=share) for number in sorted(numbers)
    ]


# The first requested hour is within a gap of more than an hour without observation.
@example(
    [(set(), set(), False, 600.0), *[({0}, set(), False, after) for after in (600.0, 5000.0, 600.0, 1.0)]]
)
# Folding stores the beginning of the first hour, which is before the data.
@example([(set(), {0}, True, 600.0), (set(), set(), True, 600.0), *[(set(), set(), True, 1.0)] * 3])
# The first hour begins within the hour of unix time in which nothing was seen.
@example([(set(), set(), True, 1.0), (set(), {0}, True, 5000.0), *[(set(), set(), True, 1.0)] * 3])
@given(st.lists(tick, min_size=5, max_size=60))
@costly
def test_folding_changes_no_report(
    tmp_path_factory: pytest.TempPathFactory, life: list[tuple[set[int], set[int], bool | None, float]]
) -> None:
    folder = tmp_path_factory.mktemp("fold")
    run = Run(folder)
    for number, (first, second, works, seconds) in enumerate(life):
        mine = [*people(0, first, works=works), *people(1, second, works=works)]
        # The processes on the second GPU have the first one allocated, and use it only while on both.
        allocated = tuple(Allocation(A, PODS[one], "pod_resources") for one in sorted(second))
        counters = {A: number * 1000 * J, B: number * 70 * J}
        run.tick(counters, mine, seconds=seconds, busy=works, allocations=allocated)
    run.store.close()
    partly = folded(run.store.file, UNIX + sum(step[3] for step in life) / 2, folder / "partly.db")
    wholly = folded(run.store.file, UNIX + 30 * DAY, folder / "wholly.db")
    assert assert_books_balance(run.store.file) == assert_books_balance(wholly)
    hour = int(UNIX // 3600 + 1) * 3600
    wanted = [(by, EVER) for by in ("owner", "pod", "user", "command", "gpu", "label:team")]
    wanted += [
        ("pod", between) for between in ((hour, hour + 3600), (hour - 3600, hour), (hour, hour + 7200))
    ]
    before = reports_of(run.store.file, wanted)
    for other in (partly, wholly):
        assert all(map(same, before, reports_of(other, wanted)))


def grown(folder: Path, hours: int) -> Run:
    """One hour each of one pod, of two pods, and without processes."""
    run = Run(folder)
    for minute in range(hours * 60):
        here = [set(), {0}, {0, 1}][minute // 60 % 3]
        run.tick({A: minute * 1000 * J}, people(0, here, works=minute % 5 > 0), seconds=60.0)
    run.store.close()
    return run


@pytest.mark.parametrize(
    ("prices", "idle"),
    [
        (Prices(gpu_hour=Decimal(3600)), Fraction(7)),
        (Prices(kwh=Decimal(3600), gpu_hour=Decimal(3600)), Fraction(13)),
    ],
    ids=["by the hour", "by both"],
)
def test_idle_time_costs_energy_and_gpu_hours(tmp_path: Path, prices: Prices, idle: Fraction) -> None:
    run = Run(tmp_path)
    for second in range(8):
        run.tick({A: second * 1000 * J}, busy=False)
    run.store.close()
    costs = {line.account: line.cost for line in report_of(run.store.file, "pod", prices=prices).gpu_accounts}
    assert costs["idle"] == idle


def test_an_allocation_is_not_folded_into_the_row_of_processes_without_a_known_name(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for minute in range(180):
        here = [process(A, 1, name="", workload=PODS[1])] if minute % 60 < 20 else []
        run.tick({A: minute * 1000 * J}, here, seconds=60.0, allocations=(Allocation(A, PODS[1]),))
    run.store.close()
    wholly = folded(run.store.file, UNIX + 30 * DAY, tmp_path / "wholly.db")
    before, after = (report_of(file, "command") for file in (run.store.file, wholly))
    assert {line.key: bool(line.allocated) for line in before.lines} == {
        ("",): False,
        ("(none running)",): True,
    }
    assert same(before, after)


def test_spans_younger_than_the_detail_are_kept(tmp_path: Path) -> None:
    run = grown(tmp_path, 9)
    with closing(sqlite3.connect(run.store.file, isolation_level=None)) as books:
        while prune_history(books, run.clock.unix(), RetentionLimits(detail=4 * 3600.0)).more:
            pass
    oldest = rows(run.store.file, "SELECT min(quarter) FROM spans")[0][0]
    newest = rows(run.store.file, "SELECT max(quarter) FROM hours")[0][0]
    assert newest < oldest  # type: ignore[operator]  # integers
    assert oldest == int((run.clock.unix() - 4 * 3600) // 3600) * 4
    assert rows(
        run.store.file, "SELECT count(*) FROM shares WHERE span NOT IN (SELECT number FROM spans)"
    ) == [(0,)]
    assert rows(run.store.file, f"SELECT count(*) FROM held WHERE minute < {oldest} * 15") == [(0,)]
    assert_books_balance(run.store.file)


def test_one_step_folds_only_a_few_spans(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for second in range(700):
        run.tick({A: second * 1000 * J}, people(0, {second % 2}, works=True))
    run.store.close()
    with closing(sqlite3.connect(run.store.file, isolation_level=None)) as books:
        counts = []
        while True:
            before = books.execute("SELECT count(*) FROM spans").fetchone()[0]
            step = prune_history(books, run.clock.unix() + DAY, RetentionLimits(detail=7200.0))
            counts.append(before - books.execute("SELECT count(*) FROM spans").fetchone()[0])
            if not step.more:
                break
    assert sum(counts) > 600
    assert max(counts) <= 50


def test_old_hours_are_deleted_with_their_parties_and_the_books_balance(tmp_path: Path) -> None:
    run = grown(tmp_path, 13)
    later = run.clock.unix() + 30 * DAY
    with closing(sqlite3.connect(run.store.file, isolation_level=None)) as books:
        while prune_history(books, later, RetentionLimits(detail=7200.0, hours=3600.0)).more:
            pass
    for table in ("spans", "hours", "hour_shares", "hour_times", "parties", "sessions", "held", "unknown"):
        assert rows(run.store.file, f"SELECT count(*) FROM {table}") == [(0,)], table
    assert rows(run.store.file, "SELECT sum(millijoules) FROM forgotten") == [(778 * 1000 * J,)]
    assert_books_balance(run.store.file)


def test_while_the_clock_is_not_trusted_nothing_is_folded(tmp_path: Path) -> None:
    clock = FakeClock(UNIX)
    run = Run(tmp_path, clock=clock, limits=RetentionLimits(detail=7200.0))
    for minute in range(10):
        run.tick({A: minute * 1000 * J}, people(0, {0}, works=True), seconds=60.0)
    clock.now_unix += 400 * DAY
    for minute in range(10, 20):
        run.tick({A: minute * 1000 * J}, people(0, {0}, works=True), seconds=60.0)
    assert rows(run.store.file, "SELECT count(*) FROM hours") == [(0,)]
    run.store.close()


def test_a_file_of_the_previous_version_is_migrated(tmp_path: Path) -> None:
    file = tmp_path / "gpuledger.db"
    begins, ends = UNIX, UNIX + 7000
    with closing(sqlite3.connect(file)) as books:
        for script in MIGRATIONS[:2]:
            books.executescript(script)
        columns = [row[1] for row in books.execute("PRAGMA table_info(sessions)")]
        session = {"number": 1, "device": "GPU-0", "gpu": "GPU-0", "pid": 5, "namespace": "ml", "pod": "old"}
        session |= {"first_seen": begins, "owner_kind": "pod"}
        values = [session.get(column, 0 if column.endswith("_index") else "") for column in columns]
        books.execute(f"INSERT INTO sessions VALUES ({', '.join('?' * len(values))})", values)
        books.execute(
            "INSERT INTO usage VALUES (1, ?, ?, 1, 0, 0, 0, 0, 0, 5, 0, 5)", (begins + 60, begins + 60)
        )
        spans = [(1, begins, begins + 60, 5, 0), (2, begins + 60, ends, 0, 9)]
        for number, since, until, booked, unobserved in spans:
            books.execute(
                "INSERT INTO spans VALUES (?, 'GPU-0', 0, 'measured', ?, ?, 0, 0, ?, NULL, NULL)",
                (number, since, until, unobserved),
            )
            if booked:
                books.execute("INSERT INTO shares VALUES (?, 1, ?, 0, 0)", (number, booked))
        books.execute("PRAGMA application_id=0x6770756C")
        books.execute("PRAGMA user_version=2")
        books.commit()
    Store(tmp_path, "gpuledger", "boot", FakeClock(), RetentionLimits()).close()
    # Energy noticed after more than an hour is in the hour of the notice.
    hours = [(1, int(begins // 3600) * 4), (2, int(ends // 3600) * 4)]
    assert rows(file, "SELECT number, quarter FROM spans") == hours
    with closing(sqlite3.connect(file)) as books:
        books.execute("INSERT OR REPLACE INTO meta VALUES ('unix', ?)", (ends,))
        books.commit()
    (line,) = report_of(file, "pod").lines
    assert (line.key, line.millijoules, line.sessions, line.resident) == (("ml", "old"), 5, 1, 60)


def test_labels_and_controllers_of_a_pod_persist_over_a_restart(tmp_path: Path) -> None:
    owner = replace(PODS[0], controller_kind="Job", controller="train")
    run = Run(tmp_path)
    run.tick({A: 0}, [process(A, 1, workload=owner)])
    run.store.close()
    again = Store(tmp_path, "gpuledger", "boot-1", run.clock, RetentionLimits())
    (session,) = again.stored_ledger.sessions
    assert session.process.workload.labels == (("team", "blue"),)
    assert session.process.workload.controller == "train"
    again.close()

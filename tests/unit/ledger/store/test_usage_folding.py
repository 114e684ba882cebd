"""Old quarters of what owners used: folded into hours, deleted with the rest, and absent in old ledgers."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from builders import GIB, FakeClock, gpu, process
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.retention import RetentionLimits
from gpuledger.ledger.store.schema import APPLICATION_ID, MIGRATIONS
from gpuledger.ledger.store.usage_history import usage_from
from gpuledger.model.workload import Allocation, Workload
from ledger_helpers import Run, rows
from report_helpers import folded
from time_books import KOLKATA
from usage_helpers import ANN, HOUR, SECOND, A, UsageNode, only_row, usage_node, usage_of

USER = Workload("user", user="ann", found_by="uid")


def test_presences_of_an_owner_become_one_in_a_folded_hour(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    for number in range(5):
        for _ in range(11):
            node.see(process(A, number, workload=USER, sm=0.5, memory=(number + 1) * GIB))
        # Away for longer than a presence goes on.
        for _ in range(7):
            node.see(seconds=15.0, busy=0.0)
    before = only_row(node.file, "user")
    assert rows(node.file, "SELECT count(*) FROM usage_periods") == [(5,)]
    found = folded(node.file, HOUR + 3600, tmp_path / "folded.db")
    assert rows(found, "SELECT count(*) FROM usage_hours") == [(1,)]
    after = only_row(found, "user")
    assert (after.seen, after.starts, after.sm_mean) == (50 * SECOND, 5, pytest.approx(0.5))
    assert (after.memory_peak, after.memory_mean) == (5 * GIB, before.memory_mean)
    assert (before.seen, before.starts, before.memory_peak) == (after.seen, after.starts, after.memory_peak)


def test_hours_are_those_of_the_time_zone(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    for _ in range(121):
        node.see(process(A, 1, workload=USER), seconds=60.0)
    found = folded(node.file, HOUR + 3 * 3600, tmp_path / "folded.db", KOLKATA)
    quarters = [
        int(str(quarter)) - int(HOUR // 900)
        for (quarter,) in rows(found, "SELECT DISTINCT quarter FROM usage_hours ORDER BY quarter")
    ]
    # Full hours of Kolkata begin half an hour after those of UTC; the first one begins with the ledger.
    assert quarters == [0, 2, 6]
    assert only_row(found, "user").seen == 7200 * SECOND


def test_a_running_node_folds_and_deletes_as_it_goes(tmp_path: Path) -> None:
    node = usage_node(tmp_path, limits=RetentionLimits(detail=7200.0, hours=86_400.0))
    for number in range(1800):
        node.see(process(A, number // 100, workload=USER), seconds=60.0, has=[Allocation(A, ANN)])
    ((first, last),) = rows(node.file, "SELECT min(quarter), max(quarter) FROM usage_quarters")
    assert int(str(last)) - int(str(first)) <= 13
    ((oldest,),) = rows(node.file, "SELECT min(quarter) FROM usage_hours")
    kept = (node.clock.now_unix - int(str(oldest)) * 900) / 3600
    assert 23 <= kept <= 26
    # All of them, once: a minute for each tick from the oldest on.
    row = usage_of(node.file)["7", A.uuid]
    assert row.seen == pytest.approx(kept * 3600 * SECOND, rel=0.01)
    assert not row.is_merged
    numbers = rows(node.file, "SELECT count(*) FROM usage_periods")
    assert int(str(numbers[0][0])) <= 60


def test_the_file_of_an_earlier_version_has_no_usage_until_now(tmp_path: Path) -> None:
    file = tmp_path / "gpuledger.db"
    run = Run(tmp_path, clock=FakeClock(HOUR))
    for second in range(1000):
        run.tick({A: second * 1000}, [process(A, 1, workload=ANN)])
    run.store.close()
    downgrade(file)
    later = UsageNode(tmp_path, clock=FakeClock(HOUR + 1800, elapsed=5000.0))
    for _ in range(11):
        later.see(process(A, 1, workload=ANN))
    later.store.close()
    row = only_row(file)
    assert row.seen == 10 * SECOND
    since = int(HOUR // 900) + 2
    with closing(History(file)) as history:
        assert usage_from(history) == since
    # The session goes on. It is not known for how long an engine was busy for it before.
    assert rows(file, "SELECT active, memory_known FROM usage") == [(None, 10_000)]


def downgrade(file: Path) -> None:
    """Make the file one of the version before."""
    with closing(sqlite3.connect(file)) as books:
        for table in ("device_memory", "usage_periods", "usage_quarters", "usage_hours", "host_periods"):
            books.execute(f"DROP TABLE {table}")
        for column in ("memory_pages", "memory_known", "active", "first_active"):
            books.execute(f"ALTER TABLE usage DROP COLUMN {column}")
        books.execute("DELETE FROM meta WHERE key = 'usage_from'")
        books.execute(f"PRAGMA application_id={APPLICATION_ID}")
        books.execute(f"PRAGMA user_version={len(MIGRATIONS) - 1}")
        books.commit()


def test_a_file_that_is_lost_begins_again_with_the_current_quarter(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    for _ in range(11):
        node.see(process(A, 1, workload=ANN))
    node.file.unlink()
    for _ in range(10):
        node.see(process(A, 1, workload=ANN))
    node.store.close()
    row = only_row(node.file)
    assert (row.seen, row.memory_size) == (20 * SECOND, 80 * GIB)


def test_while_the_file_is_locked_nothing_is_lost(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    with closing(sqlite3.connect(node.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for _ in range(11):
            node.see(process(A, 1, workload=ANN))
        other.execute("ROLLBACK")
    for _ in range(120):
        node.see(process(A, 1, workload=ANN))
    assert only_row(node.file).seen == 130 * SECOND


def test_another_gpu_does_not_count(tmp_path: Path) -> None:
    other = gpu(5)
    node = usage_node(tmp_path)
    for _ in range(11):
        node.see(process(A, 1, workload=ANN), process(other, 1, workload=ANN), devices=(A, other))
    assert {device for _, device in usage_of(node.file)} == {A.uuid, other.uuid}


def test_usage_of_a_device_itself_that_earlier_versions_stored_is_ignored(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    for _ in range(11):
        node.see(process(A, 1, workload=USER))
    before = usage_of(node.file)
    node.store.close()
    with closing(sqlite3.connect(node.file)) as connection, connection:
        connection.execute(
            "INSERT INTO usage_periods SELECT 99, device, 'null', begins, start, 0, last_quarter"
            " FROM usage_periods"
        )
        columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(usage_quarters)")]
        values = ", ".join("99" if name == "period" else name for name in columns)
        connection.execute(f"INSERT INTO usage_quarters SELECT {values} FROM usage_quarters")
    assert usage_of(node.file) == before
    again = UsageNode(tmp_path, clock=FakeClock(HOUR + 60, elapsed=5000.0))
    for _ in range(11):
        again.see(process(A, 1, workload=USER))
    assert usage_of(again.file).keys() == before.keys()
    assert only_row(again.file).seen == 20 * SECOND

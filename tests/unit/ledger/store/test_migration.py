"""Ledger files of 0.1.0, which had no accounts of time: upgraded in place, read as before, and continued."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from builders import FakeClock, gpu, process
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.retention import RetentionLimits
from gpuledger.ledger.store.schema import APPLICATION_ID, MIGRATIONS
from gpuledger.ledger.store.store import Store
from gpuledger.ledger.watched_time import pack_seconds, seconds_within
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.workload import Workload
from ledger_helpers import Run, assert_books_balance, rows
from report_helpers import folded, report_of

A = gpu(0, name="NVIDIA H100", sm_count=132)
POD = Workload("pod", "ml", "train-0", "main")
J = 1000
# 22:00 UTC, a full hour of unix time.
HOUR = 472_222
BEGINS = HOUR * 3600.0


def old_file(folder: Path) -> Path:
    """A ledger of 0.1.0 (schema 3): two folded hours, then 22:00 to 22:20 in detail."""
    file = folder / "gpuledger.db"
    party = '["GPU-0","python3",{"container":"main","kind":"pod","namespace":"ml","pod":"train-0"}]'
    with closing(sqlite3.connect(file)) as books:
        books.execute("PRAGMA auto_vacuum=INCREMENTAL")
        for script in MIGRATIONS[:3]:
            books.executescript(script)
        insert = lambda table, *values: books.execute(  # noqa: E731
            f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values
        )
        insert("devices", A.uuid, A.uuid, 0, A.name, "", 132, None, None, None, None)
        total = 4 * 3600 * J
        insert("gpus", A.uuid, 0, "boot-1", "", 0, total, total, 1200.0, None, BEGINS + 1200, total, 0, total)
        for number, hour in ((1, HOUR - 2), (2, HOUR - 1)):
            insert("hours", number, hour, A.uuid, 0, "measured", "1", 3_600_000_000, 0, 0, 0)
            insert("hour_shares", number, 1, 3600 * J)
            seconds = pack_seconds(seconds_within(0, 3600, 0, 3600))
            insert("hour_times", hour, 1, seconds, None, None, 1, 1 if number == 1 else 0)
        insert("parties", 1, party, HOUR - 1)
        # Hours of a clock that began in 1970.
        for number, hour in ((3, 1), (4, 4)):
            insert("hours", number, hour, A.uuid, 0, "measured", "", 1, 0, 0, 0)
        names = [column for _, column, *_ in books.execute("PRAGMA table_info(sessions)")]
        known = {"number": 1, "device": A.uuid, "gpu": A.uuid, "pid": 5, "boot_id": "boot-1", "ticks": 9}
        known |= {"command": "python3", "types": "C", "first_seen": BEGINS, "labels": "[]"}
        known |= {"owner_kind": "pod", "namespace": "ml", "pod": "train-0", "container": "main"}
        known |= {"gpu_index": 0, "started": BEGINS}
        insert("sessions", *(known.get(name, "") for name in names))
        usage = (None, 0, None, 0, 0, None, 0, 7200 * J, 0, 7200 * J)
        insert("usage", 1, BEGINS + 1200, *usage, BEGINS, BEGINS + 1200, BEGINS, 0)
        insert("spans", 1, A.uuid, 0, "measured", BEGINS, BEGINS + 1200, 0, 0, 0, None, None, HOUR)
        insert("shares", 1, 1, 7200 * J, 1_200_000_000, 0)
        meta = (("created", BEGINS - 7200), ("begun", BEGINS - 7200), ("times_from", HOUR), ("clean", 1))
        for key, value in (*meta, ("unix", BEGINS + 1200), ("elapsed", 1200.0), ("boot_id", "boot-1")):
            insert("meta", key, value)
        books.execute(f"PRAGMA application_id={APPLICATION_ID}")
        books.execute("PRAGMA user_version=3")
        books.commit()
    return file


def test_an_old_file_keeps_its_rows_with_quarters_in_place_of_hours(tmp_path: Path) -> None:
    file = old_file(tmp_path)
    Store(tmp_path, "gpuledger", "boot-1", FakeClock(BEGINS + 1300), RetentionLimits()).close()
    quarter = 4 * HOUR
    assert rows(file, "PRAGMA user_version") == [(len(MIGRATIONS),)]
    assert rows(file, "SELECT number, quarter FROM hours ORDER BY number") == [
        (1, quarter - 8),
        (2, quarter - 4),
        (3, 4),
        (4, 16),
    ]
    assert rows(file, "SELECT quarter FROM hour_times") == [(quarter - 8,), (quarter - 4,)]
    assert rows(file, "SELECT quarter FROM spans") == [(quarter,)]
    assert rows(file, "SELECT last_quarter FROM parties") == [(quarter - 4,)]
    assert rows(file, "SELECT value FROM meta WHERE key = 'times_from'") == [(quarter,)]
    assert_books_balance(file)
    (line,) = report_of(file, "pod").lines
    assert (line.key, line.millijoules, line.resident) == (("ml", "train-0"), 4 * 3600 * J, 8400)
    assert not list(tmp_path.glob("*.corrupt*"))


@pytest.mark.parametrize("fold", [False, True])
def test_activity_of_an_old_file_is_unknown_where_it_was_not_held(tmp_path: Path, fold: bool) -> None:
    file = old_file(tmp_path)
    with closing(sqlite3.connect(file)) as books:
        # Half a folded hour, and a minute of the detail.
        books.execute("UPDATE hour_times SET held = ? WHERE hour = ?", (pack_seconds(2**1800 - 1), HOUR - 1))
        books.execute("INSERT INTO held VALUES (?, 1, ?)", (HOUR * 60 + 3, 2**60 - 1))
        books.commit()
    run = Run(tmp_path, clock=FakeClock(BEGINS + 1300))
    for second in range(301):
        run.tick({A: 4 * 3600 * J + second}, [process(A, 6, workload=POD, sm=0.5)])
    run.store.close()
    found = folded(file, BEGINS + 9000, tmp_path / "folded.db") if fold else file
    every = report_of(found, "pod")
    (line,) = every.lines
    assert (line.resident, line.held, line.unknown, line.active) == (8700, 1860, 6540, 300)
    assert any(
        "an earlier version recorded only the seconds that were held idle" in one for one in every.notes
    )
    # Only hours of the earlier version: it is not known that the row was ever active.
    before = report_of(found, "pod", (int(BEGINS) - 7200, int(BEGINS)))
    (line,) = before.lines
    assert (line.resident, line.held, line.unknown, line.active) == (7200, 1800, 5400, None)
    (line,) = report_of(found, "pod", (int(BEGINS) - 7200, int(BEGINS) - 3600)).lines
    assert (line.resident, line.held, line.unknown, line.active) == (3600, None, 3600, None)


def test_an_old_file_is_cut_only_at_its_hours_until_the_time_books_begin(tmp_path: Path) -> None:
    file = old_file(tmp_path)
    # The new version runs from 22:25 on.
    run = Run(tmp_path, clock=FakeClock(BEGINS + 1500))
    for second in range(1, 60 * 60, 60):
        run.tick({A: (4 * 3600 + second) * J}, [process(A, 6, workload=POD)], seconds=60.0)
    run.store.close()
    quarter = 4 * HOUR
    with closing(History(file)) as history:
        assert history.time_from == quarter + 1
        cuts = {at - quarter: history.cuts_around(at) for at in range(quarter - 9, quarter + 8)}
    relative = {at: (before - quarter, after - quarter) for at, (before, after) in cuts.items()}
    hours = {-7: (-8, -4), -6: (-8, -4), -5: (-8, -4), -3: (-4, 0), -2: (-4, 0), -1: (-4, 0), 1: (0, 2)}
    assert relative == {at: hours.get(at, (at, at)) for at in range(-9, 8)}
    assert_books_balance(file)
    (total,) = rows(file, "SELECT sum(microseconds) FROM time_spans")[0]
    assert total == 59 * 60 * 1_000_000


def test_an_older_program_refuses_a_newer_file_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuledger.ledger.store import read_only_file, schema

    Store(tmp_path, "gpuledger", "boot-1", FakeClock(BEGINS), RetentionLimits()).close()
    for module in (schema, read_only_file):
        monkeypatch.setattr(module, "MIGRATIONS", MIGRATIONS[:3])
    file = tmp_path / "gpuledger.db"
    with pytest.raises(GpuledgerError) as refused:
        Store(tmp_path, "gpuledger", "boot-1", FakeClock(BEGINS), RetentionLimits())
    assert str(refused.value) == (
        f"{file} was written by a newer gpuledger (schema {len(MIGRATIONS)}): upgrade this one, or set "
        "another --state-dir"
    )
    with pytest.raises(GpuledgerError, match=r"this one has 3.*use the gpuledger version that wrote"):
        History(file)

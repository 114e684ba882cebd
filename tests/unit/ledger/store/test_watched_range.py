"""Ledgers and ranges without a watched second are refused in one line that names what the ledger has."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from builders import FakeClock, gpu, process, reading
from gpuledger.app.ledger_commands import make_explanation
from gpuledger.config.report import ExplainSettings
from gpuledger.ledger.report.ranges import RequestedRange, parse_range
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.report_query import build_report
from gpuledger.ledger.store.retention import RetentionLimits
from gpuledger.ledger.store.store import Store
from gpuledger.ledger.store.watched_range import (
    NothingWatched,
    require_watched_range,
    require_watched_time,
    resolve_watched_range,
)
from gpuledger.model.snapshot import Snapshot, SourceInfo
from gpuledger.model.workload import Allocation, Workload
from ledger_helpers import UNIX, Run
from report_helpers import HOUR, folded

A = gpu(0, name="NVIDIA H100", sm_count=132)
POD = Workload("pod", "ml", "train-0", "main")
J = 1000
# The Run begins in this hour; its first tick is a minute later.
FIRST = int(UNIX) // HOUR


def line_of(file: Path, hours: tuple[int, int] | None = None) -> str:
    """The refusal; empty if there is none."""
    with closing(History(file)) as history:
        try:
            if hours is None:
                require_watched_time(history)
            else:
                require_watched_range(history, *(4 * hour for hour in hours))
        except NothingWatched as error:
            assert error.exit_code == 1
            assert error.in_range == (hours is not None)
            return str(error)
    return ""


def idle(run: Run, minutes: int) -> None:
    for minute in range(minutes):
        run.tick({A: minute * 1000 * J}, seconds=60.0)


def unmetered(run: Run, minutes: int, *, with_process: bool = False, allocated: bool = False) -> None:
    """A GPU without energy and power readings."""
    for _ in range(minutes):
        run.clock.advance(60.0)
        found = reading(A, *([process(A, 1, workload=POD)] if with_process else []))
        held = (Allocation(A, POD, "pod_resources"),) if allocated else ()
        source = SourceInfo("test")
        at = run.clock.now_elapsed
        run.ledger.post(Snapshot(run.clock.now_unix, at, source, (found,), held, boot_id=run.boot))


def test_a_ledger_without_a_reading_says_since_when_it_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path, "gpuledger", "boot", FakeClock(UNIX), RetentionLimits())
    store.close()
    line = line_of(store.file)
    assert "kept since 2023-11-14" in line
    assert line.endswith("is empty: no GPU has been read yet; `gpuledger doctor` shows why")
    later = Store(tmp_path, "gpuledger", "boot", FakeClock(UNIX + 86_400.0), RetentionLimits())
    later.close()
    assert line_of(store.file) == line


def test_readings_without_a_gpu_are_no_watched_time(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for _ in range(5):
        run.tick({}, seconds=60.0)
    run.store.close()
    assert "no GPU has been read yet" in line_of(run.store.file)


def test_a_single_reading_is_no_watched_time(tmp_path: Path) -> None:
    run = Run(tmp_path)
    idle(run, 1)
    run.store.close()
    assert "the only reading was at 2023-11-14" in line_of(run.store.file)


@pytest.mark.parametrize(
    ("with_process", "allocated"), [(False, False), (True, False), (False, True)], ids=str
)
def test_an_unmetered_gpu_that_was_read_twice_was_watched(
    tmp_path: Path, with_process: bool, allocated: bool
) -> None:
    run = Run(tmp_path)
    unmetered(run, 3, with_process=with_process, allocated=allocated)
    run.store.close()
    assert line_of(run.store.file) == line_of(run.store.file, (FIRST, FIRST + 1)) == ""
    assert line_of(run.store.file, (FIRST - 9, FIRST - 1)).endswith("begins at 2023-11-14 22:14 +0000")
    assert line_of(run.store.file, (FIRST + 2, FIRST + 9)).endswith("ends at 2023-11-14 22:16 +0000")


def test_an_unmetered_gpu_was_watched_before_the_time_books(tmp_path: Path) -> None:
    run = Run(tmp_path)
    unmetered(run, 3)
    run.store.close()
    with closing(sqlite3.connect(run.store.file)) as books:
        books.execute("DELETE FROM time_spans")
        books.commit()
    assert line_of(run.store.file) == line_of(run.store.file, (FIRST, FIRST + 1)) == ""
    assert "nothing was watched" in line_of(run.store.file, (FIRST + 2, FIRST + 9))


def test_an_idle_gpu_was_watched(tmp_path: Path) -> None:
    run = Run(tmp_path)
    idle(run, 5)
    run.store.close()
    assert line_of(run.store.file) == line_of(run.store.file, (FIRST, FIRST + 1)) == ""


@pytest.fixture(scope="module")
def gap(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """22:14 to 23:13 and, after a stop without a reading, 04:14 to 04:43; and the same with hours only."""
    folder = tmp_path_factory.mktemp("gap")
    run = Run(folder)
    idle(run, 60)
    run.store.close()
    run.clock.advance(5 * HOUR)
    again = Run(folder, clock=run.clock)
    for minute in range(60, 90):
        again.tick({A: minute * 1000 * J}, [process(A, 1, workload=POD)], seconds=60.0)
    again.store.close()
    return run.store.file, folded(run.store.file, UNIX + 86_400 * 30, folder / "folded.db")


@pytest.mark.parametrize(
    ("hours", "known"),
    [
        ((FIRST, FIRST + 1), ""),
        ((FIRST, FIRST + 9), ""),
        ((0, 2**40), ""),
        ((FIRST - 3, FIRST), "begins at 2023-11-14 22:14 +0000"),
        ((FIRST + 3, FIRST + 4), "ends at 2023-11-{} +0000 and continues at 2023-11-15 04:00 +0000"),
        ((FIRST + 9, FIRST + 99), "ends at 2023-11-15 04:43 +0000"),
        ((FIRST + 9, 2**40), "ends at 2023-11-15 04:43 +0000"),
    ],
)
def test_a_range_without_data_names_the_nearest_data(
    gap: tuple[Path, Path], hours: tuple[int, int], known: str
) -> None:
    # The end of the quarter with the last data before the gap, and of the folded hour.
    for file, end in zip(gap, ("14 23:15", "15 00:00"), strict=True):
        line = line_of(file, hours)
        assert line.endswith(known.format(end))
        assert bool(known) == ("nothing was watched from" in line)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_a_range_without_a_beginning_does_not_begin_in_1970(gap: tuple[Path, Path], zone: str) -> None:
    requested = RequestedRange(0.0, HOUR * (FIRST - 24.0), "", "--until 4", ZoneInfo(zone))
    for file in gap:
        with closing(History(file)) as history, pytest.raises(NothingWatched) as refused:
            resolve_watched_range(history, requested)
        assert str(refused.value).startswith("nothing was watched before 2023-11-1")
        assert ".db begins at 2023-11-1" in str(refused.value)


def test_a_requested_range_without_data_is_named_in_its_time_zone(gap: tuple[Path, Path]) -> None:
    ends = (HOUR * (FIRST + 3.0), HOUR * (FIRST + 4.0))
    requested = RequestedRange(*ends, "--since 3", "--until 4", ZoneInfo("Asia/Kolkata"))
    with closing(History(gap[0])) as history, pytest.raises(NothingWatched) as refused:
        resolve_watched_range(history, requested)
    assert str(refused.value).startswith(
        "nothing was watched from 2023-11-15 06:30 +0530 to 2023-11-15 07:30 +0530: "
    )


def test_deleted_history_is_named(tmp_path: Path) -> None:
    run = Run(tmp_path)
    idle(run, 5)
    run.store.close()
    with closing(sqlite3.connect(run.store.file)) as books:
        books.execute("DELETE FROM spans")
        books.execute("DELETE FROM time_spans")
        books.execute("INSERT INTO forgotten VALUES ('GPU-0', 0, 1)")
        books.execute(
            "UPDATE meta SET value = (SELECT value FROM meta WHERE key = 'unix') WHERE key = 'begun'"
        )
        books.commit()
    assert "it was deleted (store.hours, store.max_size) or damaged" in line_of(run.store.file)


def set_clock_later(folder: Path, unset: float = 30.0) -> Path:
    """A ledger of a machine without a battery: 50 minutes after the boot, its clock is set to UNIX."""
    run = Run(folder, clock=FakeClock(unset))
    for tick in range(76):
        run.tick({A: tick * J}, [process(A, 1)], seconds=40)
    run.clock.now_unix = UNIX + 1000
    for tick in range(76, 84):
        run.tick({A: tick * J}, [process(A, 1)], seconds=40)
    run.store.close()
    return run.store.file


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York"])
def test_time_from_before_the_clock_was_set_is_named_and_nothing_is_lost(tmp_path: Path, zone: str) -> None:
    file = set_clock_later(tmp_path)
    ranges = {"2020-06-01": "now", "1970-01-01T00:00Z": "2020-01-01"}
    found = []
    with closing(History(file)) as history:
        for since, until in ranges.items():
            within = resolve_watched_range(
                history, parse_range(since, until, "", history.latest, ZoneInfo(zone))
            )
            report = build_report(history, "owner", Prices(), within)
            notes = [note for note in report.notes if "before the machine's clock was set" in note]
            found.append((report.watched, len(notes)))
    (today, said), (before, not_said) = found
    # The interval in which the clock was set belongs to the new time.
    assert (today, before) == (320_000_000, 3_000_000_000)
    assert (said, not_said) == (1, 0)


def test_an_explanation_begins_with_the_ledger_even_in_1970(tmp_path: Path) -> None:
    with closing(History(set_clock_later(tmp_path))) as history:
        found = make_explanation(history, "gpu:0", ExplainSettings(), {"report.timezone": "Asia/Tokyo"})
    assert sum(one.microseconds for one in found.time_intervals) == 3_320_000_000

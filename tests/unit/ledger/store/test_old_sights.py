"""GPUs that came or went before the time books: folding does not change how long they were not watched."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from zoneinfo import ZoneInfo

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuledger.ledger.report.ranges import ReportRange
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.report_query import build_report
from gpuledger.ledger.store.schema import BEGUN, TIME_FROM, migrate_schema
from gpuledger.ledger.watched_time import HOUR, QUARTERS_PER_HOUR
from report_helpers import folded

FIRST, HOURS = 490_000, 6
END = FIRST + HOURS
UUIDS = ("GPU-0", "GPU-1")
# Minutes of a GPU in which its energy was observed: pairs of begin and length.
MINUTES = st.lists(st.tuples(st.integers(0, 60 * HOURS - 1), st.integers(1, 90)), max_size=4)


def observed(pieces: list[tuple[int, int]]) -> set[int]:
    """The minutes of these pieces, each once."""
    return {at for begins, length in pieces for at in range(begins, min(begins + length, 60 * HOURS))}


def write(file: Path, minutes: dict[str, list[tuple[int, int]]]) -> None:
    """A ledger from before the time books, which begin at its end, with spans of these GPUs."""
    with closing(sqlite3.connect(file)) as connection:
        migrate_schema(connection)
        columns = "uuid, gpu, gpu_index, name, pci_bus_id"
        for number, (uuid, pieces) in enumerate(minutes.items()):
            device = (uuid, uuid, number)
            connection.execute(f"INSERT INTO devices ({columns}) VALUES (?, ?, ?, 'H100', '')", device)
            for at in sorted(observed(pieces)):
                begins = FIRST * HOUR + 60.0 * at
                span = (uuid, "measured", begins, begins + 60, int(begins // HOUR) * QUARTERS_PER_HOUR)
                connection.execute(
                    "INSERT INTO spans (uuid, method, begins, ends, quarter, idle, unattributed, unobserved) "
                    "VALUES (?, ?, ?, ?, ?, 60, 0, 0)",
                    span,
                )
        ends = END * QUARTERS_PER_HOUR
        facts = {TIME_FROM: ends, "unix": float(END * HOUR), BEGUN: float(FIRST * HOUR)}
        connection.executemany("REPLACE INTO meta VALUES (?, ?)", facts.items())
        connection.commit()


def report_of_hours(file: Path, since: int, until: int) -> UsageReport:
    within = ReportRange(
        since * QUARTERS_PER_HOUR, until * QUARTERS_PER_HOUR, float(until * HOUR), ZoneInfo("UTC")
    )
    with closing(History(file)) as history:
        return build_report(history, "gpu", Prices(), within)


@settings(deadline=None)
@given(st.fixed_dictionaries(dict.fromkeys(UUIDS, MINUTES)), st.integers(0, HOURS - 1), st.integers(1, HOURS))
@example({"GPU-0": [(0, 360)], "GPU-1": [(0, 200)]}, 0, HOURS)
@example({"GPU-0": [(0, 360)], "GPU-1": [(100, 30), (200, 7)]}, 0, HOURS)
def test_folding_changes_neither_watched_nor_unwatched_time(
    minutes: dict[str, list[tuple[int, int]]], since: int, length: int
) -> None:
    within = (FIRST + since, min(FIRST + since + length, END))
    with TemporaryDirectory() as folder:
        file = Path(folder, "ledger.db")
        write(file, minutes)
        before = report_of_hours(file, *within)
        after = report_of_hours(folded(file, END * HOUR + 1.0, Path(folder, "folded.db")), *within)
    assert [(gpu.uuid, gpu.accounts, gpu.unwatched) for gpu in after.gpus] == [
        (gpu.uuid, gpu.accounts, gpu.unwatched) for gpu in before.gpus
    ]
    assert after.unbilled == before.unbilled
    # Only in the hours between its first and its last one is it known to have been there.
    for gpu in before.gpus:
        known = Counter(at // 60 for at in observed(minutes[gpu.uuid]))
        between = range(max(min(known) + 1, since), min(max(known), within[1] - FIRST))
        assert gpu.unwatched == sum(60 - known[hour] for hour in between) * 60_000_000

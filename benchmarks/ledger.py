"""Measures posting one Snapshot to the Ledger: in memory, with a new file, and with a year of history.

    python benchmarks/ledger.py [--write docs/performance.md]

8 GPUs with 8 busy processes each, and counters that move at every tick. CPU is that of the tick's thread, as
median and 99th percentile over the ticks. Times depend on the machine; ratios are comparable.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tables import create_parser, describe_machine, print_table

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from builders import gpu, process, reading  # noqa: E402  (after the path is set)
from gpuledger.host.clock import SystemClock  # noqa: E402
from gpuledger.ledger.ledger import Ledger  # noqa: E402
from gpuledger.ledger.settings import LedgerSettings  # noqa: E402
from gpuledger.ledger.store.retention import RetentionLimits  # noqa: E402
from gpuledger.ledger.store.store import Store  # noqa: E402
from gpuledger.model import quantities as q  # noqa: E402
from gpuledger.model.process import UtilizationSample  # noqa: E402
from gpuledger.model.snapshot import Snapshot, SourceInfo  # noqa: E402
from gpuledger.model.workload import Workload  # noqa: E402

GPUS, EACH, SAMPLES = 8, 8, 6
YEAR_HOURS = 365 * 24
START = 1_700_000_000.0
MIB = 2**20
MARKS = ("<!-- ledger: begin -->", "<!-- ledger: end -->")


@dataclass(frozen=True)
class Figures:
    """One row: CPU in ms per posting, and the file's size in MiB."""

    name: str
    post: float
    slowest: float
    size: float


CARDS = [gpu(index, sm_count=132) for index in range(GPUS)]
PROCESSES = {
    card: tuple(
        process(
            card,
            100 + EACH * card.index + number,
            sm=0.1,
            workload=Workload("pod", "ml", f"pod-{card.index}-{number}", "main", f"uid-{number}"),
        )
        for number in range(EACH)
    )
    for card in CARDS
}


def snapshot(tick: int) -> Snapshot:
    """Return the snapshot of one tick."""
    readings = []
    for card in CARDS:
        samples = tuple(
            UtilizationSample(one.pid, round((tick - 1 + (part + 1) / SAMPLES) * 1e6), 0.1, 0.0, 0.0, 0.0)
            for one in PROCESSES[card]
            for part in range(SAMPLES)
        )
        values = {q.ENERGY: tick * 500_000 + card.index, q.UTILIZATION: 0.8, q.POWER: 500.0}
        values |= {q.POWER_LIMIT_MAX: 700.0}
        readings.append(reading(card, *PROCESSES[card], values=values, samples=samples))
    return Snapshot(START + tick, float(tick), SourceInfo("benchmark"), tuple(readings), boot_id="boot")


class Subject:
    """A Ledger under measurement; without a folder it is only in memory."""

    def __init__(self, name: str, folder: Path | None) -> None:
        self.name = name
        self.folder = folder
        self.store: Store | None = None
        if folder is not None:
            self.store = Store(folder, "books", "boot", SystemClock(), RetentionLimits(1e10, 1e10, 2**40))
        self.ledger = Ledger(LedgerSettings(), self.store)
        self.times: list[float] = []

    def tick(self, seen: Snapshot) -> None:
        """Post a snapshot and record its CPU time."""
        began = time.thread_time()
        self.ledger.post(seen)
        self.times.append((time.thread_time() - began) * 1000)

    def figures(self) -> Figures:
        """Return the figures of all postings but the first fifth, which fill caches."""
        size = 0.0
        if self.store is not None and self.folder is not None:
            assert self.ledger.state.parts[0].success, self.ledger.state.parts
            self.store.close()
            size = (self.folder / "books.db").stat().st_size / MIB
        settled = sorted(self.times[len(self.times) // 5 :])
        return Figures(self.name, median(settled), settled[len(settled) * 99 // 100], size)


def add_a_year(folder: Path) -> None:
    """Write a span for each hour and GPU, with eight shares and a session for each share."""
    Store(folder, "books", "boot", SystemClock(), RetentionLimits()).close()
    with closing(sqlite3.connect(folder / "books.db")) as books:
        columns = [row[1] for row in books.execute("PRAGMA table_info(sessions)")]
        marks = ", ".join("?" * len(columns))
        spans, shares, sessions, usage = [], [], [], []
        for hour in range(YEAR_HOURS):
            begins = START - (YEAR_HOURS - hour) * 3600
            for card in CARDS:
                span = len(spans) + 1
                times = (begins, begins + 3600)
                spans.append(
                    (span, card.uuid, 0, "activity", *times, 1, 2, 0, 60_000, 90_000, begins // 3600)
                )
                for one in PROCESSES[card]:
                    number = len(shares) + 1
                    shares.append((span, number, 10**9, 3_600_000_000, 10**6))
                    session = {"number": number, "device": card.uuid, "gpu": card.uuid, "pid": one.pid}
                    session |= {
                        "first_seen": begins,
                        "pod": one.workload.pod,
                        "namespace": "ml",
                        "command": "python3",
                    }
                    sessions.append([session.get(column, 0) for column in columns])
                    ends = begins + 3600
                    used = (ends, ends, 1, 0, 0.0, 0.0, 0.0, 0.0, 0, 10**9, 10**9)
                    usage.append((number, *used, begins, ends, begins, 0, 0, 0, None, None))
        books.executemany(f"INSERT INTO spans VALUES ({', '.join('?' * 12)})", spans)
        books.executemany("INSERT INTO shares VALUES (?, ?, ?, ?, ?)", shares)
        books.executemany(f"INSERT INTO sessions VALUES ({marks})", sessions)
        books.executemany(f"INSERT INTO usage VALUES ({', '.join('?' * 20)})", usage)
        books.commit()


def table(rows: list[Figures]) -> list[str]:
    """Return the lines of the Markdown table."""
    lines = ["| ledger | CPU ms per posting | p99 ms | file, MiB |", "|---|---|---|---|"]
    lines += [f"| {row.name} | {row.post:.2f} | {row.slowest:.2f} | {row.size:.1f} |" for row in rows]
    memory, empty, year = rows
    lines.append(f"| the store's share, empty | {empty.post - memory.post:.2f} | | |")
    lines.append(f"| the store's share, a year | {year.post - memory.post:.2f} | | |")
    return lines


def main() -> None:
    """Measure, print the table and, with --write, write it to a file."""
    flags = create_parser(__doc__)
    flags.add_argument("--ticks", type=int, default=1000)
    given = flags.parse_args()
    with tempfile.TemporaryDirectory() as new, tempfile.TemporaryDirectory() as old:
        add_a_year(Path(old))
        subjects = [
            Subject("in memory", None),
            Subject("on disk, new", Path(new)),
            Subject("on disk, a year of history", Path(old)),
        ]
        # The subjects take turns, so that other load on the machine affects them equally.
        for tick in range(given.ticks):
            seen = snapshot(tick)
            for subject in subjects:
                subject.tick(seen)
        rows = [subject.figures() for subject in subjects]
    lines = [f"Measured on {describe_machine()}; {GPUS} GPUs, {GPUS * EACH} processes.", "", *table(rows)]
    print_table(lines, given.write, MARKS)


if __name__ == "__main__":
    main()

"""Measures `gpuledger report`, `explain` and `receipt` on a ledger: a million sessions, 400 days of hours.

    python benchmarks/report.py [--write docs/performance.md]

The ledger is that of a busy node: 13 sessions of 24 owners in each hour on each of 8 GPUs, the last week in
detail. Each row is wall time and peak resident memory of a separate process, as the median of three runs.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from command_usage import CommandUsage, run_command
from tables import create_parser, describe_machine, print_table

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from builders import gpu  # noqa: E402  (after the path is set)
from gpuledger.host.clock import SystemClock  # noqa: E402
from gpuledger.ledger.report.party import party_of, party_text  # noqa: E402
from gpuledger.ledger.store.retention import RetentionLimits  # noqa: E402
from gpuledger.ledger.store.rows import device_row  # noqa: E402
from gpuledger.ledger.store.schema import USAGE_FROM  # noqa: E402
from gpuledger.ledger.store.store import Store  # noqa: E402
from gpuledger.ledger.store.usage_tables import WRITE_CELL, cell_columns, owner_text  # noqa: E402
from gpuledger.ledger.usage.usage_bars import UsageBars, no_hour_bars  # noqa: E402
from gpuledger.ledger.usage.usage_cell import UsageCell  # noqa: E402
from gpuledger.ledger.usage.usage_period import STARTED  # noqa: E402
from gpuledger.ledger.watched_time import pack_seconds, seconds_within  # noqa: E402
from gpuledger.model.workload import Workload  # noqa: E402

GPUS, DAYS, DETAIL_DAYS, PER_HOUR = 8, 400, 7, 13
HOURS = DAYS * 24
NOW = int(time.time()) // 3600
# A quarter of an hour is the unit of the ledger's tables.
QUARTERS = 4
MICRO, QUARTER = 1_000_000, 900
MIB = 2**20
MARKS = ("<!-- report: begin -->", "<!-- report: end -->")
CARDS = [gpu(index, name="NVIDIA H100 80GB HBM3", sm_count=132) for index in range(GPUS)]
NAMESPACES = ("research", "vision", "nlp", "ci")
COMMANDS = {
    "report, 400 days, by namespace": ("report", "--since", "400d", "--by", "namespace"),
    "report, 400 days, by pod, CSV": ("report", "--since", "400d", "--by", "pod", "--format", "csv"),
    "report, a month a year ago": ("report", "--since", "395d", "--until", "365d"),
    "report, the last week": ("report", "--since", "7d"),
    "report, the last day": ("report", "--since", "24h"),
    "explain a pod, 400 days": ("explain", "research/pod-0-0"),
    "receipt of a pod, 400 days": ("receipt", "research/pod-0-0", "--since", "400d"),
    "receipt of a pod, the last week": ("receipt", "research/pod-0-0"),
}


@dataclass(frozen=True)
class Figures:
    """One row: seconds and MiB."""

    name: str
    seconds: float
    memory: float


def owner(card: int, number: int) -> Workload:
    """Return one of the 24 owners that a GPU has over time."""
    name = f"pod-{card}-{number % 24}"
    return Workload("pod", NAMESPACES[number % len(NAMESPACES)], name, "main")


def write_ledger(folder: Path) -> None:
    """Write a ledger file as the program would have."""
    Store(folder, "gpuledger", "boot", SystemClock(), RetentionLimits()).close()
    with closing(sqlite3.connect(folder / "gpuledger.db")) as books:
        marks = ", ".join("?" * 10)
        books.executemany(f"INSERT INTO devices VALUES ({marks})", map(device_row, CARDS))
        parties = {}
        for card in CARDS:
            for number in range(24):
                text = party_text(party_of(card.uuid, owner(card.index, number), "python3"))
                found = books.execute(
                    "INSERT INTO parties (who, last_quarter) VALUES (?, ?)", (text, NOW * QUARTERS)
                )
                parties[card.index, number] = found.lastrowid
        columns = [row[1] for row in books.execute("PRAGMA table_info(sessions)")]
        places = ", ".join("?" * len(columns))
        books.executemany(f"INSERT INTO sessions VALUES ({places})", sessions(columns))
        books.executemany(f"INSERT INTO usage VALUES ({', '.join('?' * 20)})", usage())
        for card in CARDS:
            part = json.dumps([card.uuid, card.name, "", "", 1, 1])
            books.execute("INSERT INTO gpu_parts VALUES (?, ?)", (card.index, part))
        write_detail(books)
        write_time_detail(books)
        write_hours(books, parties)
        write_time_hours(books, parties)
        write_usage_cells(books)
        meta = [
            ("unix", NOW * 3600.0),
            ("times_from", (NOW - DETAIL_DAYS * 24) * QUARTERS),
            ("time_from", (NOW - HOURS) * QUARTERS),
            (USAGE_FROM, (NOW - HOURS) * QUARTERS),
        ]
        books.executemany("REPLACE INTO meta VALUES (?, ?)", meta)
        books.commit()


def every_session() -> Iterator[tuple[int, int, int, float, float]]:
    """Yield number, GPU, owner, begin and end of each session.

    There are thirteen per hour and GPU, of eight minutes each, which overlap.
    """
    number = 0
    for hour in range(NOW - HOURS, NOW):
        for card in range(GPUS):
            for place in range(PER_HOUR):
                number += 1
                begins = hour * 3600 + place * 270.0
                yield number, card, hour * PER_HOUR + place, begins, begins + 480


def sessions(columns: list[str]) -> Iterator[list[object]]:
    """Yield the rows of the table `sessions`."""
    for number, card, owner_number, begins, _ in every_session():
        workload = owner(card, owner_number)
        session: dict[str, object] = {
            "number": number,
            "device": CARDS[card].uuid,
            "gpu": CARDS[card].uuid,
            "gpu_index": card,
            "pid": number % 4_000_000,
            "started": begins,
            "command": "python3",
            "executable": "/usr/bin/python3.11",
            "owner_kind": "pod",
            "namespace": workload.namespace,
            "pod": workload.pod,
            "container": "main",
            "pod_uid": f"2b7f0c1e-0000-4000-8000-{number:012d}",
            "container_id": f"{number:064x}",
            "first_seen": begins,
            "labels": "[]",
            "facts": "{}",
        }
        yield [session.get(column, "") for column in columns]


def usage() -> Iterator[tuple[object, ...]]:
    """Yield the rows of the table `usage`."""
    for number, _, _, begins, ends in every_session():
        yield (
            number,
            ends,
            ends,
            1,
            2**33,
            100.0,
            480.0,
            0.9,
            120.0,
            0,
            150_000_000,
            300_000_000,
            *[begins, ends, begins, 0, 0, 0, None, None],
        )


def write_detail(books: sqlite3.Connection) -> None:
    """Write a week of spans: each start or end of a session begins one, so each has two sessions."""
    first = NOW - DETAIL_DAYS * 24
    spans, shares, held = [], [], []
    before: dict[int, int] = {}
    for number, card, _, begins, _ in every_session():
        if begins >= first * 3600:
            span = len(spans) + 1
            quarter = int(begins // QUARTER)
            spans.append(
                (
                    span,
                    CARDS[card].uuid,
                    0,
                    "activity",
                    begins,
                    begins + 270,
                    5,
                    0,
                    0,
                    70_000,
                    90_000,
                    quarter,
                )
            )
            shares += [(span, one, 75_000_000, 0, 0) for one in {number, before.get(card, number)}]
            held.append((int(begins // 60), number, 2**60 - 1))
        before[card] = number
    books.executemany(f"INSERT INTO spans VALUES ({', '.join('?' * 12)})", spans)
    books.executemany("INSERT INTO shares VALUES (?, ?, ?, ?, ?)", shares)
    books.executemany("INSERT INTO held VALUES (?, ?, ?)", held)


def write_hours(books: sqlite3.Connection, parties: dict[tuple[int, int], int | None]) -> None:
    """Write the folded hours before: per hour and GPU a row for each pair of overlapping owners."""
    number = 0
    hours, shares, times = [], [], []
    packed = [
        pack_seconds(seconds_within(place * 270, place * 270 + 480, 0, 3600)) for place in range(PER_HOUR)
    ]
    idle = pack_seconds(seconds_within(30, 60, 0, 3600))
    for hour in range(NOW - HOURS, NOW - DETAIL_DAYS * 24):
        for card in range(GPUS):
            for place in range(PER_HOUR):
                number += 1
                pair = [(hour * PER_HOUR + place + step) % 24 for step in (0, -1)]
                numbers = sorted(parties[card, number] or 0 for number in pair)
                together = ",".join(map(str, numbers))
                hours.append(
                    (number, hour * QUARTERS, CARDS[card].uuid, 0, "activity", together, 270_000_000, 5, 0, 0)
                )
                shares += [(number, one, 75_000_000) for one in numbers]
                times.append((hour * QUARTERS, parties[card, pair[0]], packed[place], idle, None, 1, 1))
    books.executemany(f"INSERT INTO hours VALUES ({', '.join('?' * 10)})", hours)
    books.executemany("INSERT INTO hour_shares VALUES (?, ?, ?)", shares)
    columns = "quarter, party, resident, held, allocated, running, begun"
    books.executemany(f"INSERT OR IGNORE INTO hour_times ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", times)


def write_usage_cells(books: sqlite3.Connection) -> None:
    """Write what owners used: a cell for each owner, GPU and hour, in the last week by quarter of an hour."""
    periods, last = [], NOW * QUARTERS
    for card in CARDS:
        books.execute("INSERT INTO device_memory VALUES (?, ?)", (card.uuid, 80 * 2**30))
        for number in range(24):
            who = owner_text(owner(card.index, number))
            periods.append((len(periods) + 1, card.uuid, who, (NOW - HOURS) * 3600.0, STARTED, 0, last))
    books.executemany(f"INSERT INTO usage_periods VALUES ({', '.join('?' * 7)})", periods)
    for table, is_folded in (("usage_hours", True), ("usage_quarters", False)):
        books.executemany(WRITE_CELL.format(table), usage_cells(is_folded=is_folded))


def usage_cells(*, is_folded: bool) -> Iterator[tuple[object, ...]]:
    """Yield the rows of the folded hours, or of the last week."""
    for _, card, owner_number, begins, ends in every_session():
        hour = int(begins) // 3600
        if is_folded == (hour < NOW - DETAIL_DAYS * 24):
            quarter = hour * QUARTERS if is_folded else int(begins) // QUARTER
            bars = UsageBars(bytearray(no_hour_bars())) if is_folded else UsageBars()
            cell = UsageCell(quarter, begins, ends, seen=480 * MICRO, resident=480 * MICRO, bars=bars)
            yield (quarter, card * 24 + owner_number % 24 + 1, *cell_columns(cell))


def write_time_detail(books: sqlite3.Connection) -> None:
    """Write a week of time spans: two sessions share a GPU, cut at each quarter of an hour."""
    first = (NOW - DETAIL_DAYS * 24) * 3600
    splits, spans = [], []
    before: dict[int, int] = {}
    for number, card, _, begins, _ in every_session():
        if begins >= first:
            shared = sorted({number, before.get(card, number)})
            split = [[1, "owner", card, session, None, 0] for session in shared]
            splits.append((len(splits) + 1, json.dumps([split, None], separators=(",", ":"))))
            at, end = int(begins) * MICRO, (int(begins) + 270) * MICRO
            while at < end:
                quarter = at // (QUARTER * MICRO)
                until = min(end, (quarter + 1) * QUARTER * MICRO)
                spans.append((quarter, CARDS[card].uuid, len(splits), at, until, until - at))
                at = until
        before[card] = number
    books.executemany("INSERT INTO time_splits VALUES (?, ?)", splits)
    columns = "quarter, gpu, split, begins, ends, microseconds"
    books.executemany(f"INSERT INTO time_spans ({columns}) VALUES (?, ?, ?, ?, ?, ?)", spans)


def write_time_hours(books: sqlite3.Connection, parties: dict[tuple[int, int], int | None]) -> None:
    """Write the folded time of the hours before: thirteen owners of a GPU, and the rest idle."""
    rows: list[tuple[object, ...]] = []
    for hour in range(NOW - HOURS, NOW - DETAIL_DAYS * 24):
        for card in range(GPUS):
            owners = {parties[card, (hour * PER_HOUR + place) % 24] for place in range(PER_HOUR)}
            part = (hour * QUARTERS, card)
            rows += [(*part, "owner", owner, 0, 270 * MICRO, 270 * MICRO) for owner in owners]
            rest = (3600 - 270 * len(owners)) * MICRO
            rows.append((*part, "idle", 0, 0, rest, rest))
    books.executemany("INSERT INTO hour_gpu_time VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


def measure(folder: Path, words: tuple[str, ...]) -> CommandUsage:
    """Run a command on the ledger in this folder."""
    program = [sys.executable, "-c", "from gpuledger.cli.main import main; raise SystemExit(main())"]
    used = run_command([*program, *words, "--state-dir", str(folder)], {"PYTHONPATH": str(ROOT / "src")})
    assert used.status == 0, words
    return used


def main() -> None:
    """Measure, print the table and, with --write, write it to a file."""
    flags = create_parser(__doc__)
    given = flags.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_ledger(folder)
        size = (folder / "gpuledger.db").stat().st_size / MIB
        rows = []
        for title, words in COMMANDS.items():
            runs = [measure(folder, words) for _ in range(3)]
            seconds, memory = median(run.seconds for run in runs), median(run.memory for run in runs)
            rows.append(Figures(title, seconds, memory))
    many = GPUS * HOURS * PER_HOUR
    lines = [
        f"Measured on {describe_machine()}; {many:,} sessions, {DAYS} days of hours, "
        f"a ledger of {size:.0f} MiB.",
        "",
    ]
    lines += ["| command | seconds | peak memory, MiB |", "|---|---|---|"]
    lines += [f"| {row.name} | {row.seconds:.2f} | {row.memory:.0f} |" for row in rows]
    print_table(lines, given.write, MARKS)


if __name__ == "__main__":
    main()

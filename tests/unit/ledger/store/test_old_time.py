"""Time from before the time books, in a time zone with full hours other than those in which it is stored."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from gpuledger.ledger.report.charges import MICROSECONDS_PER_HOUR
from gpuledger.ledger.report.party import Party, party_text
from gpuledger.ledger.report.price_entries import GPU_HOUR, price_parser
from gpuledger.ledger.report.ranges import ReportRange
from gpuledger.ledger.report.settings import ROW, SPREAD, Prices
from gpuledger.ledger.store import old_time
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.report_query import build_report
from gpuledger.ledger.store.schema import BEGUN, migrate_schema
from gpuledger.ledger.store.time_sums import gpu_sights
from gpuledger.ledger.time.account import OWNER
from gpuledger.ledger.watched_time import HOUR, MICRO, QUARTER, pack_seconds
from gpuledger.model.session import IDLE
from gpuledger.model.workload import Workload

HOURS = 10
FIRST = 490_000 * 4
# Midnight of 2025-11-25 in India, in the middle of a unix hour.
MIDNIGHT = "2025-11-25"
LISTS = {
    "one price": "2",
    "two entries": [{"until": MIDNIGHT, "price": 2}, {"from": MIDNIGHT, "price": 2}],
}


@pytest.fixture
def folded(tmp_path: Path) -> Path:
    """A ledger of ten unix hours of one GPU, in the first half of which its owner was there."""
    party = party_text(Party("GPU-0", Workload(kind="user", user="ann"), "train"))
    half = pack_seconds((1 << HOUR // 2) - 1)
    file = tmp_path / "ledger.db"
    with closing(sqlite3.connect(file)) as connection:
        migrate_schema(connection)
        columns = "uuid, gpu, gpu_index, name, pci_bus_id"
        connection.execute(f"INSERT INTO devices ({columns}) VALUES ('GPU-0', 'GPU-0', 0, 'H100', '')")
        connection.execute("INSERT INTO parties VALUES (1, ?, ?)", (party, FIRST + 4 * HOURS))
        for quarter in range(FIRST, FIRST + 4 * HOURS, 4):
            energy = (quarter, "GPU-0", 1, "measured", "1", MICROSECONDS_PER_HOUR, 0, 0, 0)
            connection.execute("INSERT INTO hours VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)", energy)
            connection.execute(
                "INSERT INTO hour_times (quarter, party, resident, running, begun) VALUES (?, 1, ?, 1, 0)",
                (quarter, half),
            )
        ends = FIRST + 4 * HOURS
        facts = {"times_from": ends, "unix": float(ends * QUARTER), BEGUN: float(FIRST * QUARTER)}
        connection.executemany("REPLACE INTO meta VALUES (?, ?)", facts.items())
        connection.commit()
    return file


@pytest.mark.parametrize("listed", LISTS.values(), ids=LISTS.keys())
@pytest.mark.parametrize("idle", [ROW, SPREAD])
def test_no_time_is_lost_where_a_price_changes_inside_a_stored_hour(
    folded: Path, listed: object, idle: str
) -> None:
    prices = Prices(gpu_hour=price_parser(GPU_HOUR)(listed), idle=idle)
    ends = FIRST + 4 * HOURS
    # From a full hour of India before the first data on.
    within = ReportRange(FIRST - 2, ends, float(ends * QUARTER), ZoneInfo("Asia/Kolkata"))
    with closing(History(folded)) as history:
        report = build_report(history, "user", prices, within)
    assert report.total.gpu_microseconds == HOURS * MICROSECONDS_PER_HOUR
    assert report.total.cost == Fraction(2 * HOURS)
    assert not any(one.microseconds for one in report.unbilled)


FIRST_HALF = (1 << HOUR // 2) - 1


@pytest.mark.parametrize(
    ("seconds", "observed", "expected"),
    [
        (
            FIRST_HALF << HOUR // 2,
            MICROSECONDS_PER_HOUR,
            {"ann": Fraction(1, 2), "bob": Fraction(1, 4), "idle": Fraction(1, 4)},
        ),
        # Nobody can be on an instance while another is on the whole GPU.
        (FIRST_HALF, 0, {"ann": Fraction(1, 2)}),
    ],
    ids=["one after the other", "both at a time"],
)
def test_an_hour_in_which_a_gpu_is_cut_has_the_time_of_both_layouts(
    folded: Path, seconds: int, observed: int, expected: dict[str, Fraction]
) -> None:
    party = party_text(Party("MIG-0", Workload(kind="user", user="bob"), "infer"))
    with closing(sqlite3.connect(folded)) as connection:
        instance = ("MIG-0", "GPU-0", 0, "H100", "", 66, 1, 0, 0, "3g.40gb")
        connection.execute(f"INSERT INTO devices VALUES ({', '.join('?' * len(instance))})", instance)
        connection.execute("UPDATE devices SET sm_count = 132 WHERE uuid = 'GPU-0'")
        connection.execute("INSERT INTO parties VALUES (2, ?, ?)", (party, FIRST + 4))
        connection.execute(
            "INSERT INTO hour_times (quarter, party, resident, running, begun) VALUES (?, 2, ?, 1, 0)",
            (FIRST, pack_seconds(seconds)),
        )
        connection.execute("UPDATE hours SET microseconds = ?", (observed,))
        connection.commit()
    within = ReportRange(FIRST, FIRST + 4, float((FIRST + 4) * QUARTER), ZoneInfo("UTC"))
    with closing(History(folded)) as history:
        report = build_report(history, "user", Prices(), within)
    hours = {
        line.key[0] or line.account: Fraction(line.gpu_microseconds or 0, MICROSECONDS_PER_HOUR)
        for line in (*report.lines, *report.gpu_accounts)
        if line.gpu_microseconds
    }
    assert hours == expected


def test_a_gpu_was_seen_from_its_first_hour_to_its_last(folded: Path) -> None:
    with closing(sqlite3.connect(folded)) as connection:
        columns = "uuid, gpu, gpu_index, name, pci_bus_id"
        connection.execute(f"INSERT INTO devices ({columns}) VALUES ('GPU-1', 'GPU-1', 1, 'H100', '')")
        for quarter in (FIRST + 8, FIRST + 12):
            energy = (quarter, "GPU-1", 1, "measured", "", MICROSECONDS_PER_HOUR, 0, 0, 0)
            connection.execute("INSERT INTO hours VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)", energy)
        connection.commit()
    with closing(History(folded)) as history:
        sights = gpu_sights(history)
    begin = FIRST * QUARTER * MICRO
    assert {
        uuid: tuple(Fraction(one - begin, MICROSECONDS_PER_HOUR) for one in ends)
        for uuid, ends in sights.items()
    } == {"GPU-0": (0, HOURS), "GPU-1": (2, 4)}


@pytest.mark.parametrize("collected", [1, 2, 4096])
def test_hours_sum_to_the_same_time_however_many_are_collected(
    folded: Path, monkeypatch: pytest.MonkeyPatch, collected: int
) -> None:
    monkeypatch.setattr(old_time, "_COLLECTED", collected)
    with closing(sqlite3.connect(folded)) as connection:
        # Every other hour differs: its owner was there for a quarter of an hour.
        quarter = pack_seconds((1 << QUARTER) - 1)
        connection.execute("UPDATE hour_times SET resident = ? WHERE quarter / 4 % 2", (quarter,))
        connection.commit()
    with closing(History(folded)) as history:
        times = list(old_time.old_gpu_time(history, FIRST, FIRST + 4 * HOURS))
    found = {one.account: one.allocation / MICROSECONDS_PER_HOUR for one in times}
    assert found == {OWNER: 5 * 0.5 + 5 * 0.25, IDLE: 5 * 0.5 + 5 * 0.75}

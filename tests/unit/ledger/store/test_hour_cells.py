"""The hours of a ledger of which the time zone was changed more than once."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from gpuledger.ledger.store.hour_cells import stored_hour_cells, update_zone
from gpuledger.ledger.store.schema import EARLIER_ZONES, TIME_FROM, meta_value

# A full hour in UTC, and half an hour after one in Kolkata.
HOUR = 1_700_002_800 // 900


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as opened:
        opened.execute("CREATE TABLE meta (key PRIMARY KEY, value)")
        opened.execute("INSERT INTO meta VALUES (?, ?)", (TIME_FROM, HOUR))
        yield opened


def test_each_zone_counts_until_the_next_change(connection: sqlite3.Connection) -> None:
    for after, name in ((0, "UTC"), (5, "Asia/Kolkata"), (6, "Asia/Kolkata"), (12, "UTC")):
        update_zone(connection, name, HOUR + after)
    assert json.loads(str(meta_value(connection, EARLIER_ZONES))) == [
        [HOUR + 5, "UTC"],
        [HOUR + 12, "Asia/Kolkata"],
    ]
    cells, found, at = stored_hour_cells(connection), [], HOUR - 4
    while at < HOUR + 20:
        assert [cells.begins(quarter) for quarter in range(at, cells.ends(at))] == [at] * (
            cells.ends(at) - at
        )
        found.append(at - HOUR)
        at = cells.ends(at)
    assert found == [-4, 0, 4, 5, 6, 10, 12, 16]

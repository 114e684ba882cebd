"""`books check`: a healthy ledger has no problem; each kind of damage is named with its remedy."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from exported_ledgers import SINCE, write_metered_node, write_node
from gpuledger.ledger.books.consistency import check_ledger
from gpuledger.model.errors import GpuledgerError
from report_helpers import folded

# What is done to a ledger with details and folded hours, and a part of the line.
DAMAGES = [
    ("DELETE FROM sessions WHERE number = 1", "session 1, which is missing"),
    ("DELETE FROM usage WHERE number = 1", "session 1 without its usage"),
    (
        "DELETE FROM time_splits WHERE number = (SELECT max(split) FROM time_spans)",
        "split .*, which is missing",
    ),
    ("DELETE FROM time_owners", "split of time with the owner 1, which is missing"),
    ("DELETE FROM gpu_parts WHERE number = 1", "part 1 of a GPU, which is missing"),
    ("DELETE FROM parties WHERE number = 1", "party 1, which is missing"),
    ("DELETE FROM devices", "GPU GPU-0 in the accounts, which is not in the list of devices"),
    ("UPDATE parties SET who = 'x' WHERE number = 1", "parties 1 has a who that is not JSON"),
    ("UPDATE hour_times SET resident = x'0102' WHERE party = 1", "presence from .* is not readable"),
    ("UPDATE hour_gpu_time SET allocation = allocation + 1 WHERE party = 1", "the two bases .* differ"),
    (
        "UPDATE time_spans SET microseconds = microseconds - 1"
        " WHERE number = (SELECT min(number) FROM time_spans)",
        "have -1 us against",
    ),
    (
        "DELETE FROM time_spans WHERE number = (SELECT max(number) FROM time_spans)",
        "newest time span .* missing",
    ),
    (
        "INSERT INTO time_spans SELECT number + 1000, quarter, gpu, split, begins, ends, microseconds"
        " FROM time_spans WHERE number = (SELECT min(number) FROM time_spans)",
        r"have \+[\d,]+ us against",
    ),
    (
        "UPDATE time_spans SET quarter = quarter + 1 WHERE number = (SELECT min(number) FROM time_spans)",
        "not in the quarter of its begin",
    ),
    (
        "UPDATE time_spans SET ends = begins - 1 WHERE number = (SELECT min(number) FROM time_spans)",
        "us long and has",
    ),
    ("PRAGMA user_version = 3", "the schema is 3"),
    ("UPDATE meta SET value = 'Mars/Olympus' WHERE key = 'zone'", "time zone Mars/Olympus"),
    ("DELETE FROM meta WHERE key = 'books_id'", "has no id"),
]
ENERGY_DAMAGES = [
    (
        "UPDATE shares SET millijoules = millijoules + 7 WHERE span = 3 AND session = 1",
        r"\+7 mJ against its counter",
    ),
    ("DELETE FROM spans WHERE number = 4", "energy span 4, which is missing"),
    ("UPDATE gpus SET total = total + 5", "-5 mJ against its total"),
    ("UPDATE spans SET quarter = quarter + 40 WHERE number = 3", "is not in the quarter of its time"),
]


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("ledgers")
    time = folded(write_node(place / "time", ticks=120), SINCE + 3600, place / "folded.db")
    (place / "energy").mkdir()
    return {"time": time, "energy": write_metered_node(place / "energy")}


def damaged(file: Path, target: Path, statement: str) -> Path:
    with closing(sqlite3.connect(file)) as books, closing(sqlite3.connect(target)) as copy:
        books.backup(copy)
        copy.execute(statement)
        copy.commit()
    return target


@pytest.mark.parametrize("kind", ["time", "energy"])
def test_a_healthy_ledger_has_no_problem(ledgers: dict[str, Path], kind: str) -> None:
    assert list(check_ledger(ledgers[kind])) == []


@pytest.mark.parametrize(
    ("kind", "statement", "named"),
    [("time", *one) for one in DAMAGES] + [("energy", *one) for one in ENERGY_DAMAGES],
)
def test_damage_is_named_with_a_remedy(
    tmp_path: Path, ledgers: dict[str, Path], kind: str, statement: str, named: str
) -> None:
    found = [str(one) for one in check_ledger(damaged(ledgers[kind], tmp_path / "gpuledger.db", statement))]
    assert any(re.search(named, line) for line in found), found
    assert all("\n" not in line and ": " in line for line in found)


def test_damaged_pages_are_named(tmp_path: Path, ledgers: dict[str, Path]) -> None:
    file = damaged(ledgers["time"], tmp_path / "gpuledger.db", "PRAGMA journal_mode = DELETE")
    raw = bytearray(file.read_bytes())
    raw[4096 * 10 : 4096 * 30] = b"\xa5" * (4096 * 20)
    file.write_bytes(raw)
    found = list(check_ledger(file))
    assert found
    assert all("restore" in one.remedy for one in found)


def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE x (y)")
    (tmp_path / "text.db").write_text("no database, but some text that is long enough for a header" * 20)
    for name in ("other.db", "text.db", "missing.db"):
        with pytest.raises(GpuledgerError):
            list(check_ledger(tmp_path / name))

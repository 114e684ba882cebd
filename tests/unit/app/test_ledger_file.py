"""What a ledger file is: of measured data or of a simulator, whatever its name."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from builders import FakeClock, reading, snapshot
from gpuledger.app.ledger_file import is_simulated
from gpuledger.ledger.books.backup import back_up_ledger
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.store.history import History
from ledger_helpers import SETTINGS, open_store
from time_books import A


def write_ledger(folder: Path, name: str) -> Path:
    clock = FakeClock()
    store = open_store(folder, "boot-1", clock, name=name)
    ledger = Ledger(SETTINGS, store)
    for _ in range(3):
        clock.advance(1.0)
        ledger.post(snapshot(reading(A), unix=clock.now_unix))
    store.close()
    return store.file


@pytest.mark.parametrize(("name", "simulated"), [("gpuledger", False), ("simulator-lab", True)])
@pytest.mark.parametrize("is_earlier", [False, True])
def test_a_backup_is_of_the_same_kind_as_its_ledger(
    tmp_path: Path, name: str, simulated: bool, is_earlier: bool
) -> None:
    file, target = write_ledger(tmp_path, name), tmp_path / "2026-11-30.db"
    if is_earlier:
        with closing(sqlite3.connect(file)) as books, books:
            books.execute("DELETE FROM meta WHERE key = 'ledger'")
    back_up_ledger(file, target)
    for one in (file, target):
        with closing(History(one)) as history:
            assert is_simulated(history) == simulated

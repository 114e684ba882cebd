"""Which file of books a command reads."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import environ
from pathlib import Path
from typing import Any

from gpuledger.ledger.settings import MEMORY_ONLY, StoreSettings
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.place import SYSTEM, find_dir
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.settings import build

# Of what was measured; books of made-up sources are named after them.
_MEASURED = "gpuledger.db"


@contextmanager
def open_history(values: Mapping[str, Any]) -> Iterator[History]:
    """The books of `--state-dir`, or the file that it names, for as long as they are read.

    Raises GpuledgerError when there are none, several of which none was measured, or what turns out to be
    none.
    """
    given = build(StoreSettings, values).state_dir
    if given == MEMORY_ONLY:
        raise UsageError("--state-dir none: books that are kept in memory end with `gpuledger serve`")
    place = Path(given) if given else find_dir(environ, SYSTEM)
    try:
        file = _file(place)
    except OSError as error:
        raise GpuledgerError(
            f"the books in {place} cannot be read: {error.strerror}; run this as the user who writes them"
        ) from None
    try:
        history = History(file)
        try:
            if is_made_up(history):
                sys.stderr.write(f"{file}: of a simulator or a recording, not of hardware\n")
            yield history
        finally:
            history.close()
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        raise GpuledgerError(
            f"{file} is damaged ({type(error).__name__}: {error}): `gpuledger serve` sets it aside when it "
            "finds that; a copy may be readable by `sqlite3 FILE .recover`"
        ) from None


def _file(place: Path) -> Path:
    if place.is_file():
        return place
    if (place / _MEASURED).exists():
        return place / _MEASURED
    made_up = sorted(place.glob("*.db"))
    if len(made_up) > 1:
        names = ", ".join(file.name for file in made_up)
        raise GpuledgerError(f"{place} has several books ({names}): name one, as in --state-dir {made_up[0]}")
    return made_up[0] if made_up else place / _MEASURED


def is_made_up(history: History) -> bool:
    """Whether they are of a simulator or of a recording."""
    return history.file.name != _MEASURED


def now_in(history: History) -> float:
    """Unix seconds of now; in made-up books, whose time may go faster or be long ago, when they end."""
    return history.last if is_made_up(history) else time.time()

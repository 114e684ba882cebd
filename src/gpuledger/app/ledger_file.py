"""Find and open the ledger file that a command reads."""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from os import environ
from pathlib import Path
from typing import Any

from gpuledger.config.node import configured_node_name
from gpuledger.dialects.settings import DialectSettings
from gpuledger.ledger.settings import MEMORY_ONLY, StoreSettings
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.schema import LEDGER_NAME, meta_value
from gpuledger.ledger.store.state_directory import SYSTEM_DIR, find_state_dir
from gpuledger.ledger.store.watched_range import require_watched_time
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.settings import build_settings

# The ledger of measured data. Ledgers of simulators and recordings are named after their source.
_MEASURED = "gpuledger"


class LedgerForbidden(GpuledgerError):
    """This user may not read the ledger."""


@contextmanager
def open_history(values: Mapping[str, Any]) -> Iterator[History]:
    """Open the ledger in `--state-dir`, or the file that it names, and close it afterwards.

    Raises LedgerForbidden when this user may not read it, and GpuledgerError when there is no ledger, when
    there are several and none is of measured data, when the file is not a ledger, or when it has no watched
    second.
    """
    file = ledger_file(values)
    try:
        with closing(History(file)) as history:
            if is_simulated(history):
                sys.stderr.write(f"{file}: data of a simulator or a recording, not of hardware\n")
            require_watched_time(history)
            yield history
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        raise GpuledgerError(
            f"{file} is damaged ({type(error).__name__}: {error}): `gpuledger serve` moves a damaged ledger "
            "aside and starts a new one; try `sqlite3 FILE .recover` on a copy"
        ) from None


def ledger_file(values: Mapping[str, Any]) -> Path:
    """The ledger in `--state-dir`, or the file that it names, whether it exists or not.

    Raises GpuledgerError when there are several and none is of measured data.
    """
    given = build_settings(StoreSettings, values).state_dir
    if given == MEMORY_ONLY:
        raise UsageError(
            "--state-dir none: the ledger is in the memory of `gpuledger serve` only; name the directory of a"
            " ledger on disk"
        )
    place = Path(given) if given else find_state_dir(environ, SYSTEM_DIR)
    try:
        file = _file(place)
    except PermissionError:
        raise _forbidden(place) from None
    except OSError as error:
        raise GpuledgerError(f"cannot read the ledger in {place}: {error.strerror}") from None
    # Newer versions of Python do not raise for a file in a directory that cannot be searched.
    if os.path.lexists(place) and not os.access(place, os.R_OK if place == file else os.R_OK | os.X_OK):
        raise _forbidden(place)
    if os.path.lexists(file) and not os.access(file, os.R_OK):
        raise _forbidden(file)
    return file


def _forbidden(place: Path) -> LedgerForbidden:
    return LedgerForbidden(
        f"cannot read the ledger in {place}: {os.strerror(errno.EACCES)}; run this command as the user of"
        " `gpuledger serve`"
    )


def _file(place: Path) -> Path:
    if place.is_file():
        return place
    measured = place / f"{_MEASURED}.db"
    if measured.exists():
        return measured
    simulated = sorted(place.glob("*.db"))
    if len(simulated) > 1:
        names = ", ".join(file.name for file in simulated)
        raise GpuledgerError(
            f"{place} has several ledgers ({names}): name one, as in --state-dir {simulated[0]}"
        )
    return simulated[0] if simulated else measured


def is_simulated(history: History) -> bool:
    """Whether the ledger's data come from a simulator or a recording. A backup can have any name."""
    return (meta_value(history.connection, LEDGER_NAME) or history.file.stem) != _MEASURED


def node_of_ledger(history: History, values: Mapping[str, Any]) -> str:
    """The node's name: as set (`node_name`, $NODE_NAME), else as `serve` stored it, else the host name."""
    given = build_settings(DialectSettings, values).node_name or environ.get("NODE_NAME", "")
    return given or history.node or configured_node_name(values, environ)


def current_time_of(history: History) -> float:
    """The current time in unix seconds; in simulated ledgers the end of the data.

    Simulated time can run faster than real time, and recorded time is in the past.
    """
    return history.last if is_simulated(history) else time.time()

"""`--state-dir` made a Store, or none."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from gpuledger.ledger.settings import MEMORY_ONLY, StoreSettings
from gpuledger.ledger.store.place import SYSTEM, book_name, state_dir
from gpuledger.ledger.store.retention import Limits
from gpuledger.ledger.store.store import Store
from gpuledger.model.snapshot import SourceInfo
from gpuledger.model.source import Clock

log = logging.getLogger("gpuledger.store")


def open_store(
    settings: StoreSettings,
    source: SourceInfo,
    boot_id: str,
    clock: Clock,
    environment: Mapping[str, str],
    system: Path = SYSTEM,
) -> Store | None:
    """The books of this source; None where they are kept in memory alone, as asked or as is right.

    Made-up numbers are kept only where a directory is asked for, in a file of their own. Raises
    GpuledgerError when another program has the books, or a newer version made them.
    """
    given = settings.state_dir
    if given == MEMORY_ONLY or (source.simulated and not given):
        return None
    try:
        folder = state_dir(given, environment, system)
    except OSError as error:
        # The Store finds the same and tells it in its health.
        folder = Path(given or system)
        log.warning("no directory for the books: %s: %s; see --state-dir", error.filename, error.strerror)
    return Store(folder, book_name(source), boot_id, clock, limits_of(settings))


def limits_of(settings: StoreSettings) -> Limits:
    """How much history these settings keep: no detail outlasts the sessions that it is of."""
    return Limits(min(settings.detail, settings.hours), settings.hours, settings.max_size)

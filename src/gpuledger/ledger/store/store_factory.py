"""Opens the Store that the settings ask for, or none."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger.ledger.settings import MEMORY_ONLY, StoreSettings
from gpuledger.ledger.store.retention import RetentionLimits
from gpuledger.ledger.store.state_directory import (
    SYSTEM_DIR,
    candidate_dirs,
    create_state_dir,
    is_full,
    ledger_name,
)
from gpuledger.model.snapshot import SourceInfo
from gpuledger.model.source import Clock

if TYPE_CHECKING:
    from gpuledger.ledger.store.store import Store

log = logging.getLogger("gpuledger.store")


def open_store(
    settings: StoreSettings,
    source: SourceInfo,
    boot_id: str,
    clock: Clock,
    environment: Mapping[str, str],
    system: Path = SYSTEM_DIR,
    zone: tzinfo = UTC,
    node: str = "",
) -> Store | None:
    """Open the ledger of this source; return None if it is kept only in memory.

    Older history is summed to full hours of `zone`; `node` is the name that reports use. Simulated data is
    stored only if a directory is set, in a separate file. Raises GpuledgerError if another program has the
    ledger, or a newer version wrote it.
    """
    given = settings.state_dir
    if given == MEMORY_ONLY or (source.simulated and not given):
        return None
    try:
        folder = create_state_dir(given, environment, system)
    except OSError as error:
        # The Store fails likewise and reports that in its health; on a full disk, it creates the directory.
        folders = candidate_dirs(given, environment, system)
        full = (one for one in folders if is_full(error) and one.is_relative_to(error.filename))
        folder = next(full, folders[0])
        log.warning(
            "no writable directory for the ledger: %s: %s; set --state-dir", error.filename, error.strerror
        )
    # Imported lazily: SQLite takes memory that a ledger in memory does not need.
    from gpuledger.ledger.store.store import Store

    return Store(folder, ledger_name(source), boot_id, clock, retention_limits(settings, zone), node)


def retention_limits(settings: StoreSettings, zone: tzinfo) -> RetentionLimits:
    """The history limits of these settings; detail is kept no longer than its sessions."""
    return RetentionLimits(min(settings.detail, settings.hours), settings.hours, settings.max_size, zone)

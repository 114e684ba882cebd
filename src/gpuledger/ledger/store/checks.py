"""The `doctor` check that the ledger can be stored on disk. Creates nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from gpuledger.ledger.settings import MEMORY_ONLY, StoreSettings
from gpuledger.ledger.store.state_directory import SYSTEM_DIR, candidate_dirs
from gpuledger.model.checks import Check, Finding, Subject, fails, skipped, warning, works

LEDGER_DIRECTORY: Final = Subject("books.directory", "ledger")


def ledger_checks(
    settings: StoreSettings, environment: Mapping[str, str], *, made_up: bool, system: Path = SYSTEM_DIR
) -> tuple[Check, ...]:
    """The check of the state directory. `made_up`: simulated data, stored only in a configured directory."""
    given = settings.state_dir
    return (Check(*LEDGER_DIRECTORY, lambda: _check_directory(given, environment, made_up, system)),)


def _check_directory(
    given: str, environment: Mapping[str, str], made_up: bool, system: Path
) -> Iterator[Finding]:
    if given == MEMORY_ONLY:
        yield skipped(*LEDGER_DIRECTORY, "--state-dir none: kept in memory, lost when the program ends")
        return
    if made_up and not given:
        yield skipped(*LEDGER_DIRECTORY, "simulated data is stored only if --state-dir is set")
        return
    tried = candidate_dirs(given, environment, system)
    found = next((folder for folder in tried if _writable(folder)), None)
    if found is None:
        report_failure = fails if given else warning
        yield report_failure(
            *LEDGER_DIRECTORY,
            f"uid {os.geteuid()} cannot write {' or '.join(map(str, tried))}: sessions and energy are "
            "kept in memory and lost when the program ends",
            f"`install -d -m 700 -o {os.geteuid()} {tried[0]}` as root, or set another --state-dir",
        )
    else:
        yield _check_permissions(found)


def _check_permissions(folder: Path) -> Finding:
    """Check that no other user can replace the ledger in this directory."""
    try:
        found = folder.stat()
    except FileNotFoundError:
        return works(*LEDGER_DIRECTORY, f"{folder} will be created, for uid {os.geteuid()} only")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(found.st_mode)
        why = f"{folder} is writable by other users (mode {mode:04o}): they can falsify the ledger"
        return warning(*LEDGER_DIRECTORY, why, f"`chmod go-w {folder}`")
    if found.st_uid not in (0, os.geteuid()):
        why = f"{folder} belongs to uid {found.st_uid}, which can falsify the ledger"
        return warning(*LEDGER_DIRECTORY, why, f"`chown {os.geteuid()} {folder}`")
    return works(*LEDGER_DIRECTORY, f"{folder} is writable")


def _writable(folder: Path) -> bool:
    """Return whether the directory exists or can be created, and is writable."""
    for place in (folder, *folder.absolute().parents):
        try:
            found = place.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and os.access(place, os.W_OK | os.X_OK)
    return False

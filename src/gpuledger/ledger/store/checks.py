"""Whether the books can be kept on disk, for `doctor`. Nothing is made."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from gpuledger.ledger.settings import MEMORY_ONLY, StoreSettings
from gpuledger.ledger.store.place import SYSTEM, usual_dirs
from gpuledger.model.checks import Check, Finding, fails, skipped, warning, works

BOOKS: Final = "books.directory"
_WHAT: Final = "books"


def books_checks(
    settings: StoreSettings, environment: Mapping[str, str], *, made_up: bool, system: Path = SYSTEM
) -> tuple[Check, ...]:
    """Of a source that is `made_up` books are kept only where a directory is asked for."""
    return (Check(BOOKS, _WHAT, lambda: _books(settings.state_dir, environment, made_up, system)),)


def _books(given: str, environment: Mapping[str, str], made_up: bool, system: Path) -> Iterator[Finding]:
    if given == MEMORY_ONLY:
        yield skipped(BOOKS, _WHAT, "--state-dir none: in memory alone, and they end with the program")
        return
    if made_up and not given:
        yield skipped(BOOKS, _WHAT, "made-up numbers are kept where --state-dir says, and it says nothing")
        return
    tried = usual_dirs(given, environment, system)
    found = next((folder for folder in tried if _writable(folder)), None)
    if found is None:
        complain = fails if given else warning
        yield complain(
            BOOKS,
            _WHAT,
            f"uid {os.geteuid()} cannot write {' or '.join(map(str, tried))}: sessions and energy are in "
            "memory alone, and end with the program",
            f"`install -d -m 700 -o {os.geteuid()} {tried[0]}` as root, or name another with --state-dir",
        )
    else:
        yield _guarded(found)


def _guarded(folder: Path) -> Finding:
    """Whoever can write there can put other books in the place of ours."""
    try:
        found = folder.stat()
    except FileNotFoundError:
        return works(BOOKS, _WHAT, f"{folder} will be made, for uid {os.geteuid()} alone")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        why = (
            f"{folder} can be written by others (mode {stat.S_IMODE(found.st_mode):04o}): they can falsify it"
        )
        return warning(BOOKS, _WHAT, why, f"`chmod go-w {folder}`")
    if found.st_uid not in (0, os.geteuid()):
        why = f"{folder} belongs to uid {found.st_uid}, who can falsify it"
        return warning(BOOKS, _WHAT, why, f"`chown {os.geteuid()} {folder}`")
    return works(BOOKS, _WHAT, f"{folder} can be written")


def _writable(folder: Path) -> bool:
    """Whether it is there, or can be made, and takes files. Where it ends up is decided by `state_dir`."""
    for place in (folder, *folder.absolute().parents):
        try:
            found = place.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and os.access(place, os.W_OK | os.X_OK)
    return False

"""Finds the directories of exports, and those that look like an export that lost a part."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from gpuledger.ledger.books.layout import TABLES
from gpuledger.ledger.books.manifest import MANIFEST_NAME, file_name
from gpuledger.ledger.books.table_files import FORMATS
from gpuledger.model.errors import GpuledgerError

_TABLE_FILES: Final = frozenset(file_name(table, form) for table in TABLES for form in FORMATS)
# Directories as `export_folder` names them: of a node, and of a range.
_NODE: Final = re.compile(r".+\.[0-9a-f]{8}")
_MOMENT = r"\d{4}-\d\d-\d\d(T\d{6}Z)?"
_RANGE: Final = re.compile(f"{_MOMENT}_{_MOMENT}")
_REMEDY: Final = "take another copy; or move this directory away, and export that time again or do without it"


def find_folders(folder: Path, *, may_be_empty: bool = False) -> tuple[list[Path], list[str]]:
    """The manifests below a directory, sorted, and a line for each directory that lost its own.

    Hidden directories are skipped: exports are written there. Raises GpuledgerError if there is nothing.
    """
    if not folder.is_dir():
        what = "is not a directory" if folder.exists() else "does not exist"
        raise GpuledgerError(f"{folder} {what}: name a directory that `gpuledger books export` wrote")
    found = _Search()
    found.search(folder)
    if not (found.manifests or found.lost or may_be_empty):
        raise GpuledgerError(_nothing_below(folder))
    return sorted(found.manifests), sorted(found.lost)


class _Search:
    """Follows links to directories, each once."""

    def __init__(self) -> None:
        self.manifests: list[Path] = []
        self.lost: list[str] = []
        self._seen: set[str] = set()

    def search(self, place: Path) -> None:
        """Search a directory and those below it."""
        real = os.path.realpath(place)
        if real in self._seen:
            return
        self._seen.add(real)
        try:
            with os.scandir(place) as entries:
                found = sorted((one.name, one.is_dir()) for one in entries)
        except OSError as error:
            self.lost.append(
                f"cannot read the directory {place} ({error.strerror}): it may have exports; run this as a "
                "user that can read it, or move it away"
            )
            return
        files = {name for name, is_folder in found if not is_folder}
        folders = [name for name, is_folder in found if is_folder and not name.startswith(".")]
        if MANIFEST_NAME in files:
            self.manifests.append(place / MANIFEST_NAME)
        elif tables := sorted(files & _TABLE_FILES):
            self.lost.append(f"{place} has {tables[0]} of an export, but no {MANIFEST_NAME}: {_REMEDY}")
        elif _RANGE.fullmatch(place.name) or (_NODE.fullmatch(place.name) and not folders):
            self.lost.append(f"{place} is named as an export, but has none (no {MANIFEST_NAME}): {_REMEDY}")
        for name in folders:
            self.search(place / name)


def _nothing_below(folder: Path) -> str:
    ledgers = sorted(one.name for one in folder.glob("*.db"))
    if ledgers:
        return (
            f"{folder} has a ledger ({ledgers[0]}), not exports of one: name it as --state-dir {folder}, or "
            f"export it first (`gpuledger books export DIR --state-dir {folder}`)"
        )
    return (
        f"{folder} has no exported ledger (no {MANIFEST_NAME} below it): write one with `gpuledger books "
        f"export {folder}`"
    )

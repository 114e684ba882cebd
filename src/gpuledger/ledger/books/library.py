"""Finds exports in directories, refuses those that contradict each other, and merges them into one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from tempfile import mkdtemp

from gpuledger.ledger.books.exported_history import Export
from gpuledger.ledger.books.manifest import MANIFEST_NAME, GpuTotals, Manifest, read_manifest, verify_tables
from gpuledger.ledger.books.table_files import iso_time
from gpuledger.ledger.watched_time import MICRO
from gpuledger.model.errors import GpuledgerError

_ID = 8


def find_exports(folders: Iterable[Path], *, verify: bool = True) -> list[Export]:
    """All exports below these directories, each once, by ledger and time; `verify` reads every file.

    Raises GpuledgerError for a directory without one, and for the first one that is damaged.
    """
    found: dict[Path, Export] = {}
    for folder in folders:
        if not folder.is_dir():
            what = "is not a directory" if folder.exists() else "does not exist"
            raise GpuledgerError(f"{folder} {what}: name a directory that `gpuledger books export` wrote")
        manifests = sorted(_manifests(folder))
        if not manifests:
            raise GpuledgerError(
                f"{folder} has no exported ledger (no {MANIFEST_NAME} below it): write one with `gpuledger "
                f"books export {folder}`"
            )
        for file in manifests:
            export = Export(file.parent, read_manifest(file))
            if verify:
                verify_tables(*export)
            found[file.parent.resolve()] = export
    return sorted(
        found.values(), key=lambda one: (one.manifest.node, one.manifest.books, one.manifest.begins)
    )


def check_exports(folder: Path) -> tuple[list[Export], list[str]]:
    """The undamaged exports below a directory, and one line for each problem."""
    found, problems = [], []
    for file in sorted(_manifests(folder)):
        try:
            export = Export(file.parent, read_manifest(file))
            verify_tables(*export)
        except GpuledgerError as error:
            problems.append(str(error))
        else:
            found.append(export)
    try:
        without_repetitions(found)
    except GpuledgerError as error:
        problems.append(str(error))
    if not found and not problems:
        problems.append(f"{folder} has no exported ledger (no {MANIFEST_NAME} below it)")
    return found, problems


def _manifests(folder: Path) -> Iterator[Path]:
    """The manifests below a directory, except in exports that are being written."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if MANIFEST_NAME in files:
            yield Path(place, MANIFEST_NAME)


def without_repetitions(exports: Sequence[Export]) -> list[Export]:
    """The exports without equal ones, and without incomplete ones that a later one continues.

    Raises GpuledgerError, which names both, for two that have the same time of a ledger and differ.
    """
    kept: list[Export] = []
    for export in exports:
        rivals = [one for one in kept if one.manifest.overlaps(export.manifest)]
        for rival in rivals:
            if replaces(export.manifest, rival.manifest):
                kept.remove(rival)
            elif not (
                rival.manifest.content == export.manifest.content or replaces(rival.manifest, export.manifest)
            ):
                raise _contradiction(rival, export)
        if not any(one.manifest.overlaps(export.manifest) for one in kept):
            kept.append(export)
    return kept


def replaces(newer: Manifest, older: Manifest) -> bool:
    """Whether an export has the range of another, which ended where the ledger ended then, and more."""
    return (
        newer.books == older.books
        and newer.begins == older.begins
        and not older.complete
        and (newer.ends, newer.last) > (older.ends, older.last)
        and all(newer.totals.get(gpu, GpuTotals()).continues(one) for gpu, one in older.totals.items())
    )


def _contradiction(one: Export, other: Export) -> GpuledgerError:
    first, second = one.manifest, other.manifest
    if (first.begins, first.ends) != (second.begins, second.ends):
        what = f"overlap: {describe_range(first)} and {describe_range(second)}"
        fix = "keep exports of whole months only"
    elif first.totals == second.totals:
        what = "differ, with equal totals: names or the length of cells changed between the two exports"
        fix = "keep one of them"
    else:
        what = "differ: one was changed, or two machines run with copies of one ledger"
        fix = "keep the right one; on a cloned machine, remove the copied ledger before the first start"
    return GpuledgerError(
        f"{one.folder} and {other.folder} are both of ledger {first.books[:_ID]} (node {first.node}"
        f"{'' if first.node == second.node else f' and node {second.node}'}) and {what}; {fix}"
    )


def describe_range(manifest: Manifest) -> str:
    """The range of an export, in UTC."""
    return " to ".join(iso_time(unix * MICRO) for unix in (manifest.begins, manifest.ends))


def volumes(exports: Sequence[Export]) -> list[list[Export]]:
    """Exports that continue each other, as one list each: of one ledger and node, without a gap."""
    found: list[list[Export]] = []
    for export in exports:
        last = found[-1][-1].manifest if found else None
        now = export.manifest
        if last is not None and (last.books, last.node, last.ends) == (now.books, now.node, now.begins):
            found[-1].append(export)
        else:
            found.append([export])
    return found


def export_notes(exports: Sequence[Export]) -> Iterator[str]:
    """Sentences on ledgers that share a name or a Gpu, or lack a part between two exports."""
    yield from _shared_names(exports)
    yield from _shared_gpus(exports)
    zones = {one.manifest.time_zone for one in exports if one.manifest.time_zone}
    if len(zones) > 1:
        by_zone = {zone: _nodes(one for one in exports if one.manifest.time_zone == zone) for zone in zones}
        named = "; ".join(f"{zone}: {nodes}" for zone, nodes in sorted(by_zone.items()))
        yield (
            f"The ledgers sum old hours in different time zones ({named}): ends of the range and of periods "
            "move to the nearest hour of each."
        )
    for one, following in pairwise(exports):
        first, second = one.manifest, following.manifest
        if first.books == second.books and first.ends < second.begins:
            gap = " to ".join(iso_time(unix * MICRO) for unix in (first.ends, second.begins))
            yield f"Node {second.node} has no export of {gap}: its time there is not in this report."


def _shared_names(exports: Sequence[Export]) -> Iterator[str]:
    ids: dict[str, set[str]] = {}
    nodes: dict[str, set[str]] = {}
    for one in exports:
        ids.setdefault(one.manifest.node, set()).add(one.manifest.books)
        nodes.setdefault(one.manifest.books, set()).add(one.manifest.node)
    for node, books in sorted(ids.items()):
        if len(books) > 1:
            named = ", ".join(sorted(one[:_ID] for one in books))
            yield f"{len(books)} ledgers have the node name {node} ({named}): --by node adds them up."
    for books_id, names in sorted(nodes.items()):
        if len(names) > 1:
            listed = ", ".join(sorted(names))
            yield f"Ledger {books_id[:_ID]} was renamed: {listed}; each export counts under its own name."


def _shared_gpus(exports: Sequence[Export]) -> Iterator[str]:
    """Gpus that two ledgers saw at the same time; one that moved between nodes needs no sentence."""
    by_gpu: dict[str, list[Export]] = {}
    for one in exports:
        for gpu in one.manifest.totals:
            by_gpu.setdefault(gpu, []).append(one)
    for gpu, found in sorted(by_gpu.items()):
        for one, other in combinations(found, 2):
            first, second = one.manifest, other.manifest
            if first.books != second.books and first.totals[gpu].is_seen_with(second.totals[gpu]):
                yield (
                    f"{gpu} was in two ledgers at the same time ({one.folder} and {other.folder}): its time "
                    "and energy count twice; leave one of them out."
                )
                break


def _nodes(exports: Iterable[Export]) -> str:
    return ", ".join(dict.fromkeys(one.manifest.node for one in exports))


def export_folder(manifest: Manifest) -> Path:
    """The directory of an export below that of all exports: node and ledger, then range."""
    node = "".join(char if char.isalnum() or char in "-_." else "_" for char in manifest.node).lstrip(".")
    first, last = (
        iso_time(unix * MICRO).replace("T00:00:00Z", "").replace(":", "")
        for unix in (manifest.begins, manifest.ends)
    )
    return Path(f"{node[:100] or 'node'}.{manifest.books[:_ID]}", f"{first}_{last}")


def new_folder(into: Path) -> Path:
    """A new hidden directory in which an export is written before it gets its name. Raises OSError."""
    into.mkdir(parents=True, exist_ok=True)
    return Path(mkdtemp(prefix=".gpuledger-", dir=into))


def put_in_place(written: Path, manifest: Manifest, into: Path, replaced: Sequence[Export] = ()) -> Path:
    """Give a written export its name below `into`, in place of others; return it. Raises OSError."""
    place = into / export_folder(manifest)
    place.parent.mkdir(parents=True, exist_ok=True)
    for one in replaced:
        # Without a manifest it is no export any more, whatever happens next.
        (one.folder / MANIFEST_NAME).unlink()
        shutil.rmtree(one.folder)
    written.chmod(0o777 & ~_current_umask())
    return written.rename(place)


def _current_umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def add_export(written: Path, manifest: Manifest, into: Path) -> tuple[Path, bool]:
    """Put a new export in place; return its directory, and False if an equal one was there already.

    Raises GpuledgerError if an export of this time is there and differs, and OSError.
    """
    rivals = [
        one
        for file in _manifests(into)
        if (one := Export(file.parent, read_manifest(file))).manifest.overlaps(manifest)
    ]
    kept = without_repetitions([*rivals, Export(written, manifest)])
    if kept[-1].folder != written:
        shutil.rmtree(written)
        return kept[-1].folder, False
    return put_in_place(written, manifest, into, rivals), True


def merge_exports(folders: Sequence[Path], into: Path) -> tuple[list[Path], list[Export]]:
    """Copy the exports of all directories to `into`; return the new directories, and all exports there.

    Raises GpuledgerError before anything is written if two exports contradict each other, and OSError.
    """
    present = find_exports([into]) if into.is_dir() and any(_manifests(into)) else []
    kept = without_repetitions([*present, *find_exports(folders)])
    replaced = [one for one in present if one not in kept]
    added = []
    for one in kept:
        if one in present:
            continue
        written = new_folder(into)
        try:
            shutil.copytree(one.folder, written, dirs_exist_ok=True)
            verify_tables(written, one.manifest)
            rivals = [other for other in replaced if other.manifest.overlaps(one.manifest)]
            added.append(put_in_place(written, one.manifest, into, rivals))
        except BaseException:
            shutil.rmtree(written, ignore_errors=True)
            raise
    return added, find_exports([into])

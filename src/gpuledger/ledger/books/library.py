"""Finds exports in directories, refuses those that contradict each other, and merges them into one."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import combinations, pairwise
from os import umask
from pathlib import Path

from gpuledger.host.time_zone import named_time_zone
from gpuledger.ledger.books.exported_folders import find_folders
from gpuledger.ledger.books.exported_history import Export
from gpuledger.ledger.books.manifest import (
    MANIFEST_NAME,
    GpuTotals,
    Manifest,
    file_name,
    read_manifest,
    verify_tables,
)
from gpuledger.ledger.books.table_files import iso_time
from gpuledger.ledger.books.work_folder import work_folder
from gpuledger.ledger.watched_time import MICRO
from gpuledger.model.errors import GpuledgerError

_ID = 8
_DAY = 86_400
_REPLACED = "replaced-"


def find_exports(folders: Iterable[Path], *, verify: bool = True) -> list[Export]:
    """All exports below these directories, each once, by ledger and time; `verify` reads every file.

    Raises GpuledgerError for a directory without one, and for the first one that is damaged or incomplete.
    """
    found: dict[Path, Export] = {}
    for folder in folders:
        manifests, lost = find_folders(folder)
        if lost:
            raise GpuledgerError(lost[0])
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
    found = []
    try:
        manifests, problems = find_folders(folder)
    except GpuledgerError as error:
        return [], [str(error)]
    for file in manifests:
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
    return found, problems


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


def _refused(written: Manifest, present: Export) -> GpuledgerError:
    """Why a new export is not written beside one that is there, and what to do."""
    old, again = present.manifest, f"move {present.folder} away, and repeat this command"
    is_same = (old.begins, old.ends) == (written.begins, written.ends)
    if old.node != written.node:
        what = f"has {describe_range(old)} under the node name {old.node}, and this one is {written.node}"
        fix = f"set GPULEDGER_NODE_NAME={old.node} for this command; to change the name there, {again}"
    elif is_same and old.totals == written.totals:
        what = "has the same time with equal totals and other names (`books forget`) or cells"
        fix = f"to replace it, {again}"
    elif is_same or (old.begins == written.begins and not old.complete):
        what = "is of the same time with other totals: one was changed, or two machines run with one ledger"
        fix = f"find out which is right; to replace it, {again}, and keep it until you have compared both"
    else:
        what = f"has {describe_range(old)}, which overlaps {describe_range(written)}"
        fix = f"export whole months; to have the new range instead, {again}"
    return GpuledgerError(f"{present.folder} of this ledger {what}; nothing was written: {fix}")


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
    yield from _different_zones(exports)
    for one, following in pairwise(exports):
        first, second = one.manifest, following.manifest
        if first.books == second.books and first.ends < second.begins:
            gap = " to ".join(iso_time(unix * MICRO) for unix in (first.ends, second.begins))
            yield f"Node {second.node} has no export of {gap}: its time there is not in this report."


def _different_zones(exports: Sequence[Export]) -> Iterator[str]:
    """Zones are one if their times were equal while they were used, such as UTC and Etc/UTC."""
    first = min((one.manifest.begins for one in exports), default=0)
    last = max((one.manifest.ends for one in exports), default=0)
    names = sorted({one.manifest.time_zone for one in exports if one.manifest.time_zone})
    by_rules: dict[object, list[str]] = {}
    for name in names:
        by_rules.setdefault(_rules_of(name, first, last), []).append(name)
    if len(by_rules) > 1:
        named = "; ".join(
            f"{zones[0]}: {_nodes(one for one in exports if one.manifest.time_zone in zones)}"
            for zones in by_rules.values()
        )
        yield (
            f"The ledgers sum old hours in different time zones ({named}): ends of the range and of periods "
            "move to the nearest hour of each."
        )


def _rules_of(name: str, first: int, last: int) -> object:
    """The differences from UTC in a range, by day; the name itself if the machine does not know it."""
    try:
        zone = named_time_zone(name)
    except ValueError:
        return name
    moments = (datetime.fromtimestamp(unix, UTC) for unix in range(first, last + _DAY, _DAY))
    offsets: list[timedelta | None] = [moment.astimezone(zone).utcoffset() for moment in moments]
    return tuple(offsets)


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
    """Gpus that two ledgers saw at the same time; one that moved between nodes needs no sentence.

    Simulated nodes with equal GPUs are different nodes.
    """
    by_gpu: dict[str, list[Export]] = {}
    for one in exports:
        if one.manifest.is_simulated:
            continue
        for gpu in one.manifest.totals:
            by_gpu.setdefault(gpu, []).append(one)
    for gpu, found in sorted(by_gpu.items()):
        for one, other in combinations(found, 2):
            first, second = one.manifest, other.manifest
            if first.books != second.books and first.totals[gpu].is_seen_with(second.totals[gpu]):
                yield (
                    f"{gpu} was in two ledgers at the same time ({first.books[:_ID]} of {first.node} and "
                    f"{second.books[:_ID]} of {second.node}): its time and energy count twice; leave one of "
                    "them out."
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


def put_in_place(written: Path, manifest: Manifest, into: Path, replaced: Sequence[Export] = ()) -> Path:
    """Move a written export out of its hidden directory to its place below `into`, instead of others.

    At each moment, one of them is there with its manifest. Raises GpuledgerError and OSError.
    """
    place = into / export_folder(manifest)
    place.parent.mkdir(parents=True, exist_ok=True)
    before = [one.folder for one in replaced]
    if place in before:
        aside = place.with_name(f"{place.name}.replaced")
        before[before.index(place)] = place.rename(aside)
    written.chmod(0o777 & ~_current_umask())
    try:
        written.rename(place)
    except OSError as error:
        if not place.is_dir():
            raise
        raise GpuledgerError(
            f"{place} exists and is no complete export ({error.strerror}): move it away, and repeat this "
            "command"
        ) from None
    for number, folder in enumerate(before):
        folder.rename(written.parent / f"{_REPLACED}{number}")
    return place


def _current_umask() -> int:
    mask = umask(0o077)
    umask(mask)
    return mask


def add_export(written: Path, manifest: Manifest, into: Path) -> tuple[Path, bool]:
    """Put a new export in place; return its directory, and False if an equal one was there already.

    Raises GpuledgerError if an export of this time is there and differs, and OSError.
    """
    rivals = [
        one
        for file in find_folders(into, may_be_empty=True)[0]
        if (one := Export(file.parent, read_manifest(file))).manifest.overlaps(manifest)
    ]
    replaced = []
    for one in without_repetitions(rivals):
        if one.manifest.content == manifest.content or replaces(one.manifest, manifest):
            return one.folder, False
        if not replaces(manifest, one.manifest):
            raise _refused(manifest, one)
        replaced.append(one)
    return put_in_place(written, manifest, into, rivals if replaced else []), True


def merge_exports(folders: Sequence[Path], into: Path) -> tuple[list[Path], list[Export]]:
    """Copy the exports of all directories to `into`; return the new directories, and all exports there.

    Raises GpuledgerError before anything is written if two exports contradict each other, or a file cannot
    be written.
    """
    is_used = into.is_dir() and any(find_folders(into, may_be_empty=True))
    present = find_exports([into]) if is_used else []
    kept = without_repetitions([*present, *find_exports(folders)])
    new = [one for one in kept if one not in present]
    replaced = [one for one in present if one not in kept]
    added = []
    if new:
        with work_folder(into) as work:
            for number, one in enumerate(new):
                written = work / str(number)
                copy_export(one, written)
                rivals = [other for other in replaced if other.manifest.overlaps(one.manifest)]
                added.append(put_in_place(written, one.manifest, into, rivals))
    return added, find_exports([into])


def copy_export(export: Export, written: Path) -> None:
    """Copy the files of an export, and no others beside them. Raises GpuledgerError and OSError."""
    written.mkdir()
    names = (MANIFEST_NAME, *(file_name(table, export.manifest.format) for table in export.manifest.tables))
    for name in names:
        shutil.copyfile(export.folder / name, written / name)
    verify_tables(written, export.manifest)

"""`gpuledger books`: check, back up, export and merge ledgers, and forget a person."""

from __future__ import annotations

import os
import socket
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuledger.app.flag_checks import choose_period
from gpuledger.app.flags import Action, build_parser, choose_action, parse_flags
from gpuledger.app.ledger_file import (
    current_time_of,
    is_simulated,
    ledger_file,
    node_of_ledger,
    open_history,
)
from gpuledger.config.books import BooksSettings
from gpuledger.config.commands import ALL_GROUPS, BOOKS_GROUPS
from gpuledger.config.load import load_values
from gpuledger.dialects.settings import DialectSettings
from gpuledger.host.settings import configured_time_zone
from gpuledger.ledger.books.backup import back_up_ledger
from gpuledger.ledger.books.consistency import check_ledger
from gpuledger.ledger.books.exported_history import Export
from gpuledger.ledger.books.exporting import ExportScope, export_ledger
from gpuledger.ledger.books.forgetting import forget_person
from gpuledger.ledger.books.library import (
    add_export,
    check_exports,
    describe_range,
    export_notes,
    merge_exports,
)
from gpuledger.ledger.books.table_files import require_format
from gpuledger.ledger.books.work_folder import abandoned_folders, is_write_error, work_folder
from gpuledger.ledger.report.moments import format_local_time
from gpuledger.ledger.report.ranges import parse_range
from gpuledger.ledger.store.read_only_file import open_read_only
from gpuledger.ledger.store.watched_range import resolve_watched_range
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.settings import build_settings

_ABOUT = """\
Keep the ledger of `gpuledger serve` for longer than its node.

  check [FILE|DIR]         check the ledger, a backup or exports: one line per problem, with its remedy
  backup FILE              write a verified copy, also while serve runs
  export DIR               write a month as Parquet or CSV, for warehouses and for `gpuledger report --books`
  merge DIR... --into DIR  collect the exports of many nodes and months in one directory
  forget --user NAME       replace a person by a pseudonym everywhere in the ledger; sums do not change
"""
_EXAMPLES = """\
examples:
  gpuledger books check
  gpuledger books backup /backup/gpuledger-$(date +%F).db
  gpuledger books export --in 'last month' /srv/ledgers
  gpuledger books export --in 2026-10 --format csv /srv/ledgers
  gpuledger books merge /mnt/node1 /mnt/node2 --into /srv/ledgers
  gpuledger report --books /srv/ledgers --in 2026-10 --by node,team
  systemctl stop gpuledger; gpuledger books forget --user ann; systemctl start gpuledger

docs/books.md describes the exported tables, how to restore a backup, and what forget cannot reach.
"""


def run(arguments: Sequence[str]) -> int:
    """Run the subcommand; return 1 if `check` finds a problem."""
    made = build_parser("books", _ABOUT, _EXAMPLES, BOOKS_GROUPS)
    made.usage = "gpuledger books check|backup|export|merge|forget [ARGUMENTS] [FLAGS]"
    given = parse_flags(made, BOOKS_GROUPS.values(), arguments, os.environ)
    name, action, words = choose_action("books", given.arguments, _ACTIONS)
    _require_flags(name, action, given.flags)
    groups = (*BOOKS_GROUPS.values(), DialectSettings)
    values = load_values(groups, given.flags, os.environ, given.config, ALL_GROUPS)
    settings = build_settings(BooksSettings, values)
    settings = replace(settings, period=choose_period(values, given.flags, "books"))
    try:
        return action.run(words, settings, values)
    except sqlite3.Error as error:
        if "disk I/O" in str(error) or is_write_error(error):
            raise GpuledgerError(
                f"the ledger cannot be opened ({error}), which also writes files beside it: check the space, "
                "the quota and the limit of file sizes there (`df`, `quota`, `ulimit -f`)"
            ) from None
        raise GpuledgerError(
            f"the ledger cannot be read ({error}): run `gpuledger books check`, or try again when no other "
            "program reads it"
        ) from None


def _require_flags(name: str, action: Action[BooksSettings], flags: Mapping[str, object]) -> None:
    for key in flags:
        if key.startswith("books.") and key not in action.keys:
            flag = "--" + key.removeprefix("books.")
            raise UsageError(f"books {name} has no {flag}; see gpuledger books --help")


def _check(words: Sequence[str], _: BooksSettings, values: Mapping[str, Any]) -> int:
    place = Path(words[0]) if words else ledger_file(values)
    if place.is_dir() and words:
        return _check_exports(place)
    _write_leftovers(place.parent)
    problems = 0
    for problem in check_ledger(place):
        problems += not problem.is_note
        sys.stdout.write(f"{'note' if problem.is_note else 'problem'}: {problem}\n")
    if not problems:
        sys.stdout.write(f"{place}: all accounts balance, and all rows are there\n")
    return int(problems > 0)


def _check_exports(folder: Path) -> int:
    exports, problems = check_exports(folder)
    for export in exports:
        sys.stdout.write(f"{export.folder}: undamaged, of {describe_range(export.manifest)}\n")
    for problem in problems:
        sys.stdout.write(f"problem: {problem}\n")
    _write_notes(exports)
    _write_leftovers(folder)
    return int(bool(problems))


def _write_leftovers(folder: Path) -> None:
    for left in filter(Path.exists, abandoned_folders(folder)):
        sys.stdout.write(
            f"note: {left} is of a command that was killed, and can have a copy of a ledger: remove it; the "
            "next export, merge or backup into that directory removes it, too\n"
        )


def _backup(words: Sequence[str], _: BooksSettings, values: Mapping[str, Any]) -> int:
    file, target = ledger_file(values), Path(words[0])
    written = back_up_ledger(file, target)
    until = format_local_time(written.last)
    sys.stdout.write(f"{target}: {written.bytes:,} bytes, verified; the last posting is of {until}\n")
    return 0


def _export(words: Sequence[str], settings: BooksSettings, values: Mapping[str, Any]) -> int:
    into = Path(words[0])
    require_format(settings.format)
    zone = configured_time_zone(values)
    with open_history(values) as history:
        period = settings.period or ("" if settings.since else "last month")
        requested = parse_range(settings.since, settings.until, period, current_time_of(history), zone)
        within = resolve_watched_range(history, requested)
        node = node_of_ledger(history, values)
        scope = ExportScope(node, socket.gethostname(), within, settings.format, is_simulated(history))
        with work_folder(into) as work:
            written = work / "export"
            written.mkdir()
            manifest = export_ledger(history, scope, written)
            place, is_new = add_export(written, manifest, into)
    for note in within.notes:
        sys.stderr.write(f"{note}\n")
    what = "written" if is_new else "was there already, with the same content"
    open_end = (
        "" if manifest.complete else "; the ledger ends in it, so that a later export replaces this one"
    )
    sys.stdout.write(f"{place}: {what}; {describe_range(manifest)}{open_end}\n")
    return 0


def _merge(words: Sequence[str], settings: BooksSettings, _: Mapping[str, Any]) -> int:
    if not settings.into:
        raise UsageError("books merge needs the directory that gets the exports, as in --into /srv/ledgers")
    added, exports = merge_exports([Path(word) for word in words], Path(settings.into))
    for place in added:
        sys.stdout.write(f"{place}: added\n")
    nodes = len({export.manifest.books for export in exports})
    sys.stdout.write(
        f"{settings.into}: {len(exports)} exports of {nodes} ledgers, {len(added)} of them new\n"
    )
    _write_notes(exports)
    return 0


def _write_notes(exports: Sequence[Export]) -> None:
    for note in export_notes(exports):
        sys.stderr.write(f"{note}\n")


_FORGOTTEN = """\
{file}: {name} is now {pseudonym} ({rows:,} values changed); no sum has changed.
Not reached: backups, exported ledgers, statements and reports that were written before, Prometheus, logs, and
freed blocks of the disk. Move exports of past months away, write them again, compare, and remove the old.
"""


def _forget(words: Sequence[str], settings: BooksSettings, values: Mapping[str, Any]) -> int:
    del words
    file = ledger_file(values)
    if not file.is_file():
        # Names the place, and what to do.
        open_read_only(file).close()
    done = forget_person(file, settings.user, settings.pseudonym)
    sys.stdout.write(
        _FORGOTTEN.format(file=file, name=settings.user, pseudonym=done.pseudonym, rows=done.rows)
    )
    for left in done.left:
        sys.stdout.write(f"{left} has these letters and may have the name: check it, and remove it\n")
    return 0


_RANGE = ("books.in", "books.since", "books.until")
_ACTIONS: dict[str, Action[BooksSettings]] = {
    "check": Action(_check, "at most one file or directory", 0, 1),
    "backup": Action(_backup, "the file to write", 1, 1),
    "export": Action(_export, "the directory to write into", 1, 1, (*_RANGE, "books.format")),
    "merge": Action(_merge, "the directories to merge", 1, 10_000, ("books.into",)),
    "forget": Action(_forget, "--user NAME and no argument", 0, 0, ("books.user", "books.as")),
}

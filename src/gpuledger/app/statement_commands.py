"""What `report --statement`, `report --verify` and `report --format html` do."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuledger.app.statement_books import MissingNode, NoBooks, open_books
from gpuledger.app.statement_verification import VerificationResult, verify_amounts, verify_file
from gpuledger.app.statements import (
    MadeReport,
    UnreadableStatement,
    check_chain,
    follow_statement,
    make_statement,
    read_statement,
    require_new_file,
    statement_text,
    write_new_file,
)
from gpuledger.config.report import ReportSettings, StatementSettings
from gpuledger.host.settings import TimeZoneSettings
from gpuledger.host.time_zone import find_time_zone
from gpuledger.ledger.report.settings import FOCUS_FORMATS, TeamSettings
from gpuledger.ledger.report.statement.content import (
    EXPORTS,
    LEDGER,
    PROMETHEUS,
    Statement,
    statement_as_json,
)
from gpuledger.ledger.report.statement.digests import HASH, seal_statement
from gpuledger.ledger.report.statement.page import statement_page
from gpuledger.ledger.report.statement.terms import StatementTerms
from gpuledger.ledger.store.history import Progress
from gpuledger.ledger.store.watched_range import NothingWatched
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.settings import build_settings
from gpuledger.model.text import escape_to_one_line

HTML, TABLE = "html", "table"
# Flags that name a file, and those of a report that a statement determines.
_FILES = ("statement", "verify", "after")
_OF_STATEMENT = ("in", "since", "until", "by", "every", "top", "account")
_EQUAL, _DIFFERENT = 0, 1
# By source of a statement: what it was made from, with what to compare it, and the flags that name this.
_SOURCES = {
    LEDGER: ("one ledger", "its ledger or --books DIR", ("books",)),
    EXPORTS: ("ledgers", "--books DIR or --fleet URL", ("books", "fleet")),
    PROMETHEUS: ("a Prometheus", "--prometheus URL", ("prometheus",)),
}


def check_statement_flags(
    options: StatementSettings, settings: ReportSettings, flags: Mapping[str, Sequence[str]]
) -> None:
    """Raise UsageError for flags that exclude or need each other, and for a file that exists.

    `flags` are the texts of the command line by setting.
    """
    for name in _FILES:
        if flags.get(f"report.{name}", ("",))[-1] == "-":
            raise UsageError(
                f"--{name} -: a statement is neither read from stdin nor written to stdout: name a file"
            )
    if options.verify:
        _check_verify_flags(settings, flags)
    if options.file and options.verify:
        raise UsageError("--statement and --verify exclude each other: write a statement, or verify one")
    if options.after and not (options.file or options.verify):
        raise UsageError("--after needs --statement or --verify: it names the statement before that one")
    if options.file and settings.format in FOCUS_FORMATS:
        raise UsageError(f"--statement has no --format {settings.format}: run the command once for each")
    if options.file:
        require_new_file(options.file)


def _check_verify_flags(settings: ReportSettings, flags: Mapping[str, Sequence[str]]) -> None:
    given = [f"--{name}" for name in _OF_STATEMENT if f"report.{name}" in flags]
    if given:
        raise UsageError(
            f"--verify takes the range, the keys and all rows of the statement: omit {' and '.join(given)}"
        )
    if "report.format" in flags and settings.format not in (TABLE, HTML):
        raise UsageError(
            f"--verify has no --format {settings.format}: omit it, or print the page of the statement with "
            "--format html"
        )


def write_statement(
    made: MadeReport, settings: ReportSettings, options: StatementSettings, values: Mapping[str, Any]
) -> str:
    """Write the statement of a report if a file is given; return the page, if that is the format."""
    teams = build_settings(TeamSettings, values).teams
    statement, notes = make_statement(made, settings.by, settings.every, teams), list[str]()
    if options.after:
        statement, notes = follow_statement(statement, options.after)
    sha256 = _hash_of(statement)
    if options.file:
        write_new_file(options.file, statement_text(statement))
        sys.stderr.write(_printed((*notes, f"{options.file}: written, SHA-256 {sha256}")))
    if settings.format == HTML:
        return statement_page(statement, sha256, Path(options.file).name if options.file else "")
    return ""


def _hash_of(statement: Statement) -> str:
    return str(seal_statement(statement_as_json(statement))[HASH])


def verify_statement(
    options: StatementSettings,
    settings: ReportSettings,
    values: Mapping[str, Any],
    flags: Collection[str],
    progress: AbstractContextManager[Progress],
) -> int:
    """Verify a statement: its file, its chain, and its amounts. Prints the result; returns the exit status.

    `flags` are the settings of the command line. Raises UnreadableStatement for a file that is no statement.
    """
    found = read_statement(options.verify)
    if found.statement is not None:
        _require_its_source(found.statement, flags)
    problems, seams = check_chain(found, options.after) if options.after else ([], [])
    results = [verify_file(found, options.verify, problems, seams)]
    is_page = settings.format == HTML
    out = sys.stderr if is_page else sys.stdout
    out.write(_printed(results[0].lines))
    if found.statement is not None and not found.problems:
        if is_page:
            sys.stdout.write(statement_page(found.statement, found.sha256, Path(options.verify).name))
        with progress as shown:
            results.append(_compare(found.statement, values, shown))
        out.write(_printed(results[1].lines))
    return _EQUAL if all(result.is_equal for result in results) else _DIFFERENT


def _require_its_source(statement: Statement, flags: Collection[str]) -> None:
    """Raise UnreadableStatement for a flag that names another kind of source."""
    made, right, fitting = _SOURCES[statement.source]
    for other, key in {"books": "report.books", "fleet": "top.fleet", "prometheus": "prometheus.url"}.items():
        if key in flags and other not in fitting:
            raise UnreadableStatement(
                f"the statement cannot be compared with --{other}, because it was made from {made}: "
                f"use {right}"
            )


def _printed(lines: Sequence[str]) -> str:
    """Lines for a terminal: names in a file are untrusted."""
    return "".join(f"{escape_to_one_line(line)}\n" for line in lines)


def _compare(statement: Statement, values: Mapping[str, Any], progress: Progress) -> VerificationResult:
    try:
        with open_books(statement, values, progress) as books:
            return verify_amounts(statement, books, _present_terms(statement.terms, values))
    except NoBooks as error:
        return VerificationResult([f"not compared, only the file was verified: {error}"], is_equal=True)
    except (NothingWatched, MissingNode) as error:
        return VerificationResult([f"DIFFERS: {error}"], is_equal=False)
    except GpuledgerError as error:
        raise UnreadableStatement(f"the statement cannot be compared: {error}") from None


def _present_terms(terms: StatementTerms, values: Mapping[str, Any]) -> StatementTerms | None:
    """The terms by the settings that are set today; None if they are those of the statement."""
    teams = build_settings(TeamSettings, values).teams
    timezone = build_settings(TimeZoneSettings, values).timezone
    present = replace(
        terms,
        prices=terms.prices.changed_by(values),
        teams=teams or terms.teams,
        zone=find_time_zone(timezone) if timezone else terms.zone,
    )
    return None if _meaning(present) == _meaning(terms) else present


def _meaning(terms: StatementTerms) -> Sequence[object]:
    prices = terms.prices
    return terms.fingerprint, prices.basis, prices.idle, terms.teams, terms.zone_name

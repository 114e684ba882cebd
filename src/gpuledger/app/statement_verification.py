"""Verifies a statement: the file, the chain, and the amounts that its ledger gives today.

`app.statement_books` opens the ledgers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gpuledger.app.statements import StatementFile
from gpuledger.ledger.report.moments import format_local_time
from gpuledger.ledger.report.statement.changes import (
    FOLDED,
    Comparison,
    Reason,
    change_text,
    compare_between,
    compare_reports,
    compare_terms,
    money_text,
)
from gpuledger.ledger.report.statement.content import Statement
from gpuledger.ledger.report.statement.terms import StatementTerms
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.ledger.watched_time import MICRO
from gpuledger.model.text import escape_to_one_line

# Rows that are listed.
_LISTED = 40

Range = tuple[float, float]


class Surroundings(NamedTuple):
    """The next shorter and longer range at which a ledger can be cut, in unix seconds, and why it is needed.

    `inner` is None if nothing is shorter.
    """

    inner: Range | None
    outer: Range
    reason: Reason


class StatementBooks(Protocol):
    """What a statement was made of, as it is today. `name` is for messages."""

    name: str

    @property
    def gpus(self) -> Collection[str] | None:
        """The uuids of all Gpus that it knows; None if that is not known."""

    def report(self, terms: StatementTerms, within: Range) -> UsageReport:
        """The report of a range. Raises GpuledgerError."""

    def surroundings(self, statement: Statement) -> Surroundings | None:
        """The ranges around that of a statement; None if it can be cut there."""


def range_of(statement: Statement) -> Range:
    """The range of a statement, in unix seconds."""
    return statement.since / MICRO, statement.until / MICRO


def compare_with_books(statement: Statement, books: StatementBooks, now: UsageReport) -> Comparison:
    """Compare a statement with what its books give today by its own terms: `now`."""
    found = compare_reports(statement, now)
    around = books.surroundings(statement)
    # The same amounts can be those of another range if it cannot be cut there any more.
    if around is None or not (found.reasons or around.reason.kind == FOLDED):
        return found
    reports = [None if one is None else books.report(statement.terms, one) for one in around[:2]]
    inner, outer = reports
    assert outer is not None
    return compare_between(statement, inner, outer, around.reason)


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """The result of a verification: lines for people, and whether everything is equal."""

    lines: Sequence[str]
    is_equal: bool


def verify_file(
    found: StatementFile, file: str, chain: Sequence[str], seams: Sequence[str]
) -> VerificationResult:
    """The result for the file alone. `chain` are problems of the link to the previous statement."""
    lines = [] if found.statement is None else [f"{file}: {_heading(found.statement)}"]
    if found.problems:
        lines += [f"ALTERED: {problem}" for problem in found.problems]
    else:
        lines.append(f"intact: SHA-256 {found.sha256}")
    lines += [f"CHAIN: {problem}" for problem in chain] + list(seams)
    previous = None if found.statement is None else found.statement.previous
    if previous is not None and not chain:
        lines.append(f"follows the statement with SHA-256 {previous.sha256}")
    # Names of an altered statement can have terminal codes.
    return VerificationResult(list(map(escape_to_one_line, lines)), not found.problems and not chain)


def _heading(statement: Statement) -> str:
    zone = statement.terms.zone
    begins, ends = (format_local_time(at / MICRO, zone) for at in (statement.since, statement.until))
    nodes = ", ".join(sorted(set(filter(None, statement.nodes.values())))) or "no node"
    cost, currency = statement.report.total.cost, statement.terms.prices.currency
    money = "" if cost is None else f", total {money_text(cost)} {currency}".rstrip()
    return f"{begins} to {ends}, {nodes}, by {statement.terms.by}{money}"


def verify_amounts(
    statement: Statement, books: StatementBooks, present: StatementTerms | None
) -> VerificationResult:
    """The result for the amounts. `present` are the terms of today; None if those of the statement apply."""
    known = books.gpus
    gpus = {gpu.uuid for gpu in statement.report.gpus}
    if known is not None and gpus and not gpus & set(known):
        return VerificationResult(
            [
                "not compared, only the file was verified: the statement's GPUs are not in "
                f"{books.name}, which is of another machine"
            ],
            is_equal=True,
        )
    now = books.report(statement.terms, range_of(statement))
    comparisons = [compare_with_books(statement, books, now)]
    same, differs = (f"{which} amounts follow from {books.name}" for which in ("the same", "other"))
    lines = list(_lines(same, differs, comparisons[0]))
    if present is not None:
        by_present = books.report(present, range_of(statement))
        comparisons.append(compare_terms(statement.terms, present, now, by_present))
        same, differs = (
            f"the present settings are not those of the statement, and give {which} amounts"
            for which in ("the same", "other")
        )
        lines += _lines(same, differs, comparisons[1])
    is_equal = not any(one.reasons or one.rows for one in comparisons)
    return VerificationResult(list(map(escape_to_one_line, lines)), is_equal)


def _lines(same: str, differs: str, found: Comparison) -> Iterator[str]:
    if not found.reasons and not found.rows:
        yield f"equal: {same}"
        return
    yield f"DIFFERS: {differs}"
    for reason in found.reasons:
        yield f"  {reason.kind}: {reason.text}"
    for change in found.rows[:_LISTED]:
        yield f"    {change_text(change)}"
    if len(found.rows) > _LISTED:
        yield f"    and {len(found.rows) - _LISTED} more rows"

"""What differs between a statement and a report of the same range is found, and has its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from gpuledger.ledger.report.statement.changes import compare_reports
from gpuledger.ledger.report.statement.parsed import parse_statement
from gpuledger.ledger.report.usage_report import GpuLine, UnbilledTime, UsageReport
from money_helpers import HOUR
from statement_helpers import PRICED, entries, statement_of, written

REPORT = entries().report(PRICED)
THEN = parse_statement(written(statement_of(REPORT)))


def with_gpu(report: UsageReport, change: Callable[[GpuLine], GpuLine]) -> UsageReport:
    first, *others = report.gpus
    return replace(report, gpus=[change(first), *others])


def with_more_unbilled(report: UsageReport, account: str) -> UsageReport:
    def longer(one: UnbilledTime) -> UnbilledTime:
        return one._replace(microseconds=one.microseconds + HOUR) if one.account == account else one

    return replace(report, unbilled=list(map(longer, report.unbilled)))


def test_equal_reports_have_no_reason() -> None:
    found = compare_reports(THEN, REPORT)
    assert (found.reasons, found.rows) == ((), ())


@pytest.mark.parametrize("account", ["down", "unobserved", "unwatched"])
def test_time_that_is_not_billed_is_compared(account: str) -> None:
    found = compare_reports(THEN, with_more_unbilled(REPORT, account))
    assert [change.name.account for change in found.rows] == [f"not billed: {account}"]
    assert [reason.kind for reason in found.reasons] == ["other amounts"]


def test_a_gpu_that_was_seen_again_was_not_watched_for_longer() -> None:
    now = with_gpu(
        with_more_unbilled(REPORT, "unwatched"), lambda gpu: replace(gpu, unwatched=gpu.unwatched + HOUR)
    )
    (reason,) = compare_reports(THEN, now).reasons
    assert reason.kind == "GPU that was seen again"
    assert "1 hours not watched in place of 0" in reason.text


def test_what_no_row_has_is_compared() -> None:
    for now, text in (
        (with_gpu(REPORT, lambda gpu: replace(gpu, observed=Fraction(7))), "its energy was observed"),
        (replace(REPORT, occupied=Fraction(7200)), "GPUs with an owner for 2 hours in place of "),
        (replace(REPORT, total=replace(REPORT.total, high=7)), "no change of the ledger explains it"),
    ):
        (reason,) = compare_reports(THEN, now).reasons
        assert text in reason.text


def test_a_row_that_only_has_charges_is_a_row() -> None:
    first = REPORT.lines[0]
    empty = replace(
        first,
        key=("pod", "ml", "ghost"),
        gpu_microseconds=0,
        methods={},
        resident=None,
        held=None,
        allocated=None,
    )
    found = compare_reports(THEN, replace(REPORT, lines=[*REPORT.lines, empty]))
    assert [change.name.key[-1] for change in found.rows] == ["ghost"]

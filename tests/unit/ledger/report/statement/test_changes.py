"""What differs between a statement and a report of the same range is found, and has its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from gpuledger.ledger.report.charges import Rate
from gpuledger.ledger.report.ranges import ReportPart
from gpuledger.ledger.report.statement.changes import (
    FOLDED,
    RESTORED,
    Reason,
    RowChange,
    RowName,
    change_text,
    compare_between,
    compare_reports,
    compare_terms,
)
from gpuledger.ledger.report.statement.parsed import parse_statement
from gpuledger.ledger.report.usage_report import GpuLine, ReportLine, UnbilledTime, UsageReport
from gpuledger.ledger.watched_time import QUARTER
from money_helpers import H100, HOUR, KWH_MJ, prices
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


def test_energy_that_is_power_summed_over_time_is_no_difference() -> None:
    """A statement does not have it: its rows would differ on each machine without energy counters."""
    lines = [replace(line, integrated=line.millijoules) for line in REPORT.lines]
    assert any(line.integrated for line in lines)
    total = replace(REPORT.total, integrated=sum(line.integrated for line in lines))
    gpus = [replace(gpu, integrated=gpu.millijoules) for gpu in REPORT.gpus]
    now = replace(REPORT, lines=lines, total=total, gpus=gpus)
    then = parse_statement(written(statement_of(now)))
    assert compare_reports(then, now) == compare_reports(THEN, REPORT)


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


def a_row(**amounts: object) -> ReportLine:
    """An hour and half a kilowatt-hour of a pod, at 2 an hour."""
    known = {
        "gpu_microseconds": HOUR,
        "methods": {"activity": KWH_MJ // 2},
        "time_charges": {Rate("GPU-0", "", Fraction(2)): HOUR},
    }
    return ReportLine(("pod", "ml", "train"), **{**known, **amounts})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("then", "now", "text"),
    [
        (None, a_row(), "new: 1 GPU-hours, 0.5 kWh, cost 2.0000000000"),
        (a_row(time_charges=None), None, "gone: 1 GPU-hours, 0.5 kWh, cost -"),
        (
            a_row(),
            a_row(gpu_microseconds=2 * HOUR, methods={}, time_charges=None),
            "GPU-hours 1 -> 2, kWh 0.5 -> 0, cost 2.0000000000 -> -",
        ),
        (a_row(), a_row(resident=Fraction(7), sessions=2), "resident, sessions"),
        (a_row(), a_row(resident=Fraction(7), methods={"activity": KWH_MJ}), "kWh 0.5 -> 1"),
    ],
)
def test_a_changed_row_is_one_line_with_its_amounts(
    then: ReportLine | None, now: ReportLine | None, text: str
) -> None:
    name = RowName("2026-11", "process", ("pod", "ml", "train"))
    assert change_text(RowChange(name, then, now)) == f"2026-11 pod/ml/train: {text}"


def test_a_row_that_is_not_between_both_ranges_is_shown_with_the_longer_one() -> None:
    first, *others = REPORT.lines
    longer = replace(REPORT, lines=[replace(first, gpu_microseconds=1), *others])
    found = compare_between(THEN, None, longer, Reason(FOLDED, "cut"))
    assert [(one.then, one.now) for one in found.rows] == [(first, longer.lines[0])]
    assert found.reasons[0].text.startswith("cut; 1 of ")


@pytest.mark.parametrize(("later", "is_lost"), [(0, False), (1, True)])
def test_the_end_of_a_shorter_ledger_is_no_lost_cut(later: int, is_lost: bool) -> None:
    parts = [ReportPart(4, 6, "first"), ReportPart(6, 8, "second")]
    longer = entries()
    longer.time(6, H100, "idle", HOUR // 4)
    then = parse_statement(written(statement_of(longer.report(PRICED, parts=parts))))
    now = entries().report(PRICED, parts=parts[:1])
    now = replace(now, period=replace(now.period, last=6 * QUARTER + later))
    kinds = {reason.kind for reason in compare_reports(then, now).reasons}
    assert kinds == ({RESTORED, FOLDED} if is_lost else {RESTORED})


def test_idle_time_that_is_spread_is_no_other_price_list() -> None:
    row, spread = (prices(gpu_hour="2.4", kwh="0.32", idle=idle) for idle in ("row", "spread"))
    reports = [entries().report(one) for one in (row, spread)]
    then, present = (statement_of(one).terms for one in reports)
    found = compare_terms(then, present, *reports)
    assert [one.text for one in found.reasons] == ["price.idle is spread, and row in the statement"]
    assert found.rows


def test_other_prices_are_listed_after_the_fingerprints() -> None:
    other = prices(gpu_hour="3", kwh="0.32", pue="1.3", co2="380")
    terms = statement_of(entries().report(other)).terms
    (reason,) = compare_terms(THEN.terms, terms, REPORT, entries().report(other)).reasons
    assert reason.text.startswith(
        f"the price list {THEN.terms.fingerprint} of the statement is now {terms.fingerprint}: without "
        "price.gpu_hour entry 1: 2.40 EUR per GPU-hour (gpu *H100*), price.gpu_hour entry 2: 1.13 EUR per "
        "GPU-hour, with price.gpu_hour: 3 EUR per GPU-hour; by it the total is "
    )

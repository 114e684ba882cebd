"""What contradicts another part of a statement is named, even if all digests were computed again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from gpuledger.ledger.report.charges import Rate
from gpuledger.ledger.report.gpu_time import GpuPart, GpuTime
from gpuledger.ledger.report.statement.content import PROMETHEUS, Statement
from gpuledger.ledger.report.statement.laws import find_contradictions
from gpuledger.ledger.report.statement.parsed import parse_statement
from gpuledger.ledger.report.teams import parse_teams
from gpuledger.ledger.report.usage_report import sum_lines
from money_helpers import A100, H100, HOUR, Entries, pod, prices
from statement_helpers import PRICED, changed, entries, statement_of, written
from unit.ledger.report.fleet.support import one_day

PRICED_STATEMENT = statement_of(
    entries().report(PRICED),
    parse_teams([{"team": "vision", "namespace": ["ml*", "img"]}, {"team": "web", "label:a": "b"}]),
)
NEGATIVE = "is negative"


def contradictions(content: Mapping[str, Any]) -> dict[str, str]:
    return find_contradictions(content, parse_statement(content))


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (("rows", 0, "cost"), "1.0000000000", "rows[0].cost"),
        (("rows", 0, "exact_time_cost"), "7/5", "rows[0].exact_time_cost"),
        (("rows", 0, "gpu_microseconds"), HOUR, "rows[0].time_charges"),
        (("rows", 0, "time_charges", 0, "microseconds"), HOUR, "rows[0].time_charges"),
        (("rows", 0, "time_charges", 0, "price"), "9", "rows[0].exact_time_cost"),
        (("rows", 0, "millijoules_by_method", "activity"), 7, "rows[0].energy_charges"),
        (("total", "gpu_microseconds"), HOUR, "total.gpu_microseconds"),
        (("total", "cost"), "1.0000000000", "total.cost"),
        (("reconciliation", "whole_microseconds"), 1, "reconciliation.whole_microseconds"),
        (("gpus", 0, "microseconds_by_account", "owner"), 1, "gpus.microseconds_by_account"),
        (("gpus", 0, "millijoules"), 1, "gpus.millijoules"),
        (("settings", "price.kwh"), "0.33", "price_list"),
        (("price_list",), "000000000000", "price_list"),
        (("not_billed", 1, "cost"), "9.0000000000", "not_billed[1].cost"),
        (("nodes",), ["elsewhere"], "nodes[0]"),
    ],
)
def test_an_amount_that_does_not_follow_from_the_others_is_named(
    path: tuple[str | int, ...], value: Any, place: str
) -> None:
    altered = changed(written(PRICED_STATEMENT), path, lambda _: value)
    assert place in find_contradictions(altered, parse_statement(altered))


@pytest.mark.parametrize(
    ("path", "value", "place", "text"),
    [
        (("rows", 0, "period"), 99, "rows[0].period", "is the number of no period"),
        (("rows", 0, "period"), -1, "rows[0].period", "is the number of no period"),
        (("not_billed", 0, "period"), 1, "not_billed[0].period", "is the number of no period"),
        (("periods",), [], "rows[0].period", "the statement has 0"),
        (("rows", 0, "gpu_microseconds"), -1, "rows[0].gpu_microseconds", NEGATIVE),
        (("rows", 0, "millijoules_by_method", "activity"), -1, "rows[0].millijoules", NEGATIVE),
        (("rows", 0, "time_charges", 0, "microseconds"), -1, "rows[0].time_charges", NEGATIVE),
        (("rows", 0, "energy_charges", 0, "millijoules"), -1, "rows[0].energy_charges", NEGATIVE),
        (("rows", 0, "resident_seconds"), "-1", "rows[0].resident_seconds", NEGATIVE),
        (("not_billed", 1, "gpu_microseconds"), -1, "not_billed[1].gpu_microseconds", NEGATIVE),
        (("gpus", 0, "microseconds_by_account", "owner"), -1, "gpus[0]", NEGATIVE),
        (("gpus", 1, "uuid"), H100.uuid, "gpus", f"has {H100.uuid} 2 times"),
        (("by",), "weather", "by", "cannot be reported by"),
        (("by",), "namespace", "columns", "are not those of by: namespace"),
        (("columns",), [], "columns", "are not those of by: owner"),
    ],
)
def test_what_no_report_has_is_named(path: tuple[str | int, ...], value: Any, place: str, text: str) -> None:
    assert text in contradictions(changed(written(PRICED_STATEMENT), path, lambda _: value))[place]


def test_two_rows_of_one_name_are_named() -> None:
    content = written(PRICED_STATEMENT)
    for section in ("rows", "not_billed"):
        found = contradictions({**content, section: [content[section][0], *content[section]]})
        assert found == dict.fromkeys(
            (f"{section}[0].name", f"{section}[1].name"), "is also the name of another row"
        )


def test_time_that_is_not_billed_is_that_of_the_gpus() -> None:
    report = PRICED_STATEMENT.report
    for account in ("unobserved", "down", "unwatched"):
        unbilled = [
            one._replace(
                microseconds=one.microseconds + HOUR,
                charges={**(one.charges or {}), Rate(H100.uuid, "gpu=*H100*", Fraction(12, 5)): HOUR},
            )
            if one.account == account
            else one
            for one in report.unbilled
        ]
        found = contradictions(written(replace(PRICED_STATEMENT, report=replace(report, unbilled=unbilled))))
        assert list(found) == [f"reconciliation.{account}_microseconds"]


def by_rate(statement: Statement, rate: Mapping[str, Any], charges: str) -> dict[str, Any]:
    """The statement with another rate of the first row; all that follows from it is computed again."""
    report = statement.report
    first, *others = report.lines
    forged = {one._replace(**rate): amount for one, amount in getattr(first, charges).items()}
    lines = [replace(first, **{charges: forged}), *others]
    total = replace(sum_lines((*lines, *report.gpu_accounts), ("total",)), period=0, high=report.total.high)
    return written(replace(statement, report=replace(report, lines=lines, total=total)))


@pytest.mark.parametrize(
    ("charges", "rate"),
    [
        ("time_charges", {"price": Fraction(3)}),
        ("time_charges", {"price": Fraction(113, 100)}),
        ("time_charges", {"price": Fraction(0)}),
        ("time_charges", {"price": None}),
        ("time_charges", {"price": None, "entry": ""}),
        ("time_charges", {"entry": "gpu=*B200*"}),
        ("time_charges", {"entry": ""}),
        ("time_charges", {"pue": Fraction(2)}),
        ("energy_charges", {"price": Fraction(3)}),
        ("energy_charges", {"price": Fraction(32, 100)}),
        ("energy_charges", {"pue": Fraction(1), "price": Fraction(32, 100)}),
        ("energy_charges", {"pue": Fraction(2), "price": Fraction(64, 100)}),
        ("energy_charges", {"price": None, "entry": ""}),
        ("energy_charges", {"entry": "node=a"}),
    ],
)
def test_a_price_that_is_not_in_the_price_list_is_named(charges: str, rate: Mapping[str, Any]) -> None:
    found = contradictions(by_rate(PRICED_STATEMENT, rate, charges))
    assert found == {f"rows[0].{charges}": "has a price that is not in the price list of the statement"}


def test_a_price_of_what_is_not_billed_is_in_the_price_list() -> None:
    content = written(PRICED_STATEMENT)
    place = next(number for number, one in enumerate(content["not_billed"]) if one["time_charges"])
    forged = changed(content, ("not_billed", place, "time_charges", 0, "price"), lambda _: "9")
    assert "price list" in contradictions(forged)[f"not_billed[{place}].time_charges"]


def test_scraped_energy_is_charged_too() -> None:
    content = written(statement_of(one_day().report(prices=PRICED), source=PROMETHEUS))
    path = ("rows", 0, "energy_charges", 0, "millijoules")
    assert "rows[0].energy_charges" in contradictions(changed(content, path, lambda amount: amount + 1))


def test_an_entry_of_another_time_gives_no_price() -> None:
    dated = prices(gpu_hour=[{"until": "1970-01-02", "price": "2"}, {"from": "1970-01-02", "price": "3"}])
    statement = statement_of(entries().report(dated))
    assert contradictions(written(statement)) == {}
    later = {"entry": "from=1970-01-02", "price": Fraction(3)}
    assert list(contradictions(by_rate(statement, later, "time_charges"))) == ["rows[0].time_charges"]


def statement_of_an_instance(price: str) -> Statement:
    """A seventh of a GPU with a price per instance."""
    of_instances = prices(gpu_hour=[{"mig": "1g*", "per": "instance", "price": price}, {"price": "2"}])
    found = Entries((H100, A100))
    part = GpuPart(H100.uuid, H100.name, "1_0", "1g.10gb", Fraction(1, 7))
    found.times.append((4, GpuTime(part, "owner", pod("train-0"), False, HOUR // 7, HOUR // 7)))
    return statement_of(found.report(of_instances))


@pytest.mark.parametrize(
    ("price", "whole", "other"),
    [("0.4", Fraction(14, 5), Fraction(1, 10)), ("0", Fraction(0), Fraction(1, 10))],
    ids=["a lower price", "a price in place of none"],
)
def test_the_price_of_an_instance_is_that_of_a_whole_gpu_or_more(
    price: str, whole: Fraction, other: Fraction
) -> None:
    statement = statement_of_an_instance(price)
    assert {rate.price for rate in statement.report.lines[0].time_charges or ()} == {whole}
    assert contradictions(written(statement)) == {}
    forged = by_rate(statement, {"price": other}, "time_charges")
    assert list(contradictions(forged)) == ["rows[0].time_charges"]

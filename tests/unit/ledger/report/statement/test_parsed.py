"""A statement is read as it was written, and amounts that do not follow from others are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gpuledger.ledger.report.ranges import ReportPart
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.statement.content import PROMETHEUS, Statement, statement_as_json
from gpuledger.ledger.report.statement.digests import seal_statement
from gpuledger.ledger.report.statement.laws import find_contradictions
from gpuledger.ledger.report.statement.parsed import MalformedStatement, parse_statement
from gpuledger.ledger.report.teams import parse_teams
from money_helpers import H100_TOO, HOUR, pod, prices
from statement_helpers import PRICED, changed, entries, statement_of, written
from unit.ledger.report.fleet.support import one_day

SCHEMA = Draft202012Validator(
    json.loads((Path(__file__).parents[5] / "docs/statement.schema.json").read_text())
)
SPREAD = prices(gpu_hour="2.4", kwh="0.3", idle="spread")
TEAMS = parse_teams([{"team": "vision", "namespace": ["ml*", "img"]}, {"team": "web", "label:a": "b"}])
HOURS = [ReportPart(4, 8, "1970-01-01 01:00 +0000"), ReportPart(8, 12, "1970-01-01 02:00 +0000")]
# What each statement is of.
STATEMENTS = {
    "priced": statement_of(entries().report(PRICED), TEAMS),
    "without prices": statement_of(entries().report(Prices())),
    "unpriced GPUs": statement_of(entries().report(prices(gpu_hour=[{"gpu": "*A100*", "price": "3"}]))),
    "spread": statement_of(entries().report(SPREAD, "namespace,gpu")),
    "periods": statement_of(entries().report(PRICED, "user,model", HOURS)),
    "fleet": statement_of(one_day().report(prices=PRICED), source=PROMETHEUS),
}


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
def test_a_statement_is_read_as_it_was_written(statement: Statement) -> None:
    content = written(statement)
    SCHEMA.validate(content)
    again = parse_statement(content)
    assert find_contradictions(content, again) == {}
    assert seal_statement(statement_as_json(again)) == content
    then, now = statement.report, again.report
    assert (list(now.lines), list(now.gpu_accounts), now.gpus) == (
        list(then.lines),
        list(then.gpu_accounts),
        list(then.gpus),
    )
    assert (now.total.cost, now.total.period, now.period, now.periods) == (
        then.total.cost,
        then.total.period,
        then.period,
        then.periods,
    )
    facts = [
        (one.terms.prices, one.terms.teams, one.terms.zone_name, one.requested) for one in (again, statement)
    ]
    assert facts[0] == facts[1]


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("rows", 0, "gpu_microseconds"), "7", "rows[0].gpu_microseconds is not an integer"),
        (("rows", 0, "gpu_microseconds"), True, "rows[0].gpu_microseconds is not an integer"),
        (("rows", 0, "resident_seconds"), "1/0", "rows[0].resident_seconds is not an exact amount"),
        (("rows", 0, "resident_seconds"), "1e9", "rows[0].resident_seconds is not an exact amount"),
        (("rows", 0, "name"), {}, "rows[0].name has no kind"),
        (("rows",), {}, "rows is not a list"),
        (("range",), [], "range is not an object"),
        (("rows", 0, "gpu_microseconds"), 10**30, "rows[0].gpu_microseconds is not a plausible number"),
        (
            ("rows", 0, "resident_seconds"),
            "1" + "0" * 30,
            "rows[0].resident_seconds is not a plausible number",
        ),
        (("rows", 0, "resident_seconds"), "1" * 500, "rows[0].resident_seconds is not an exact amount"),
        (("range", "since"), "2026-13-01T00:00:00Z", "range.since is not a time"),
        (("range", "cut"), "9999-12-31T23:59:59Z", "range.cut is not a plausible time"),
        (("created",), "0001-01-01T00:00:00Z", "created is not a plausible time"),
        (("range", "since"), "2026-10-01T00:00:00", "range.since is not a time"),
        (("zone",), "Mars/Olympus", "its terms cannot be read"),
        (("settings", "price.gpu_hour"), "cheap", "its terms cannot be read"),
        (("settings",), {"price.unknown": "1"}, "its terms cannot be read: unknown setting price.unknown"),
        (("teams",), [{"team": "a"}], "its terms cannot be read"),
    ],
)
def test_what_cannot_be_read_is_named(path: tuple[str | int, ...], value: Any, text: str) -> None:
    altered = changed(written(STATEMENTS["priced"]), path, lambda _: value)
    with pytest.raises(MalformedStatement) as error:
        parse_statement(altered)
    assert text in str(error.value)


def test_any_name_is_kept() -> None:
    found, hostile = entries(), 'a"\u2028</td><b>\udcff\x1b[31m\n'
    found.time(4, H100_TOO, pod(hostile), HOUR)
    statement = statement_of(found.report(PRICED, "pod"))
    again = parse_statement(written(statement))
    assert hostile in {line.key[1] for line in again.report.lines}

"""Statements of entries in memory, and altered copies of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any

from gpuledger.app.statements import MadeReport, make_statement, statement_text
from gpuledger.ledger.report.ranges import RequestedRange
from gpuledger.ledger.report.statement.content import LEDGER, Statement
from gpuledger.ledger.report.teams import Team
from gpuledger.ledger.report.usage_report import UsageReport
from money_helpers import A100, H100, HOUR, KWH_MJ, Entries, pod, prices

Path = tuple[str | int, ...]
PRICED = prices(
    gpu_hour=[{"gpu": "*H100*", "price": "2.40"}, {"price": "1.13"}], kwh="0.32", pue="1.3", co2="380"
)


def entries(quarter: int = 4) -> Entries:
    """Two pods and idle GPUs, for an hour from a quarter on."""
    found = Entries((H100, A100))
    train, chat = pod("train-0"), pod("chat-0", "web", A100)
    found.time(quarter, H100, train, HOUR // 3)
    found.time(quarter, H100, "idle", HOUR - HOUR // 3)
    found.time(quarter, A100, chat, HOUR // 7)
    found.time(quarter, A100, "down", HOUR // 9)
    found.joules(quarter, H100, {train: KWH_MJ // 7}, idle=12345)
    found.joules(quarter, A100, {chat: KWH_MJ // 11})
    return found


def statement_of(report: UsageReport, teams: Sequence[Team] = (), source: str = LEDGER) -> Statement:
    """The statement of a report, as `report --statement` makes it."""
    period = report.period
    requested = RequestedRange(period.since, period.until, "--in 1970", "--in 1970")
    return make_statement(
        MadeReport(report, requested, source, "gpuledger.db"), report.grouping.name, "", teams
    )


def written(statement: Statement) -> dict[str, Any]:
    """The JSON of a statement."""
    content: dict[str, Any] = json.loads(statement_text(statement))
    return content


def paths_of(value: object, place: Path = ()) -> Iterator[Path]:
    """The paths of all texts and numbers."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from paths_of(part, (*place, name))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from paths_of(part, (*place, number))
    elif isinstance(value, str | int) and not isinstance(value, bool):
        yield place


def changed(content: dict[str, Any], path: Path, change: Callable[[Any], Any]) -> dict[str, Any]:
    """A copy in which the value at a path is changed."""
    found = deepcopy(content)
    part: Any = found
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = change(part[path[-1]])
    return found


def other_digit(value: str | int) -> str | int:
    """The value with its last digit altered; a text without a digit gets one."""
    text = str(value)
    at = max((place for place, sign in enumerate(text) if sign.isdigit()), default=None)
    if at is None:
        return f"{text}1"
    altered = f"{text[:at]}{(int(text[at]) + 1) % 10}{text[at + 1 :]}"
    return altered if isinstance(value, str) else int(altered)

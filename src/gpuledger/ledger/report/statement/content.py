"""The content of a statement: a report with everything that explains it, as JSON. See docs/statements.md.

Amounts are integers, or fractions as text; nothing is a binary float. What follows from other amounts (costs,
sums) is written too, for readers, and computed again when a statement is verified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from gpuledger.ledger.report.charges import Charges, Rate, unpriced_amount
from gpuledger.ledger.report.money import FILE_DIGITS, round_decimal, split_known
from gpuledger.ledger.report.ranges import ReportPart
from gpuledger.ledger.report.statement.terms import StatementTerms, terms_as_json
from gpuledger.ledger.report.usage_report import (
    UNWATCHED,
    GpuLine,
    ReportLine,
    UnbilledTime,
    UsageReport,
)
from gpuledger.ledger.time.account import DOWN
from gpuledger.ledger.watched_time import MICRO, QUARTER
from gpuledger.model.session import UNOBSERVED

# The first key of a statement, and the version of its schema.
VERSION_KEY, VERSION = "statement_schema", 1
LEDGER, PROMETHEUS, EXPORTS = "ledger", "prometheus", "books"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RequestedPeriod(NamedTuple):
    """The range as it was requested: the flags, and its ends in unix microseconds; `until` None for now."""

    text: str
    since: int
    until: int | None


class PreviousStatement(NamedTuple):
    """The statement before this one: its hash, and the range that it covers, in unix microseconds."""

    sha256: str
    since: int
    until: int


@dataclass(frozen=True, slots=True)
class Statement:
    """A report and what explains it.

    `source` says from what it was made: a ledger, a Prometheus or exported ledgers; `origin` names it.
    `nodes` are by Gpu uuid. `created` is in unix microseconds. `program` is the version that made it.
    """

    report: UsageReport
    terms: StatementTerms
    requested: RequestedPeriod
    source: str
    origin: str
    nodes: Mapping[str, str]
    program: str
    created: int
    previous: PreviousStatement | None = None

    @property
    def since(self) -> int:
        """The begin of the range that was used, in unix microseconds."""
        return self.report.period.since * MICRO

    @property
    def until(self) -> int:
        """The end of the range that was used, in unix microseconds: a cut, or the last posting."""
        return min(self.report.period.until * MICRO, self.last)

    @property
    def last(self) -> int:
        """The last posting of the ledger when the statement was made."""
        return round(self.report.period.last * MICRO)

    @property
    def lines(self) -> Sequence[ReportLine]:
        """All rows: those of owners, then the Gpus' own accounts."""
        return (*self.report.lines, *self.report.gpu_accounts)


def statement_as_json(statement: Statement) -> dict[str, Any]:
    """The content of a statement, without its digests."""
    report, requested, previous = statement.report, statement.requested, statement.previous
    lines = statement.lines
    money = _rounded_money(lines, report.total)
    return {
        VERSION_KEY: VERSION,
        "program": statement.program,
        "created": written_time(statement.created),
        "source": {"kind": statement.source, "name": statement.origin},
        "nodes": sorted(set(statement.nodes.values())),
        **terms_as_json(statement.terms),
        "range": {
            "requested": requested.text,
            "requested_since": written_time(requested.since),
            "requested_until": None if requested.until is None else written_time(requested.until),
            "since": written_time(report.period.since * MICRO),
            "until": written_time(statement.until),
            "cut": written_time(report.period.until * MICRO),
            "ledger_first": written_time(report.period.first * MICRO),
            "ledger_last": written_time(statement.last),
        },
        "periods": list(map(_period, report.periods)),
        "columns": list(report.grouping.columns),
        "rows": [
            {
                "period": line.period,
                **_name(report.grouping.columns, line.key),
                "account": line.account,
                **_amounts(line, decimals),
            }
            for line, decimals in zip(lines, money, strict=True)
        ],
        "total": _amounts(additive_total(report.total), _money(report.total)),
        "not_billed": [_unbilled(one, report.grouping.columns) for one in report.unbilled],
        "reconciliation": _reconciliation(report),
        "gpus": [_gpu(gpu, statement.nodes) for gpu in report.gpus],
        "occupied_seconds": _text(report.occupied),
        "notes": list(report.notes),
        "previous": None
        if previous is None
        else {
            "sha256": previous.sha256,
            "since": written_time(previous.since),
            "until": written_time(previous.until),
        },
    }


def written_time(microseconds: int) -> str:
    """A time as `2026-10-01T00:00:00Z`, with a fraction only if it has one."""
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat().replace("+00:00", "Z")


def parse_time(text: str) -> int:
    """The unix microseconds of a time. Raises ValueError."""
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)


def _period(part: ReportPart) -> dict[str, Any]:
    return {
        "name": part.name,
        "since": written_time(part.begins * QUARTER * MICRO),
        "until": written_time(part.ends * QUARTER * MICRO),
    }


def _name(columns: Sequence[str], key: Sequence[str]) -> dict[str, Any]:
    return {"name": dict(zip(columns, key, strict=True))}


_MONEY = ("time_cost", "energy_cost", "cost")


def _rounded_money(lines: Sequence[ReportLine], total: ReportLine) -> list[dict[str, Decimal | None]]:
    """The decimals of each row's costs: they sum to those of the total."""
    columns = {}
    for name in _MONEY:
        exact = [getattr(line, name) for line in lines]
        whole = getattr(total, name)
        columns[name] = split_known(round_decimal(whole or Fraction(0), FILE_DIGITS), exact, FILE_DIGITS)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def additive_total(total: ReportLine) -> ReportLine:
    """The total without what would count a second several times."""
    return replace(total, resident=None, held=None, allocated=None, active=None, unknown=None)


def _money(line: ReportLine) -> dict[str, Decimal | None]:
    exact = {name: getattr(line, name) for name in _MONEY}
    return {name: None if cost is None else round_decimal(cost, FILE_DIGITS) for name, cost in exact.items()}


def _amounts(line: ReportLine, decimals: Mapping[str, Decimal | None]) -> dict[str, Any]:
    """The amounts of a row, exact, and the costs that follow from them."""
    return {
        "gpu_microseconds": line.gpu_microseconds,
        "estimated_microseconds": line.estimated_microseconds,
        "uncut_microseconds": line.uncut_microseconds,
        "bound_microseconds": line.time_bound,
        "millijoules": line.energy,
        "millijoules_by_method": dict(sorted(line.methods.items())),
        "high_millijoules": line.high,
        "bound_millijoules": line.bound,
        "metered": line.metered,
        "unmetered_gpus": sorted(line.unmetered),
        "time_charges": _charges(line.time_charges, "microseconds"),
        "energy_charges": _charges(line.energy_charges, "millijoules"),
        "unpriced_microseconds": line.unpriced_microseconds,
        "unpriced_millijoules": line.unpriced_millijoules,
        **{name: None if cost is None else f"{cost:f}" for name, cost in decimals.items()},
        **{f"exact_{name}": _text(getattr(line, name)) for name in _MONEY},
        "co2_grams": _text(line.grams),
        "resident_seconds": _text(line.resident),
        "held_seconds": _text(line.held),
        "allocated_seconds": _text(line.allocated),
        "active_seconds": _text(line.active),
        "unknown_seconds": _text(line.unknown),
        "sessions": line.sessions,
    }


def _charges(charges: Charges | None, unit: str) -> list[dict[str, Any]] | None:
    """What is paid for, by Gpu and price; in order, so that equal statements have equal texts."""
    if charges is None:
        return None

    def order(rate: Rate) -> tuple[str, str, Fraction, Fraction]:
        return rate.gpu, rate.entry, Fraction(-1) if rate.price is None else rate.price, rate.pue

    return [
        {
            "gpu": rate.gpu,
            "entry": rate.entry,
            "price": _text(rate.price),
            "pue": _text(rate.pue),
            unit: charges[rate],
        }
        for rate in sorted(charges, key=order)
    ]


def _unbilled(one: UnbilledTime, columns: Sequence[str]) -> dict[str, Any]:
    return {
        "period": one.period,
        **_name(columns, one.key),
        "account": one.account,
        "gpu_microseconds": one.microseconds,
        "time_charges": _charges(one.charges, "microseconds"),
        "unpriced_microseconds": None if one.charges is None else unpriced_amount(one.charges),
        "cost": None if one.cost is None else f"{round_decimal(one.cost, FILE_DIGITS):f}",
        "exact_cost": _text(one.cost),
    }


def _reconciliation(report: UsageReport) -> dict[str, Any]:
    """The lines that add up to all time from the first to the last sight of each Gpu, and to its energy."""
    unbilled = dict.fromkeys((UNOBSERVED, DOWN, UNWATCHED), 0)
    for one in report.unbilled:
        unbilled[one.account] = unbilled.get(one.account, 0) + one.microseconds
    billed = report.total.gpu_microseconds
    known = [gpu.millijoules for gpu in report.gpus if gpu.millijoules is not None]
    return {
        "billed_microseconds": billed,
        **{f"{account}_microseconds": amount for account, amount in unbilled.items()},
        "whole_microseconds": None if billed is None else billed + sum(unbilled.values()),
        "billed_millijoules": report.total.energy,
        "gpu_counter_millijoules": sum(known) if known else None,
    }


def _gpu(gpu: GpuLine, nodes: Mapping[str, str]) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid,
        "gpu": gpu.index,
        "model": gpu.model,
        "node": nodes.get(gpu.uuid, ""),
        "millijoules": gpu.millijoules,
        "observed_seconds": _text(gpu.observed),
        "microseconds_by_account": dict(sorted(gpu.accounts.items())),
        "watched_microseconds": gpu.watched,
        "unwatched_microseconds": gpu.unwatched,
    }


def _text(amount: Fraction | None) -> str | None:
    """An exact amount: `1/30`, or `7200`."""
    return None if amount is None else str(Fraction(amount))
